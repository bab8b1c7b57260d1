// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory whose pages userfaultfd recently reported as about to be dropped. No other event of
//! userfaultfd comes before its change. A region that is pinned between the event and the drop
//! becomes stale without an event. So for a while the cache keeps no region of such memory, which
//! is a bound in time and not a proof. (An interposed madvise has such an event only if the cache had
//! no region there when the call began: otherwise its hook stops watching the memory first.) Everything here runs under the cache's lock.

use core::sync::atomic::{AtomicU64, Ordering::*};
use rdmamr_sys::pages::PageRange;

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
        PageRange::new(self.start.load(Relaxed), self.end.load(Relaxed))
    }

    fn set(&self, range: PageRange, now: u64) {
        self.start.store(range.start, Relaxed);
        self.end.store(range.end, Relaxed);
        self.time.store(now + 1, Relaxed);
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

    /// Adds a report that pages of this range are about to be dropped. If no place is free, the new
    /// report is merged with the nearest one: too much memory then counts as about to be dropped,
    /// never too little.
    pub fn add(&self, range: PageRange, now: u64) {
        self.any.store(1, Relaxed);
        let is_free = |report: &&DropReport| {
            let time = report.time.load(Relaxed);
            time == 0 || now >= time + LONGEST
        };
        let distance = |report: &&DropReport| {
            let other = report.range();
            let above = other.start.saturating_sub(range.end);
            above.max(range.start.saturating_sub(other.end))
        };
        if let Some(report) = self.reports.iter().find(is_free) {
            report.set(range, now);
        } else if let Some(report) = self.reports.iter().min_by_key(distance) {
            let other = report.range();
            let both = other.joined_with(range);
            report.set(both, now);
        }
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
    }

    #[test]
    fn none_is_forgotten_before_its_time() {
        // SAFETY: all zeros holds no report.
        let dropping: Dropping = unsafe { core::mem::zeroed() };
        let range = |n: u64| PageRange::new(n * 100, n * 100 + 10);
        let many = 3 * REPORTS as u64;
        (0..many).for_each(|n| dropping.add(range(n), 5000));
        assert!((0..many).all(|n| dropping.is_at(range(n), || 5000 + LONGEST)));
        dropping.add(range(1000), 5001 + LONGEST);
        assert!(!dropping.is_at(range(0), || 5001 + LONGEST));
        assert!(dropping.is_at(range(1000), || 5001 + LONGEST));
        // It replaced an expired report, and was not merged with it.
        assert!(!dropping.is_at(range(500), || 5001 + LONGEST));
    }
}
