// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides which memory may be populated beside its registration: memory for which populating makes
//! exactly the same pages as the pin (`kind.rs`), and pays off.
//!
//! All other memory is left alone: memory that the pin would refuse, memory whose missing pages a
//! userfaultfd reports to the program, and memory for which there is not enough room. A
//! registration that the kernel refuses before it looks at the memory leaves the memory unchanged;
//! so does this module, and so do the threads (`team.rs`).

use super::huge;
use super::kind::Kind;
use super::pages::{Pin, entry, samples};
use rdmamr_sys::memory::has_page;
use rdmamr_sys::pagemap::{Entry, PageMap};
use rdmamr_sys::pages::{PageRange, page_size};
use rdmamr_sys::{cgroup, proc};

/// The facts about memory that may be populated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suitable {
    pub kind: Kind,
    /// The size of its largest pages.
    pub page: u64,
    /// If the threads ask for huge pages: the start of its first mapping, and the end of its last
    /// one.
    pub huge: Option<(u64, u64)>,
}

/// How a registration's memory is populated, if that is allowed and pays off.
pub fn find(pin: &Pin, pages: PageRange) -> Option<Suitable> {
    // The checks run in ascending order of cost. Which pages a GPU's driver makes of memory that it only
    // reads is not known.
    if !pin.pins || pin.by_gpu && !pin.writing {
        return None;
    }
    let missing = missing(pages)?;
    if !can_populate() || (!pin.by_gpu && !is_within_limit(pages)) || !has_room(missing) {
        return None;
    }
    // The time to look at mappings, in ns: an eighth of the time to pin the missing pages.
    let time = missing / page_size() * (1200 / 8);
    let below = are_mapped(pages, pin.writing, time)?;
    if pin.is_watched {
        // The cache reuses private memory of no file only.
        return below.writable.then_some(Suitable {
            kind: Kind::Private,
            page: 0,
            huge: None,
        });
    }
    of_one_kind(pages, below, pin.writing, missing, time)
}

/// Whether this kernel can populate memory (Linux 5.14): it then accepts the advice for an empty
/// range.
fn can_populate() -> bool {
    const NONE: usize = 0;
    // SAFETY: advice on an empty range changes nothing.
    unsafe { libc::syscall(libc::SYS_madvise, NONE, NONE, libc::MADV_POPULATE_WRITE) == 0 }
}

/// Whether the kernel's limit lets the pages be pinned.
fn is_within_limit(pages: PageRange) -> bool {
    let Some(limit) = proc::memlock_limit() else {
        return true;
    };
    proc::Status::read()
        .is_some_and(|status| status.may_lock || status.pinned_kib * 1024 + pages.bytes() <= limit)
}

/// Whether the machine and the memory cgroup have room for this many bytes, and for the needs of
/// the threads themselves. Without that room, the registration alone decides how it ends.
fn has_room(bytes: u64) -> bool {
    const MORE: u64 = 64 << 20;
    let within = |room: u64| bytes.saturating_add(MORE) <= room;
    let group = cgroup::memory_used().map(|(used, most)| most.saturating_sub(used));
    let [available] = proc::memory_kib([b"MemAvailable:"]);
    within(available * 1024) && group.is_none_or(within)
}

/// The mappings of the pages and those below, through which a search of the mappings goes.
#[derive(Clone, Copy)]
struct Below {
    mappings: u64,
    bytes: u64,
    /// All of the memory itself is writable.
    writable: bool,
}

impl Below {
    /// In ns ([`proc::each_mapping_with_flags`]).
    fn time_of_mappings(&self) -> u64 {
        self.mappings * 1200
    }
}

/// Estimates from samples how many bytes are missing. `None` if no sample is missing, or if the
/// kernel does not tell. A look costs 0.4 us, and the pin of 32 MiB of present pages 20 us with
/// huge pages, 500 us with small ones. Missing pages between the samples are left to the
/// registration.
fn missing(pages: PageRange) -> Option<u64> {
    const APART: u64 = 32 << 20;
    let looks = 1 + pages.bytes().div_ceil(APART);
    let is_absent = |&page: &u64| has_page(page as usize) != Some(true);
    let absent = samples(pages, looks).filter(is_absent).count() as u64;
    // mincore(2) does not tell whether a file's page is mapped, nor whether a page is the
    // shared zero page. To ask the page map costs 3 us.
    const WORTH: u64 = 256 << 20;
    if absent == 0 && (pages.bytes() < WORTH || !lacks_some(pages, looks)) {
        return None;
    }
    let most = pages.bytes();
    Some(((absent + 1) * most / looks).min(most))
}

fn lacks_some(pages: PageRange, looks: u64) -> bool {
    // The page map tells nothing more about a file's page.
    let lacks = |page: Entry| !page.is_own() && !page.is_of_file();
    let lacks_some = |map| samples(pages, looks).any(|page| entry(&map, page).is_some_and(lacks));
    PageMap::open().is_some_and(lacks_some)
}

