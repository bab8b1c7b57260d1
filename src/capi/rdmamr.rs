// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's own calls: `include/rdmamr.h` is made from this file.

use super::export::versioned;
use crate::append::append;
use crate::config::{Output, config};
use crate::explain;
use crate::mr::state;
use crate::relaxed;
use crate::stats::Counter;
use crate::text::Text;
use crate::trace;
use core::ffi::{c_char, c_int};
use core::fmt::Write;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The version of this header: major, of 1.2.3 the 1.
pub const RDMAMR_VERSION_MAJOR: u32 = 0;
/// The version of this header: minor, of 1.2.3 the 2.
pub const RDMAMR_VERSION_MINOR: u32 = 1;
/// The version of this header: patch, of 1.2.3 the 3.
pub const RDMAMR_VERSION_PATCH: u32 = 0;

/// The header's version is the package's.
const _: () = {
    const fn number(digits: &str) -> u32 {
        match u32::from_str_radix(digits, 10) {
            Ok(number) => number,
            Err(_) => panic!("Cargo gives numbers"),
        }
    }
    assert!(RDMAMR_VERSION_MAJOR == number(env!("CARGO_PKG_VERSION_MAJOR")));
    assert!(RDMAMR_VERSION_MINOR == number(env!("CARGO_PKG_VERSION_MINOR")));
    assert!(RDMAMR_VERSION_PATCH == number(env!("CARGO_PKG_VERSION_PATCH")));
};

/// What the library has done in this process. A forked child starts with all 0.
///
/// Later versions add fields at the end and never change those that exist.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct rdmamr_stats {
    /// Registrations that the library made, by its own call of the kernel.
    pub reg_kernel: u64,
    /// Registrations that libibverbs made, because the library passed them on: dma-bufs, devices and
    /// kernels that it does not serve, RDMAMR_DISABLE=1.
    pub reg_next: u64,
    /// Registrations that failed, by either way.
    pub reg_failed: u64,
    /// Deregistrations that the library made, by its own call of the kernel.
    pub dereg_kernel: u64,
    /// Deregistrations that libibverbs made, of regions that are not the library's.
    pub dereg_next: u64,
    /// Deregistrations that failed, by either way.
    pub dereg_failed: u64,
    /// Regions of the library that are registered now and in use.
    pub live: u64,
    /// The sum of their lengths in bytes, modulo 2^64.
    pub live_bytes: u64,
    /// Regions of the library that ended without its ibv_dereg_mr: the program deregistered them by a
    /// function that it took from libibverbs by handle, or closed their device.
    pub vanished: u64,
    /// Relaxed registrations that a region of the pool served, without a call of the kernel.
    pub hits: u64,
    /// Relaxed registrations for which the pool made a region that it may keep.
    pub misses: u64,
    /// Hits on a region that another relaxed registration was using at the time.
    pub shared: u64,
    /// Regions that the pool keeps registered now and nobody uses.
    pub idle: u64,
    /// The sum of the lengths of those, in whole pages.
    pub idle_bytes: u64,
    /// Regions of the pool that were deregistered by ibv_flush_relaxed_mr, ibv_dealloc_pd or
    /// ibv_close_device.
    pub flushed_flush: u64,
    /// Regions that were deregistered since more were idle than RDMAMR_RELAXED_MAX_IDLE or
    /// RDMAMR_RELAXED_MAX_IDLE_BYTES allow.
    pub flushed_watermark: u64,
    /// Regions that were deregistered since they had been idle for RDMAMR_RELAXED_LINGER.
    pub flushed_linger: u64,
    /// Regions that were deregistered since memory was short: a registration had failed with
    /// ENOMEM, or the machine ran out of free memory.
    pub flushed_pressure: u64,
    /// Regions that were deregistered since the program changed their memory by a call that the
    /// library stands in for (munmap and its kin).
    pub flushed_hook: u64,
    /// Regions that were deregistered since userfaultfd reported a change of their memory.
    pub flushed_event: u64,
    /// Regions that were deregistered since a change was under way when they were registered, so
    /// that they could not be kept.
    pub flushed_fence: u64,
    /// Regions that were deregistered since their pages were not all there any more
    /// (RDMAMR_RELAXED_STRICT=1).
    pub flushed_stamp: u64,
    /// Regions that were withdrawn from reuse by an interposed memory call.
    pub stale_avoided_hook: u64,
    /// Regions that were withdrawn from reuse by an event of userfaultfd.
    pub stale_avoided_event: u64,
    /// Hits that were given up since the kernel said that a change was under way.
    pub stale_avoided_fence: u64,
    /// Regions that were withdrawn from reuse by the look at their pages.
    pub stale_avoided_stamp: u64,
    /// Relaxed registrations that the pool does not keep: their access flags (on-demand paging,
    /// zero-based, memory windows, huge pages).
    pub bypassed_access: u64,
    /// Likewise: the device is left to libibverbs, or RDMAMR_DISABLE=1.
    pub bypassed_device: u64,
    /// Likewise: memory that can change unseen (shared mappings that are not sealed, System V
    /// segments, device memory, memory that another userfaultfd watches).
    pub bypassed_memory: u64,
    /// Likewise: userfaultfd is refused to this process.
    pub bypassed_watch: u64,
    /// Likewise: ibv_fork_init was called.
    pub bypassed_fork: u64,
    /// Likewise: the process is short of mappings (vm.max_map_count), or the pool is full.
    pub bypassed_limit: u64,
    /// Likewise: a change of the memory was under way, or a signal handler interrupted the library.
    pub bypassed_busy: u64,
}

