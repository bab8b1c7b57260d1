// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of the regions that are ours, by the address of their `ibv_mr`. Nothing else tells ours from
//! those of a provider: bytes in the object cannot, since a foreign object may be smaller or hold anything.
//!
//! States of an object, and who moves it:
//!
//! ```text
//!   (unknown) --insert--> Live --claim--> Closing --retire--> Retired --reuse: insert--> Live
//!                          |  <--restore---'                     '--no room: removed, freed--> (unknown)
//!                          '--found to have vanished--> (unknown)
//! ```
//!
//! - Live: registered, and the object is the program's.
//! - Closing: one thread is deregistering it; a second one that tries is told that it is gone.
//! - Retired: deregistered, its memory still ours, so that a second deregistration can be told.
//! - A Live region *vanishes* when the program deregisters it past us, with an `ibv_dereg_mr` that it took
//!   from libibverbs by handle (NCCL and brpc do): the provider destroys the kernel's object and frees the
//!   memory. The entry stays behind. It is found out when the address is used again: by a new region
//!   (`insert`, `forget`), or by a foreign object whose contents differ from the entry (`claim`).
//!
//! Each state change is one operation under the lock of the entry's shard; no lock is held over a system
//! call or a call into libibverbs. [`thread::enter`] marks the time for signal handlers.

use super::retired::Retired;
use crate::thread;
use core::hash::{BuildHasherDefault, Hasher};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

/// What must be the same in the object and in its entry: the kernel's name for the region, and its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    pub context: usize,
    pub handle: u32,
    pub lkey: u32,
}

/// A region of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    pub identity: Identity,
    pub pd: usize,
    pub length: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Live,
    Closing,
    Retired,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    region: Region,
    state: State,
}

/// What [`Table::claim`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// A live region of ours. Only the caller may go on with it, by `retire` or `restore`.
    Ours(Region),
    /// A region of ours that is deregistered, or is just being.
    Gone,
    /// Not ours.
    Foreign,
    /// Not ours any more: the entry was of a region that has vanished.
    Vanished(Region),
}