/// The address space below the memory, if all of it is mapped with the right that the pin
/// needs. `None` also if so many mappings are below that [`of_one_kind`] would take longer
/// than `time`.
fn are_mapped(pages: PageRange, writing: bool, time: u64) -> Option<Below> {
    let PageRange { start: mut at, end } = pages;
    let mut below = Below {
        mappings: 0,
        bytes: 0,
        writable: true,
    };
    let read = proc::each_mapping(|mapping| {
        let range = mapping.range;
        below.mappings += 1;
        below.bytes += range.bytes();
        if range.end <= at {
            return below.time_of_mappings() <= time;
        }
        if range.start > at || !mapping.allows(writing) {
            return false;
        }
        below.writable &= mapping.writable;
        at = range.end;
        at < end
    });
    (read && at >= end).then_some(below)
}

/// The kind of the memory, if all of it has one kind. `None` also if the answer would take longer
/// than `time` or cannot be had: then the registration takes as long as without helpers.
fn of_one_kind(
    pages: PageRange,
    below: Below,
    writing: bool,
    missing: u64,
    time: u64,
) -> Option<Suitable> {
    let resident = proc::resident_pages().unwrap_or(u64::MAX);
    let there = resident.min(below.bytes.saturating_sub(missing) / page_size());
    if below.time_of_mappings() + there * 24 > time {
        return None;
    }
    let PageRange { start: mut at, end } = pages;
    let mut found: Option<Suitable> = None;
    let may_ask = huge::may_ask(missing);
    let read = proc::each_mapping_with_flags(|mapping, flags| {
        if mapping.range.end <= at {
            return true;
        }
        let kind = Kind::of(mapping, flags, writing, missing);
        let other = |found: Suitable| kind != Some(found.kind);
        if mapping.range.start > at || kind.is_none() || found.is_some_and(other) {
            return false;
        }
        let from = mapping.range.start;
        let (page, from) = match found {
            Some(before) => (before.page, before.huge.map(|(from, _)| from)),
            None => (0, may_ask.then_some(from)),
        };
        let from = from.filter(|_| mapping.is_own() && huge::is_undecided(flags));
        found = kind.map(|kind| Suitable {
            kind,
            page: page.max(mapping.page_size),
            huge: from.map(|from| (from, mapping.range.end)),
        });
        at = mapping.range.end;
        at < end
    });
    found.filter(|_| read && at >= end)
}

#[cfg(test)]
mod tests {
    use super::super::pages::tests::Memory;
    use super::*;

    const SIZE: usize = 64 << 20;
    const TIME: u64 = u64::MAX / 2;

    #[test]
    fn fresh_memory_is_suitable_and_no_more_once_it_is_there() {
        let memory = Memory::new(SIZE);
        let pages = memory.pages();
        let bytes = missing(pages).unwrap();
        assert_eq!(bytes, SIZE as u64);
        let below = are_mapped(pages, true, TIME).unwrap();
        assert!(below.mappings > 0 && below.bytes > 0);
        let suitable = of_one_kind(pages, below, true, bytes, TIME).unwrap();
        assert_eq!((suitable.kind, suitable.page), (Kind::Private, page_size()));
        // The test has decided against huge pages.
        assert_eq!(suitable.huge, None);
        for at in (0..SIZE).step_by(4096) {
            memory.write(at, 1);
        }
        assert_eq!(missing(pages), None);
    }

    #[test]
    fn one_page_of_another_kind_is_enough() {
        for protection in [libc::PROT_NONE, libc::PROT_READ] {
            let memory = Memory::new(SIZE);
            memory.protect(SIZE - 4096, protection);
            let pages = memory.pages();
            assert!(are_mapped(pages, true, TIME).is_none());
            // The last page is anonymous and not writable.
            let reading = are_mapped(pages, false, TIME);
            assert!(reading.is_none_or(|it| of_one_kind(pages, it, false, 0, TIME).is_none()));
        }
        let memory = Memory::new(SIZE);
        let pages = memory.pages();
        let beyond = PageRange::new(pages.start, pages.end + SIZE as u64);
        memory.guard();
        assert!(are_mapped(beyond, true, TIME).is_none());
        assert!(are_mapped(pages, true, TIME).is_some());
    }

    #[test]
    fn a_long_look_is_not_taken() {
        let memory = Memory::new(SIZE);
        let pages = memory.pages();
        let below = are_mapped(pages, true, TIME).unwrap();
        let little = below.time_of_mappings() / 2;
        assert!(are_mapped(pages, true, little).is_none());
        let resident = Below {
            bytes: u64::MAX,
            ..below
        };
        let least = below.time_of_mappings() + proc::resident_pages().unwrap();
        assert!(of_one_kind(pages, resident, true, 0, least).is_none());
    }

    #[test]
    fn samples_are_not_at_the_same_place_of_their_part() {
        let memory = Memory::new(SIZE);
        let pages = memory.pages();
        let samples: Vec<u64> = samples(pages, 8).collect();
        assert_eq!(samples.len(), 8);
        let part = pages.bytes() / 8;
        for (number, page) in samples.iter().enumerate() {
            assert_eq!((page - pages.start) / part, number as u64);
        }
        let odd = samples.iter().filter(|&page| page / page_size() % 2 == 1);
        assert!((2..7).contains(&odd.count()));
    }
}
