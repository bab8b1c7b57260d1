// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ranges of the calls under way that have met regions. No region that overlaps one of them is
//! kept.

use rdmamr_sys::atomics::{AtomicU64, Ordering::*};
use rdmamr_sys::pages::PageRange;

const RANGES: usize = if cfg!(any(loom, miri)) { 2 } else { 32 };

/// The ranges. In zeroed memory there is none.
#[repr(C)]
pub struct Noted([(AtomicU64, AtomicU64); RANGES]);

/// The number of a noted range.
#[derive(Debug)]
pub struct Number(usize);

impl Noted {
    /// None, for tests.
    #[cfg(test)]
    pub fn new() -> Noted {
        Noted(core::array::from_fn(|_| {
            (AtomicU64::new(0), AtomicU64::new(0))
        }))
    }

    /// Notes a range. `None` if no place is free. Under the cache's lock.
    pub fn add(&self, range: PageRange) -> Option<Number> {
        let number = self.0.iter().position(|(_, end)| end.load(Acquire) == 0)?;
        let (start, end) = &self.0[number];
        start.store(range.start, Relaxed);
        end.store(range.end, Release);
        Some(Number(number))
    }

    /// Any thread may call this, with or without the lock.
    pub fn remove(&self, Number(number): Number) {
        self.0[number].1.store(0, Release);
    }

    /// Whether a range overlaps a noted one. Under the cache's lock.
    pub fn overlap(&self, range: PageRange) -> bool {
        self.0.iter().any(|(start, end)| {
            let end = end.load(Acquire);
            range.overlaps(PageRange::new(start.load(Relaxed), end))
        })
    }
}
