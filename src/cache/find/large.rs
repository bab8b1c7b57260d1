// SPDX-License-Identifier: MIT OR Apache-2.0
//! An array that is worth huge pages once a large part of it is in use. With 100 000 regions in
//! random order a hit took 98 ns while the table was in small pages, and 37 ns once it too was in
//! huge ones.

use crate::cache::place;
use crate::sys::process::PAGE_SIZE;
use core::ops::Deref;

pub const HUGE_PAGE: usize = 2 << 20;

/// Begins at a multiple of 2 MiB. Its user fills it from the start, and maps it before
/// ([`place`]).
#[repr(C)]
#[cfg_attr(not(test), repr(align(0x20_0000)))]
pub struct Large<T>(T);

impl<T> Large<T> {
    /// Maps a part of the array, in huge pages as far as they fit.
    pub fn map(&self, from: usize, to: usize) -> bool {
        place::map(&raw const self.0, from, to, to - from >= HUGE_PAGE)
    }

    /// The bytes that the first mapping of the array has, and each later one if `mapped` are: a few
    /// at first, and huge pages once the array is large.
    pub const fn next_size(mapped: usize) -> usize {
        const FIRST: usize = 64 << 10;
        const MOST: usize = HUGE_PAGE;
        let all = size_of::<T>().next_multiple_of(PAGE_SIZE);
        let more = if mapped < FIRST {
            FIRST
        } else if mapped < MOST {
            mapped
        } else {
            MOST
        };
        if mapped + more < all {
            mapped + more
        } else {
            all
        }
    }
}

impl<T> Deref for Large<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
