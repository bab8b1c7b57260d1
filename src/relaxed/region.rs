// SPDX-License-Identifier: MIT OR Apache-2.0
//! A slot of the pool: a region that the kernel has registered, or one more handle of such a region.
//!
//! Slots are never freed, and everything in them is atomic: who looks at one that is just becoming another
//! region's reads nonsense, but no more, and finds out by its word (`word.rs`).

use super::hull::{Range, page_size};
use super::word::{Seen, Word};
use crate::abi::rdma_core::ibv_mr;
use crate::mr::Access;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Words of the `struct ibv_mr` in a slot, with what libibverbs and the providers keep behind it
/// (`mr/object.rs`).
const OBJECT: usize = 9;
/// Which of them are `pd`, `addr` and `length`.
const PD: usize = 1;
const ADDR: usize = 2;
const LENGTH: usize = 3;
const HANDLE_AND_LKEY: usize = 4;

/// Where the object is in its slot: so that all that a hit touches is one line of the processor's cache. With
/// 100 000 regions it is two misses then, the table's and this one, where two lines made it three.
pub const OBJECT_OFFSET: usize = core::mem::offset_of!(Region, object);

/// A slot. All zeros is a free one. Three lines: with a power of two the first ones, which are all that a hit
/// needs, would share a quarter of the cache.
#[repr(C, align(64))]
pub struct Region {
    pub word: Word,
    start: AtomicU64,
    pages: AtomicU32,
    access: AtomicU32,
    /// When the last user let go of it, by the pool's clock.
    pub released: AtomicU32,
    /// Registrations that its own handle has served after the first. Counted without a locked instruction,
    /// since one at a time has the handle.
    hits: AtomicU32,
    /// What C sees.
    object: [AtomicU64; OBJECT],

    /// Of a further handle: the slot of its region, and one more.
    pub owner: AtomicU32,
    /// While the slot is free, or the region is doomed: the next such, and one more.
    pub next: AtomicU32,
    /// Why it was withdrawn from reuse: a `Cause`, and one more.
    pub cause: AtomicU32,
    /// Its device: the address of a `Device`, and the kernel's file.
    pub device: AtomicUsize,
    pub fd: AtomicI32,
    /// The kernel's name for the region.
    pub handle: AtomicU32,
    /// The neighbours in the index's list, and one more.
    pub following: AtomicU32,
    pub preceding: AtomicU32,
    /// Which claim it is that it is ended by.
    pub claim: AtomicU64,
    /// Which link it is that it was made by.
    pub link: AtomicU64,
    /// Whether its memory is of a file, which can be cut; unknown until it is admitted.
    pub of_file: AtomicU32,
    /// Whether userfaultfd watches it.
    pub watched: AtomicU32,
    /// Of a subscription: how many entries another library's cache has there (`subscription.rs`), and how many
    /// of those that it had before will be gone when it has been notified.
    pub entries: AtomicU32,
    pub leaving: AtomicU32,
}
#[cfg(not(loom))]
const _: () = assert!(size_of::<Region>() == 192 && OBJECT_OFFSET + (LENGTH + 1) * 8 == 64);

/// The number of a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Id(pub u32);

/// What a region is registered for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Purpose {
    /// The address of the program's protection domain.
    pub pd: u64,
    pub hull: Range,
    pub access: u32,
    /// A region serves only if hull and access are the same, not if they are more.
    pub exact: bool,
    /// It serves only if nobody uses it.
    pub alone: bool,
}

impl Purpose {
    /// Whether it may share a region with the users that are seen, if there are any.
    #[inline(always)]
    pub fn may_share(&self, seen: Seen) -> bool {
        !self.alone || seen.users() == 0
    }
}

/// In place of a protection domain: the memory is only watched, for another library. No program has a domain at
/// the end of the address space.
pub const WATCHED_ONLY: u64 = u64::MAX;

/// In place of a file of the kernel.
pub const LEFT: i32 = -1;

