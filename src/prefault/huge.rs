// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transparent huge pages: the threads ask for them if the machine gives them on request only
//! (`madvise` in /sys/kernel/mm/transparent_hugepage/enabled) and the program has not decided.
//!
//! A huge page is cleared, pinned and described to the device at once: memory in small pages costs
//! a device 512 times the entries.

use super::pages::Pages;
use rdmamr_sys::proc::{decimal, each_line};

/// Whether the machine gives huge pages on request only, and the process has not refused them.
pub fn may_ask() -> bool {
    const MODE: &core::ffi::CStr = c"/sys/kernel/mm/transparent_hugepage/enabled";
    let mut asked = false;
    let _ = each_line(MODE, |line| {
        asked = line
            .split(|&byte| byte == b' ')
            .any(|word| word == b"[madvise]");
        false
    });
    // SAFETY: the call takes no pointers.
    asked && unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) } == 0
}

/// Whether the program has neither asked for huge pages in a mapping nor refused them, by the flags
/// of smaps.
pub fn is_undecided(flags: &[u8]) -> bool {
    let mut flags = flags.split(|&byte| byte == b' ');
    !flags.any(|flag| [&b"hg"[..], b"nh", b"ht"].contains(&flag))
}

/// Asks for huge pages in the part of the memory that whole huge pages fill, so that no page
/// outside the memory is made.
pub fn ask(pages: Pages) {
    let mut size = 0;
    let _ = each_line(
        c"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size",
        |line| {
            size = decimal(line) as usize;
            false
        },
    );
    if !size.is_power_of_two() {
        return;
    }
    let (start, end) = (pages.start.next_multiple_of(size), pages.end & !(size - 1));
    if start < end {
        // SAFETY: the advice changes no page that is there. This is a raw system call, because this
        // library's own wrapper of madvise must not see it.
        unsafe { libc::syscall(libc::SYS_madvise, start, end - start, libc::MADV_HUGEPAGE) };
    }
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
}
