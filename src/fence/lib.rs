// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the service `rdmamr fence` and the library agree on: the counters of begun changes of
//! memory, which the kernel counts for each process, and the socket at which a process asks for
//! them. It is not the code of either side.
//!
//! # The counters
//! A process maps them read-only: [`SIZE`] bytes from the beginning of the file, all of them
//! native u64, and all zero at first.
//!
//! - The first line has [`GAPS`] and [`OPEN`]. The kernel may skip a count on a processor where it
//!   has preempted a task that was counting. While a processor has such a task, `OPEN` is not 0.
//!   When it comes to have one, first `OPEN` rises, then `GAPS`. `GAPS` never falls.
//! - Each further line belongs to the processes whose [`index`] is the line's. [`MOVES`] rises
//!   when an unmap or an mremap of watched memory begins, while the kernel holds the mmap lock for
//!   writing; it keeps the lock until it has marked the change as in flight. So who sees a new
//!   number takes the lock once, and then asks for the mark.
//!
//! Calls that empty watched memory (`MADV_DONTNEED`) are not counted: they have no effect before
//! their event is read. A hook in them cost each such call of every process a tenth.
//!
//! Processes may share a line, a number may wrap, and the service may count what it need not: that
//! costs a reader time, and never hides a change from it.
//!
//! # The question
//! A process connects to [`SOCKET`] (SOCK_SEQPACKET) and sends one packet, [`MAGIC`]. The service
//! answers one packet of [`ANSWER`] bytes (see [`answer`]) with files ([`FILES`], SCM_RIGHTS):
//! first the counters, then one for each program that counts. A program stays attached while a
//! process has its file open. Then both close the socket. A service that cannot serve the process
//! closes it without an answer.

#![no_std]
#![warn(missing_docs)]

use core::ops::RangeInclusive;

/// The service's directory. It and the socket belong to root.
pub const DIRECTORY: &str = "/run/rdmamr";
/// The service's socket.
pub const SOCKET: &str = "/run/rdmamr/fence";

/// The question, and the first bytes of the answer.
pub const MAGIC: [u8; 8] = *b"RDMAMRF1";
/// The version of the layout and of the meaning of the counters. A process accepts no other.
pub const VERSION: u32 = 1;
/// The size of the answer: [`MAGIC`], [`VERSION`] and the process's [`index`].
pub const ANSWER: usize = 16;
/// How many files come with the answer: the counters, and two to eight programs.
pub const FILES: RangeInclusive<usize> = 3..=9;

/// The size of a line, one cache line.
pub const LINE: usize = 64;
/// How many lines processes share; one more precedes them.
pub const LINES: u32 = 32768;
/// The size of the counters in bytes.
pub const SIZE: usize = (1 + LINES as usize) * LINE;

/// Where the first line has the number of times that a processor began to skip counts.
pub const GAPS: usize = 0;
/// Where the first line has the number of processors that may skip counts now.
pub const OPEN: usize = 8;
/// Where a process's line has the number of unmaps and moves that began.
pub const MOVES: usize = 0;

/// The index of a process's line, from the process's id in the initial PID namespace.
pub const fn index(tgid: u32) -> u32 {
    tgid % LINES
}

/// Where the line of that index begins. There is none if the index is not below [`LINES`].
pub const fn line(index: u32) -> Option<usize> {
    if index < LINES {
        Some((1 + index as usize) * LINE)
    } else {
        None
    }
}

/// The answer to a process with that index.
pub fn answer(index: u32) -> [u8; ANSWER] {
    let mut packet = [0; ANSWER];
    packet[..8].copy_from_slice(&MAGIC);
    packet[8..12].copy_from_slice(&VERSION.to_le_bytes());
    packet[12..].copy_from_slice(&index.to_le_bytes());
    packet
}

/// The index in an answer, if the packet is one of this version.
pub fn index_in(packet: &[u8]) -> Option<u32> {
    let (known, index) = packet.split_last_chunk::<4>()?;
    let index = u32::from_le_bytes(*index);
    (index < LINES && known == &answer(index)[..ANSWER - 4]).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_its_index_and_nothing_else_is_one() {
        assert_eq!(index_in(&answer(index(40_000))), Some(40_000 - LINES));
        assert_eq!(index_in(&answer(LINES)), None);
        assert_eq!(index_in(&MAGIC), None);
        let mut longer = [0; ANSWER + 1];
        longer[..ANSWER].copy_from_slice(&answer(1));
        assert_eq!(index_in(&longer), None);
        assert_eq!(line(LINES - 1), Some(SIZE - LINE));
        assert_eq!(line(LINES), None);
    }
}
