// SPDX-License-Identifier: MIT OR Apache-2.0
//! The causes for which a region ends.

/// Why a region is invalidated or deregistered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Cause {
    Flush,
    Watermark,
    Linger,
    Pressure,
    Hook,
    Event,
    Fence,
}

impl Cause {
    const ALL: [Cause; 7] = [
        Cause::Flush,
        Cause::Watermark,
        Cause::Linger,
        Cause::Pressure,
        Cause::Hook,
        Cause::Event,
        Cause::Fence,
    ];

    /// The cause as [`crate::region::slot::CachedRegion::cause`] stores it; 0 means no cause.
    pub fn in_word(self) -> u32 {
        self as u32 + 1
    }

    /// The cause that [`crate::region::slot::CachedRegion::cause`] stores.
    pub(super) fn from_word(state: u32) -> Option<Cause> {
        Cause::ALL.get(state.checked_sub(1)? as usize).copied()
    }
}
