// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the cache with a naive model: a list of regions that is searched from end to end, and
//! an address space in which each change gives the changed pages new numbers. Whatever the program
//! does, the cache must find a region exactly when the model has one that serves. The region that
//! it finds must have been pinned while its pages had their present numbers.

use crate::account::Amount;
use crate::find::filter::CHUNK;
use crate::life::limits::NO_LIMIT;
use crate::locked::Locked;
use crate::region::slot::{Cause, Domain, Id, LookupKey, Slot};
use crate::region::state::{AfterRelease, Grant};
use crate::regions::Regions;
use crate::watch::ring::{Event, Kind};
use core::sync::atomic::Ordering::Relaxed;
use proptest::prelude::*;
use rdmamr_policy::is_local;
use rdmamr_sys::pages::{PageRange, page_size};
use std::alloc::{Layout, alloc_zeroed};
use std::collections::BTreeMap;

/// Pages of the address space. They span several chunks of the filter, so that the filter has
/// chunks to tell apart.
const PAGES: u64 = 40;
const STRIDE: u64 = CHUNK / 4;

fn address(page: u64) -> u64 {
    // Each group of eight pages is contiguous, for the sizes of a few pages; the groups lie chunks
    // apart.
    0x7000_0000_0000 + (page / 8) * STRIDE * 8 + (page % 8) * page_size()
}

/// A range within a group of eight contiguous pages.
fn range(first: u64, count: u64) -> PageRange {
    let count = count.min(8 - first % 8);
    PageRange::new(address(first), address(first) + count * page_size())
}

fn pages(range: PageRange) -> impl Iterator<Item = u64> {
    (0..PAGES).filter(move |&page| {
        let start = address(page);
        range.overlaps(PageRange {
            start,
            end: start + 1,
        })
    })
}

pub fn new_cache() -> &'static Regions {
    // SAFETY: `Regions` has a non-zero size.
    let memory = unsafe { alloc_zeroed(Layout::new::<Regions>()) };
    // SAFETY: the memory has the layout of a `Regions`, for which all zeros is an empty cache, and
    // the test never frees it.
    unsafe { &*memory.cast::<Regions>() }
}

const LOCAL_WRITE: u32 = 1;
/// Two pages, so that some longer regions serve and some do not.
const SPARE: u64 = 2 << 12;
const ACCESS: [u32; 5] = [0, LOCAL_WRITE, 3, 7, LOCAL_WRITE | 1 << 20];

#[derive(Clone, Debug)]
enum Step {
    Register {
        pd: u64,
        first: u64,
        count: u64,
        access: usize,
        changed_meanwhile: bool,
    },
    /// Releases one of the program's handles, or, with `again`, one that it has released before.
    Release {
        which: prop::sample::Index,
        again: bool,
    },
    Change {
        first: u64,
        count: u64,
        kind: u8,
    },
    ManyChanges,
    Apply,
    Flush {
        pd: u64,
    },
    Trim {
        regions: i64,
    },
    Refuse {
        pd: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..2u64, 0..PAGES, 1..6u64, 0..ACCESS.len(), prop::bool::weighted(0.1))
            .prop_map(|(pd, first, count, access, changed_meanwhile)| Step::Register {
                pd, first, count, access, changed_meanwhile
            }),
        10 => (any::<prop::sample::Index>(), prop::bool::weighted(0.1))
            .prop_map(|(which, again)| Step::Release { which, again }),
        4 => (0..PAGES, 1..8u64, 0..4u8).prop_map(|(first, count, kind)| Step::Change { first, count, kind }),
        1 => Just(Step::ManyChanges),
        2 => Just(Step::Apply),
        1 => (0..2u64).prop_map(|pd| Step::Flush { pd }),
        1 => (0..8i64).prop_map(|regions| Step::Trim { regions }),
        1 => (0..2u64).prop_map(|pd| Step::Refuse { pd }),
    ]
}

/// A region as the model knows it.
struct Known {
    lookup_key: LookupKey,
    /// The numbers of the pages when they were pinned.
    pinned: Vec<u64>,
    users: u32,
    stale: bool,
    /// The kernel refused to end the region.
    refused: bool,
}

impl Known {
    fn serves(&self, lookup_key: &LookupKey) -> bool {
        let (has, asked) = (&self.lookup_key, lookup_key);
        let (pages, asked_pages) = (has.page_range, asked.page_range);
        has.domain == asked.domain
            && has.access == asked.access
            && pages.start == asked_pages.start
            && pages.contains(asked_pages)
            && pages.end - asked_pages.end <= asked.spare
            && !self.stale
    }
}

