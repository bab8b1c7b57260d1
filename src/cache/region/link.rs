// SPDX-License-Identifier: MIT OR Apache-2.0
//! The number of a slot, and links from slot to slot.

use core::sync::atomic::{AtomicU32, Ordering::*};

/// The number of a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Id(pub u32);

/// The number of a slot, or none. It is stored as the number plus one, so that zeroed memory links
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link(u32);

impl Link {
    pub const NONE: Link = Link(0);

    #[inline(always)]
    pub fn to(id: Id) -> Link {
        Link(id.0 + 1)
    }

    #[inline(always)]
    pub fn id(self) -> Option<Id> {
        self.0.checked_sub(1).map(Id)
    }

    /// The link as a bit field of a larger word.
    #[inline(always)]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The link that `bits` gave.
    #[inline(always)]
    pub fn from_bits(bits: u32) -> Link {
        Link(bits)
    }
}

/// A link that threads share. Its accesses are relaxed: another atomic orders them.
#[repr(transparent)]
pub struct AtomicLink(AtomicU32);

impl AtomicLink {
    #[inline(always)]
    pub fn load(&self) -> Link {
        Link(self.0.load(Relaxed))
    }

    #[inline(always)]
    pub fn store(&self, link: Link) {
        self.0.store(link.0, Relaxed);
    }
}
