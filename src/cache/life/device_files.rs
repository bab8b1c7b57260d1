// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptor numbers of the devices' files. The kernel ends a region with its device's file,
//! and the next file may get that number: a program closes all numbers when it becomes a daemon, or
//! closes a device's number itself. A cached region whose number means another file must not be
//! deregistered through it.
//!
//! So an interposed call that closes or replaces such a number first has the kernel deregister the
//! idle regions of that file, and the cache forgets those that the program still uses.

use crate::instance::existing;
use crate::life::{ending, flush, owners};
use crate::locked::By;
use crate::region::slot::{Cause, NO_FILE, Slot};
use crate::watch::watch_fd::TABLE;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use rdmamr_sys::seccomp::is_filtered;

/// The numbers through which the cache has registered memory.
pub static DEVICE_FILES: DeviceFiles = DeviceFiles {
    numbers: [const { AtomicU64::new(0) }; WORDS],
    has_more: AtomicBool::new(false),
};

const WORDS: usize = 16;

pub struct DeviceFiles {
    /// A bit for each number.
    numbers: [AtomicU64; WORDS],
    /// Whether there were larger numbers.
    has_more: AtomicBool,
}

impl DeviceFiles {
    /// The kernel has registered a region by this number.
    pub fn add(&self, fd: i32) {
        let (word, bit) = place(fd as u32);
        match self.numbers.get(word) {
            // Each miss comes here, and most find the bit.
            Some(numbers) if numbers.load(Relaxed) & bit != 0 => {}
            Some(numbers) => drop(numbers.fetch_or(bit, Relaxed)),
            None => self.has_more.store(true, Relaxed),
        }
    }

    /// Whether the number may be that of a device.
    #[inline(always)]
    pub fn may_be(&self, fd: i32) -> bool {
        let (word, bit) = place(fd as u32);
        match self.numbers.get(word) {
            Some(numbers) => numbers.load(Relaxed) & bit != 0,
            None => fd >= 0 && self.has_more.load(Relaxed),
        }
    }

    /// A call is about to close or replace the numbers from `first` to `last`.
    #[inline(always)]
    pub fn before_closing(&self, first: u32, last: u32) {
        let is_one = first == last;
        if !is_one || self.may_be(first as i32) {
            self.forget(first, last);
        }
    }

    #[cold]
    #[inline(never)]
    fn forget(&self, first: u32, last: u32) {
        let Some(cache) = existing() else {
            return;
        };
        // Then a filter may kill at the questions that follow. Regions in use end as without the cache.
        if is_filtered() && cache.regions.each_without_users().next().is_none() {
            return;
        }
        // A child of vfork has the memory of its parent, and numbers of its own.
        if !(cache.is_of_this_process() && TABLE.is_here()) {
            return;
        }
        let in_words = first..=last.min(WORDS as u32 * 64 - 1);
        let mut has_any = last as usize >= WORDS * 64 && self.has_more.load(Relaxed);
        for (word, bit) in in_words.map(place) {
            has_any |= self.numbers[word].fetch_and(!bit, Relaxed) & bit != 0;
        }
        if !has_any {
            return;
        }
        let of = &|region: &Slot| {
            let fd = region.fd.load(Relaxed);
            fd != NO_FILE && (first..=last).contains(&(fd as u32))
        };
        // This runs like an interposed memory call (`change.rs`).
        ending::in_call(|| {
            flush::deregister_unused(cache, Cause::Flush, of, By::Restricted);
            ending::deregister_evicted(cache, By::Restricted);
            // Other threads may be ending some of them.
            cache.regions.wait_for_claimed(of);
            owners::invalidate_those(cache, of, By::Restricted, Some(NO_FILE));
        });
    }
}

/// The word and the bit of a number.
#[inline(always)]
fn place(fd: u32) -> (usize, u64) {
    ((fd / 64) as usize, 1 << (fd % 64))
}
