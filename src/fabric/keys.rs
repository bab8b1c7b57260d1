// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keys of a domain: those that the application chose for its own regions, those that stand for peers'
//! raw keys, and where regions lie that the application has placed.

use super::Region;
use super::errors::{Failure, refused};
use super::raw_key::RawKey;
use super::region::{Piece, Side};
use super::segment::{Room, locate};
use crate::abi::libfabric::*;
use core::ptr::with_exposed_provenance;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

const IN_USE: Failure = refused(FI_ENOKEY, "the requested key is in use in this domain");
const UNKNOWN: Failure = refused(FI_ENOKEY, "there is no such key in this domain");

/// What a key stands for.
enum Meaning {
    /// A region of ours, by address. It takes itself out before it is closed.
    Own(usize),
    /// A peer's.
    Mapped(RawKey),
}

pub struct Table {
    keys: HashMap<u64, Meaning>,
    /// Placed regions by base address. They do not overlap.
    placed: BTreeMap<u64, usize>,
    /// How many raw keys are mapped.
    mapped: usize,
    /// The next key for one. A key is not given twice: one that was unmapped must not mean another region.
    next: u64,
}

impl Default for Table {
    fn default() -> Table {
        Table {
            keys: HashMap::new(),
            placed: BTreeMap::new(),
            mapped: 0,
            // Above what a device's key can be.
            next: 1 << 32,
        }
    }
}

/// The keys of a domain.
#[derive(Default)]
pub struct Keys(RwLock<Table>);

/// A region of the table.
///
/// # Safety
/// The table is locked, or the region is known not to be closed.
unsafe fn region<'a>(address: usize) -> &'a Region {
    // SAFETY: the caller's word: regions take themselves out before they are put away.
    unsafe { &*with_exposed_provenance::<Region>(address) }
}

impl Keys {
    /// Nobody else changes the table or looks anything up while this is held.
    pub fn lock(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a key to a region that is not placed.
    pub fn reserve(&self, key: u64, region: &Region) -> Result<(), Failure> {
        match self.lock().keys.entry(key) {
            Entry::Occupied(_) => Err(IN_USE),
            Entry::Vacant(place) => {
                place.insert(Meaning::Own(region.address()));
                Ok(())
            }
        }
    }

    /// Puts a region where the application wants it, which is registered now, and opens it to use.
    /// Returns the registrations of those that it replaces, for the caller to end.
    pub fn place(&self, new: &Region) -> Result<Vec<Piece>, Failure> {
        // `register` has refused what runs past the end of the addresses.
        let end = new.base + new.length;
        let mut table = self.lock();
        // They do not overlap each other: from the end, the first that lies before the new one is the last.
        let below = table.placed.range(..end).rev();
        // SAFETY: the table is locked.
        let old = below.map(|(_, &address)| unsafe { region(address) });
        let overlapping: Vec<&Region> = old
            .take_while(|old| old.base + old.length > new.base)
            .collect();
        if let Some(key) = new.table_key
            && let Some(meaning) = table.keys.get(&key)
        {
            let goes = |old: &&Region| matches!(meaning, Meaning::Own(at) if *at == old.address());
            if !overlapping.iter().any(goes) {
                return Err(IN_USE);
            }
        }
        let mut pieces = Vec::new();
        for old in overlapping {
            table.take_out(old);
            // One that is just being closed ends its registrations itself.
            pieces.extend(old.replace().into_iter().flatten());
        }
        table.placed.insert(new.base, new.address());
        if let Some(key) = new.table_key {
            table.keys.insert(key, Meaning::Own(new.address()));
        }
        new.is_now_registered();
        Ok(pieces)
    }

    /// Takes a region out, if it is there.
    #[inline(always)]
    pub fn remove(&self, region: &Region) {
        if region.table_key.is_some() || region.is_placed {
            self.lock().take_out(region);
        }
    }

    /// Maps a peer's raw key to one that is nobody's.
    pub fn map(&self, raw: RawKey) -> u64 {
        let mut table = self.lock();
        while table.keys.contains_key(&table.next) {
            table.next += 1;
        }
        let key = table.next;
        table.next += 1;
        table.mapped += 1;
        table.keys.insert(key, Meaning::Mapped(raw));
        key
    }

    /// Ends the mapping of a raw key.
    pub fn unmap(&self, key: u64) -> Result<(), Failure> {
        let mut table = self.lock();
        if !matches!(table.keys.get(&key), Some(Meaning::Mapped(_))) {
            return Err(refused(FI_ENOKEY, "the key is not one of fi_mr_map_raw()"));
        }
        table.keys.remove(&key);
        table.mapped -= 1;
        Ok(())
    }

    /// Whether raw keys are mapped.
    pub fn has_mapped(&self) -> bool {
        self.lock().mapped > 0
    }

    /// Where a range of what a key stands for is. With the provider's keys one that is not in the table is the
    /// device's own, and the address too.
    pub fn resolve(
        &self,
        key: u64,
        start: u64,
        length: u64,
        room: &mut Room,
    ) -> Result<(), Failure> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match table.keys.get(&key).ok_or(UNKNOWN)? {
            Meaning::Mapped(raw) => locate(raw.base, &raw.pieces, start, length, |segment| {
                room.push(segment)
            }),
            Meaning::Own(address) => {
                // SAFETY: the table is locked.
                let region = unsafe { region(*address) };
                if !region.is_registered() {
                    return Err(refused(
                        FI_ENOKEY,
                        "the key's region is not registered yet, or not any more",
                    ));
                }
                region.with_segments(Side::Remote, |segments| {
                    locate(region.base, segments, start, length, |segment| {
                        room.push(segment)
                    })
                })
            }
        }
    }
}

impl Table {
    fn take_out(&mut self, region: &Region) {
        let address = region.address();
        if let Some(key) = region.table_key
            && matches!(self.keys.get(&key), Some(Meaning::Own(at)) if *at == address)
        {
            self.keys.remove(&key);
        }
        if region.is_placed && self.placed.get(&region.base) == Some(&address) {
            self.placed.remove(&region.base);
        }
    }
}
