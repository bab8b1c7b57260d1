// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much is registered, and how much of it may be idle.
//!
//! The idle regions are not counted at each change: two threads that use different regions would
//! then write to the same cache line at every hit. While all registered regions together are within
//! the limit, the idle ones are too. Beyond the limit a thread counts them, and stores how much
//! more may become idle before the next count.

use crate::sys::pages::PageRange;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// A number of regions and of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Amount {
    pub regions: u64,
    pub bytes: u64,
}

impl Amount {
    fn fits(self, limit: Amount) -> bool {
        self.regions <= limit.regions && self.bytes <= limit.bytes
    }
}

/// An amount that threads share.
#[repr(C)]
struct SharedAmount {
    regions: AtomicU64,
    bytes: AtomicU64,
}

impl SharedAmount {
    #[inline(always)]
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

/// The account. Zeroed memory is the account of an empty pool that may keep nothing.
#[repr(C)]
pub struct Account {
    registered: SharedAmount,
    /// How much may be idle. Set once.
    limit: SharedAmount,
    /// How much more may become idle. Meaningless while everything registered is within the limit.
    spare: SharedAmount,
}

impl Account {
    /// Sets how much may be idle.
    pub fn set_limit(&self, limit: Amount) {
        self.limit.set(limit);
    }

    /// How much may be idle.
    pub fn limit(&self) -> Amount {
        self.limit.get()
    }

    #[inline(always)]
    fn all_fits(&self) -> bool {
        self.registered.get().fits(self.limit.get())
    }

    /// Adds a region that is linked. Under the pool's lock.
    pub fn add(&self, range: PageRange) {
        let fitted = self.all_fits();
        let before = self.registered.get();
        self.registered.set(Amount {
            regions: before.regions + 1,
            bytes: before.bytes + range.bytes(),
        });
        if fitted && !self.all_fits() {
            // Idle regions have not been counted until now.
            self.spare.set(Amount {
                regions: 0,
                bytes: 0,
            });
        }
    }

    /// Removes a region that has ended. Under the pool's lock.
    pub fn remove(&self, range: PageRange) {
        let before = self.registered.get();
        self.registered.set(Amount {
            regions: before.regions - 1,
            bytes: before.bytes - range.bytes(),
        });
    }

    /// Whether one more region may be idle. Called when that region has become idle. False means
    /// that the idle regions must be counted.
    #[inline(always)]
    pub fn may_be_idle(&self, range: impl FnOnce() -> PageRange) -> bool {
        self.all_fits() || self.spend(range())
    }

    #[cold]
    fn spend(&self, range: PageRange) -> bool {
        let spend = |spare: &AtomicU64, amount| {
            let less = |spare: u64| spare.checked_sub(amount);
            spare.fetch_update(Relaxed, Relaxed, less).is_ok()
        };
        spend(&self.spare.regions, 1) && spend(&self.spare.bytes, range.bytes())
    }

    /// Takes the result of a count of the idle regions. If they exceed the limit, returns how much
    /// must go to leave three quarters of it. Otherwise stores how much more may become idle. Under
    /// the pool's lock.
    pub fn counted(&self, idle: Amount) -> Option<Amount> {
        let limit = self.limit.get();
        if idle.fits(limit) {
            self.spare.set(Amount {
                regions: limit.regions - idle.regions,
                bytes: limit.bytes - idle.bytes,
            });
            return None;
        }
        Some(Amount {
            regions: idle.regions.saturating_sub(limit.regions / 4 * 3),
            bytes: idle.bytes.saturating_sub(limit.bytes / 4 * 3),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn shared() -> SharedAmount {
        SharedAmount {
            regions: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    #[test]
    fn no_more_than_the_limit_is_idle_uncounted() {
        let account = Account {
            registered: shared(),
            limit: shared(),
            spare: shared(),
        };
        let amount = |regions, bytes| Amount { regions, bytes };
        let range = PageRange { start: 0, end: 10 };
        account.set_limit(amount(4, 1000));
        for _ in 0..4 {
            account.add(range);
            assert!(account.may_be_idle(|| range), "all that there are");
        }
        account.add(range);
        assert!(
            !account.may_be_idle(|| range),
            "four may be idle, uncounted"
        );
        assert_eq!(account.counted(amount(2, 20)), None);
        assert!(account.may_be_idle(|| range) && account.may_be_idle(|| range));
        assert!(!account.may_be_idle(|| range));
        assert_eq!(account.counted(amount(5, 50)), Some(amount(2, 0)));
        account.remove(range);
        assert!(account.may_be_idle(|| range));
        account.add(range);
        assert!(
            !account.may_be_idle(|| range),
            "what was spare then is so no more"
        );
    }
}
