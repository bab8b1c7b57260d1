// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cleaner (`cleaner_thread.rs`), as the other threads see it: the cache's clock, and whether the
//! cleaner sleeps.

use crate::region::slot::{NEVER, Slot};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use rdmamr_policy::is_remote;
use rdmamr_sys::budget::Attempts;
use rdmamr_sys::seccomp::is_filtered;
use rdmamr_sys::{clock, futex};

/// If this many regions wait to be deregistered, the cleaner is woken before its next tick.
pub const MANY: u32 = 256;

/// If the cleaner is behind by this many regions, each registering thread deregisters a share of
/// them itself.
pub const TOO_MANY: u32 = 512;
pub const SHARE: usize = 16;

/// The cleaner, as the other threads see it. Each release reads `dormant` and `clock`.
pub struct Cleaner {
    /// 1 while the cleaner sleeps without a time limit, because no region is idle.
    pub(super) dormant: AtomicU32,
    /// The cache's clock in ticks. It shows the present time, or a time shortly before.
    pub(super) clock: AtomicU32,
    /// 1 while the cleaner has work. A futex.
    pub(super) signal: AtomicU32,
    /// The length of a tick in ms.
    pub(super) tick: u32,
    /// The number of ticks that a region stays idle: a remotely accessible one (`remote`), and any
    /// other (`local`).
    remote: u32,
    local: u32,
    /// The most ticks that a region of a GPU's memory stays idle.
    gpu: u32,
    /// Whether the thread exists.
    pub(super) running: AtomicBool,
    pub(super) starts: Attempts,
    /// Since the last tick a release has ended its region because the cache was full.
    pub(super) was_full: AtomicBool,
}

/// A region's linger time has at least this many ticks. While the cache is full, it has no more.
pub(super) const TICKS: u32 = 8;

/// If the kernel refuses to deregister a region, the cleaner waits 2 ticks before it tries again,
/// then twice as long each time, up to 2 to the power of this number.
const LONGEST_WAIT: u32 = 6;

/// How long a region of a GPU's memory may stay idle, in ms. The GPU's driver keeps memory that was
/// freed as long as a region of it exists, and the program may need it at once. The library hears that
/// an allocation is freed only if the driver unmaps it: on an H200 (driver 580) those of 31 MiB and
/// more, and not those of 16 MiB. A program that registers memory less often than this loses little: a
/// registration took 0.15 ms there.
const LONGEST_OF_GPU: u64 = 500;

impl Cleaner {
    /// A cleaner with these linger times, in ms.
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
            gpu: ticks(LONGEST_OF_GPU),
            running: AtomicBool::new(false),
            starts: Attempts::default(),
            was_full: AtomicBool::new(false),
        }
    }

    /// The time by the cache's clock.
    #[inline(always)]
    pub fn now(&self) -> u32 {
        self.clock.load(Relaxed)
    }

    /// Whether the cache may keep a region with this access at all: its linger time is not 0, and the
    /// cleaner's thread exists.
    pub fn keeps(&self, access: u32) -> bool {
        let linger = if is_remote(access) {
            self.remote
        } else {
            self.local
        };
        linger > 0 && self.running.load(Relaxed)
    }

    /// Sets the cache's clock. Returns the full number of ticks; the clock keeps its lower 32 bits.
    pub(super) fn set_clock(&self) -> u64 {
        let now = clock::monotonic_by_kernel() / (u64::from(self.tick) * 1_000_000);
        self.clock.store(now as u32, Relaxed);
        now
    }

    /// Whether a thread that leaves a region idle must call [`Cleaner::became_idle`].
    #[inline(always)]
    pub fn is_dormant(&self) -> bool {
        self.dormant.load(SeqCst) != 0
    }

    /// Whether no region is idle, as far as that is known without a look at the regions: the
    /// cleaner is dormant, and no thread has left a region idle since.
    pub fn nothing_is_idle(&self) -> bool {
        self.signal.load(SeqCst) == 0 && self.is_dormant()
    }

    /// A region became idle while the cleaner slept without a time limit.
    #[cold]
    pub fn became_idle(&self, region: &Slot) {
        if is_filtered() {
            return;
        }
        region.released.store(self.set_clock() as u32, Relaxed);
        self.wake();
    }

    /// Wakes the cleaner: it has work.
    pub fn wake(&self) {
        if self.signal.swap(1, SeqCst) == 0 && !is_filtered() {
            futex::wake(&self.signal, 1);
        }
    }

    /// Whether the cleaner ends this region without a user now.
    pub(super) fn is_due(&self, region: &Slot, now: u64, awake: u64) -> bool {
        match region.refusals.load(Relaxed) {
            _ if region.has_no_file() => true,
            0 => region.state.load().is_spent() || self.has_lingered(region, now, awake),
            refusals => {
                // The device may be gone, and the kernel then refuses to deregister its regions,
                // which may be many.
                let wait = 1 << refusals.min(LONGEST_WAIT);
                ticks_idle(region.released.load(Relaxed), now, awake) >= wait
            }
        }
    }

    /// Whether a region has lingered for long enough now, or will have by the next tick: an idle one,
    /// or one that ages ([`ages`]). The cleaner has been awake since the tick `awake`.
    pub(super) fn has_lingered(&self, region: &Slot, now: u64, awake: u64) -> bool {
        let (since, linger) = if is_remote(region.access()) {
            (first_released(region), self.remote)
        } else {
            (region.released.load(Relaxed), self.local)
        };
        let linger = if region.is_of_gpu() {
            linger.min(self.gpu)
        } else {
            linger
        };
        ticks_idle(since, now, awake) + 1 >= i64::from(linger)
    }
}

