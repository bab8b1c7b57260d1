// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache's verdict on a plain registration as if `RDMAMR_CACHE=all` were set. The trace records
//! the verdict, so that `rdmamr report` promises nothing that the cache would not do. Only a traced
//! process asks for it.

use crate::instance;
use crate::life::admission;
use crate::life::limits;
use crate::watch::userfaultfd::Userfaultfd;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use rdmamr_config::{CacheMode, disabled};
use rdmamr_mr::{self as mr, Request};
use rdmamr_policy::{Asked, Process};
use rdmamr_sys::clock;
use rdmamr_sys::helper_thread;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::process::PerProcess;
use rdmamr_sys::thread;
use rdmamr_trace::format::{CacheSettings, Numbers, cache, call, unserved};

/// Whether the cache would serve a registration of `call` that has succeeded. Returns a value of
/// [`unserved`].
pub fn verdict(call: u8, request: &Request) -> u32 {
    match call {
        call::REG_MR | call::REG_MR_IOVA | call::REG_MR_IOVA2 => {}
        call::REG_MR_EX if request.length != 0 => {}
        call::REG_MR_EX | call::REG_DMABUF_MR => return unserved::DEVICE,
        _ => return unserved::UNKNOWN,
    }
    rdmamr_policy::refusal(CacheMode::All, asked(request), &Present { foreseen: true })
}

/// The properties of a registration that decide whether the cache serves it.
#[inline(always)]
pub fn asked(request: &Request) -> Asked {
    Asked {
        access: request.access.bits(),
        at_own_address: request.iova == request.addr.addr() as u64,
        is_empty: request.length == 0,
    }
}

/// This process as the cache finds it, or, with `foreseen`, as it would be with the cache.
pub struct Present {
    pub foreseen: bool,
}

impl Process for Present {
    #[inline(always)]
    fn is_disabled(&self) -> bool {
        disabled()
    }
    #[inline(always)]
    fn is_interrupted(&self) -> bool {
        thread::is_inside()
    }
    #[inline(always)]
    fn is_child(&self) -> bool {
        instance::is_of_parent() || (self.foreseen && had_no_start())
    }
    #[inline(always)]
    fn is_fork_protected(&self) -> bool {
        mr::kernel_mr::is_fork_protected()
    }
}

/// The readings of this process's mappings.
struct Reading {
    /// The time before which the mappings are not read again: CLOCK_MONOTONIC in ns.
    next: AtomicU64,
    /// A hash of the ranges that the last reading found.
    found: AtomicU64,
}

static READING: PerProcess<Reading> = PerProcess::new();
/// Whether this process, or one that it was forked from, has registered memory.
static EVER: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn forget() {
    READING.forget();
}

/// Whether a process that this one was forked from has registered memory, and this one has not.
fn had_no_start() -> bool {
    EVER.load(Acquire) && READING.get().is_none()
}

/// Passes to `tell` the cache's settings in this process, and the memory whose regions the cache
/// would not keep: each in the trace's format, and only if it is new. Called after a registration
/// that the cache would serve.
pub fn news(mut tell: impl FnMut(u16, &[u8])) {
    use rdmamr_trace::format::kind;
    /// The shortest time between two readings of the mappings, in ns. The readings also take at
    /// most a hundredth of the time.
    const PERIOD: u64 = 10_000_000;
    if READING.get().is_none() {
        if instance::is_of_parent() || had_no_start() {
            return;
        }
        READING.get_or_make(
            || {
                Box::new(Reading {
                    next: AtomicU64::new(0),
                    found: AtomicU64::new(0),
                })
            },
            forget,
        );
        // Set after `READING`: otherwise another thread would take this process for a child.
        EVER.store(true, Release);
        tell(kind::CACHE, &facts());
    }
    let Some(reading) = READING.get() else {
        return;
    };
    let now = clock::monotonic();
    let next = reading.next.load(Relaxed);
    // It is too early, or another thread is reading the mappings already.
    if now < next
        || reading
            .next
            .compare_exchange(next, u64::MAX, Relaxed, Relaxed)
            .is_err()
    {
        return;
    }
    let mut bytes = now.to_le_bytes().to_vec();
    let mut has_room = true;
    admission::each_foreign(|range| {
        has_room &= bytes.try_reserve(2 * size_of::<u64>()).is_ok();
        if has_room {
            bytes.extend(range.start.to_le_bytes());
            bytes.extend(range.end.to_le_bytes());
        }
    });
    let took = clock::monotonic() - now;
    reading.next.store(now + PERIOD.max(100 * took), Relaxed);
    if !has_room {
        return;
    }
    let mixed = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let found = bytes[8..].iter().fold(0xcbf2_9ce4_8422_2325, mixed);
    if reading.found.swap(found, Relaxed) != found {
        tell(kind::UNKEPT, &bytes);
    }
}

/// Measures how long userfaultfd takes to watch a region, on some ranges of the library's own
/// memory. Returns the shortest time in ns. Closes the file.
fn watch_time(file: Userfaultfd) -> u64 {
    const REGION: u64 = 1 << 16;
    const REGIONS: u64 = 16;
    let size = (REGION * REGIONS) as usize;
    let Some(memory) = helper_thread::map(size) else {
        file.close();
        return 0;
    };
    let start = memory.addr() as u64;
    // Only every other range is watched: the kernel would merge adjacent ones into one VMA, which
    // takes longer.
    let times = (0..REGIONS).step_by(2).map(|n| {
        let range = PageRange::new(start + n * REGION, start + (n + 1) * REGION);
        let began = clock::monotonic();
        let watched = file.register(range);
        watched.map_or(u64::MAX, |_| clock::monotonic() - began)
    });
    let shortest = times.min().unwrap_or(0);
    // Closed before the memory is unmapped: the kernel would wait until the event is read, and no
    // thread reads it.
    file.close();
    // SAFETY: `map` returned the memory for that size, and this function alone knows it.
    unsafe { helper_thread::unmap(memory, size) };
    if shortest == u64::MAX { 0 } else { shortest }
}

fn facts() -> Vec<u8> {
    let settings = rdmamr_config::cache();
    let limit = limits::of_process().unwrap_or_default();
    let watch = Userfaultfd::open();
    let flag = |is: bool, flag: u64| if is { flag } else { 0 };
    let flags = flag(watch.is_err(), cache::CANNOT_WATCH)
        | flag(limits::may_pin().is_none(), cache::PINS_ALL)
        | flag(settings.fresh_keys, cache::FRESH_KEYS);
    let watch_ns = watch.map_or(0, watch_time);
    let regions = CacheSettings {
        flags,
        linger_local: settings.linger_local,
        linger_remote: settings.linger_remote,
        most_regions: limit.regions as u64,
        most_bytes: limit.bytes as u64,
        watch_ns,
    };
    regions.as_bytes().to_vec()
}
