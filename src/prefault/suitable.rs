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
use super::pages::{Pages, Pin};
use rdmamr_sys::memory::has_page;
use rdmamr_sys::pagemap::{Entry, PageMap};
use rdmamr_sys::{cgroup, proc};

/// The facts about memory that may be populated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suitable {
    pub kind: Kind,
    /// The size of its largest pages.
    pub page: usize,
    /// If the threads ask for huge pages: the start of its first mapping, and the end of its last
    /// one.
    pub huge: Option<(usize, usize)>,
}

/// How a registration's memory is populated, if that is allowed and pays off.
pub fn find(pin: &Pin, pages: Pages) -> Option<Suitable> {
    // The checks run in ascending order of cost. Which pages a GPU's driver makes of memory that it only
    // reads is not known.
    if !pin.pins || pin.by_gpu && !pin.writing {
        return None;
    }
    let missing = pages.missing()?;
    if !can_populate() || (!pin.by_gpu && !is_within_limit(pages)) || !has_room(missing) {
        return None;
    }
    // The time to look at mappings, in ns: an eighth of the time to pin the missing pages.
    let time = missing / pages.size as u64 * (1200 / 8);
    let below = pages.are_mapped(pin.writing, time)?;
    if pin.is_watched {
        // The cache reuses private memory of no file only.
        return below.writable.then_some(Suitable {
            kind: Kind::Private,
            page: 0,
            huge: None,
        });
    }
    pages.of_one_kind(below, pin.writing, missing, time)
}

/// Whether this kernel can populate memory (Linux 5.14): it then accepts the advice for an empty
/// range.
fn can_populate() -> bool {
    const NONE: usize = 0;
    // SAFETY: advice on an empty range changes nothing.
    unsafe { libc::syscall(libc::SYS_madvise, NONE, NONE, libc::MADV_POPULATE_WRITE) == 0 }
}

/// Whether the kernel's limit lets the pages be pinned.
fn is_within_limit(pages: Pages) -> bool {
    let Some(limit) = proc::memlock_limit() else {
        return true;
    };
    proc::Status::read().is_some_and(|status| {
        status.may_lock || status.pinned_kib * 1024 + pages.bytes() as u64 <= limit
    })
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

impl Pages {
    /// Estimates from samples how many bytes are missing. `None` if no sample is missing, or if the
    /// kernel does not tell. A look costs 0.4 us, and the pin of 32 MiB of present pages 20 us with
    /// huge pages, 500 us with small ones. Missing pages between the samples are left to the
    /// registration.
    fn missing(self) -> Option<u64> {
        const APART: usize = 32 << 20;
        let looks = 1 + self.bytes().div_ceil(APART);
        let absent = self
            .samples(looks)
            .filter(|page| has_page(page.start) != Some(true))
            .count();
        // mincore(2) does not tell whether a file's page is mapped, nor whether a page is the
        // shared zero page. To ask the page map costs 3 us.
        const WORTH: usize = 256 << 20;
        if absent == 0 && (self.bytes() < WORTH || !self.lacks_some(looks)) {
            return None;
        }
        let most = self.bytes() as u64;
        Some(((absent as u64 + 1) * most / looks as u64).min(most))
    }

    fn lacks_some(self, looks: usize) -> bool {
        // The page map tells nothing more about a file's page.
        let lacks = |page: Entry| !page.is_own() && !page.is_of_file();
        let lacks_some = |map| {
            self.samples(looks)
                .any(|page| page.entry(&map).is_some_and(lacks))
        };
        PageMap::open().is_some_and(lacks_some)
    }

    /// The address space below the memory, if all of it is mapped with the right that the pin
    /// needs. `None` also if so many mappings are below that [`Pages::of_one_kind`] would take longer
    /// than `time`.
    fn are_mapped(self, writing: bool, time: u64) -> Option<Below> {
        let (mut at, end) = (self.start as u64, self.end as u64);
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
    fn of_one_kind(self, below: Below, writing: bool, missing: u64, time: u64) -> Option<Suitable> {
        let resident = proc::resident_pages().unwrap_or(u64::MAX);
        let there = resident.min(below.bytes.saturating_sub(missing) / self.size as u64);
        if below.time_of_mappings() + there * 24 > time {
            return None;
        }
        let (mut at, end) = (self.start as u64, self.end as u64);
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
            let from = mapping.range.start as usize;
            let (page, from) = match found {
                Some(before) => (before.page, before.huge.map(|(from, _)| from)),
                None => (0, may_ask.then_some(from)),
            };
            let from = from.filter(|_| mapping.is_own() && huge::is_undecided(flags));
            found = kind.map(|kind| Suitable {
                kind,
                page: page.max(mapping.page_size as usize),
                huge: from.map(|from| (from, mapping.range.end as usize)),
            });
            at = mapping.range.end;
            at < end
        });
        found.filter(|_| read && at >= end)
    }
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
        let missing = pages.missing().unwrap();
        assert_eq!(missing, SIZE as u64);
        let below = pages.are_mapped(true, TIME).unwrap();
        assert!(below.mappings > 0 && below.bytes > 0);
        let suitable = pages.of_one_kind(below, true, missing, TIME).unwrap();
        assert_eq!((suitable.kind, suitable.page), (Kind::Private, pages.size));
        // The test has decided against huge pages.
        assert_eq!(suitable.huge, None);
        for at in (0..SIZE).step_by(4096) {
            memory.write(at, 1);
        }
        assert_eq!(pages.missing(), None);
    }

    #[test]
    fn one_page_of_another_kind_is_enough() {
        for protection in [libc::PROT_NONE, libc::PROT_READ] {
            let memory = Memory::new(SIZE);
            memory.protect(SIZE - 4096, protection);
            let pages = memory.pages();
            assert!(pages.are_mapped(true, TIME).is_none());
            // The last page is anonymous and not writable.
            let reading = pages.are_mapped(false, TIME);
            assert!(reading.is_none_or(|it| pages.of_one_kind(it, false, 0, TIME).is_none()));
        }
        let memory = Memory::new(SIZE);
        let pages = memory.pages();
        let beyond = Pages {
            end: pages.end + SIZE,
            ..pages
        };
        memory.guard();
        assert!(beyond.are_mapped(true, TIME).is_none());
        assert!(pages.are_mapped(true, TIME).is_some());
    }

    #[test]
    fn a_long_look_is_not_taken() {
        let memory = Memory::new(SIZE);
        let pages = memory.pages();
        let below = pages.are_mapped(true, TIME).unwrap();
        let little = below.time_of_mappings() / 2;
        assert!(pages.are_mapped(true, little).is_none());
        let resident = Below {
            bytes: u64::MAX,
            ..below
        };
        let least = below.time_of_mappings() + proc::resident_pages().unwrap();
        assert!(pages.of_one_kind(resident, true, 0, least).is_none());
    }

    #[test]
    fn samples_are_not_at_the_same_place_of_their_part() {
        let memory = Memory::new(SIZE);
        let pages = memory.pages();
        let samples: Vec<Pages> = pages.samples(8).collect();
        assert_eq!(samples.len(), 8);
        let part = pages.bytes() / 8;
        for (number, page) in samples.iter().enumerate() {
            assert_eq!((page.start - pages.start) / part, number);
        }
        let odd = samples
            .iter()
            .filter(|page| page.start / pages.size % 2 == 1);
        assert!((2..7).contains(&odd.count()));
    }
}
