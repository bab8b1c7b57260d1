// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits on the idle regions by the resources that others need too: memory, the objects that the
//! rdma cgroup allows, the regions that a device has.
//!
//! The settings are the upper limit. In addition, idle regions hold at most an eighth of the memory
//! that the machine or the cgroup has, and their number is at most an eighth of the number that the
//! cgroup and the device have left. Other processes change that number, too. So the limits are read
//! after the first region of a device, again each second while a region is idle, whenever the
//! number of regions has doubled (at 16 for the first time), and while the cache is at its limit.

use crate::layout::Regions;
use crate::life::account::Amount;
use crate::life::limits_reader::LimitsReader;
use core::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::*};
use rdmamr_mr::kernel_mr::Direct;
use rdmamr_next::Pd;
use rdmamr_sys::{cgroup, clock, proc};

/// The part of a resource that idle regions may hold.
pub const PART: i64 = 8;

/// The most devices whose limits are known. Further devices share the limits of these.
const DEVICES: usize = 16;

/// The least number of regions at which the limits are read again: to read them takes as long as
/// a registration.
const SOME: i64 = 16;

/// The number of regions that need no limit but the settings: a thread that makes more waits a
/// moment for the limits reader's first answer. A control group may allow ten objects.
const FEW: i64 = 3;

/// How old the limits may become while regions are idle, and while the cache is at its limit, in
/// ns.
pub const SECOND: u64 = 1_000_000_000;
pub const MOMENT: u64 = 100_000_000;

/// The sources of the limits.
pub struct Limits {
    settings: Amount,
    /// The settings limit the bytes.
    has_bytes: bool,
    devices: [Known; DEVICES],
    /// The number of registered regions at which the limits are read again.
    next: AtomicI64,
    /// When the limits were last read: CLOCK_MONOTONIC in ns.
    read_at: AtomicU64,
}

/// A device that the cache has registered memory on.
struct Known {
    /// The address of the `Device`; 0 if there is none.
    device: AtomicUsize,
    /// The most regions that the device can have; 0 if that is not known.
    most: AtomicI64,
    /// The kernel's name of the device.
    name: [AtomicU64; NAME / 8],
}

const NAME: usize = 64;

impl Known {
    const fn nothing() -> Known {
        Known {
            device: AtomicUsize::new(0),
            most: AtomicI64::new(0),
            name: [const { AtomicU64::new(0) }; NAME / 8],
        }
    }

    fn set_name(&self, name: &[u8; NAME]) {
        for (word, bytes) in self.name.iter().zip(name.chunks_exact(8)) {
            word.store(bytes.try_into().map_or(0, u64::from_ne_bytes), Relaxed);
        }
    }

    /// How many more regions the device may get, besides `registered` regions of the cache.
    fn left(&self, registered: i64) -> Option<i64> {
        let mut name = [0; NAME];
        for (word, bytes) in self.name.iter().zip(name.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
        }
        let length = name.iter().position(|&byte| byte == 0).unwrap_or(NAME);
        let objects =
            cgroup::objects_left(&name[..length]).map(|left| left.min(i64::MAX as u64) as i64);
        let most = Some(self.most.load(Relaxed)).filter(|&most| most > 0);
        let regions = most.map(|most| (most - registered).max(0));
        objects.into_iter().chain(regions).min()
    }
}

impl Limits {
    /// The limits by the settings alone, of [`settings`].
    pub fn new((settings, has_bytes): (Amount, bool)) -> Limits {
        Limits {
            settings,
            has_bytes,
            devices: [const { Known::nothing() }; DEVICES],
            next: AtomicI64::new(0),
            read_at: AtomicU64::new(0),
        }
    }

    fn knows(&self, device: usize) -> bool {
        let devices = self.devices.iter().map(|known| known.device.load(Relaxed));
        let mut known = devices.take_while(|&known| known != 0);
        known.any(|known| known == device)
    }

    fn is_full(&self) -> bool {
        let mut devices = self.devices.iter();
        devices.all(|known| !matches!(known.device.load(Relaxed), 0 | usize::MAX))
    }

    /// How much may be idle, apart from the limits of devices.
    fn without_devices(&self) -> Amount {
        let mut limit = self.settings;
        if !self.has_bytes {
            let (total, _) = proc::memory_kib();
            let memory = (total * 1024).min(cgroup::memory_limit().unwrap_or(u64::MAX));
            limit.bytes = limit.bytes.min((memory / PART as u64) as i64);
        }
        limit
    }

