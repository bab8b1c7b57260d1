// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transparent huge pages: the threads ask for them if the machine gives them on request only
//! (`madvise` in /sys/kernel/mm/transparent_hugepage/enabled) and the program has not decided.
//!
//! A huge page is cleared, pinned and described to the device at once: memory in small pages costs
//! a device 512 times the entries.

use super::pages::Pages;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use rdmamr_sys::proc::{number, of_first};
use rdmamr_sys::thread::keep_errno;

/// Whether the machine gives huge pages on request only, and the process has not refused them.
pub fn may_ask() -> bool {
    const MODE: &core::ffi::CStr = c"/sys/kernel/mm/transparent_hugepage/enabled";
    let asked = of_first(MODE, |line| {
        let mut words = line.split(|&byte| byte == b' ');
        words.find(|&word| word == b"[madvise]").map(drop)
    });
    // SAFETY: the call takes no pointers.
    asked.is_some() && unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) } == 0
}

/// Whether the program has neither asked for huge pages in a mapping nor refused them, by the flags
/// of smaps.
pub fn is_undecided(flags: &[u8]) -> bool {
    let mut flags = flags.split(|&byte| byte == b' ');
    !flags.any(|flag| [&b"hg"[..], b"nh", b"ht"].contains(&flag))
}

/// Asks for huge pages in the part of the memory that whole huge pages fill, so that no page
/// outside the memory is made. `mapped` is the start of the memory's first mapping and the end of
/// its last one.
///
/// Advice on a part of a mapping splits the mapping. If the mappings have no other whole huge page,
/// the advice covers them as wholes.
pub fn ask(pages: Pages, mapped: (usize, usize)) {
    const SIZE: &core::ffi::CStr = c"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    let size = of_first(SIZE, number).unwrap_or(0) as usize;
    if !size.is_power_of_two() {
        return;
    }
    let whole = |start: usize, end: usize| (start.next_multiple_of(size), end & !(size - 1));
    let (start, end) = whole(pages.start, pages.end);
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
fn advise(start: usize, end: usize) -> bool {
    // SAFETY: the advice changes no page that is there. This is a raw system call, because this
    // library's own wrapper of madvise must not see it.
    unsafe { libc::syscall(libc::SYS_madvise, start, end - start, libc::MADV_HUGEPAGE) == 0 }
}

/// The start and the end of a range. Another thread may read half of it while it changes: then one
/// mapping too many gets the advice, or one too few.
type Part = [AtomicUsize; 2];

/// The latest advice on parts of mappings.
static PARTS: [Part; 64] = [const { [const { AtomicUsize::new(0) }; 2] }; 64];

/// How often a mapping may have been split.
static SPLIT: AtomicUsize = AtomicUsize::new(0);

fn note(start: usize, end: usize) {
    // Each thread of a registration asks.
    let is_noted = |[from, to]: &Part| (from.load(Relaxed), to.load(Relaxed)) == (start, end);
    if !PARTS.iter().any(is_noted) {
        let [from, to] = &PARTS[SPLIT.fetch_add(1, Relaxed) % PARTS.len()];
        from.store(start, Relaxed);
        to.store(end, Relaxed);
    }
}

fn is_in_part(start: usize, end: usize) -> bool {
    let overlaps = |[from, to]: &Part| from.load(Relaxed) < end && start < to.load(Relaxed);
    PARTS.iter().any(overlaps)
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
    let end = start.saturating_add(length);
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
    fn advice_on_a_part_is_noted_once() {
        assert!(!join(0x1000, 0x1000));
        for _ in 0..2 {
            note(0x20_0000, 0x40_0000);
        }
        assert_eq!(SPLIT.load(Relaxed), 1);
        assert!(is_in_part(0x1000, 0x20_1000));
        assert!(!is_in_part(0x40_0000, 0x80_0000));
    }
}
