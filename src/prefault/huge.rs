// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transparent huge pages: the threads ask for them if the machine gives them on request only
//! (`madvise` in /sys/kernel/mm/transparent_hugepage/enabled) and the program has not decided.
//!
//! A huge page is cleared, pinned and described to the device at once: memory in small pages costs
//! a device 512 times the entries.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use rdmamr_sys::pages::page_size;
use rdmamr_sys::proc::{decimal, each_line, number, of_first};
use rdmamr_sys::thread::keep_errno;

const MODE: &CStr = c"/sys/kernel/mm/transparent_hugepage/enabled";
const DEFRAG: &CStr = c"/sys/kernel/mm/transparent_hugepage/defrag";
const SIZE: &CStr = c"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";

/// Whether the machine gives huge pages on request only, and the process has not refused them; and
/// whether this many bytes of them are free, or the kernel uses small pages where none is. Otherwise
/// the kernel would move pages to make huge ones (compaction), which may take longer than they save.
pub fn may_ask(bytes: u64) -> bool {
    // SAFETY: the call takes no pointers.
    let is_refused = || unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) } != 0;
    is_set(MODE, &[b"[madvise]"])
        && !is_refused()
        && (is_set(DEFRAG, &[b"[defer]", b"[never]"]) || free() >= bytes)
}

/// Whether a file of words in which the chosen one stands in brackets has one of these.
fn is_set(path: &CStr, chosen: &[&[u8]]) -> bool {
    let has = |line: &[u8]| {
        line.split(|&byte| byte == b' ')
            .any(|word| chosen.contains(&word))
    };
    of_first(path, |line| has(line).then_some(())).is_some()
}

/// The size of a huge page; 0 if the machine has none.
fn size() -> u64 {
    let size = of_first(SIZE, number).unwrap_or(0);
    if size.is_power_of_two() { size } else { 0 }
}

/// The bytes that one page fault may clear. (With pages of 64 KiB a huge page has 512 MiB.)
pub fn most_cleared() -> u64 {
    if page_size() == 4096 || is_set(MODE, &[b"[never]"]) {
        return 0;
    }
    size()
}

/// How many bytes are free in blocks of huge pages.
fn free() -> u64 {
    let mut free = 0;
    let huge = size();
    let read = each_line(c"/proc/buddyinfo", |zone| {
        free += free_in(zone, page_size(), huge);
        true
    });
    if read { free } else { 0 }
}

/// The same of a zone: the numbers of its free blocks stand behind four words, and those of each column
/// are twice as long as those of the one before.
fn free_in(zone: &[u8], page: u64, huge: u64) -> u64 {
    let words = zone
        .split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty());
    let blocks = words.skip(4).zip(0..u64::BITS);
    let bytes = blocks.map(|(count, order)| (page << order, decimal(count)));
    bytes
        .filter(|&(length, _)| huge != 0 && length >= huge)
        .map(|(length, count)| length * count)
        .sum()
}

/// How often a page fault has moved pages to make a huge one since the machine's start.
pub fn stalls() -> Option<u64> {
    of_first(c"/proc/vmstat", |line| {
        line.strip_prefix(b"compact_stall ").map(decimal)
    })
}

/// Whether the program has neither asked for huge pages in a mapping nor refused them, by the flags
/// of smaps.
pub fn is_undecided(flags: &[u8]) -> bool {
    let mut flags = flags.split(|&byte| byte == b' ');
    !flags.any(|flag| [&b"hg"[..], b"nh", b"ht"].contains(&flag))
}

/// Asks for huge pages in the part of memory from `start` to `end` that whole huge pages fill, so that
/// no page outside the memory is made. `mapped` is the start of the memory's first mapping and the end of
/// its last one.
///
/// Advice on a part of a mapping splits the mapping. If the mappings have no other whole huge page,
/// the advice covers them as wholes.
pub fn ask((start, end): (u64, u64), mapped: (u64, u64)) {
    let size = size();
    if size == 0 {
        return;
    }
    let whole = |start: u64, end: u64| (start.next_multiple_of(size), end & !(size - 1));
    let (start, end) = whole(start, end);
    if start >= end {
        return;
    }
    if whole(mapped.0, mapped.1) == (start, end) {
        advise(mapped.0, mapped.1);
    } else {
        note(start, end);
        advise(start, end);
    }
}

