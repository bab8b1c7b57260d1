// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much is registered, and how much of it may be idle.
//!
//! The idle regions are not counted at each change: two threads that use different regions would
//! then write to the same cache line at every hit. While all registered regions together are within
//! the limit, the idle ones are too, and nothing is counted. Beyond the limit the account knows how
//! much more may become idle, the *spare* amount. Three rules ensure that the spare amount is never
//! too large:
//!
//! - A release takes its region from the spare amount. A hit does not give the region back.
//! - An idle region that ends is given back.
//! - A count of the idle regions sets the spare amount anew: the limit, less the regions that were
//!   idle when the count passed them, less all that was released during the count. A region that is
//!   idle at the end of the count is one of these.
//!
//! A count takes time, so it goes on by a few slots at a time: at each release as long as little is
//! spare, and at each tick of the cleaner.

use core::ops::{Add, Sub};
use core::sync::atomic::{AtomicI64, AtomicU32, Ordering::*};
use rdmamr_sys::pages::PageRange;

/// A number of regions and of bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Amount {
    pub regions: i64,
    pub bytes: i64,
}

impl Amount {
    /// More than any process has, and far from an overflow.
    pub const MOST: Amount = Amount {
        regions: i64::MAX / 8,
        bytes: i64::MAX / 8,
    };

    /// One region over this range.
    pub fn of(range: PageRange) -> Amount {
        Amount {
            regions: 1,
            bytes: range.bytes() as i64,
        }
    }

    fn fits(self, limit: Amount) -> bool {
        self.regions <= limit.regions && self.bytes <= limit.bytes
    }

    /// The smaller number of regions, and the smaller number of bytes.
    pub fn min(self, other: Amount) -> Amount {
        Amount {
            regions: self.regions.min(other.regions),
            bytes: self.bytes.min(other.bytes),
        }
    }
}

impl Add for Amount {
    type Output = Amount;

