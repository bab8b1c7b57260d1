// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much is registered, and how much of it may be idle.
//!
//! What is idle is not counted as it changes: two threads that use different regions would then write to the
//! same line at every hit. While everything that is registered is within the limit, so is what is idle. Beyond
//! that somebody counts, and notes how much more can become idle before the next must.

use super::hull::Range;
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

/// An amount that changes.
#[repr(C)]
struct Shared {
    regions: AtomicU64,
    bytes: AtomicU64,
}

impl Shared {
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

/// The account. All zeros is that of an empty pool that may keep nothing.
#[repr(C)]
pub struct Account {
    registered: Shared,
    /// How much may be idle: set once.
    limit: Shared,
    /// How much more can become idle. Of no meaning while all is within the limit.
    spare: Shared,
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

    /// A region is linked. Under the pool's lock.
    pub fn add(&self, range: Range) {
        let fitted = self.all_fits();
        let before = self.registered.get();
        self.registered.set(Amount {
            regions: before.regions + 1,
            bytes: before.bytes + range.bytes(),
        });
        if fitted && !self.all_fits() {
            // Nobody has counted what became idle until now.
            self.spare.set(Amount {
                regions: 0,
                bytes: 0,
            });
        }
    }

    /// A region has ended. Under the pool's lock.
    pub fn remove(&self, range: Range) {
        let before = self.registered.get();
        self.registered.set(Amount {
            regions: before.regions - 1,
            bytes: before.bytes - range.bytes(),
        });
    }

    /// Whether a region may be idle beside those that are. Called when one has become idle; false means that
    /// it is time to count.
    #[inline(always)]
    pub fn may_be_idle(&self, range: impl FnOnce() -> Range) -> bool {
        self.all_fits() || self.spend(range())
    }

    #[cold]
    fn spend(&self, range: Range) -> bool {
        let spend = |spare: &AtomicU64, amount| {
            let less = |spare: u64| spare.checked_sub(amount);
            spare.fetch_update(Relaxed, Relaxed, less).is_ok()
        };
        spend(&self.spare.regions, 1) && spend(&self.spare.bytes, range.bytes())
    }

    /// So much was found to be idle. Where that is more than the limit: how much must go to bring it to three
    /// quarters. Otherwise what is spare is noted. Under the pool's lock.
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

    fn shared() -> Shared {
        Shared {
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
        let range = Range { start: 0, end: 10 };
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