/// Asks for huge pages in a range. True if the kernel took the advice.
fn advise(start: u64, end: u64) -> bool {
    // SAFETY: the advice changes no page that is there. This is a raw system call, because this
    // library's own wrapper of madvise must not see it.
    unsafe { libc::syscall(libc::SYS_madvise, start, end - start, libc::MADV_HUGEPAGE) == 0 }
}

/// The start and the end of a range. Another thread may read half of it while it changes: then one
/// mapping too many gets the advice, or one too few.
type Part = [AtomicU64; 2];

/// The first advice on parts of mappings. Once it has no place for more, any mapping may have been
/// split.
static PARTS: [Part; 1024] = [const { [const { AtomicU64::new(0) }; 2] }; 1024];

/// How often a mapping may have been split.
static SPLIT: AtomicUsize = AtomicUsize::new(0);

fn note(start: u64, end: u64) {
    // Each thread of a registration asks.
    let is_noted = |[from, to]: &Part| (from.load(Relaxed), to.load(Relaxed)) == (start, end);
    if !noted().iter().any(is_noted) {
        if let Some([from, to]) = PARTS.get(SPLIT.fetch_add(1, Relaxed)) {
            from.store(start, Relaxed);
            to.store(end, Relaxed);
        }
    }
}

fn noted() -> &'static [Part] {
    &PARTS[..SPLIT.load(Relaxed).min(PARTS.len())]
}

fn is_in_part(start: u64, end: u64) -> bool {
    let overlaps = |[from, to]: &Part| from.load(Relaxed) < end && start < to.load(Relaxed);
    SPLIT.load(Relaxed) > PARTS.len() || noted().iter().any(overlaps)
}

/// Whether a mapping may have been split.
#[inline(always)]
pub fn has_split() -> bool {
    SPLIT.load(Relaxed) != 0
}

/// mremap(2) is about to move memory, and accepts a single mapping only. If huge pages were asked
/// for a part of it, asks for them in all of it, so that the kernel joins the mappings. True if
/// the kernel may have done so. Preserves errno. Allocates nothing and takes no lock.
pub fn join(start: usize, length: usize) -> bool {
    let (start, end) = (start as u64, start.saturating_add(length) as u64);
    has_split() && is_in_part(start, end) && keep_errno(|| advise(start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_whose_program_has_decided() {
        assert!(is_undecided(b"rd wr mr mw me ac sd"));
        for decided in [&b"rd wr hg sd"[..], b"rd wr nh", b"ht rd"] {
            assert!(!is_undecided(decided));
        }
    }

    #[test]
    fn free_blocks_of_a_zone() {
        let zone = b"Node 0, zone   Normal  34836  11340   5479   1864   1336    606    176     81     72      1    664 ";
        let free = |huge| free_in(zone, 4096, huge);
        assert_eq!(free(2 << 20), (2 << 20) + 664 * (4 << 20));
        assert_eq!(free(4 << 20), 664 * (4 << 20));
        assert_eq!((free(0), free(512 << 20)), (0, 0));
        assert_eq!(free_in(b"Node 0, zone", 4096, 2 << 20), 0);
    }

    #[test]
    fn advice_on_a_part_is_noted_once() {
        assert!(!join(0x1000, 0x1000));
        for _ in 0..2 {
            note(0x20_0000, 0x40_0000);
        }
        assert_eq!(SPLIT.load(Relaxed), 1);
        assert!(is_in_part(0x1000, 0x20_1000));
        assert!(!is_in_part(0x40_0000, 0x80_0000));
        (2..=1024).for_each(|n| note(n << 30, (n << 30) + 1));
        assert!(is_in_part(2 << 30, 3 << 30) && !is_in_part(0x40_0000, 0x80_0000));
        note(1 << 30, 2 << 30);
        assert!(is_in_part(0x40_0000, 0x80_0000));
    }
}
