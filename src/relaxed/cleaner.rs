// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that deregisters what nobody will use again: regions whose memory has changed, that have been
//! idle for long enough, or that the machine needs the memory of. It sleeps while nothing is idle. See
//! `helper_thread.rs` for what it must not do.

use super::ending::{self, By};
use super::pool::{Batch, Cause};
use super::region::{Id, Region};
use super::{Instance, lock};
use crate::helper_thread;
use crate::mr::{Access, bare};
use crate::proc;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*, fence};
use core::time::Duration;

/// What the other threads see of it.
pub struct Cleaner {
    /// 1 while there is something to do. A futex.
    signal: AtomicU32,
    /// 1 while it sleeps without a limit, since nothing is idle.
    dormant: AtomicU32,
    /// The pool's clock: ticks, of now or of a little before.
    clock: AtomicU32,
    /// The length of a tick in ms.
    tick: u32,
    /// For how many ticks a region stays idle, with rights of peers and without.
    remote: u32,
    local: u32,
    /// Whether there is a thread.
    running: AtomicBool,
}

/// A region's linger time is divided in so many ticks.
const TICKS: u32 = 8;

/// An idle machine is looked at this often, in ticks of the default length.
const LOOKS: u32 = 8;

/// For so many ticks nothing must be idle before the cleaner sleeps without a limit: a region that the program
/// takes and releases all the time is found in use now and then.
const PATIENCE: u32 = 8;

/// Rights of peers.
const REMOTE: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// Whether a region with this access can be reached by peers.
pub fn is_remote(access: u32) -> bool {
    Access::from_bits_retain(access).intersects(REMOTE)
}

/// Milliseconds of the monotonic clock.
pub fn now_ms() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

impl Cleaner {
    /// One for these linger times, in ms.
    pub fn new(remote: u64, local: u64) -> Cleaner {
        let tick = (remote.min(local) / u64::from(TICKS)).clamp(5, 125) as u32;
        let ticks = |linger: u64| (linger / u64::from(tick)).min(u64::from(u32::MAX / 4)) as u32;
        Cleaner {
            signal: AtomicU32::new(0),
            dormant: AtomicU32::new(1),
            clock: AtomicU32::new(0),
            tick,
            remote: ticks(remote),
            local: ticks(local),
            running: AtomicBool::new(false),
        }
    }

    /// The time on the pool's clock.
    #[inline(always)]
    pub fn now(&self) -> u32 {
        self.clock.load(Relaxed)
    }

    /// There is a thread.
    pub fn runs(&self) {
        self.running.store(true, Relaxed);
    }

    /// Whether a region with this access may be kept at all: for longer than no time, and by somebody.
    pub fn keeps(&self, access: u32) -> bool {
        let linger = if is_remote(access) {
            self.remote
        } else {
            self.local
        };
        linger > 0 && self.running.load(Relaxed)
    }

    /// Sets the pool's clock, whose ticks are the last digits of what it returns.
    fn set_clock(&self) -> u64 {
        let now = now_ms() / u64::from(self.tick);
        self.clock.store(now as u32, Relaxed);
        now
    }

    /// Whether somebody must call `idle` since a region became idle.
    #[inline(always)]
    pub fn is_dormant(&self) -> bool {
        self.dormant.load(SeqCst) != 0
    }

    /// A region became idle while the cleaner slept.
    #[cold]
    pub fn idle(&self, region: &Region) {
        region.released.store(self.set_clock() as u32, Relaxed);
        self.wake();
    }

    /// There is something to do.
    pub fn wake(&self) {
        if self.signal.swap(1, SeqCst) == 0 {
            lock::wake(&self.signal, 1);
        }
    }

    /// Whether an idle region has been so for long enough, at the latest at the next tick, for a cleaner that is
    /// `awake` since then.
    fn has_lingered(&self, region: &Region, now: u64, awake: u64) -> bool {
        let linger = if is_remote(region.access()) {
            self.remote
        } else {
            self.local
        };
        idle(region.released.load(Relaxed), now, awake) + 1 >= i64::from(linger)
    }
}

