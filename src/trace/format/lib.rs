// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file that `RDMAMR_TRACE` names, rdmamr_trace(5). The library writes it, the program `rdmamr`
//! reads it, and both are built with this package.
//!
//! A file is a sequence of blocks, each a [`Header`] and `length` bytes. A process writes a block
//! by one write() to the end of the file, so several processes may share a file, and a killed
//! process leaves whole blocks. Numbers are little-endian. A reader skips kinds of blocks that it
//! does not know, and fields that a later version has added to the end of a header. `version`
//! changes if skipping would not do.

/// The first bytes of a block.
pub const MAGIC: [u8; 8] = *b"RDMAMRTR";
/// The version of the format.
pub const VERSION: u16 = 1;

/// A structure of the file. The writer's processor and the reader's are little-endian, as are all
/// for which the library is built.
///
/// # Safety
/// The structure consists of numbers, without a gap.
pub unsafe trait Numbers: Copy {
    /// The structure as the file has it.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: the structure is readable, and has no gap.
        unsafe { core::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    /// Reads the structure at the beginning of `bytes`. `None` if there are too few.
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..size_of::<Self>())?;
        // SAFETY: that many bytes are readable, and any bytes are such a structure.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}
const _: () = assert!(cfg!(target_endian = "little"));

// SAFETY: its definition has numbers alone, and the assertion on its size leaves no gap.
unsafe impl Numbers for Header {}
// SAFETY: as above.
unsafe impl Numbers for Start {}
// SAFETY: as above.
unsafe impl Numbers for Call {}
// SAFETY: a number.
unsafe impl Numbers for u32 {}
// SAFETY: a number.
unsafe impl Numbers for u64 {}

/// The beginning of each block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u16,
    /// A value of [`kind`].
    pub kind: u16,
    /// The length of this header.
    pub header: u32,
    /// How many bytes follow the header.
    pub length: u32,
    /// The process that wrote the block.
    pub pid: u32,
    /// When that process began to write, CLOCK_REALTIME in ns. Together with the pid it identifies
    /// the process.
    pub process: u64,
    /// The number of blocks of the process before this one.
    pub sequence: u64,
    /// The number of calls of the process so far for which no buffer had room.
    pub dropped: u64,
}
const _: () = assert!(size_of::<Header>() == 48);

impl Header {
    /// The header of a block that is not written yet.
    pub const NONE: Header = Header {
        magic: MAGIC,
        version: VERSION,
        kind: kind::CALLS,
        header: size_of::<Header>() as u32,
        length: 0,
        pid: 0,
        process: 0,
        sequence: 0,
        dropped: 0,
    };
}

/// Kinds of blocks.
pub mod kind {
    /// The first block of a process: a [`super::Start`], then the command line, whose arguments
    /// each end with a NUL.
    pub const START: u16 = 1;
    /// The addresses of code, in lines of text, `START END BIAS PATH`, with hexadecimal numbers.
    /// `START` and `END` are the addresses of a mapping. An address in it minus `BIAS` is the
    /// address in the file's own terms. A later block replaces an earlier one.
    pub const MODULES: u16 = 2;
    /// [`super::Call`]s, in the order in which threads found room: sort them by their time. If the
    /// header is longer than [`super::Header`] by a `u32` for each call, these are the numbers of
    /// their [`STACK`]s, or 0.
    pub const CALLS: u16 = 3;
    /// A `u32`, the number of a reason, then the reason in words.
    pub const REASON: u16 = 4;
    /// The last block of a process that exited normally while it was recorded: a `u64`,
    /// CLOCK_MONOTONIC in ns.
    pub const END: u16 = 5;
    // Earlier releases used 6 and 7.
    /// The place of the process: a `u32`, its rank in a job or [`super::NO_RANK`], then the host's
    /// name.
    pub const PLACE: u16 = 8;
    /// A call stack: a `u32`, its number in the process; a `u32`, the number of its frames; for
    /// each a `u64`, the return address in it, innermost first. Then the frames of Python,
    /// innermost first, in lines of text, `LINE FUNCTION PATH`. A process writes each stack once.
    pub const STACK: u16 = 9;
    /// The recording of the process stopped by request, and the process ran on: a `u64`,
    /// CLOCK_MONOTONIC in ns. Only calls that were under way follow.
    pub const STOPPED: u16 = 10;
}

/// The rank of a process that no launcher has numbered.
pub const NO_RANK: u32 = u32::MAX;

/// The facts about a process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// CLOCK_MONOTONIC and CLOCK_REALTIME at the same moment, in ns.
    pub monotonic: u64,
    pub realtime: u64,
    /// The size of a page in bytes.
    pub page: u64,
}
const _: () = assert!(size_of::<Start>() == 24);

