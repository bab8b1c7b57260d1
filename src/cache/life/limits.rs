// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits on the idle regions by the resources that others need too: memory, the objects that the
//! rdma cgroup allows, the regions that a device has.
//!
//! The settings are the upper limit. Without a setting for bytes, idle regions hold at most an eighth
//! of the memory that the machine or the cgroup has; they never hold more than the machine has
//! available. Their number is at most an eighth of the number that the cgroup and the device have
//! left. A registration that makes a region reads all this each second, because only then can more
//! become idle. To read it takes as long as some registrations, so a process with few regions does
//! without. The cache's threads do not read it: a file that they open takes the lowest free number of
//! the program's descriptors for a moment, and a program may rely on that number (`close(0);
//! open(...)` returns 0).

use crate::account::{Amount, PART};
use crate::instance::Cache;
use crate::locked::By;
use core::sync::atomic::{AtomicU64, Ordering::*};
use rdmamr_mr::kernel_mr::Direct;
use rdmamr_next::{Context, Pd};
use rdmamr_sys::{aside, cgroup, clock, proc};

/// So few regions need no limit but the settings. (A control group may allow ten objects.)
const FEW: Amount = Amount {
    regions: 2,
    bytes: 64 << 20,
};

/// How old the limits may become, in ns.
const SECOND: u64 = 1_000_000_000;

impl Cache {
    /// The number of regions is about to grow by one of this device. Reads the limits if they are
    /// old.
    #[inline(never)]
    pub fn mind_limits(&self, direct: &Direct, pd: Pd) {
        let last = &self.limits_read.at;
        let (now, read_at) = (clock::monotonic(), last.load(Relaxed));
        let few = self.regions.account.registered().fits(FEW);
        if few || now.saturating_sub(read_at) < SECOND {
            return;
        }
        // One thread reads them. The others go on with the earlier limits.
        let takes = |at: &AtomicU64| at.compare_exchange(read_at, now, Relaxed, Relaxed);
        if takes(last).is_ok() {
            let _ = aside::run(|| self.read_limits(direct, pd));
        }
    }

    #[cold]
    fn read_limits(&self, direct: &Direct, pd: Pd) {
        let (regions, may_pin) = (self.regions, may_pin());
        self.spare.store(spare(may_pin), Relaxed);
        let name = pd.device().map_or([0; 64], Context::name);
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let left = cgroup::objects_left(name).map_or(NO_LIMIT, signed);
        let of_device = direct.most_regions().map_or(NO_LIMIT, i64::from);
        let (Some(limit), Some(_locked)) = (of_process(may_pin), regions.lock_by(By::Program))
        else {
            return;
        };
        let account = &regions.account;
        let mut most = of_device.min(left + account.registered().regions);
        // If registrations alternate between devices, the narrowest limit holds.
        if self.limits_read.of.swap(direct.address(), Relaxed) != direct.address() {
            most = most.min(account.most());
        }
        account.set_limit(limit, most);
    }
}

/// Far from an overflow of sums.
pub const NO_LIMIT: i64 = i64::MAX / 8;

fn signed(amount: u64) -> i64 {
    amount.min(NO_LIMIT as u64) as i64
}

/// How many bytes the process may pin. `None` if no limit applies.
pub fn may_pin() -> Option<u64> {
    proc::memlock_limit().filter(|_| !proc::may_lock())
}

/// The most bytes that a region may have beyond the pages of a local registration that it serves. If
/// a limit applies, the program can pin as much with the cache as without it: none.
pub fn spare(may_pin: Option<u64>) -> u64 {
    may_pin.map_or(rdmamr_policy::spare(0), |_| 0)
}

/// How much may be idle by the settings. Without a setting for bytes, the limit is half of the bytes
/// that the process may pin.
pub fn of_settings(may_pin: Option<u64>) -> Amount {
    let cache = rdmamr_config::cache();
    let half = || may_pin.map_or(u64::MAX, |limit| limit / 2);
    Amount {
        regions: signed(cache.max_idle),
        bytes: signed(cache.max_idle_bytes.unwrap_or_else(half)),
    }
}

/// How much may be idle by the settings and by the memory that there is. `None` if the memory is not
/// known.
fn of_process(may_pin: Option<u64>) -> Option<Amount> {
    let mut limit = of_settings(may_pin);
    let [total, available] = proc::memory_kib([b"MemTotal:", b"MemAvailable:"]);
    limit.bytes = limit.bytes.min(signed(available * 1024));
    if rdmamr_config::cache().max_idle_bytes.is_none() {
        let memory = (total * 1024).min(cgroup::memory_limit().unwrap_or(u64::MAX));
        limit.bytes = limit.bytes.min(signed(memory) / PART);
    }
    (total > 0).then_some(limit)
}
