// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory whose pages were lately reported to be about to be dropped. Of all that userfaultfd reports this
//! alone comes before it happens: what is pinned in between is stale, and nothing says so. So it is not
//! kept for a while, which is a bound in time and not a proof. Everything happens under the pool's lock.

use super::hull::Range;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// How many reports are remembered.
const REPORTS: usize = 16;

/// How long a drop that was reported may take to happen, in ms.
const LONGEST: u64 = 1000;

#[repr(C)]
struct Report {
    start: AtomicU64,
    end: AtomicU64,
    /// In ms, and one more; 0 is none.
    time: AtomicU64,
}

impl Report {
    fn range(&self) -> Range {
        Range {
            start: self.start.load(Relaxed),
            end: self.end.load(Relaxed),
        }
    }
}

/// The reports. All zeros is none.
#[repr(C)]
pub struct Dropping {
    /// Whether there ever was one.
    any: AtomicU64,
    reports: [Report; REPORTS],
}

impl Dropping {
    fn reports(&self) -> &[Report] {
        match self.any.load(Relaxed) {
            0 => &[],
            _ => &self.reports,
        }
    }

    /// Pages there are about to be dropped. The oldest report gives way.
    pub fn add(&self, range: Range, now: u64) {
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

    /// An interposed call has changed a range, or is about to: a drop that was reported in it was that call's
    /// own, which writes down a second time when it is over.
    pub fn forget(&self, range: Range) {
        let mut reports = self.reports().iter();
        reports
            .by_ref()
            .filter(|report| range.contains(report.range()))
            .for_each(|report| report.time.store(0, Relaxed));
    }

    /// Whether pages there may still be about to be dropped.
    pub fn is_at(&self, range: Range, now: impl Fn() -> u64) -> bool {
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
            reports: core::array::from_fn(|_| Report {
                start: AtomicU64::new(0),
                end: AtomicU64::new(0),
                time: AtomicU64::new(0),
            }),
        };
        let range = |start, end| Range { start, end };
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
