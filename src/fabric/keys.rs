// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keys of a domain: the keys that the application chose for its regions, the keys that stand
//! for raw keys of remote peers, and the addresses of the regions that the application has placed.

use super::errors::{Result, ensure};
use super::piece::{Piece, Side};
use super::raw_key::RawKey;
use super::refusals::*;
use super::region::Region;
use super::segment::{Found, locate};
use core::ptr::with_exposed_provenance;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

/// The meaning of a key.
enum Meaning {
    /// A region of this domain, by address. The region leaves the table before it is closed.
    Region(usize),
    /// A remote peer's region.
    Mapped(RawKey),
}

#[derive(Default)]
pub struct KeyTable {
    keys: BTreeMap<u64, Meaning>,
    /// Placed regions by base address. They do not overlap.
    placed: BTreeMap<u64, usize>,
    /// The number of keys that the library has chosen. Such a key is not used twice, unless keys are
    /// so short that none is left: an unmapped key must not come to name another region.
    chosen: u64,
}

/// Above every key that a device can have.
const FIRST_CHOSEN: u64 = 1 << 32;

/// The keys of a domain.
#[derive(Default)]
pub struct Keys(RwLock<KeyTable>);

/// A region in the table.
///
/// # Safety
/// The table is locked, or the caller knows that the region is not closed.
unsafe fn region<'a>(address: usize) -> &'a Region {
    // SAFETY: a region leaves the table before its memory is used again, and the caller promised a locked
    // table or an open region.
    unsafe { &*with_exposed_provenance::<Region>(address) }
}

impl Keys {
    /// Locks the table: meanwhile no other thread changes it or looks up a key.
    pub fn lock(&self) -> RwLockWriteGuard<'_, KeyTable> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a key to a region that is not placed.
    pub fn reserve(&self, key: u64, region: &Region) -> Result<()> {
        let mut table = self.lock();
        ensure(!table.keys.contains_key(&key), KEY_IN_USE)?;
        table.keys.insert(key, Meaning::Region(region.address()));
        Ok(())
    }

    /// A key up to `last` that names nothing.
    pub fn unused(&self, last: u64) -> Result<u64> {
        self.lock().unused(last)
    }

    /// Puts a registered region at the address that the application chose, and makes the region
    /// usable. Returns the registrations of the regions that it replaces. The caller must end them.
    pub fn place(&self, new: &Region) -> Result<Vec<Piece>> {
        // `register` has refused a region that runs past the end of the addresses.
        let end = new.plan.base + new.plan.length;
        let mut table = self.lock();
        // Placed regions do not overlap each other. The scan goes down from the new region's end,
        // and stops at the first region that lies before the new one.
        let below = table.placed.range(..end).rev();
        // SAFETY: the table is locked.
        let old = below.map(|(_, &address)| unsafe { region(address) });
        let reaches = |old: &&Region| old.plan.base + old.plan.length > new.plan.base;
        let overlapping: Vec<&Region> = old.take_while(reaches).collect();
        if let Some(key) = new.plan.table_key {
            if let Some(meaning) = table.keys.get(&key) {
                let goes =
                    |old: &&Region| matches!(meaning, Meaning::Region(at) if *at == old.address());
                ensure(overlapping.iter().any(goes), KEY_IN_USE)?;
            }
        }
        let mut pieces = Vec::new();
        for old in overlapping {
            table.take_out(old);
            // A region that another thread is closing ends its registrations itself.
            pieces.extend(old.replace().into_iter().flatten());
        }
        table.placed.insert(new.plan.base, new.address());
        if let Some(key) = new.plan.table_key {
            table.keys.insert(key, Meaning::Region(new.address()));
        }
        new.is_now_registered();
        Ok(pieces)
    }

    /// Takes a region out of the table, if the table has it.
    #[inline(always)]
    pub fn remove(&self, region: &Region) {
        if region.plan.table_key.is_some() || region.plan.is_placed {
            self.lock().take_out(region);
        }
    }

    /// Maps a remote peer's raw key to a key that no region has.
    pub fn map(&self, raw: RawKey) -> Result<u64> {
        let mut table = self.lock();
        let key = table.unused(u64::MAX - 1)?;
        table.keys.insert(key, Meaning::Mapped(raw));
        Ok(key)
    }

    /// Ends the mapping of a raw key.
    pub fn unmap(&self, key: u64) -> Result<()> {
        let mut table = self.lock();
        let mapped = matches!(table.keys.get(&key), Some(Meaning::Mapped(_)));
        ensure(mapped, NOT_MAPPED)?;
        table.keys.remove(&key);
        Ok(())
    }

    /// Whether raw keys are mapped.
    pub fn has_mapped(&self) -> bool {
        let is_mapped = |meaning: &Meaning| matches!(meaning, Meaning::Mapped(_));
        self.lock().keys.values().any(is_mapped)
    }

    /// Finds the memory behind a range of a key's addresses. With the provider's keys, a key
    /// outside this table is the device's, and so is the address: `Domain::resolve` handles
    /// that case.
    pub fn resolve(&self, key: u64, start: u64, length: u64, found: &mut Found) -> Result<()> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut locate =
            |base, pieces: &[_]| locate(base, pieces, start, length, |segment| found.push(segment));
        match table.keys.get(&key).ok_or(NO_SUCH_KEY)? {
            Meaning::Mapped(raw) => locate(raw.base, &raw.pieces),
            Meaning::Region(address) => {
                // SAFETY: the table is locked.
                let region = unsafe { region(*address) };
                ensure(region.is_registered(), KEY_WITHOUT_REGION)?;
                region.with_segments(Side::Remote, |segments| locate(region.plan.base, segments))
            }
        }
    }
}

impl KeyTable {
    fn unused(&mut self, last: u64) -> Result<u64> {
        // Of one key more than are in use one is free, unless the domain can have fewer.
        for _ in 0..=last.min(self.keys.len() as u64) {
            let key = (FIRST_CHOSEN + self.chosen) % (last + 1);
            self.chosen += 1;
            if !self.keys.contains_key(&key) {
                return Ok(key);
            }
        }
        Err(NO_KEY_LEFT.into())
    }

    fn take_out(&mut self, region: &Region) {
        let address = region.address();
        if let Some(key) = region.plan.table_key {
            if matches!(self.keys.get(&key), Some(Meaning::Region(at)) if *at == address) {
                self.keys.remove(&key);
            }
        }
        if region.plan.is_placed && self.placed.get(&region.plan.base) == Some(&address) {
            self.placed.remove(&region.plan.base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_raw_keys_leave_short_keys_free() {
        let mut table = KeyTable::default();
        let mut take = |last| {
            let raw = RawKey {
                base: 0,
                pieces: Vec::new(),
            };
            let key = table.unused(last).ok()?;
            table.keys.insert(key, Meaning::Mapped(raw));
            Some(key)
        };
        for n in 0..300 {
            assert_eq!(take(u64::MAX - 1), Some(FIRST_CHOSEN + n));
        }
        let mut short: Vec<u64> = (0..256).filter_map(|_| take(255)).collect();
        short.sort();
        assert_eq!(short, Vec::from_iter(0..256));
        assert_eq!(take(255), None);
    }
}