impl rdmamr_stats {
    fn now() -> Self {
        let Some(state) = state::existing() else {
            return Self::default();
        };
        let counters = &state.counters;
        let (live, live_bytes) = state.devices.total();
        let [(idle, idle_bytes), (used, used_bytes)] = relaxed::totals();
        rdmamr_stats {
            reg_kernel: counters.get(Counter::RegKernel),
            reg_next: counters.get(Counter::RegNext),
            reg_failed: counters.get(Counter::RegFailed),
            dereg_kernel: counters.get(Counter::DeregKernel),
            dereg_next: counters.get(Counter::DeregNext),
            dereg_failed: counters.get(Counter::DeregFailed),
            live: live + used,
            live_bytes: live_bytes.wrapping_add(used_bytes),
            vanished: counters.get(Counter::Vanished),
            hits: relaxed::hits(|| counters.get(Counter::Hits)),
            misses: counters.get(Counter::Misses),
            shared: counters.get(Counter::Shared),
            idle,
            idle_bytes,
            flushed_flush: counters.get(Counter::FlushedFlush),
            flushed_watermark: counters.get(Counter::FlushedWatermark),
            flushed_linger: counters.get(Counter::FlushedLinger),
            flushed_pressure: counters.get(Counter::FlushedPressure),
            flushed_hook: counters.get(Counter::FlushedHook),
            flushed_event: counters.get(Counter::FlushedEvent),
            flushed_fence: counters.get(Counter::FlushedFence),
            flushed_stamp: counters.get(Counter::FlushedStamp),
            stale_avoided_hook: counters.get(Counter::StaleAvoidedHook),
            stale_avoided_event: counters.get(Counter::StaleAvoidedEvent),
            stale_avoided_fence: counters.get(Counter::StaleAvoidedFence),
            stale_avoided_stamp: counters.get(Counter::StaleAvoidedStamp),
            bypassed_access: counters.get(Counter::BypassedAccess),
            bypassed_device: counters.get(Counter::BypassedDevice),
            bypassed_memory: counters.get(Counter::BypassedMemory),
            bypassed_watch: counters.get(Counter::BypassedWatch),
            bypassed_fork: counters.get(Counter::BypassedFork),
            bypassed_limit: counters.get(Counter::BypassedLimit),
            bypassed_busy: counters.get(Counter::BypassedBusy),
        }
    }

    /// The fields, by name, in the order of the structure.
    fn fields(&self) -> [(&'static str, u64); size_of::<rdmamr_stats>() / size_of::<u64>()] {
        [
            ("reg_kernel", self.reg_kernel),
            ("reg_next", self.reg_next),
            ("reg_failed", self.reg_failed),
            ("dereg_kernel", self.dereg_kernel),
            ("dereg_next", self.dereg_next),
            ("dereg_failed", self.dereg_failed),
            ("live", self.live),
            ("live_bytes", self.live_bytes),
            ("vanished", self.vanished),
            ("hits", self.hits),
            ("misses", self.misses),
            ("shared", self.shared),
            ("idle", self.idle),
            ("idle_bytes", self.idle_bytes),
            ("flushed_flush", self.flushed_flush),
            ("flushed_watermark", self.flushed_watermark),
            ("flushed_linger", self.flushed_linger),
            ("flushed_pressure", self.flushed_pressure),
            ("flushed_hook", self.flushed_hook),
            ("flushed_event", self.flushed_event),
            ("flushed_fence", self.flushed_fence),
            ("flushed_stamp", self.flushed_stamp),
            ("stale_avoided_hook", self.stale_avoided_hook),
            ("stale_avoided_event", self.stale_avoided_event),
            ("stale_avoided_fence", self.stale_avoided_fence),
            ("stale_avoided_stamp", self.stale_avoided_stamp),
            ("bypassed_access", self.bypassed_access),
            ("bypassed_device", self.bypassed_device),
            ("bypassed_memory", self.bypassed_memory),
            ("bypassed_watch", self.bypassed_watch),
            ("bypassed_fork", self.bypassed_fork),
            ("bypassed_limit", self.bypassed_limit),
            ("bypassed_busy", self.bypassed_busy),
        ]
    }
}

/// The version of the library that is running, such as "0.1.0".
///
/// The string is static. Any thread may call this at any time.
#[unsafe(no_mangle)]
pub extern "C" fn rdmamr_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
versioned!(rdmamr_version, "RDMAMR_1.0");

/// Writes what the library has done in this process to `stats`.
///
/// `size` is sizeof(struct rdmamr_stats) of the header that the program was compiled with: a library that
/// knows more fields writes only those, one that knows fewer writes 0 to the rest. Any thread may call
/// this; while others register, the figures of one call may be some registrations apart.
///
/// Returns 0, or EINVAL if `stats` is NULL or `size` is not a multiple of 8 above 0. `stats` must point to
/// `size` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdmamr_get_stats(stats: *mut rdmamr_stats, size: usize) -> c_int {
    if stats.is_null() || size == 0 || !size.is_multiple_of(size_of::<u64>()) {
        return libc::EINVAL;
    }
    let now = rdmamr_stats::now();
    let known = size.min(size_of::<rdmamr_stats>());
    let out = stats.cast::<u8>();
    // SAFETY: the caller's `size` bytes; `known` is not more than either.
    unsafe { out.copy_from_nonoverlapping((&raw const now).cast(), known) };
    // SAFETY: the rest of the caller's `size` bytes.
    unsafe { out.wrapping_add(known).write_bytes(0, size - known) };
    0
}
versioned!(rdmamr_get_stats, "RDMAMR_1.0");

