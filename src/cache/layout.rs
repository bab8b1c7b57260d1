// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of the cache that all threads share.
//!
//! Each transition of a region's *state* (`region/state.rs`) has one owner: the thread whose
//! compare-and-swap succeeds. Only the thread that makes a region writes the fields that a look-up
//! reads, before `keep` (release); other threads read them after the state (acquire). The holder of
//! the lock owns the tree, the table's entries and the applying of the ring (`locked.rs`). One thread
//! deregisters a claimed region, outside the lock, when it has no user and no thread can take it any
//! more. The lemmas are in `docs/proof.md`.

use crate::account::Account;
use crate::find::filter::Filter;
use crate::find::table::Table;
use crate::find::tree::Tree;
use crate::lock::Lock;
use crate::mapping::Large;
use crate::noted::Noted;
use crate::region::list::List;
use crate::region::slot::CachedRegion;
use crate::watch::ring::Ring;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

/// The largest number of slots: regions and further handles.
pub const MOST: usize = tiny_or!(48, 1 << 18);

/// The cache. Zeroed memory is an empty cache. The structure is so large that only parts of its
/// address range are mapped (`place.rs`): all fields before the tables, and the parts in use of
/// the arrays.
#[repr(C)]
pub struct Regions {
    /// Besides its table entry and its region, a hit or a release reads a single cache line: the
    /// end of the account, the table's shape, and the beginning of the ring. Events write
    /// to that line, and misses that make the cache full; hits do not.
    pub account: Account,
    /// The shape of the table in use ([`Table`]).
    pub(super) shape: AtomicU32,
    /// The number of mapped slots.
    pub(super) ready: AtomicU32,
    pub ring: Ring,
    pub(super) lock: Lock,
    /// The number of slots that were ever in use.
    pub(super) grown: AtomicU32,
    pub(super) free: List,
    /// Claimed regions that wait to be deregistered.
    pub(super) evicted: List,
    /// A thread has waited in vain for claimed regions to end, and none has ended since.
    pub(super) waited_in_vain: AtomicBool,
    /// The number of regions that are claimed and not yet ended.
    pub(super) ending: AtomicU32,
    /// A futex: it grows whenever a region has ended while a thread waits.
    pub(super) ended: AtomicU32,
    /// The number of threads that wait on `ended`.
    pub(super) waiting: AtomicU32,
    /// Hits that overflowed the regions' own 32-bit counts.
    pub(super) many_hits: AtomicU64,
    pub noted: Noted,
    /// The number of linked monitored ranges that are invalidated.
    pub(super) changed_monitored: AtomicU64,
    pub filter: Filter,
    pub(super) tree: Tree,
    pub(super) table: Table,
    pub(super) slots: Large<[CachedRegion; MOST]>,
}

#[cfg(not(loom))]
const _: () = {
    const START: usize = Account::LINE;
    const END: usize = core::mem::offset_of!(Regions, ring) + Ring::READ_BY_HITS;
    assert!(START % 64 == 0 && END == START + 64);
};

impl Regions {
    /// The number of bytes, from its start on, that an empty cache needs mapped.
    pub const FIRST: usize = core::mem::offset_of!(Regions, table) + Table::FIRST;
}