    fn add(self, other: Amount) -> Amount {
        Amount {
            regions: self.regions + other.regions,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl Sub for Amount {
    type Output = Amount;

    fn sub(self, other: Amount) -> Amount {
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

    /// Adds to an amount that other threads may change at the same time.
    fn add(&self, amount: Amount) -> Amount {
        let before = Amount {
            regions: self.regions.fetch_add(amount.regions, Relaxed),
            bytes: self.bytes.fetch_add(amount.bytes, Relaxed),
        };
        before + amount
    }
}

/// The account. Zeroed memory is the account of an empty cache that may keep nothing.
///
/// Each release reads the last two fields. They share a cache line with the other fields that are
/// read as often ([`crate::layout::Regions`]), apart from the fields that are written.
#[repr(C)]
pub struct Account {
    /// How much more may become idle; negative if too much is idle. Meaningless while everything
    /// registered is within the limit.
    spare: SharedAmount,
    /// The slot that the count looks at next. This field and the following ones change only under
    /// the cache's lock.
    next: AtomicU32,
    /// The idle regions that the count has found.
    counted: SharedAmount,
    /// The spare amount when the count began.
    at_start: SharedAmount,
    /// The amount that was given back since then.
    given_back: SharedAmount,
    rest_of_line: [u64; 7],
    registered: SharedAmount,
    /// How much may be idle.
    limit: SharedAmount,
}

#[cfg(not(loom))]
impl Account {
    /// The offset of that cache line.
    pub const LINE: usize = core::mem::offset_of!(Account, registered);
}

impl Account {
    /// Sets how much may be idle. Under the cache's lock.
    pub fn set_limit(&self, limit: Amount) {
        let limit = limit.min(Amount::MOST);
        let (before, fitted) = (self.limit.get(), self.all_fits());
        if limit == before {
            return;
        }
        self.limit.set(limit);
        if fitted {
            // Everything registered may be idle.
            self.spare.set(limit - self.registered.get());
        } else {
            self.spare.add(limit - before);
        }
        self.next.store(0, Relaxed);
    }

    /// How much may be idle.
    pub fn limit(&self) -> Amount {
        self.limit.get()
    }

    pub fn registered(&self) -> Amount {
        self.registered.get()
    }

    /// Whether everything registered is within the limit, so that nothing need be counted.
    #[inline(always)]
    pub fn all_fits(&self) -> bool {
        self.registered.get().fits(self.limit.get())
    }

    /// Adds a region that is linked. Under the cache's lock.
    pub fn add(&self, range: PageRange) {
        let fitted = self.all_fits();
        let before = self.registered.get();
        self.registered.set(before + Amount::of(range));
        if fitted && !self.all_fits() {
            // Everything else may be idle.
            self.spare.set(self.limit.get() - before);
            self.next.store(0, Relaxed);
        }
    }

    /// Removes a region that has ended. Under the cache's lock.
    pub fn remove(&self, range: PageRange) {
        let before = self.registered.get();
        self.registered.set(before - Amount::of(range));
    }

    /// Whether a region that has just become idle may stay so, with a quarter of the limit left to
    /// spare. False means that the count must go on, and that regions must end if the idle ones are
    /// over the limit.
    #[inline(always)]
    pub fn may_be_idle(&self, range: impl FnOnce() -> PageRange) -> bool {
        self.all_fits() || self.spend(range())
    }

    #[cold]
    fn spend(&self, range: PageRange) -> bool {
        let nothing = Amount::default();
        let spare = self.spare.add(nothing - Amount::of(range));
        let limit = self.limit.get();
        let quarter = Amount {
            regions: limit.regions / 4,
            bytes: limit.bytes / 4,
        };
        quarter.fits(spare)
    }

    /// Whether more is idle than the limit allows, as far as the account knows.
    pub fn is_over(&self) -> bool {
        !self.all_fits() && !Amount::default().fits(self.spare.get())
    }

    /// Gives back an idle region that ends. Under the cache's lock.
    pub fn give_back(&self, range: PageRange) {
        self.spare.add(Amount::of(range));
        self.given_back
            .set(self.given_back.get() + Amount::of(range));
    }

    /// Gives back a region that ends instead of becoming idle. Under the cache's lock.
    pub fn take_back(&self, range: PageRange) {
        self.spare.add(Amount::of(range));
    }

    /// The slot that the count looks at next. Under the cache's lock.
    pub fn next(&self) -> u32 {
        let next = self.next.load(Relaxed);
        if next == 0 {
            self.counted.set(Amount::default());
            self.given_back.set(Amount::default());
            self.at_start.set(self.spare.get());
        }
        next
    }

    /// Sets the slot at which the count goes on, after it has found `idle` more. Under the cache's
    /// lock.
    pub fn go_on_at(&self, next: u32, idle: Amount) {
        self.next.store(next, Relaxed);
        self.counted.set(self.counted.get() + idle);
    }

    /// Ends a count that has seen every slot. Under the cache's lock.
    pub fn end_count(&self) {
        self.next.store(0, Relaxed);
        let spare = self.limit.get() - self.counted.get();
        // The count may have seen none of the regions that were given back, so they do not count as
        // spare.
        self.spare
            .add(spare - self.at_start.get() - self.given_back.get());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn shared() -> SharedAmount {
        SharedAmount {
            regions: AtomicI64::new(0),
            bytes: AtomicI64::new(0),
        }
    }

    fn account(regions: i64, bytes: i64) -> Account {
        let account = Account {
            registered: shared(),
            limit: shared(),
            spare: shared(),
            next: AtomicU32::new(0),
            counted: shared(),
            at_start: shared(),
            given_back: shared(),
            rest_of_line: [0; 7],
        };
        account.set_limit(Amount { regions, bytes });
        account
    }

    /// Runs a count that finds this many regions of `range`, in one step.
    fn count(account: &Account, regions: i64, range: PageRange) {
        account.next();
        let each = Amount::of(range);
        let idle = (0..regions).fold(Amount::default(), |sum, _| sum + each);
        account.go_on_at(0, idle);
        account.end_count();
    }

    const RANGE: PageRange = PageRange { start: 0, end: 10 };

    #[test]
    fn no_more_than_the_limit_is_idle_uncounted() {
        let account = account(4, 1000);
        for _ in 0..4 {
            account.add(RANGE);
            assert!(account.may_be_idle(|| RANGE), "all that there are");
        }
        account.add(RANGE);
        assert!(!account.is_over() && !account.may_be_idle(|| RANGE));
        assert!(account.is_over(), "four may be idle, uncounted");
        count(&account, 2, RANGE);
        assert!(!account.is_over());
        account.may_be_idle(|| RANGE);
        account.may_be_idle(|| RANGE);
        assert!(!account.is_over());
        account.may_be_idle(|| RANGE);
        assert!(account.is_over());
        account.take_back(RANGE);
        assert!(!account.is_over());
        count(&account, 5, RANGE);
        assert!(account.is_over());
        account.give_back(RANGE);
        assert!(!account.is_over());
        account.remove(RANGE);
        assert!(account.may_be_idle(|| RANGE) && !account.is_over());
        account.add(RANGE);
        account.may_be_idle(|| RANGE);
        assert!(account.is_over(), "what was spare then is so no more");
    }

    #[test]
    fn what_is_released_during_a_count_is_not_spare() {
        let account = account(4, 1000);
        (0..9).for_each(|_| account.add(RANGE));
        count(&account, 0, RANGE);
        account.next();
        account.go_on_at(5, Amount::of(RANGE));
        // One release behind the count, one ahead of it.
        for _ in 0..2 {
            account.may_be_idle(|| RANGE);
        }
        assert_eq!(account.next(), 5);
        account.go_on_at(9, Amount::of(RANGE));
        account.end_count();
        assert!(!account.is_over(), "two counted, two released");
        account.may_be_idle(|| RANGE);
        assert!(account.is_over());
    }

    #[test]
    fn another_limit_counts_at_once() {
        let account = account(4, 1000);
        (0..3).for_each(|_| account.add(RANGE));
        account.set_limit(Amount {
            regions: 2,
            bytes: 1000,
        });
        assert!(account.is_over(), "all three may be idle");
        account.set_limit(Amount::MOST);
        assert!(!account.is_over());
        account.set_limit(Amount {
            regions: 3,
            bytes: 29,
        });
        assert!(account.is_over());
    }
}