/// Why the last call of this thread that failed did so, in words: what was tried, who refused it with
/// which errno, and the likely cause with figures (RLIMIT_MEMLOCK against the memory that is pinned,
/// a mapping that is read-only or missing, the rule of the access flags that was broken). An empty string
/// if no call has failed.
///
/// It is about the calls that this library takes over, ibv_reg_mr and its kin. Memory and limits are
/// looked at when this is called, so call it right after the failure. The string belongs to the library
/// and to the calling thread: it is good until the thread calls this again. errno is not changed.
#[unsafe(no_mangle)]
pub extern "C" fn rdmamr_last_reason() -> *const c_char {
    explain::last_in_words().cast()
}
versioned!(rdmamr_last_reason, "RDMAMR_1.0");

/// The process that loaded the library; a forked child is another.
static LOADED_BY: AtomicI32 = AtomicI32::new(0);

unsafe extern "C" fn loaded() {
    // SAFETY: no conditions.
    LOADED_BY.store(unsafe { libc::getpid() }, Relaxed);
    if config().trace.is_some() {
        trace::turn_on();
    }
}

/// Writes the end of the trace, and the statistics where RDMAMR_STATS says, when the process exits normally. A forked child writes
/// them only if it has used the library itself.
unsafe extern "C" fn exiting() {
    trace::exiting();
    let Some(output) = &config().stats else {
        return;
    };
    // SAFETY: no conditions.
    if state::existing().is_none() && unsafe { libc::getpid() } != LOADED_BY.load(Relaxed) {
        return;
    }
    let mut text = Text::<2048>::new();
    let mut separator = '{';
    for (name, value) in rdmamr_stats::now().fields() {
        let _ = write!(text, "{separator}\"{name}\":{value}");
        separator = ',';
    }
    let _ = text.write_str("}\n");
    let bytes = text.as_bytes();
    let written = match output {
        Output::Stderr => {
            // SAFETY: the text is readable.
            let written =
                unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
            if written < 0 {
                Err(errno::errno())
            } else {
                Ok(())
            }
        }
        Output::File(path) => append(path, bytes),
    };
    if let Err(why) = written {
        crate::log::always(format_args!("RDMAMR_STATS: cannot be written: {why}"));
    }
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: unsafe extern "C" fn() = loaded;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static EXITING: unsafe extern "C" fn() = exiting;

#[cfg(test)]
mod tests {
    use super::*;

    const _: [unsafe extern "C" fn(); 2] = [loaded, exiting];

    #[test]
    fn fields_are_in_the_order_of_the_structure() {
        let mut raw = [0u64; size_of::<rdmamr_stats>() / 8];
        for (n, field) in raw.iter_mut().enumerate() {
            *field = n as u64;
        }
        // SAFETY: all fields are u64.
        let stats: rdmamr_stats = unsafe { core::mem::transmute(raw) };
        for (n, (_, value)) in stats.fields().into_iter().enumerate() {
            assert_eq!(value, n as u64);
        }
    }

    #[test]
    fn a_caller_of_another_size_gets_what_both_know() {
        let mut bytes = [0xffu8; size_of::<rdmamr_stats>() + 16];
        let stats = bytes.as_mut_ptr().cast();
        // SAFETY: there is room for more than the structure.
        let get = |size| unsafe { rdmamr_get_stats(stats, size) };
        assert_eq!(get(0), libc::EINVAL);
        assert_eq!(get(12), libc::EINVAL);
        assert_eq!(get(8), 0);
        assert_eq!(get(size_of::<rdmamr_stats>() + 8), 0);
        assert_eq!(
            bytes[size_of::<rdmamr_stats>()..size_of::<rdmamr_stats>() + 8],
            [0; 8]
        );
        assert_eq!(bytes[size_of::<rdmamr_stats>() + 8..], [0xff; 8]);
        // SAFETY: NULL is refused.
        let refused = unsafe { rdmamr_get_stats(core::ptr::null_mut(), 8) };
        assert_eq!(refused, libc::EINVAL);
    }
}