/// For how many ticks a region has been idle that was released then, for a cleaner that is `awake` since then.
fn idle(released: u32, now: u64, awake: u64) -> i64 {
    // It may have been released since `now` was.
    let idle = (now as u32).wrapping_sub(released) as i32;
    // Who released it may have read the clock while it still stood; nothing was idle before the cleaner woke.
    i64::from(idle).min((now - awake) as i64)
}

/// Starts the thread; false if there can be none.
pub fn start(relaxed: &'static Instance) -> bool {
    let argument = (&raw const *relaxed).cast_mut();
    // SAFETY: `run` keeps to the rules, and the argument is never freed.
    unsafe { helper_thread::start(run, argument.cast()) }
}

extern "C" fn run(argument: *mut c_void) -> c_int {
    // SAFETY: the argument of `start`.
    let relaxed = unsafe { &*argument.cast::<Instance>() };
    helper_thread::set_name(c"rdmamr-cleaner");
    let (pool, cleaner) = (relaxed.pool, relaxed.cleaner);
    let mut ticks = 0u32;
    let mut busy = PATIENCE;
    let mut awake = None;
    loop {
        cleaner.signal.store(0, SeqCst);
        // The clock, which has stood still, comes first: what is released from now on is not released long ago.
        let now = cleaner.set_clock();
        let awake_since = *awake.get_or_insert(now);
        cleaner.dormant.store(0, SeqCst);
        if pool.changes.is_behind() {
            relaxed.apply(&relaxed.pool.lock(), By::Helper);
        }
        if bare::is_known_fork_protected() {
            // Nothing is kept. What its last user could not end is for another thread of the program, at its next
            // registration: only such a one can give the memory back to children.
            relaxed.has_spent.store(true, Relaxed);
            lock::wait(&cleaner.signal, 0, None);
            continue;
        }
        ending::doomed(relaxed, By::Helper);
        end_all(relaxed, Cause::Linger, |region| {
            region.word.load().is_spent() || cleaner.has_lingered(region, now, awake_since)
        });
        if ticks.is_multiple_of(LOOKS) && is_short_of_memory() {
            end_all(relaxed, Cause::Pressure, |_| true);
        }
        ticks = ticks.wrapping_add(1);
        let idle = || {
            let mut each = pool.each();
            pool.is_ending() || each.any(|(_, region)| region.word.load().is_unused())
        };
        let limit = Duration::from_millis(cleaner.tick.into());
        busy = if idle() { PATIENCE } else { busy - 1 };
        if busy == 0 {
            busy = PATIENCE;
            cleaner.dormant.store(1, SeqCst);
            // Whoever let go of a region before that did not see it; whoever does after this look has seen it.
            fence(SeqCst);
            if !idle() {
                lock::wait(&cleaner.signal, 0, None);
                awake = None;
            }
        } else {
            lock::wait(&cleaner.signal, 0, Some(limit));
        }
    }
}

fn end_all(relaxed: &Instance, cause: Cause, mut which: impl FnMut(&Region) -> bool) {
    let mut from = Some(Id(0));
    while let Some(start) = from {
        let mut batch = Batch::new();
        from = relaxed
            .pool
            .lock()
            .claim_idle(start, &mut batch, cause, &mut which);
        for &id in batch.ids() {
            // What the kernel refuses is tried again at the next tick.
            let _ = ending::end(relaxed, id, By::Helper);
        }
    }
}

/// Whether the machine has less than a thirty-second of its memory left to give.
fn is_short_of_memory() -> bool {
    let (total, available) = proc::memory_kib();
    available < total / 32
}

#[cfg(test)]
mod tests {
    use super::idle;

    #[test]
    fn nothing_is_idle_for_longer_than_the_cleaner_is_awake() {
        let days: u64 = (1 << 33) + 1000;
        assert_eq!(idle(days as u32 + 2, days + 9, days), 7);
        // Released while `now` was read.
        assert_eq!(idle(days as u32 + 10, days + 9, days), -1);
        // By the clock as it stood before the cleaner slept, and before there was a cleaner.
        assert_eq!(idle(days as u32 - 800, days + 9, days), 9);
        assert_eq!(idle(0, days + 9, days + 9), 0);
        // The clock's digits begin anew.
        assert_eq!(idle(u32::MAX, days + 6, 1), 1007);
    }
}
