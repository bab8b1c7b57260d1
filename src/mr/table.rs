// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of the regions that are ours. Nothing else tells ours from those of a provider: bytes in the
//! object cannot, since a foreign one may hold anything there.
//!
//! A region is found by the kernel's name for it: its device and its handle there. That makes the table
//! clean itself. When a program deregisters a region of ours past us, with an `ibv_dereg_mr` that it took
//! from libibverbs by handle (NCCL and brpc do), its row stays behind; we say that it has *vanished*. The
//! kernel gives the lowest free handle to the next region, and so the row is found out by the very next
//! registration: by `insert` if that is ours, by `forget` or `claim` if libibverbs makes or ends it.
//! There are never more stale rows than there were regions at one time.
//!
//! Beside the row, the object says in its `mr_type`, which only libibverbs and providers read, whether it
//! is one of ours that is not registered ([`Object::retire`](super::object::Object::retire)).
//!
//! Who changes what: `insert` adds a row; `claim` removes it and marks the object under the lock of the
//! row's shard, so that of two threads that deregister one region, the second finds it gone; who has
//! claimed a region either lets go of it or, when the kernel refused, puts it back with `restore`. No lock
//! is held over a system call or a call into libibverbs. [`thread::enter`] marks the time for signal
//! handlers.

use crate::thread;
use core::hash::{BuildHasherDefault, Hasher};
use dashmap::DashMap;

/// The kernel's name for a region. No two that exist at the same time have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    /// The address of the `ibv_context`.
    pub context: usize,
    /// The handle there.
    pub handle: u32,
}

/// A region of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The address of its `ibv_mr`.
    pub object: usize,
    pub lkey: u32,
    pub pd: usize,
    pub length: usize,
}

/// What [`Table::claim`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// A region of ours, and now the caller's alone.
    Ours(Region),
    /// Not ours, or not any more.
    Foreign,
    /// Not ours: the kernel's name for it was that of a region of ours, which must have vanished.
    InPlaceOf(Region),
}

