// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the service `rdmamr fence` and the library agree on: the counters of begun changes of
//! memory, which the kernel counts for each process, and the socket at which a process asks for
//! them. It is not the code of either side.
//!
//! # The counters
//! An array of BPF with one element of [`SIZE`] bytes, which a process maps read-only: native u64,
//! all zero at first except the ids.
//!
//! - The first line has [`GAPS`] and [`OPEN`]. The kernel may skip a count on a processor where it
//!   has preempted a task that was counting. While a processor has such a task, `OPEN` is not 0.
//!   When it comes to have one, first `OPEN` rises, then `GAPS`. `GAPS` never falls.
//! - From [`LINKS`] to its end the first line has the ids of the links by which the programs that
//!   write this array are attached; 0 behind the last.
//! - Each further line belongs to the processes whose number in the initial PID namespace has the
//!   remainder [`index`]. [`MOVES`] rises when an unmap or an mremap of watched memory begins, while
//!   the kernel holds the mmap lock for writing; it keeps the lock until it has marked the change as
//!   in flight. So a reader of a new number takes the lock once, and
//!   then asks for the mark.
//!
//! Calls that empty watched memory (`MADV_DONTNEED`) are not counted: they have no effect before
//! their event is read. A hook in them cost each such call of every process a tenth.
//!
//! Processes may share a line, a number may wrap, and the service may count what it need not: that
//! costs a reader time, and never hides a change from it.
//!
//! # The connection
//! A process connects to [`SOCKET`] (SOCK_SEQPACKET) and sends nothing: the connection is the
//! question. The service answers one packet, [`MAGIC`], with files ([`FILES`], SCM_RIGHTS): first
//! the counters, then the links, in the order of their ids in the first line. A program stays
//! attached while a process has its link open. Then both close the socket. A service that cannot
//! serve the process closes it without an answer.
//!
//! # What a process believes
//! A process of user 0 need not be the administrator's: a container has such processes too, and may
//! share the directory of the socket. So a process believes the kernel, and nothing that the service
//! says:
//!
//! - By its name in /proc and [`About`], the first file is an array of BPF that user space cannot write: it is frozen, and
//!   a process needs CAP_BPF to make one.
//! - The other files are the links that the array names, all of them. The service wrote their ids
//!   before it froze the array. The kernel gives no id twice. As the process has the links open, the
//!   programs stay attached. Without the ids, the array of a service whose programs are gone could
//!   come with the links of another.
//! - The line of the process is the only one that rises at each change that the process makes. A
//!   service that names a line could name that of a process which moves it.
//!
//! A process for which one of these does not hold, or cannot be read, does without the counters.

#![no_std]
#![warn(missing_docs)]

use core::ops::RangeInclusive;

/// The directory of the socket. Both belong to root. Containers may share it.
pub const DIRECTORY: &str = "/run/rdmamr";
/// The service's socket.
pub const SOCKET: &str = "/run/rdmamr/fence";

/// The answer. Its last byte is the version of the layout and of the meaning of the counters: a
/// process accepts no other.
pub const MAGIC: [u8; 8] = *b"RDMAMRF2";
/// How many files come with the answer: the counters, and the links of two programs or more.
pub const FILES: RangeInclusive<usize> = 3..=1 + MOST_LINKS;

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
/// Where the first line has the ids of the links.
pub const LINKS: usize = 16;
/// The most links: as many ids as the first line has room for.
pub const MOST_LINKS: usize = (LINE - LINKS) / size_of::<u64>();
/// Where a process's line has the number of unmaps and moves that began.
pub const MOVES: usize = 0;

/// The index of a process's line, from the process's id in the initial PID namespace.
pub const fn index(tgid: u32) -> u32 {
    tgid % LINES
}

/// Where the line of an index below [`LINES`] begins.
pub const fn line(index: u32) -> usize {
    (1 + index as usize) * LINE
}

/// What the kernel says of a file, by the lines of `/proc/thread-self/fdinfo/N` (`bpf_map_show_fdinfo`
/// and `bpf_link_show_fdinfo` of kernel/bpf/syscall.c).
#[derive(Default)]
pub struct About {
    /// A bit for each of [`COUNTERS`].
    lines: u32,
    is_program: bool,
    id: Option<u64>,
}

/// An array of one element of [`SIZE`] bytes, which can be mapped (BPF_F_MMAPABLE) and is frozen.
const COUNTERS: [&[u8]; 6] = [
    b"map_type:\t2",
    b"key_size:\t4",
    b"value_size:\t2097216",
    b"max_entries:\t1",
    b"map_flags:\t0x400",
    b"frozen:\t1",
];
const _: () = assert!(SIZE == 2_097_216);

impl About {
    /// Takes the next line, without its end.
    pub fn read(&mut self, line: &[u8]) {
        if let Some(at) = COUNTERS.iter().position(|&wanted| line == wanted) {
            self.lines |= 1 << at;
        } else if let Some(kind) = line.strip_prefix(b"link_type:\t") {
            // A program at switches is a raw tracepoint for the kernel.
            self.is_program = matches!(kind, b"tracing" | b"raw_tracepoint");
        } else if let Some(id) = line.strip_prefix(b"link_id:\t") {
            self.id = core::str::from_utf8(id).ok().and_then(|id| id.parse().ok());
        }
    }

    /// Whether the file is counters that user space cannot write.
    pub fn is_counters(&self) -> bool {
        self.lines == (1 << COUNTERS.len()) - 1
    }

    /// The id of the link, if the file is that of a program.
    pub fn link(&self) -> Option<u64> {
        self.id.filter(|&id| self.is_program && id != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(text: &str) -> About {
        let mut about = About::default();
        text.lines().for_each(|line| about.read(line.as_bytes()));
        about
    }

    const MAP: &str = "pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t1052\nmap_type:\t2\nkey_size:\t4\n\
        value_size:\t2097216\nmax_entries:\t1\nmap_flags:\t0x400\nmap_extra:\t0x0\nmemlock:\t2101248\n\
        map_id:\t1\nfrozen:\t1\n";
    const LINK: &str = "pos:\t0\nflags:\t02000000\nlink_type:\ttracing\nlink_id:\t31\nprog_tag:\t47387a51dff3037d\n\
        prog_id:\t3\nattach_type:\t24\n";

    #[test]
    fn only_a_frozen_array_of_the_size_is_counters() {
        assert!(about(MAP).is_counters());
        for (from, to) in [
            ("frozen:\t1", "frozen:\t0"),
            ("2097216", "2097152"),
            ("map_type:\t2", "map_type:\t1"),
            ("0x400", "0x480"),
            ("max_entries:\t1", "max_entries:\t10"),
            ("key_size:\t4\n", ""),
        ] {
            assert!(MAP.contains(from));
            assert!(!about(&MAP.replace(from, to)).is_counters(), "{to}");
        }
        assert_eq!(about(MAP).link(), None);
        assert!(!about("").is_counters());
    }

    #[test]
    fn only_a_program_has_a_link() {
        assert_eq!(about(LINK).link(), Some(31));
        assert_eq!(
            about(&LINK.replace("tracing", "raw_tracepoint")).link(),
            Some(31)
        );
        for (from, to) in [
            ("tracing", "iter"),
            ("\t31", "\t0"),
            ("\t31", "\t-1"),
            ("link_id:\t31\n", ""),
        ] {
            assert_eq!(about(&LINK.replace(from, to)).link(), None, "{to}");
        }
        assert!(!about(LINK).is_counters());
    }
}
