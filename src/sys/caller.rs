// SPDX-License-Identifier: MIT OR Apache-2.0
//! The caller of an exported function: the address that the call returns to, for the trace.

/// The return address of a call.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Caller(usize);

impl Caller {
    /// The address as a number.
    pub fn address(self) -> usize {
        self.0
    }
}
