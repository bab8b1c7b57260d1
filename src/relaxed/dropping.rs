// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory whose pages userfaultfd recently reported as about to be dropped. Of all its events only
//! this one comes before the change. A region that is pinned between the event and the drop is
//! stale, and no event says so. Such a region is therefore not kept for a while, which is a bound
//! in time and not a proof. Everything here runs under the pool's lock.

use crate::sys::pages::PageRange;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// How many reports are remembered.
const REPORTS: usize = 16;

/// How long after its report a drop may happen, in ms.
const LONGEST: u64 = 1000;

#[repr(C)]
struct DropReport {
    start: AtomicU64,
    end: AtomicU64,
    /// The time in ms, plus one; 0 means that there is no report.
    time: AtomicU64,
}

impl DropReport {
    fn range(&self) -> PageRange {
        PageRange {
            start: self.start.load(Relaxed),
            end: self.end.load(Relaxed),
        }
    }
}

/// The reports. Zeroed memory holds none.
#[repr(C)]
pub struct Dropping {
    /// Whether any report was ever added.
    any: AtomicU64,
    reports: [DropReport; REPORTS],
}

impl Dropping {
    fn reports(&self) -> &[DropReport] {
        match self.any.load(Relaxed) {
            0 => &[],
            _ => &self.reports,
        }
    }

    /// Adds a report that pages of this range are about to be dropped. It replaces the oldest
    /// report.
    pub fn add(&self, range: PageRange, now: u64) {
        let oldest = self
            .reports
            .iter()
            .min_by_key(|report| report.time.load(Relaxed));
        if let Some(report) = oldest {
            report.start.store(range.start, Relaxed);
            report.end.store(range.end, Relaxed);
            report.time.store(now + 1, Relaxed);
            self.any.store(1, Relaxed);
        }
    }

    /// Forgets the reports within a range that an interposed call has changed or is about to
    /// change. That call itself made these drops, and it writes a second record in the log when it
    /// is over.
    pub fn forget(&self, range: PageRange) {
        let mut reports = self.reports().iter();
        reports
            .by_ref()
            .filter(|report| range.contains(report.range()))
            .for_each(|report| report.time.store(0, Relaxed));
    }

    /// Whether pages of this range may still be about to be dropped.
    pub fn is_at(&self, range: PageRange, now: impl Fn() -> u64) -> bool {
        self.reports().iter().any(|report| {
            let time = report.time.load(Relaxed);
            time != 0 && report.range().overlaps(range) && now() < time + LONGEST
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn for_a_while() {
        let dropping = Dropping {
            any: AtomicU64::new(0),
            reports: core::array::from_fn(|_| DropReport {
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
                time: AtomicU64::new(0),
            }),
        };
        let range = |start, end| PageRange { start, end };
        assert!(!dropping.is_at(range(0, 100), || 0));
        dropping.add(range(10, 20), 5000);
        assert!(dropping.is_at(range(19, 30), || 5000 + LONGEST));
        assert!(!dropping.is_at(range(19, 30), || 5001 + LONGEST));
        assert!(!dropping.is_at(range(20, 30), || 5000));
        dropping.forget(range(10, 19));
        assert!(dropping.is_at(range(10, 11), || 5000));
        dropping.forget(range(0, 20));
        assert!(!dropping.is_at(range(10, 11), || 5000));
    }
}
