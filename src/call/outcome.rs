// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a successful call was done.

use crate::abi::rdma_core::ibv_mr;

/// Which part did the work of a successful call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// The library did it by its own call of the kernel.
    Kernel,
    /// libibverbs did it, because the library forwarded the call.
    PassedOn,
    /// The cache had a region that serves, and gave it out.
    Hit,
    /// The cache made a new region, which it may keep.
    Miss,
    /// The cache keeps the region that the program deregistered.
    Kept,
}

/// A region that a call has registered.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    pub mr: *mut ibv_mr,
    pub how: How,
}

impl Registered {
    /// A region that was registered in this way.
    #[inline(always)]
    pub fn by(how: How, mr: *mut ibv_mr) -> Registered {
        Registered { mr, how }
    }
}