    /// A device is about to be closed. Another device may get its place and its address.
    pub fn forget(&self, device: usize) {
        for known in &self.devices {
            if known.device.load(Relaxed) == device {
                // Not 0, because a search ends there.
                known.device.store(usize::MAX, Relaxed);
            }
        }
    }
}

impl Limits {
    /// The number of regions is about to grow by one of this device.
    #[inline(never)]
    pub fn mind(&self, regions: &Regions, limits_reader: &LimitsReader, direct: &Direct, pd: Pd) {
        if !self.knows(direct.address()) {
            self.learn(regions, limits_reader, direct, pd);
        }
        let registered = regions.account.registered().regions;
        if registered >= self.next.load(Relaxed) {
            limits_reader.ask_and_wait();
        } else if registered >= FEW && !limits_reader.has_answered() {
            limits_reader.wait();
        }
    }

    /// Remembers a device, unless too many are known, and has the limits reader read the limits. To
    /// wait for that would take as long as several registrations. Until then the earlier limits
    /// hold (at first the settings), and the device's own number.
    #[cold]
    #[inline(never)]
    fn learn(&self, regions: &Regions, limits_reader: &LimitsReader, direct: &Direct, pd: Pd) {
        if self.is_full() {
            return;
        }
        let device = direct.address();
        let most = direct.most_regions().unwrap_or(0);
        let name = pd.device_name().unwrap_or([0; NAME]);
        // The cache's lock keeps two threads from taking the same place.
        let Some(locked) = regions.lock_of_program() else {
            return;
        };
        let mut free = self.devices.iter();
        let free = free.find(|known| matches!(known.device.load(Relaxed), 0 | usize::MAX));
        if let Some(known) = free.filter(|_| !self.knows(device)) {
            known.most.store(most.into(), Relaxed);
            known.set_name(&name);
            known.device.store(device, Relaxed);
        }
        let account = &regions.account;
        let is_first = self.next.load(Relaxed) == 0;
        let mut limit = if is_first {
            self.next.store(SOME, Relaxed);
            self.settings
        } else {
            account.limit()
        };
        let most = i64::from(most);
        if most > 0 {
            limit.regions = limit.regions.min(most / PART);
        }
        account.set_limit(limit);
        drop(locked);
        // Set after the device is known: a reading that did not know the device is too old.
        self.read_at.store(0, Release);
        limits_reader.ask();
    }

    /// Reads the limits, and sets the account's limit by them. This opens files, so the limits
    /// reader alone calls it.
    pub fn read(&self, regions: &Regions) {
        self.read_at.store(clock::monotonic_by_kernel(), Relaxed);
        let account = &regions.account;
        let mut limit = self.without_devices();
        let registered = account.registered().regions;
        self.next.store((registered * 2).max(SOME), Relaxed);
        for known in &self.devices {
            if !matches!(known.device.load(Relaxed), 0 | usize::MAX) {
                if let Some(left) = known.left(registered) {
                    limit.regions = limit.regions.min(left / PART);
                }
            }
        }
        // This is a helper thread, so it takes the lock as an interposed call does.
        if let Some(_locked) = regions.lock_in_call() {
            account.set_limit(limit);
        }
    }

    /// Asks the limits reader to read the limits, unless it was asked less than `age` ns ago.
    pub fn read_old(&self, limits_reader: &LimitsReader, age: u64) {
        if self.are_as_old_as(age) {
            let now = clock::monotonic_by_kernel();
            self.read_at.store(now, Relaxed);
            limits_reader.ask();
        }
    }

    /// Whether the limits were read at least `age` ns ago.
    pub fn are_as_old_as(&self, age: u64) -> bool {
        let read_at = self.read_at.load(Relaxed);
        clock::monotonic_by_kernel().wrapping_sub(read_at) >= age
    }
}

/// How many bytes the process may pin. `None` if no limit applies.
pub fn may_pin() -> Option<u64> {
    proc::memlock_limit().filter(|_| !proc::may_lock())
}

/// How much may be idle by the settings, and whether they limit the bytes. Without a setting for
/// bytes, the limit is half of `may_pin`, the bytes that the process may pin.
pub fn settings(may_pin: Option<u64>) -> (Amount, bool) {
    let cache = rdmamr_config::cache();
    let signed = |amount: u64| amount.min(i64::MAX as u64) as i64;
    let half = || may_pin.map_or(u64::MAX, |limit| limit / 2);
    let settings = Amount {
        regions: signed(cache.max_idle),
        bytes: signed(cache.max_idle_bytes.unwrap_or_else(half)),
    };
    (settings, cache.max_idle_bytes.is_some())
}