/// Mixes a name. The map takes its shard from the high bits.
#[derive(Default)]
pub struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    #[inline]
    fn write_u32(&mut self, handle: u32) {
        self.0 = (self.0 ^ u64::from(handle)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn write_usize(&mut self, address: usize) {
        self.0 = (self.0 ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Shards of the map, each with a lock of its own. A fixed number: asking for the number of processors
/// reads files.
const SHARDS: usize = 64;

/// The table.
pub struct Table(DashMap<Name, Region, BuildHasherDefault<NameHasher>>);

impl Table {
    /// An empty table.
    pub fn new() -> Self {
        Table(DashMap::with_capacity_and_hasher_and_shard_amount(
            0,
            Default::default(),
            SHARDS,
        ))
    }

    /// Adds a region that the kernel has just made. Returns the one that had its name, which must have
    /// vanished.
    pub fn insert(&self, name: Name, region: Region) -> Option<Region> {
        let _inside = thread::enter();
        self.0.insert(name, region)
    }

    /// Takes a region of that name out of the table, if it is the one that the caller has in hand.
    /// `mark` is called with it, before any other thread can look for it.
    pub fn claim(&self, name: Name, object: usize, lkey: u32, mark: impl FnOnce(&Region)) -> Claim {
        let _inside = thread::enter();
        let mut ours = false;
        let found = self.0.remove_if(&name, |_, region| {
            ours = region.object == object && region.lkey == lkey;
            if ours {
                mark(region);
            }
            true
        });
        match found {
            None => Claim::Foreign,
            Some((_, region)) if ours => Claim::Ours(region),
            Some((_, region)) => Claim::InPlaceOf(region),
        }
    }

    /// Takes a claim back: the region could not be deregistered, and stays usable.
    pub fn restore(&self, name: Name, region: Region) {
        let _inside = thread::enter();
        self.0.insert(name, region);
    }

    /// Removes the region whose name libibverbs has just got for one of its own: it has vanished.
    pub fn forget(&self, name: Name) -> Option<Region> {
        let _inside = thread::enter();
        self.0.remove(&name).map(|(_, region)| region)
    }

    /// The regions for which `belongs` holds.
    pub fn find(&self, belongs: impl Fn(&Name, &Region) -> bool) -> Vec<(Name, Region)> {
        let _inside = thread::enter();
        let rows = self.0.iter();
        rows.filter(|row| belongs(row.key(), row.value()))
            .map(|row| (*row.key(), *row.value()))
            .collect()
    }

    /// Removes a region that ended with its domain or device, unless its name has become another's since.
    pub fn orphan(&self, name: Name, region: Region) -> bool {
        let _inside = thread::enter();
        self.0.remove_if(&name, |_, now| *now == region).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Name = Name {
        context: 0x10,
        handle: 0,
    };

    fn region(object: usize) -> Region {
        Region {
            object,
            lkey: object as u32 ^ 7,
            pd: 0x20,
            length: 4096,
        }
    }

    fn claim(table: &Table, object: usize) -> Claim {
        table.claim(NAME, object, region(object).lkey, |_| {})
    }

    #[test]
    fn a_region_is_claimed_once() {
        let table = Table::new();
        assert_eq!(claim(&table, 0x100), Claim::Foreign);
        assert_eq!(table.insert(NAME, region(0x100)), None);
        assert_eq!(claim(&table, 0x100), Claim::Ours(region(0x100)));
        assert_eq!(claim(&table, 0x100), Claim::Foreign);
        table.restore(NAME, region(0x100));
        assert_eq!(claim(&table, 0x100), Claim::Ours(region(0x100)));
    }

    #[test]
    fn a_vanished_region_is_found_out_by_its_successor() {
        let table = Table::new();
        table.insert(NAME, region(0x100));
        assert_eq!(table.insert(NAME, region(0x200)), Some(region(0x100)));
        assert_eq!(claim(&table, 0x300), Claim::InPlaceOf(region(0x200)));
        assert_eq!(claim(&table, 0x200), Claim::Foreign);
        table.insert(NAME, region(0x100));
        assert_eq!(table.forget(NAME), Some(region(0x100)));
        assert_eq!(table.forget(NAME), None);
    }

    #[test]
    fn another_key_in_the_same_object_is_another_region() {
        let table = Table::new();
        table.insert(NAME, region(0x100));
        let claim = table.claim(NAME, 0x100, 0xffff, |_| panic!("it is not ours to mark"));
        assert_eq!(claim, Claim::InPlaceOf(region(0x100)));
    }

    #[test]
    fn devices_have_handles_of_their_own() {
        let table = Table::new();
        let other = Name {
            context: 0x20,
            ..NAME
        };
        table.insert(NAME, region(0x100));
        assert_eq!(table.insert(other, region(0x200)), None);
        assert_eq!(claim(&table, 0x100), Claim::Ours(region(0x100)));
        assert_eq!(table.forget(other), Some(region(0x200)));
    }

    #[test]
    fn what_ended_with_its_pd_is_forgotten_but_not_its_successor() {
        let table = Table::new();
        table.insert(NAME, region(0x100));
        assert_eq!(table.find(|_, region| region.pd == 0x21), []);
        let found = table.find(|_, region| region.pd == 0x20);
        assert_eq!(found, [(NAME, region(0x100))]);
        table.insert(NAME, region(0x200));
        assert!(!table.orphan(NAME, region(0x100)));
        assert!(table.orphan(NAME, region(0x200)));
        assert_eq!(claim(&table, 0x200), Claim::Foreign);
    }

    #[test]
    fn a_handler_that_interrupts_an_operation_is_told() {
        let table = Table::new();
        table.insert(NAME, region(0x100));
        assert!(!thread::is_inside());
        table.claim(NAME, 0x100, region(0x100).lkey, |_| {
            assert!(thread::is_inside());
        });
        assert!(!thread::is_inside());
    }

    #[test]
    fn of_many_threads_one_claims() {
        let table = Table::new();
        for _ in 0..200 {
            table.insert(NAME, region(0x100));
            let claimed: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| scope.spawn(|| claim(&table, 0x100) == Claim::Ours(region(0x100))))
                    .collect();
                let claimed = threads.into_iter().map(|thread| thread.join().unwrap());
                claimed.map(usize::from).sum()
            });
            assert_eq!(claimed, 1);
        }
    }
}