/// Values of [`Region::of_file`].
pub const UNKNOWN: u32 = 0;
pub const NO: u32 = 1;
pub const YES: u32 = 2;

const LOCAL_WRITE: u32 = Access::LOCAL_WRITE.bits();

impl Region {
    /// Makes it a region for that purpose.
    pub fn set(&self, purpose: &Purpose) {
        self.start.store(purpose.hull.start, Relaxed);
        self.pages.store(purpose.hull.pages() as u32, Relaxed);
        self.object[PD].store(purpose.pd, Relaxed);
        self.access.store(purpose.access, Relaxed);
        // Not the last region's, by which ibv_close_device would find this one.
        self.device.store(0, Relaxed);
        self.cause.store(0, Relaxed);
        self.hits.store(0, Relaxed);
        self.of_file.store(UNKNOWN, Relaxed);
        self.entries.store(0, Relaxed);
        self.leaving.store(0, Relaxed);
    }

    /// Its own handle serves a registration. True where the count begins anew at 0, as it does after an hour of hits.
    #[inline(always)]
    pub fn count_hit(&self) -> bool {
        let hits = self.hits.load(Relaxed).wrapping_add(1);
        self.hits.store(hits, Relaxed);
        hits == 0
    }

    /// How many that were; from now they are counted elsewhere.
    pub fn forget_hits(&self) -> u64 {
        self.hits.swap(0, Relaxed).into()
    }

    /// How many that were.
    pub fn hits(&self) -> u64 {
        self.hits.load(Relaxed).into()
    }

    /// The pages that it covers.
    #[inline(always)]
    pub fn hull(&self) -> Range {
        let start = self.start.load(Relaxed);
        let end = start + u64::from(self.pages.load(Relaxed)) * page_size();
        Range { start, end }
    }

    /// The address of its protection domain.
    #[inline(always)]
    pub fn pd(&self) -> u64 {
        self.object[PD].load(Relaxed)
    }

    /// Its access flags.
    #[inline(always)]
    pub fn access(&self) -> u32 {
        self.access.load(Relaxed)
    }

    /// Its lkey.
    pub fn lkey(&self) -> u32 {
        const _: () = assert!(core::mem::offset_of!(ibv_mr, lkey) == HANDLE_AND_LKEY * 8 + 4);
        let words = self.object[HANDLE_AND_LKEY].load(Relaxed).to_ne_bytes();
        u32::from_ne_bytes([words[4], words[5], words[6], words[7]])
    }

    /// Whether the kernel has registered nothing for it.
    pub fn is_watched_only(&self) -> bool {
        self.pd() == WATCHED_ONLY
    }

    /// Whether its device was closed while somebody used it: the kernel has ended it.
    pub fn is_left(&self) -> bool {
        self.fd.load(Relaxed) == LEFT
    }

    /// Whether it serves that purpose. Rights of peers are neither widened nor narrowed: such a region
    /// serves only its like. Of two that have none, one may have local write where the other asks less.
    #[inline(always)]
    pub fn serves(&self, purpose: &Purpose) -> bool {
        let access = self.access();
        let hull = self.hull();
        self.pd() == purpose.pd
            && if purpose.exact {
                hull == purpose.hull && access == purpose.access
            } else {
                hull.contains(purpose.hull)
                    && (access == purpose.access || access == purpose.access | LOCAL_WRITE)
            }
    }

    /// What C calls the region.
    #[inline(always)]
    pub fn object(&self) -> usize {
        (&raw const *self).expose_provenance() + OBJECT_OFFSET
    }

    /// Writes the program's memory into the object.
    #[inline(always)]
    pub fn set_memory(&self, addr: u64, length: u64) {
        self.object[ADDR].store(addr, Relaxed);
        self.object[LENGTH].store(length, Relaxed);
    }

    /// Makes the object a copy of another slot's.
    pub fn copy_object(&self, from: &Region) {
        for (word, from) in self.object.iter().zip(&from.object) {
            word.store(from.load(Relaxed), Relaxed);
        }
    }
}