struct Test {
    regions: &'static Regions,
    numbers: Vec<u64>,
    next_number: u64,
    known: BTreeMap<Id, Known>,
    /// The objects of the handles that the program holds, with their regions.
    handles: Vec<(usize, Id)>,
    /// The objects of every handle that the program has released.
    ended: Vec<usize>,
    /// How many regions were in use when the idle ones were last summed.
    in_use: i64,
}

/// The limit between two steps that sum the idle regions.
const MANY: i64 = 24;

impl Test {
    fn new() -> Test {
        let test = Test {
            regions: new_cache(),
            numbers: vec![0; PAGES as usize],
            next_number: 1,
            known: BTreeMap::new(),
            handles: Vec::new(),
            ended: Vec::new(),
            in_use: 0,
        };
        test.set_limit(MANY);
        test
    }

    fn apply(&self) {
        self.regions.lock().apply();
    }

    fn pin(&self, range: PageRange) -> Vec<u64> {
        pages(range)
            .map(|page| self.numbers[page as usize])
            .collect()
    }

    /// An event of this kind, or a call.
    fn change(&mut self, range: PageRange, kind: Option<Kind>) {
        assert!(
            !self
                .known
                .values()
                .any(|known| known.lookup_key.page_range.overlaps(range))
                || self.regions.filter.may_hold(range)
        );
        let ring = &self.regions.ring;
        match kind {
            None => {
                self.regions.lock().change(range, Cause::Hook);
            }
            Some(kind) => {
                ring.announce();
                assert!(!ring.is_settled());
                ring.write(Event { range, kind });
                ring.finish();
            }
        }
        for page in pages(range) {
            self.numbers[page as usize] = self.next_number;
            self.next_number += 1;
        }
        for known in self.known.values_mut() {
            known.stale |= known.lookup_key.page_range.overlaps(range);
        }
    }

    fn register(
        &mut self,
        lookup_key: LookupKey,
        changed_meanwhile: bool,
    ) -> Result<(), TestCaseError> {
        self.apply();
        self.end_evicted();
        let serves = self.known.values().any(|known| known.serves(&lookup_key));
        let taken = self.regions.take(&lookup_key);
        prop_assert_eq!(taken.is_some(), serves);
        let (id, grant) = match taken {
            Some((id, grant)) => {
                let known = self.known.get_mut(&id).expect("the model has it");
                prop_assert!(known.serves(&lookup_key));
                known.users += 1;
                (id, grant)
            }
            None => {
                let made = self.regions.lock().make(&lookup_key);
                let Some(id) = made else {
                    return Ok(());
                };
                let region = self.regions.region(id);
                region.set_watched();
                region.fd.store(3, Relaxed);
                let pinned = self.pin(lookup_key.page_range);
                self.known.insert(
                    id,
                    Known {
                        lookup_key,
                        pinned,
                        users: 1,
                        stale: false,
                        refused: false,
                    },
                );
                if changed_meanwhile {
                    self.change(lookup_key.page_range, Some(Kind::Changed));
                }
                self.apply();
                let kept = self.regions.lock().keep(id);
                prop_assert_eq!(kept, !changed_meanwhile);
                let object = self.regions.region(id).object();
                prop_assert_eq!(self.regions.region_of(object), Some(id));
                self.handles.push((object, id));
                return Ok(());
            }
        };
        let known = &self.known[&id];
        let inside = pages(known.lookup_key.page_range).zip(&known.pinned);
        for (page, &number) in inside {
            if lookup_key.page_range.contains(range(page, 1)) {
                prop_assert_eq!(number, self.numbers[page as usize], "stale");
            }
        }
        match self
            .regions
            .object(id, grant, lookup_key.page_range.start, 1)
        {
            Some(object) => {
                prop_assert!(self.handles.iter().all(|handle| handle.0 != object));
                prop_assert_eq!(self.regions.region_of(object), Some(id));
                self.handles.push((object, id));
            }
            // No slot is free for a further handle.
            None => {
                let after = self.regions.region(id).state.release(grant);
                self.released(id, after)?;
            }
        }
        Ok(())
    }