/// Mixes an address. Objects come from malloc, so the low four bits are the same in all, and the table
/// takes its shard from the high bits.
#[derive(Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_usize(usize::from(byte) ^ self.0 as usize);
        }
    }

    #[inline]
    fn write_usize(&mut self, address: usize) {
        let mixed = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// Shards of the map, each with a lock of its own. A fixed number: asking for the number of processors
/// reads files.
const SHARDS: usize = 64;

/// The table.
pub struct Table {
    rows: DashMap<usize, Row, BuildHasherDefault<AddressHasher>>,
    retired: Retired,
}

impl Table {
    /// An empty table.
    pub fn new() -> Self {
        let rows =
            DashMap::with_capacity_and_hasher_and_shard_amount(0, Default::default(), SHARDS);
        Table {
            rows,
            retired: Retired::new(),
        }
    }

    /// An object that has been retired long enough to be used again. It stays Retired until `insert`.
    pub fn reuse(&self) -> Option<usize> {
        self.retired.pop_rested()
    }

    /// Adds a live region. Returns the one that was live at that address, which must have vanished.
    pub fn insert(&self, object: usize, region: Region) -> Option<Region> {
        let _inside = thread::enter();
        let old = self.rows.insert(
            object,
            Row {
                region,
                state: State::Live,
            },
        );
        old.filter(|row| row.state != State::Retired)
            .map(|row| row.region)
    }

    /// Looks up an object that the program wants to deregister. `identity` reads it from the object; it is
    /// called only if the entry says that a region of ours is there.
    pub fn claim(&self, object: usize, identity: impl FnOnce() -> Option<Identity>) -> Claim {
        let _inside = thread::enter();
        let Entry::Occupied(mut row) = self.rows.entry(object) else {
            return Claim::Foreign;
        };
        if row.get().state != State::Live {
            return Claim::Gone;
        }
        let region = row.get().region;
        if identity() == Some(region.identity) {
            row.get_mut().state = State::Closing;
            return Claim::Ours(region);
        }
        row.remove();
        Claim::Vanished(region)
    }

    /// Takes a claim back: the region could not be deregistered, and stays usable.
    pub fn restore(&self, object: usize, region: Region) {
        self.set(
            object,
            Row {
                region,
                state: State::Live,
            },
        );
    }

    /// Ends a claim: the region is deregistered. Returns the objects, as a rule none, that are to be freed
    /// because more wait than are kept. The table knows them no longer.
    pub fn retire(&self, object: usize, region: Region) -> impl Iterator<Item = usize> + use<> {
        self.set(
            object,
            Row {
                region,
                state: State::Retired,
            },
        );
        self.keep(object)
    }

    /// Takes back an object that `reuse` gave and no region came to need. As for `retire`.
    pub fn return_unused(&self, object: usize) -> impl Iterator<Item = usize> + use<> {
        self.keep(object)
    }

    fn keep(&self, object: usize) -> impl Iterator<Item = usize> + use<> {
        let mut given_back = [None, None];
        if !self.retired.push(object) {
            // The oldest gives way; where another thread was quicker to fill its place, both go.
            given_back[0] = self.retired.pop();
            given_back[1] = (!self.retired.push(object)).then_some(object);
            given_back
                .iter()
                .flatten()
                .for_each(|&object| self.remove(object));
        }
        given_back.into_iter().flatten()
    }

    fn set(&self, object: usize, row: Row) {
        let _inside = thread::enter();
        self.rows.insert(object, row);
    }

    fn remove(&self, object: usize) {
        let _inside = thread::enter();
        self.rows.remove(&object);
    }

    /// Removes the live region at an address that libibverbs has just given to another: it has vanished.
    pub fn forget(&self, object: usize) -> Option<Region> {
        let _inside = thread::enter();
        let live = |_: &usize, row: &Row| row.state == State::Live;
        self.rows
            .remove_if(&object, live)
            .map(|(_, row)| row.region)
    }

    /// Live regions for which `belongs` holds.
    pub fn live(&self, belongs: impl Fn(&Region) -> bool) -> Vec<(usize, Region)> {
        let _inside = thread::enter();
        let live = |row: &Row| row.state == State::Live && belongs(&row.region);
        self.rows
            .iter()
            .filter(|row| live(row.value()))
            .map(|row| (*row.key(), row.region))
            .collect()
    }

    /// Forgets a region that ended with its PD or its context, unless the object has become another
    /// region since.
    pub fn orphan(&self, object: usize, region: Region) -> bool {
        let _inside = thread::enter();
        let same = |_: &usize, row: &Row| row.state == State::Live && row.region == region;
        self.rows.remove_if(&object, same).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::retired::{LEAST, MOST};
    use super::*;

    fn region(n: u32) -> Region {
        let identity = Identity {
            context: 0x10,
            handle: n,
            lkey: n << 8,
        };
        Region {
            identity,
            pd: 0x20,
            length: 4096,
        }
    }

    fn claim(table: &Table, object: usize, n: u32) -> Claim {
        table.claim(object, || Some(region(n).identity))
    }

    #[test]
    fn a_region_is_claimed_once() {
        let table = Table::new();
        assert_eq!(claim(&table, 0x100, 1), Claim::Foreign);
        assert_eq!(table.insert(0x100, region(1)), None);
        assert_eq!(claim(&table, 0x100, 1), Claim::Ours(region(1)));
        assert_eq!(claim(&table, 0x100, 1), Claim::Gone, "while it is closing");
        table.restore(0x100, region(1));
        assert_eq!(claim(&table, 0x100, 1), Claim::Ours(region(1)));
        assert_eq!(table.retire(0x100, region(1)).count(), 0);
        assert_eq!(claim(&table, 0x100, 1), Claim::Gone, "when it is retired");
    }

    #[test]
    fn a_vanished_region_is_found_out_by_its_successor() {
        let table = Table::new();
        table.insert(0x100, region(1));
        assert_eq!(table.insert(0x100, region(2)), Some(region(1)));
        assert_eq!(claim(&table, 0x100, 3), Claim::Vanished(region(2)));
        assert_eq!(claim(&table, 0x100, 3), Claim::Foreign);
        table.insert(0x100, region(1));
        assert_eq!(table.claim(0x100, || None), Claim::Vanished(region(1)));
        table.insert(0x100, region(4));
        assert_eq!(table.forget(0x100), Some(region(4)));
        assert_eq!(table.forget(0x100), None);
    }

    #[test]
    fn retired_objects_are_reused_in_order_and_only_after_a_rest() {
        let table = Table::new();
        for n in 1..=LEAST + 1 {
            assert_eq!(table.reuse(), None);
            table.insert(n * 16, region(n as u32));
            claim(&table, n * 16, n as u32);
            assert_eq!(table.retire(n * 16, region(n as u32)).count(), 0);
        }
        assert_eq!(table.reuse(), Some(16));
        assert_eq!(claim(&table, 16, 1), Claim::Gone, "until it is live again");
        assert_eq!(table.insert(16, region(9)), None);
        assert_eq!(claim(&table, 16, 9), Claim::Ours(region(9)));
    }

    #[test]
    fn more_than_are_kept_are_given_back() {
        let table = Table::new();
        let mut freed = Vec::new();
        for n in 1..=MOST + 10 {
            table.insert(n * 16, region(1));
            claim(&table, n * 16, 1);
            freed.extend(table.retire(n * 16, region(1)));
        }
        assert_eq!(freed, (1..=10).map(|n| n * 16).collect::<Vec<_>>());
        assert_eq!(claim(&table, 16, 1), Claim::Foreign);
        assert_eq!(claim(&table, 11 * 16, 1), Claim::Gone);
    }

    #[test]
    fn what_ended_with_its_pd_is_forgotten_but_not_its_successor() {
        let table = Table::new();
        table.insert(0x100, region(1));
        table.insert(0x200, region(2));
        claim(&table, 0x200, 2);
        let found = table.live(|region| region.pd == 0x20);
        assert_eq!(
            found,
            [(0x100, region(1))],
            "one that is closing is its closer's"
        );
        table.insert(0x100, region(3));
        assert!(!table.orphan(0x100, region(1)));
        assert!(table.orphan(0x100, region(3)));
        assert_eq!(claim(&table, 0x100, 3), Claim::Foreign);
    }

    #[test]
    fn a_handler_that_interrupts_an_operation_is_told() {
        let table = Table::new();
        table.insert(0x100, region(1));
        assert!(!thread::is_inside());
        let claim = table.claim(0x100, || {
            assert!(thread::is_inside());
            None
        });
        assert_eq!(claim, Claim::Vanished(region(1)));
        assert!(!thread::is_inside());
    }
}
