// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rule that says whether the cache serves a registration. The library obeys the rule, and
//! `rdmamr report` counts by it what comes back. The cache serves a plain registration if
//!
//! 1. its access, its address ([`refusal_of`]) and its process allow that, and
//! 2. an idle region has its domain, access and pages (or begins there and has at most [`spare`]
//!    bytes more), or its range has been registered and released before ([`Released`]). In the
//!    second case the cache makes a new region and keeps it.
//!
//! Every other registration is plain, as without the cache.
//!
//! Not here: whether the kernel lets the library watch the memory, and the kind of the memory. Only
//! a look at the process tells that.

#![warn(missing_docs)]
#![no_std]

mod released;

pub use released::Released;

use rdmamr_abi::rdma_core::*;

/// The access flags that make a region remotely accessible.
const REMOTE: u32 = IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_FLUSH_GLOBAL
    | IBV_ACCESS_FLUSH_PERSISTENT;

/// The access flags that make no region remotely accessible: local write, and the flags that a
/// device may ignore.
const LOCAL: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_OPTIONAL_RANGE;

/// The flags of a request's access with which the cache serves no registration. An on-demand region
/// pins nothing. A memory window that is bound to a cached region would keep the region from ending.
/// The other flags depend on the address or on the kind of the memory.
const NEVER_KEPT: u32 =
    IBV_ACCESS_ON_DEMAND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_MW_BIND | IBV_ACCESS_HUGETLB | OF_GPU;

/// In the access of a key or a region: the memory is a GPU's. No verb has the flag, and a request that
/// has it is not served.
pub const OF_GPU: u32 = 1 << 31;

/// Whether a region with this access is remotely accessible.
pub const fn is_remote(access: u32) -> bool {
    access & REMOTE != 0
}

/// Whether a region with this access is only locally accessible.
pub const fn is_local(access: u32) -> bool {
    access & !LOCAL == 0
}

/// The number of bytes that a region may have beyond the pages of a registration that it serves. The
/// two begin with the same page. malloc gives buffers of many lengths from there: `bench/rpc.c`
/// registers six times as many different page ranges as first pages. A remote peer reaches only
/// what was registered for it, so a remotely accessible region has no byte more.
pub const fn spare(access: u32) -> u64 {
    if is_local(access) { 64 << 10 } else { 0 }
}

/// Whether the cache may serve a request with this access at all.
pub const fn may_be_kept(access: u32) -> bool {
    access & NEVER_KEPT == 0
}

/// The registrations that the user wants the cache to serve: the values of `RDMAMR_CACHE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheMode {
    /// None.
    Off,
    /// Those that are not remotely accessible.
    Local,
    /// The others as well.
    All,
}

/// Declares numbers from 0 on, and a list of their words.
#[macro_export]
macro_rules! numbered {
    (
        $(#[$about:meta])* $words:ident: $type:ty;
        $($(#[$meta:meta])* $name:ident = $number:literal, $word:literal;)*
    ) => {
        $(#[$about])*
        pub const $words: [&str; [$($word),*].len()] = [$($word),*];
        $($(#[$meta])* pub const $name: $type = $number;)*
        const _: () = {
            let (numbers, mut at) = ([$($number),*], 0);
            while at < numbers.len() {
                assert!(numbers[at] == at);
                at += 1;
            }
        };
    };
}

/// Why the cache does not serve a plain registration. The numbers are those of the trace's format
/// (rdmamr_trace(5)), which earlier releases have written too.
pub mod unserved {
    crate::numbered! {
        /// Words that continue "the cache does not serve them:", by number.
        WORDS: u32;
        /// Not stated: an earlier release wrote the trace, or the call was not a plain registration.
        UNKNOWN = 0, "";
        /// The cache could serve the registration.
        NONE = 1, "";
        /// libibverbs keeps registered memory from children.
        FORK = 2, "ibv_fork_init or RDMAV_FORK_SAFE keeps registered memory from children";
        /// The access flags exclude the registration.
        ACCESS = 3, "the access flags ask for paging on demand, a zero base, memory windows or huge pages";
        /// A region has one address for all its users.
        ADDRESS = 4, "remote peers address the memory by another address than its own (iova)";
        /// The kernel refuses a registration of length 0.
        EMPTY = 5, "the length is 0";
        /// libibverbs registers the memory.
        DEVICE = 6, "the memory belongs to a device (DMA-BUF), or libibverbs has registered it";
        /// The process is a child of one that had cached regions.
        CHILD = 7, "the process was forked by one that had cached regions";
        /// The caller is a signal handler that interrupted the library.
        INTERRUPTED = 8, "a signal handler that interrupted the library made the call";
        /// The library is switched off.
        DISABLED = 9, "RDMAMR_DISABLE switches the library off";
        /// A watch would split the stack's mapping, which limits the stack's growth.
        STACK = 10, "the memory is on the main thread's stack";
    }
}

/// The properties of a plain registration that the rule looks at.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The access flags.
    pub access: u32,
    /// Whether remote peers access the memory at its own address.
    pub at_own_address: bool,
    /// Whether the length is 0.
    pub is_empty: bool,
}

impl CacheMode {
    /// Whether the user wants the cache to serve registrations with this access.
    pub const fn wants(self, access: u32) -> bool {
        match self {
            CacheMode::Off => false,
            CacheMode::Local => is_local(access),
            CacheMode::All => may_be_kept(access),
        }
    }
}

/// Why the cache of any process refuses such a registration: a value of [`unserved`].
/// [`unserved::NONE`] if the cache may serve it.
pub const fn refusal_of(mode: CacheMode, asked: Asked) -> u32 {
    if !mode.wants(asked.access) {
        unserved::ACCESS
    } else if !asked.at_own_address {
        unserved::ADDRESS
    } else if asked.is_empty {
        unserved::EMPTY
    } else {
        unserved::NONE
    }
}

/// The whole pages of a registration, in a protection domain, and the access to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The address of the program's protection domain.
    pub pd: u64,
    /// The first byte, and the byte after the last.
    pub start: u64,
    #[allow(missing_docs, reason = "with `start`")]
    pub end: u64,
    /// The access flags.
    pub access: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_refuses_alone() {
        let plain = Asked {
            access: 1,
            at_own_address: true,
            is_empty: false,
        };
        let refusal = |access, mode| refusal_of(mode, Asked { access, ..plain });
        assert_eq!(refusal(1, CacheMode::All), unserved::NONE);
        assert_eq!(refusal(1, CacheMode::Local), unserved::NONE);
        assert_eq!(refusal(1, CacheMode::Off), unserved::ACCESS);
        assert_eq!(refusal(3, CacheMode::All), unserved::NONE);
        assert_eq!(refusal(3, CacheMode::Local), unserved::ACCESS);
        for access in [16, 32, 64, 128] {
            assert_eq!(refusal(access, CacheMode::All), unserved::ACCESS);
        }
        let moved = Asked {
            at_own_address: false,
            ..plain
        };
        assert_eq!(refusal_of(CacheMode::All, moved), unserved::ADDRESS);
        let empty = Asked {
            is_empty: true,
            ..plain
        };
        assert_eq!(refusal_of(CacheMode::All, empty), unserved::EMPTY);
    }

    #[test]
    fn rights_of_remote_peers_are_told_from_local_ones() {
        assert!(is_remote(2) && is_remote(1 << 9) && !is_remote(1 | 1 << 20));
        assert!(spare(0) > 0 && spare(1) > 0 && spare(3) == 0 && spare(5) == 0);
    }
}
