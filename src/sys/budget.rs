// SPDX-License-Identifier: MIT OR Apache-2.0
//! When work may be done again: attempts that fail, work that is done a number of times a second, and a
//! budget of time for work whose length the library does not control, such as reading all mappings
//! (about 0.3 us for each): the work may take a tenth of the time.

use crate::clock;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// Attempts at what one thread does at a time: the first at once, the next ones a second after one that
/// failed for now.
#[derive(Default)]
pub struct Attempts {
    /// The time of the next attempt: CLOCK_MONOTONIC in ns. `NEVER` during one, and after the last.
    next: AtomicU64,
}

impl Attempts {
    const NEVER: u64 = u64::MAX;

    /// The first attempt may begin at once.
    pub const fn new() -> Attempts {
        Attempts {
            next: AtomicU64::new(0),
        }
    }

    /// Whether the caller is to make an attempt now.
    pub fn begin(&self) -> bool {
        let next = self.next.load(Relaxed);
        let takes = || (self.next).compare_exchange(next, Self::NEVER, Relaxed, Relaxed);
        clock::monotonic() >= next && takes().is_ok()
    }

    /// The attempt has failed, and another one may succeed.
    pub fn failed_for_now(&self) {
        const SECOND: u64 = 1_000_000_000;
        self.next.store(clock::monotonic() + SECOND, Relaxed);
    }
}

/// Work that is done ten times a second at most, and ten times at once after a pause.
#[derive(Default)]
pub struct TenASecond {
    /// The time at which all work so far is paid for: CLOCK_MONOTONIC in ns.
    paid: AtomicU64,
}

impl TenASecond {
    const EACH: u64 = 100_000_000;

    /// No work yet.
    pub const fn new() -> TenASecond {
        TenASecond {
            paid: AtomicU64::new(0),
        }
    }

    /// Whether the caller may do the work now.
    pub fn may(&self, now: u64) -> bool {
        let pay = |paid: u64| {
            let next = paid.max(now) + Self::EACH;
            (next <= now + 10 * Self::EACH).then_some(next)
        };
        self.paid.fetch_update(Relaxed, Relaxed, pay).is_ok()
    }
}

/// The budget. After a pause the work may take `AT_ONCE` ns before it must wait.
#[derive(Default)]
pub struct Budget<const AT_ONCE: u64> {
    /// The time from which on the work may be done: CLOCK_MONOTONIC in ns.
    next: AtomicU64,
}

impl<const AT_ONCE: u64> Budget<AT_ONCE> {
    const PART: u64 = 10;

    /// How long a thread that never returns from the work excludes the others, in ns.
    const LONGEST: u64 = 1_000_000_000;

    /// Does the work, if it may be done now and no other thread is doing it.
    pub fn within<R>(&self, now: impl Fn() -> u64, work: impl FnOnce() -> R) -> Option<R> {
        let (start, next) = (now(), self.next.load(Relaxed));
        let taken = start + Self::LONGEST;
        let takes = || (self.next).compare_exchange(next, taken, Relaxed, Relaxed);
        if start < next || takes().is_err() {
            return None;
        }
        let result = work();
        let end = now();
        let next = next.max(end.saturating_sub(AT_ONCE * Self::PART));
        let spent = Self::PART * end.saturating_sub(start);
        self.next.store(next + spent, Relaxed);
        Some(result)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::cell::Cell;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn work_takes_a_tenth_of_the_time() {
        let budget = Budget::<{ SECOND / 10 }>::default();
        let (read, now, mut reads) = (1_000_000, Cell::new(5 * SECOND), 0);
        let end = now.get() + 3 * SECOND;
        while now.get() < end {
            let work = || now.set(now.get() + read);
            reads += usize::from(budget.within(|| now.get(), work).is_some());
            now.set(now.get() + read / 10);
        }
        // 100 ms at once, and 100 ms of each second after that.
        assert!((350..450).contains(&reads), "{reads}");
    }

    #[test]
    fn ten_at_once_and_ten_a_second() {
        let work = TenASecond::new();
        let count = |from: u64, to: u64| {
            (from..to)
                .step_by(1_000_000)
                .filter(|&now| work.may(now))
                .count()
        };
        assert_eq!(count(5 * SECOND, 5 * SECOND + SECOND / 20), 10);
        assert_eq!(count(6 * SECOND, 16 * SECOND), 109);
    }

    #[test]
    fn one_at_a_time_and_nothing_at_once() {
        let budget = Budget::<0>::default();
        let time = Cell::new(5 * SECOND);
        let now = || time.get();
        let work = || {
            assert!(budget.within(now, || ()).is_none(), "another does it");
            time.set(time.get() + 100);
        };
        assert!(budget.within(now, work).is_some());
        // The pause is ten times as long as the work, from its end on.
        time.set(time.get() + 999);
        assert!(budget.within(now, || ()).is_none());
        time.set(time.get() + 1);
        assert!(budget.within(now, work).is_some());
    }
}