    /// Compares the outcome of a release with the model's.
    fn released(&mut self, id: Id, after: Option<AfterRelease>) -> Result<(), TestCaseError> {
        let known = self.known.get_mut(&id).expect("the model has it");
        known.users -= 1;
        // The cache does not know of an event that is written but not applied.
        let behind = self.regions.ring.is_behind();
        match after {
            Some(AfterRelease::InUse) => prop_assert!(known.users > 0),
            Some(AfterRelease::Idle) => {
                prop_assert!(known.users == 0 && (!known.stale || behind));
                if !known.stale && self.regions.account.is_full() {
                    let claimed = self.claim(Cause::Watermark, |other| other == id);
                    prop_assert_eq!(claimed, [id]);
                    self.end(id);
                }
            }
            Some(AfterRelease::MustEnd(_)) => {
                prop_assert!(known.users == 0 && known.stale);
                // The cleaner claims the region before the releasing thread does; its cause is then
                // not recorded.
                let spent = self.regions.region(id).object();
                let which = |other: &Slot| other.object() == spent;
                prop_assert!(self.regions.lock().claim_unused(id, Cause::Linger, which));
                let cause = self.regions.region(id).cause();
                prop_assert!(cause.is_none_or(|(cause, _)| cause != Cause::Linger));
                self.end(id);
            }
            None => prop_assert!(false, "the handle is the program's"),
        }
        Ok(())
    }

    fn end(&mut self, id: Id) {
        self.regions.lock().free(id);
        self.known.remove(&id);
    }

    fn end_evicted(&mut self) {
        while let Some(id) = self.regions.next_evicted() {
            let known = &self.known[&id];
            assert!(known.users == 0 && known.stale);
            self.end(id);
        }
    }

