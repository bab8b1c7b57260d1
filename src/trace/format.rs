// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file that `RDMAMR_TRACE` names, rdmamr_trace(5): the library writes it, the program `rdmamr` reads it, and
//! both have this file.
//!
//! A file is a sequence of blocks, each a [`Header`] and `length` bytes. A block is written by one write() to the
//! end of the file, so several processes may share a file, and a process that is killed leaves whole blocks.
//! Numbers are little-endian. A reader skips a kind of block that it does not know, and what a later version has
//! added to the end of a header; `version` changes when that would not do.

/// The first bytes of a block.
pub const MAGIC: [u8; 8] = *b"RDMAMRTR";
/// The version of the format.
pub const VERSION: u16 = 1;

/// What begins each block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u16,
    /// One of [`kind`].
    pub kind: u16,
    /// The length of this header.
    pub header: u32,
    /// How many bytes follow it.
    pub length: u32,
    /// The process that wrote it.
    pub pid: u32,
    /// When that process began to write, CLOCK_REALTIME in ns: with the pid, which process it is.
    pub process: u64,
    /// Blocks of the process before this one.
    pub sequence: u64,
    /// Calls of the process so far for which there was no room.
    pub dropped: u64,
}
const _: () = assert!(size_of::<Header>() == 48);

/// Kinds of blocks.
pub mod kind {
    /// A [`super::Start`], then the command line: arguments, each with a NUL behind it. The first of a process.
    pub const START: u16 = 1;
    /// Where code is: lines of text, `START END BIAS PATH`: the addresses of a mapping and what to take off an
    /// address in it to get the one in the file's own terms, all hexadecimal. It replaces the one before.
    pub const MODULES: u16 = 2;
    /// [`super::Call`]s, in the order in which one thread after another had room: sort them by their time.
    pub const CALLS: u16 = 3;
    /// A `u32`, the number of a reason, then the reason in words.
    pub const REASON: u16 = 4;
    /// A `u64`, CLOCK_MONOTONIC in ns: the process has ended in order. The last of a process.
    pub const END: u16 = 5;
}

/// What a process says of itself.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// CLOCK_MONOTONIC and CLOCK_REALTIME at one moment, in ns.
    pub monotonic: u64,
    pub realtime: u64,
    /// The size of a page in bytes.
    pub page: u64,
}
const _: () = assert!(size_of::<Start>() == 24);

/// One call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// When it began, CLOCK_MONOTONIC in ns.
    pub time: u64,
    /// How long it took, in ns; at most 2^32 - 1.
    pub duration: u32,
    /// One of [`call`].
    pub call: u8,
    /// One of [`how`].
    pub how: u8,
    /// 0, or the errno, or libfabric's code, with which it failed.
    pub errno: u16,
    /// The address of the protection domain.
    pub pd: u64,
    /// The memory: of a registration as it was asked for, of a deregistration that of its region.
    pub addr: u64,
    pub length: u64,
    /// The access flags of the call (`IBV_ACCESS_...`, or of libfabric's calls `FI_...`).
    pub access: u32,
    /// The region's lkey, which with the domain says which region it is, until it is deregistered.
    pub lkey: u32,
    /// Where the call returns to.
    pub caller: u64,
    /// The thread, by its number in the kernel.
    pub thread: u32,
    /// The number of the [`kind::REASON`] for which it failed; 0 without one.
    pub reason: u32,
}
const _: () = assert!(size_of::<Call>() == 64);

/// What was called.
pub mod call {
    /// Names, by number.
    pub const NAMES: [&str; 15] = [
        "",
        "ibv_reg_mr",
        "ibv_reg_mr_iova",
        "ibv_reg_mr_iova2",
        "ibv_reg_mr_ex",
        "ibv_reg_dmabuf_mr",
        "ibv_rereg_mr",
        "ibv_dereg_mr",
        "ibv_reg_mr_relaxed",
        "ibv_dereg_mr_relaxed",
        "fi_mr_reg",
        "fi_mr_regv",
        "fi_mr_regattr",
        "fi_close",
        "pool",
    ];
    pub const REG_MR: u8 = 1;
    pub const REG_MR_IOVA: u8 = 2;
    pub const REG_MR_IOVA2: u8 = 3;
    pub const REG_MR_EX: u8 = 4;
    pub const REG_DMABUF_MR: u8 = 5;
    pub const REREG_MR: u8 = 6;
    pub const DEREG_MR: u8 = 7;
    pub const REG_MR_RELAXED: u8 = 8;
    pub const DEREG_MR_RELAXED: u8 = 9;
    pub const FI_MR_REG: u8 = 10;
    pub const FI_MR_REGV: u8 = 11;
    pub const FI_MR_REGATTR: u8 = 12;
    pub const FI_CLOSE: u8 = 13;
    /// No call: the pool has really deregistered a region that it had kept; memory is that of the pages.
    pub const POOL: u8 = 14;
}

/// How it was done.
pub mod how {
    /// Names, by number.
    pub const NAMES: [&str; 6] = ["", "kernel", "passed on", "hit", "miss", "kept"];
    /// Not said: the call failed, or it ended what was registered no more.
    pub const NONE: u8 = 0;
    /// By a system call of ours: the memory was pinned, or let go.
    pub const KERNEL: u8 = 1;
    /// By the libibverbs underneath.
    pub const PASSED_ON: u8 = 2;
    /// By a region that the pool had.
    pub const HIT: u8 = 3;
    /// By a new region of the pool: it covers the whole pages, until a [`call::POOL`] of the same domain and lkey.
    pub const MISS: u8 = 4;
    /// A deregistration that left the region to the pool.
    pub const KEPT: u8 = 5;
}