/// Whether the age of a region counts while it is in use too. A peer that had the key for the first
/// use could keep it for as long as the program registers the memory again: so the age of a remotely
/// accessible region counts from its first release. A hit takes no part in this.
pub(super) fn ages(region: &Slot) -> bool {
    let seen = region.state.load();
    seen.is_live()
        && !seen.is_stale()
        && is_remote(region.access())
        && region.released.load(Relaxed) != NEVER
}

/// When a region was first released. The cleaner looks at each tick, and until its next look all
/// releases have the tick of this one: so the first time that the cleaner finds is the first.
fn first_released(region: &Slot) -> u32 {
    let (first, last) = (&region.first_released, region.released.load(Relaxed));
    match first.load(Relaxed) {
        NEVER => {
            first.store(last, Relaxed);
            last
        }
        first => first,
    }
}

/// Returns the number of ticks that a region has been idle. It was released at the tick `released`.
/// The cleaner has been awake since the tick `awake`.
pub(super) fn ticks_idle(released: u32, now: u64, awake: u64) -> i64 {
    // A thread may have released the region after `now` was read.
    let idle = (now as u32).wrapping_sub(released) as i32;
    // The releasing thread may have read the clock while the clock stood still. No region was idle
    // before the cleaner woke.
    i64::from(idle).min((now - awake) as i64)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Cleaner, ages, ticks_idle};
    use crate::region::slot::Domain;
    use crate::region::slot::Slot;
    use core::sync::atomic::Ordering::Relaxed;
    use rdmamr_sys::pages::{PageRange, page_size};

    /// IBV_ACCESS_LOCAL_WRITE, with and without IBV_ACCESS_REMOTE_WRITE.
    const REMOTE: u32 = 3;
    const LOCAL: u32 = 1;

    #[test]
    fn a_remote_region_ages_from_its_first_release() {
        let cleaner = Cleaner::new(1000, 2000);
        let ticks = u64::from(cleaner.remote);
        // SAFETY: all zeros is a slot that was never used.
        let region: Slot = unsafe { core::mem::zeroed() };
        for access in [LOCAL, REMOTE] {
            let page_range = PageRange::new(page_size(), 2 * page_size());
            region.set(page_range, Domain::new(8, 16, 1), access);
            region.state.make();
            assert!(region.state.keep() && !ages(&region));
            // Registered and released again at each tick, and in use whenever the cleaner looks.
            let first = 1000;
            for now in first..first + 3 * ticks {
                region.released.store(now as u32, Relaxed);
                assert_eq!(ages(&region), access == REMOTE);
                let has_lingered = cleaner.has_lingered(&region, now, 1);
                let has_aged = access == REMOTE && now + 1 >= first + ticks;
                assert_eq!(has_lingered, has_aged, "{access} {now}");
            }
            assert!(region.state.invalidate() && !ages(&region));
            region.state.free();
        }
    }

    #[test]
    fn nothing_is_idle_for_longer_than_the_cleaner_is_awake() {
        let days: u64 = (1 << 33) + 1000;
        assert_eq!(ticks_idle(days as u32 + 2, days + 9, days), 7);
        // A thread released the region while `now` was read.
        assert_eq!(ticks_idle(days as u32 + 10, days + 9, days), -1);
        // The clock still showed the time before the cleaner slept, or the time before the cleaner
        // existed.
        assert_eq!(ticks_idle(days as u32 - 800, days + 9, days), 9);
        assert_eq!(ticks_idle(0, days + 9, days + 9), 0);
        // The lower 32 bits of the clock wrap around.
        assert_eq!(ticks_idle(u32::MAX, days + 6, 1), 1007);
    }
}