    fn claim(&mut self, cause: Cause, which: impl Fn(Id) -> bool) -> Vec<Id> {
        let locked = self.regions.lock();
        let claims = |&id: &Id| locked.claim_unused(id, cause, |_| which(id));
        let all = self.regions.each().map(|(id, _)| id);
        all.filter(claims).collect()
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Register {
                pd,
                first,
                count,
                access,
                changed_meanwhile,
            } => {
                let access = ACCESS[access];
                let lookup_key = LookupKey {
                    exclusive: false,
                    domain: Domain::new(pd as usize, 0, 0),
                    page_range: range(first, count),
                    access,
                    spare: if is_local(access) { SPARE } else { 0 },
                    allocation: 0,
                };
                self.register(lookup_key, changed_meanwhile)?;
            }
            Step::Release { which, again } => {
                if again && !self.ended.is_empty() {
                    let object = *which.get(&self.ended);
                    if self.handles.iter().all(|handle| handle.0 != object) {
                        prop_assert_eq!(self.regions.release(object, 0), None);
                    }
                } else if !self.handles.is_empty() {
                    let (object, id) = self.handles.swap_remove(which.index(self.handles.len()));
                    self.ended.push(object);
                    let released = self.regions.release(object, 0);
                    prop_assert!(released.is_none_or(|(region, _)| region == id));
                    self.released(id, released.map(|(_, after)| after))?;
                }
            }
            Step::Change { first, count, kind } => {
                let kinds = [
                    None,
                    Some(Kind::Changed),
                    Some(Kind::Dropping { at: 1 }),
                    Some(Kind::Broken),
                ];
                let everywhere = usize::from(kind) == 3;
                let changed = if everywhere {
                    PageRange::ALL
                } else {
                    range(first, count)
                };
                self.change(changed, kinds[usize::from(kind)]);
            }
            Step::ManyChanges => {
                // More events than the ring holds, of other memory: all regions are invalidated.
                let elsewhere = PageRange::new(0x1000, 0x2000);
                for _ in 0..5000 {
                    self.change(elsewhere, Some(Kind::Changed));
                }
                self.known.values_mut().for_each(|known| known.stale = true);
            }
            Step::Apply => {
                self.apply();
                prop_assert!(self.regions.ring.is_settled());
                self.end_evicted();
                let left = |known: &Known| known.users == 0 && known.stale && !known.refused;
                prop_assert!(
                    !self.known.values().any(left),
                    "nobody will use it, and nobody ends it"
                );
            }
            Step::Flush { pd } => {
                self.apply();
                self.end_evicted();
                let regions = self.regions;
                for id in self.claim(Cause::Flush, |id| regions.region(id).pd() == pd) {
                    prop_assert_eq!(self.known[&id].users, 0);
                    self.end(id);
                }
                let idle = |known: &Known| known.users == 0 && known.lookup_key.domain.pd == pd;
                prop_assert!(!self.known.values().any(idle));
            }
            Step::Trim { regions } => {
                self.apply();
                self.end_evicted();
                self.set_limit(regions);
                let idle = self.idle();
                let locked = self.regions.lock();
                let excess = self.regions.account.found_idle(idle).regions;
                drop(locked);
                self.in_use = self.known.len() as i64 - idle.regions;
                let of = |(&id, known): (&Id, &Known)| {
                    (known.users == 0 && !known.refused).then_some(id)
                };
                let mut over: Vec<Id> = self.known.iter().filter_map(of).collect();
                over.truncate(excess.max(0) as usize);
                prop_assert_eq!(
                    &self.claim(Cause::Watermark, |id| over.contains(&id)),
                    &over
                );
                over.into_iter().for_each(|id| self.end(id));
                let full = self.regions.account.is_full();
                prop_assert!(
                    !full || regions == 0 || self.known.values().any(|known| known.refused)
                );
                self.compare_limit()?;
                self.set_limit(MANY);
            }
            Step::Refuse { pd } => {
                self.apply();
                self.end_evicted();
                let regions = self.regions;
                for id in self.claim(Cause::Flush, |id| regions.region(id).pd() == pd) {
                    // The kernel refuses to deregister the region. The region stays, and no
                    // registration gets it.
                    self.regions.lock().restore(id);
                    let known = self.known.get_mut(&id).unwrap();
                    known.stale = true;
                    known.refused = true;
                }
            }
        }
        self.compare()
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(Amount::sum(self.regions.each_without_users()), self.idle());
        let used = self.known.values().filter(|known| known.users > 0);
        prop_assert_eq!(self.regions.each_used().count(), used.count());
        self.compare_limit()?;
        self.compare_neighbours()
    }

    fn idle(&self) -> Amount {
        let idle = self.known.values().filter(|known| known.users == 0);
        let bytes = idle
            .clone()
            .map(|known| known.lookup_key.page_range.bytes());
        Amount {
            regions: idle.count() as i64,
            bytes: bytes.sum::<u64>() as i64,
        }
    }

    fn set_limit(&self, regions: i64) {
        let bytes = NO_LIMIT;
        let _locked = self.regions.lock();
        self.regions
            .account
            .set_limit(Amount { regions, bytes }, NO_LIMIT);
    }

    /// Until the cache is full, no more is idle than the limit and what was in use at the last sum.
    fn compare_limit(&self) -> Result<(), TestCaseError> {
        let account = &self.regions.account;
        let most = account.limit().regions + self.in_use;
        prop_assert!(account.is_full() || self.idle().regions <= most);
        Ok(())
    }

    /// The regions near a page are those that have a page in the same chunk.
    fn compare_neighbours(&self) -> Result<(), TestCaseError> {
        let _locked = self.regions.lock();
        for page in (0..PAGES).step_by(3).map(|page| range(page, 1)) {
            let chunk = page.extended(CHUNK);
            let reaches = |id: &Id| self.regions.region(*id).page_range().overlaps(chunk);
            let expected: Vec<Id> = self.known.keys().copied().filter(reaches).collect();
            let mut found = Vec::new();
            self.regions.near(page, |id, _| {
                found.push(id);
                true
            });
            found.sort();
            prop_assert_eq!(found, expected);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 150 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_cache_is_the_naive_one(steps in prop::collection::vec(step(), 1..if cfg!(miri) { 30 } else { 200 })) {
        let mut test = Test::new();
        for step in steps {
            test.step(step)?;
        }
    }
}

pub fn of_page(page: u64) -> LookupKey {
    LookupKey {
        domain: Domain::new(1, 0, 0),
        page_range: range(page, 1),
        access: 0,
        spare: 0,
        exclusive: false,
        allocation: 0,
    }
}

/// A thread has released a region that is spent. Before it claims the region, another thread ends
/// it, and the slot becomes a region that is idle.
#[test]
fn a_spent_region_is_told_from_a_later_one() {
    let regions = new_cache();
    let released = |id| regions.region(id).state.release(Grant::Own);
    let id = regions.lock().make(&of_page(0)).unwrap();
    let Some(AfterRelease::MustEnd(generation)) = released(id) else {
        panic!("it was never kept");
    };
    assert!(regions.lock().claim(id));
    regions.lock().free(id);
    assert_eq!(regions.lock().make(&of_page(1)), Some(id));
    assert!(regions.lock().keep(id));
    assert_eq!(released(id), Some(AfterRelease::Idle));
    assert!(!regions.lock().claim_generation(id, generation));
    let later = regions.region(id).state.load();
    assert!(later.is_unused() && regions.lock().claim_generation(id, later.generation()));
}

/// A region that the kernel watches.
fn watched(locked: &Locked<'_>, page_range: PageRange) -> Id {
    let id = locked.make(&LookupKey {
        page_range,
        ..of_page(0)
    });
    let id = id.unwrap();
    locked.regions().region(id).set_watched();
    id
}

/// A thread ends the watch around a region, and does not hold the lock. A region that is linked
/// nearby may lose its watch, so it is not kept, neither meanwhile nor afterwards.
#[test]
fn nothing_is_kept_beside_the_end_of_a_watch() {
    let regions = new_cache();
    let locked = regions.lock();
    let first = of_page(0).page_range;
    let ending = watched(&locked, first);
    regions.region(ending).begin_unwatching();
    let meanwhile = locked.make(&of_page(1)).unwrap();
    let far = locked.make(&of_page(39)).unwrap();
    locked.change(first, Cause::Hook);
    assert!(!locked.keep(meanwhile) && locked.keep(far));
    locked.invalidate_unkept_near(ending);
    locked.free(ending);
    assert!(!locked.keep(meanwhile));
}

/// Regions that share the chunks of one mapping, as far as the kernel watches it.
#[derive(Clone, Debug)]
enum Watching {
    /// A region is made and watched.
    Watch { range: (u64, u64), chunks: bool },
    /// A region ends.
    End(prop::sample::Index),
    /// A call changes a range, and the regions there end.
    Change { range: (u64, u64) },
}

const CHUNKS: u64 = 12;

/// The first page and the number of pages. Most of them lie in one chunk, some across chunks.
fn pages_of_chunks() -> impl Strategy<Value = (u64, u64)> {
    let in_chunk = CHUNK / page_size();
    let count = prop_oneof![3 => 1..in_chunk, 1 => 1..8 * in_chunk];
    (0..CHUNKS * in_chunk, count)
        .prop_map(move |(first, count)| (first, count.min(CHUNKS * in_chunk - first)))
}

fn watching() -> impl Strategy<Value = Watching> {
    prop_oneof![
        4 => (pages_of_chunks(), prop::bool::weighted(0.8))
            .prop_map(|(range, chunks)| Watching::Watch { range, chunks }),
        2 => any::<prop::sample::Index>().prop_map(Watching::End),
        1 => pages_of_chunks().prop_map(|range| Watching::Change { range }),
    ]
}

/// The kernel's side: which pages it watches.
struct Mapping(Vec<bool>);

impl Mapping {
    fn range((first, count): (u64, u64)) -> PageRange {
        let start = address(0) + first * page_size();
        PageRange::new(start, start + count * page_size())
    }

    fn pages(&mut self, range: PageRange) -> &mut [bool] {
        let page = |at: u64| ((at - address(0)) / page_size()) as usize;
        &mut self.0[page(range.start)..page(range.end)]
    }

    /// As [`crate::life::ending::leave`].
    fn leave(&mut self, locked: &Locked<'_>, id: Id) {
        let mut from = 0;
        while let Some(part) = locked.unneeded(id, from) {
            self.pages(part).fill(false);
            from = part.end;
        }
        locked.free(id);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 500 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// No region loses its watch to another's end, and without regions no memory is watched.
    #[test]
    fn memory_is_watched_for_regions(steps in prop::collection::vec(watching(), 2..30)) {
        let regions = new_cache();
        let locked = regions.lock();
        let mut mapping = Mapping(vec![false; (CHUNKS * CHUNK / page_size()) as usize]);
        let mut all: Vec<Id> = Vec::new();
        let ends = |id: &Id| {
            regions.region(*id).state.release(Grant::Own);
            locked.claim(*id)
        };
        for step in steps {
            match step {
                Watching::Watch { range, chunks } => {
                    let page_range = Mapping::range(range);
                    all.push(watched(&locked, page_range));
                    let around = if chunks { page_range.extended(CHUNK) } else { page_range };
                    mapping.pages(around).fill(true);
                }
                Watching::End(_) if all.is_empty() => {}
                Watching::End(which) => {
                    let id = all.swap_remove(which.index(all.len()));
                    prop_assert!(ends(&id));
                    mapping.leave(&locked, id);
                }
                Watching::Change { range } => {
                    let range = Mapping::range(range);
                    all.retain(|&id| {
                        let stays = !regions.region(id).page_range().overlaps(range);
                        if !stays {
                            regions.region(id).state.release(Grant::Own);
                        }
                        stays
                    });
                    locked.change(range, Cause::Hook);
                    while let Some(id) = regions.next_evicted() {
                        mapping.leave(&locked, id);
                    }
                    if let Some(watched) = locked.watched_in(range) {
                        prop_assert!(range.contains(watched));
                        mapping.pages(watched).fill(false);
                    }
                }
            }
            for region in all.iter().map(|&id| regions.region(id)) {
                prop_assert!(!mapping.pages(region.page_range()).contains(&false));
            }
        }
        for id in all {
            prop_assert!(ends(&id));
            mapping.leave(&locked, id);
        }
        prop_assert!(!mapping.0.contains(&true), "nothing needs it");
    }
}