/// A call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// When the call began, CLOCK_MONOTONIC in ns.
    pub time: u64,
    /// How long the call took, in ns; at most 2^32 - 1.
    pub duration: u32,
    /// A value of [`call`].
    pub call: u8,
    /// A value of [`how`].
    pub how: u8,
    /// 0 if the call succeeded; otherwise the errno, or libfabric's code.
    pub errno: u16,
    /// The address of the protection domain; of a call on a umem ([`call::is_on_umem`]) that of the
    /// umem, which identifies it until its deregistration.
    pub pd: u64,
    /// The memory: for a registration as the program asked for it, for a deregistration the
    /// region's.
    pub addr: u64,
    pub length: u64,
    /// The access flags of the call: `IBV_ACCESS_...`, or `FI_...` for libfabric's calls.
    pub access: u32,
    /// The region's lkey. With the domain it identifies the region until the region's
    /// deregistration. A umem has none.
    pub lkey: u32,
    /// The call's return address.
    pub caller: u64,
    /// The thread's number in the kernel.
    pub thread: u32,
    /// For a failed call, the number of its [`kind::REASON`], or 0. For a plain registration that
    /// succeeded, a value of [`unserved`]; for a hit or a miss, [`unserved::DEVICE`] if the memory is a
    /// GPU's.
    pub reason: u32,
}
const _: () = assert!(size_of::<Call>() == 64);

/// The function that was called.
pub mod call {
    rdmamr_policy::numbered! {
        /// Names, by number.
        NAMES: u8;
        /// No call.
        NONE = 0, "";
        REG_MR = 1, "ibv_reg_mr";
        REG_MR_IOVA = 2, "ibv_reg_mr_iova";
        REG_MR_IOVA2 = 3, "ibv_reg_mr_iova2";
        REG_MR_EX = 4, "ibv_reg_mr_ex";
        REG_DMABUF_MR = 5, "ibv_reg_dmabuf_mr";
        REREG_MR = 6, "ibv_rereg_mr";
        DEREG_MR = 7, "ibv_dereg_mr";
        REG_MR_RELAXED = 8, "ibv_reg_mr_relaxed";
        DEREG_MR_RELAXED = 9, "ibv_dereg_mr_relaxed";
        FI_MR_REG = 10, "fi_mr_reg";
        FI_MR_REGV = 11, "fi_mr_regv";
        FI_MR_REGATTR = 12, "fi_mr_regattr";
        FI_CLOSE = 13, "fi_close";
        /// Not a call of the program: the cache has deregistered a cached region with the kernel. The
        /// memory is the region's pages.
        CACHE = 14, "cache";
        /// Not a call of the library: the program was about to change memory that it had registered. Only
        /// earlier releases recorded it.
        CHANGE = 15, "change";
        MLX5DV_REG_DMABUF_MR = 16, "mlx5dv_reg_dmabuf_mr";
        MLX5DV_DEVX_UMEM_REG = 17, "mlx5dv_devx_umem_reg";
        MLX5DV_DEVX_UMEM_REG_EX = 18, "mlx5dv_devx_umem_reg_ex";
        MLX5DV_DEVX_UMEM_DEREG = 19, "mlx5dv_devx_umem_dereg";
    }

    /// Whether a call, if it succeeds, yields a region or a umem.
    pub fn registers(call: u8) -> bool {
        !matches!(
            call,
            DEREG_MR | DEREG_MR_RELAXED | FI_CLOSE | CACHE | CHANGE | MLX5DV_DEVX_UMEM_DEREG
        )
    }

    /// Whether a call makes or ends a umem: memory that libmlx5 registers without a domain and
    /// without keys.
    pub fn is_on_umem(call: u8) -> bool {
        matches!(
            call,
            MLX5DV_DEVX_UMEM_REG | MLX5DV_DEVX_UMEM_REG_EX | MLX5DV_DEVX_UMEM_DEREG
        )
    }

    /// Whether the program makes such a call. The library itself records the others.
    pub fn is_of_program(call: u8) -> bool {
        !matches!(call, CACHE | CHANGE)
    }
}

/// How the call was served.
pub mod how {
    rdmamr_policy::numbered! {
        /// Names, by number.
        NAMES: u8;
        /// Not stated: the call failed, or it ended a region that was no longer registered.
        NONE = 0, "";
        /// By a system call of this library, which pinned or released the memory.
        KERNEL = 1, "kernel";
        /// By the next libibverbs.
        FORWARDED = 2, "forwarded";
        /// By a cached region.
        HIT = 3, "hit";
        /// By a new region of the cache, which covers whole pages until a [`call::CACHE`] with the same
        /// domain and lkey.
        MISS = 4, "miss";
        /// A deregistration that left the region in the cache.
        KEPT = 5, "kept";
        /// By the next libibverbs, as a dma-buf: the memory is a GPU's, and the kernel refused its address.
        GPU = 6, "gpu";
        /// By a provider's own call, which the library only observes.
        PAST = 7, "past the library";
    }
}

/// Why the cache could not serve a plain registration that succeeded: [`Call::reason`].
pub use rdmamr_policy::unserved;
