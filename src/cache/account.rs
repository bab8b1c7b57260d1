// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much is registered, and how much of it may be idle.
//!
//! A hit and a release count nothing: two threads that use different regions would then write to
//! the same cache line at each of them. The cleaner sums the idle regions at a tick at which a
//! limit may be exceeded. Until then the account takes it that what was in use still is, and so
//! that whatever is registered beyond that is idle. While this is more than the limit, the cache is
//! *full*: a release ends its region. All changes are made under the cache's lock.

use crate::region::slot::Slot;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::*};

/// The part of a resource that idle regions may hold.
pub const PART: i64 = 8;

/// A number of regions and of bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Amount {
    pub regions: i64,
    pub bytes: i64,
}

impl Amount {
    /// One region.
    pub fn of(region: &Slot) -> Amount {
        Amount {
            regions: 1,
            bytes: region.pinned() as i64,
        }
    }

    pub fn sum<'a>(regions: impl Iterator<Item = &'a Slot>) -> Amount {
        let amounts = regions.map(Amount::of);
        amounts.fold(Amount::default(), Amount::more)
    }

    pub fn fits(self, limit: Amount) -> bool {
        self.regions <= limit.regions && self.bytes <= limit.bytes
    }

    fn more(self, other: Amount) -> Amount {
        Amount {
            regions: self.regions + other.regions,
            bytes: self.bytes + other.bytes,
        }
    }

    pub fn less(self, other: Amount) -> Amount {
        Amount {
            regions: self.regions - other.regions,
            bytes: self.bytes - other.bytes,
        }
    }
}

/// An amount that threads share.
#[repr(C)]
struct SharedAmount {
    regions: AtomicI64,
    bytes: AtomicI64,
}

impl SharedAmount {
    fn get(&self) -> Amount {
        Amount {
            regions: self.regions.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }

    fn set(&self, amount: Amount) {
        self.regions.store(amount.regions, Relaxed);
        self.bytes.store(amount.bytes, Relaxed);
    }
}

/// When the limits were last read.
#[derive(Default)]
pub struct LimitsRead {
    /// CLOCK_MONOTONIC in ns.
    pub at: AtomicU64,
    /// The address of the `Device` whose limits were read.
    pub of: AtomicUsize,
}

/// The account. Zeroed memory is the account of an empty cache that may keep nothing.
///
/// Each release reads the last field. It shares a cache line with other fields that are read as
/// often ([`crate::regions::Regions`]), apart from the fields that each miss writes.
#[repr(C)]
pub struct Account {
    registered: SharedAmount,
    /// How much was in use when the cleaner last looked.
    in_use: SharedAmount,
    limit: SharedAmount,
    /// The most regions that there can be, by the device and the control group.
    most: AtomicI64,
    rest_of_line: [u64; 4],
    full: AtomicBool,
}

#[cfg(not(loom))]
impl Account {
    /// The offset of that cache line.
    pub const LINE: usize = core::mem::offset_of!(Account, full) / 64 * 64;
}

impl Account {
    /// Sets how much may be idle, and the most regions that there can be: of those that are left,
    /// only a part may be idle.
    pub fn set_limit(&self, limit: Amount, most: i64) {
        self.limit.set(limit);
        self.most.store(most, Relaxed);
        self.update_full();
    }

    /// The most regions that there can be.
    pub fn most(&self) -> i64 {
        self.most.load(Relaxed)
    }

    /// How much may be idle.
    pub fn limit(&self) -> Amount {
        let mut limit = self.limit.get();
        let left = self.most() - self.registered().regions;
        limit.regions = limit.regions.min(left / PART);
        limit
    }

    pub fn registered(&self) -> Amount {
        self.registered.get()
    }

    /// Adds a region that is linked.
    pub fn add(&self, region: Amount) {
        self.registered.set(self.registered().more(region));
        self.update_full();
    }

    /// Removes a region that has ended.
    pub fn remove(&self, region: Amount) {
        self.registered.set(self.registered().less(region));
        self.update_full();
    }

    /// Records how much is idle. Returns by how much that exceeds the limit.
    pub fn found_idle(&self, idle: Amount) -> Amount {
        self.in_use.set(self.registered().less(idle));
        self.update_full();
        idle.less(self.limit())
    }

    fn update_full(&self) {
        let (limit, idle) = (self.limit(), self.registered().less(self.in_use.get()));
        let full = limit.regions.min(limit.bytes) <= 0 || !idle.fits(limit);
        if full != self.is_full() {
            self.full.store(full, Relaxed);
        }
    }

    /// Whether a release ends its region.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const REGION: Amount = Amount {
        regions: 1,
        bytes: 10,
    };

    fn account(regions: i64, bytes: i64, most: i64) -> Account {
        // SAFETY: all zeros is an empty account.
        let account: Account = unsafe { core::mem::zeroed() };
        account.set_limit(Amount { regions, bytes }, most);
        account
    }

    fn idle(regions: i64) -> Amount {
        Amount {
            regions,
            bytes: regions * REGION.bytes,
        }
    }

    #[test]
    fn no_more_than_the_limit_is_idle() {
        let account = account(4, 1000, 1000);
        for _ in 0..4 {
            account.add(REGION);
            assert!(!account.is_full(), "all may be idle");
        }
        account.add(REGION);
        assert!(account.is_full(), "for all that is known, five are idle");
        account.remove(REGION);
        assert!(!account.is_full());
        account.add(REGION);
        assert!(account.found_idle(idle(3)).fits(Amount::default()));
        account.add(REGION);
        assert!(!account.is_full(), "two are in use, as the cleaner saw");
        account.add(REGION);
        assert!(account.is_full());
        assert_eq!(account.found_idle(idle(7)).regions, 3);
        assert!(account.is_full());
        account.set_limit(idle(8), 1000);
        assert!(!account.is_full());
        account.set_limit(
            Amount {
                bytes: 69,
                ..idle(8)
            },
            0,
        );
        assert!(account.is_full());
    }

    #[test]
    fn idle_regions_have_a_part_of_what_the_device_has_left() {
        let account = account(1000, 1000, 18);
        account.add(REGION);
        account.add(REGION);
        assert!(!account.is_full(), "two of sixteen");
        account.add(REGION);
        assert!(account.is_full(), "the third leaves fifteen");
        account.found_idle(idle(0));
        assert!(!account.is_full());
    }

    #[test]
    fn nothing_is_idle_if_nothing_may_be() {
        let account = account(0, 1000, 1000);
        account.add(REGION);
        account.found_idle(idle(0));
        assert!(account.is_full());
    }
}
