// SPDX-License-Identifier: MIT OR Apache-2.0
//! A memory monitor for libfabric's own registration cache, `RDMAMR_MONITOR=libfabric`: which providers register
//! through, as the verbs provider does, and which by libfabric's own monitors does not see all changes of
//! memory.
//!
//! libfabric takes it before it has a cache, so it is imported at the program's first `fi_getinfo`. From then on
//! libfabric asks it before each reuse. What it is asked for is in `relaxed/subscription.rs`; here is what
//! differs between versions of libfabric:
//!
//! - Before 1.14 an imported monitor is forgotten when libfabric starts. There it is not imported.
//! - Before 2.1 libfabric does not unsubscribe; that an entry has ended is known by the answer that it got.
//! - From 2.1 on it unsubscribes at the end of each entry, and crashes there if its imported monitor has been
//!   closed meanwhile. So ours is never closed, and neither is libfabric unloaded, which knows it.
//!
//! libfabric's lock is held when it calls us, and taken when it is notified: so it is notified by a thread
//! of its own, and that only once there is something to say. A process that was alone with its thread would pay
//! for a second one at each hit, since each then needs the fence.

use super::background;
use crate::abi::libfabric::*;
use crate::abi::libfabric_monitor::*;
use crate::config::{config, disabled};
use crate::log::{self, Level};
use crate::next;
use crate::relaxed::{
    self,
    subscription::{self, Ended},
};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::ptr::{null, null_mut, without_provenance};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::*};
use core::time::Duration;

/// The oldest libfabric that keeps a monitor that was imported before it has started.
const OLDEST: u32 = version(1, 14);

/// The oldest libfabric that unsubscribes.
const UNSUBSCRIBES: u32 = version(2, 1);

/// As which version we ask for `mr_cache`: that which brought it.
const MR_CACHE: u32 = version(1, 13);

const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// The monitor, in memory that libfabric writes to.
struct Shared(UnsafeCell<fid_mem_monitor>);
// SAFETY: it is written by libfabric alone, while it is imported; after that it is read.
unsafe impl Sync for Shared {}

static MONITOR: Shared = Shared(UnsafeCell::new(fid_mem_monitor {
    fid: fid {
        fclass: FI_CLASS_MEM_MONITOR,
        context: null_mut(),
        ops: null_mut(),
    },
    export_ops: null(),
    import_ops: null(),
}));

/// Whether it has been tried to import it.
static TRIED: AtomicU8 = AtomicU8::new(NOT_YET);
const NOT_YET: u8 = 0;
const NOW: u8 = 1;
const DONE: u8 = 2;

/// Whether this libfabric says when it ends an entry.
static UNSUBSCRIBED: AtomicBool = AtomicBool::new(false);

/// Imports the monitor into the libfabric that is just about to be used for the first time, where that is wanted.
#[inline]
pub fn import_once(functions: &'static fi_ops_mem_monitor) {
    if config().monitor_libfabric && TRIED.load(Acquire) != DONE {
        import_now(functions);
    }
}

#[cold]
fn import_now(functions: &'static fi_ops_mem_monitor) {
    match TRIED.compare_exchange(NOT_YET, NOW, AcqRel, Acquire) {
        Ok(_) => {
            match import(functions) {
                Ok(()) => log::line(
                    Level::Info,
                    format_args!("libfabric's registration cache is told of changes of memory"),
                ),
                Err(Refused::ByUser(reason)) => log::line(
                    Level::Info,
                    format_args!("RDMAMR_MONITOR=libfabric has no effect: {reason}"),
                ),
                Err(Refused::ByLibfabric(reason)) => log::line(
                    Level::Warn,
                    format_args!("RDMAMR_MONITOR=libfabric has no effect: {reason}"),
                ),
            }
            TRIED.store(DONE, Release);
        }
        // Another thread is at it. A cache that is opened before would keep its own monitor.
        Err(NOW) => {
            for _ in 0..1000 {
                if TRIED.load(Acquire) == DONE {
                    break;
                }
                std::thread::yield_now();
            }
        }
        Err(_) => {}
    }
}

/// Why it is not imported.
enum Refused {
    ByUser(&'static str),
    ByLibfabric(&'static str),
}

fn import(functions: &'static fi_ops_mem_monitor) -> Result<(), Refused> {
    use Refused::*;
    if disabled() {
        return Err(ByUser("RDMAMR_DISABLE=1"));
    }
    // SAFETY: the name ends with a NUL; the value is looked at before anything can change it.
    let chosen = unsafe { libc::getenv(c"FI_MR_CACHE_MONITOR".as_ptr()) };
    if !chosen.is_null() {
        // SAFETY: not null, so a string.
        return Err(match unsafe { CStr::from_ptr(chosen) } == c"disabled" {
            true => ByUser("FI_MR_CACHE_MONITOR=disabled: libfabric has no registration cache"),
            false => ByLibfabric("FI_MR_CACHE_MONITOR chooses one of libfabric's own monitors"),
        });
    }
    // SAFETY: libfabric's own function, without conditions.
    let version = next::FI_VERSION.get().map_or(0, |ask| unsafe { ask() });
    let open = next::FI_OPEN.get().filter(|_| version >= OLDEST);
    let open = open.ok_or(ByLibfabric("libfabric is older than 1.14"))?;
    UNSUBSCRIBED.store(version >= UNSUBSCRIBES, Relaxed);
    let mut cache: *mut fid = null_mut();
    let name = c"mr_cache".as_ptr();
    // SAFETY: libfabric's own function: no attributes, and room for what it opens.
    let opened = unsafe { open(MR_CACHE, name, null_mut(), 0, 0, &mut cache, null_mut()) };
    // SAFETY: null, or what has just been opened.
    let opened = unsafe { cache.as_ref() }.filter(|_| opened == 0);
    // SAFETY: an open object's table.
    let ops = opened.and_then(|cache| unsafe { cache.ops.as_ref() });
    let ops = ops.ok_or(ByLibfabric("libfabric does not open its cache"))?;
    let monitor = MONITOR.0.get();
    // SAFETY: ours alone until it is bound.
    unsafe { (*monitor).export_ops = functions };
    // SAFETY: the cache's own function; the monitor stays for ever.
    let bound = ops
        .bind
        .map_or(-FI_ENOSYS, |bind| unsafe { bind(cache, monitor.cast(), 0) });
    if let Some(close) = ops.close {
        // SAFETY: opened here. This closes the way to the cache, not the monitor.
        unsafe { close(cache) };
    }
    match -bound {
        0 => Ok(()),
        FI_EBUSY => Err(ByLibfabric(
            "libfabric has another imported monitor, or a cache already",
        )),
        _ => Err(ByLibfabric("libfabric refuses the monitor")),
    }
}

/// libfabric is about to have its first cache. An error leaves it without one.
pub fn start() -> c_int {
    if subscription::start() {
        return 0;
    }
    log::line(
        Level::Warn,
        format_args!("libfabric has no registration cache: changes of memory cannot be watched"),
    );
    -FI_ENOSYS
}

/// libfabric's cache has an entry more. It is always taken on: after an error some versions would end
/// what they have not begun.
pub fn subscribe(addr: *const c_void, length: usize) {
    if subscription::subscribe(addr.addr(), length) {
        tell();
    }
}

/// Whether an entry may be used again.
#[inline(always)]
pub fn is_valid(addr: *const c_void, length: usize) -> bool {
    let ended = if UNSUBSCRIBED.load(Relaxed) {
        Ended::Said
    } else {
        Ended::ByAnswer
    };
    subscription::is_valid(addr.addr(), length, ended)
}

/// 1 while libfabric has something to be told. A futex.
static TELL: AtomicU32 = AtomicU32::new(0);

/// How often libfabric is told at most. Each time takes its lock.
const PAUSE: Duration = Duration::from_millis(20);

/// Has libfabric told of what is withdrawn.
#[cold]
fn tell() {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if !STARTED.load(Relaxed) && !STARTED.swap(true, Relaxed) {
        // Tried again with the next if there can be none now.
        STARTED.store(background::start("rdmamr-monitor", run), Relaxed);
    }
    if TELL.swap(1, SeqCst) == 0 {
        relaxed::wake(&TELL, 1);
    }
}

fn run() {
    let monitor = MONITOR.0.get();
    // SAFETY: imported, since libfabric has subscribed; nobody writes to it any more.
    let functions = unsafe { (*monitor).import_ops };
    // SAFETY: libfabric's table, which is never unloaded.
    let Some(notify) = unsafe { functions.as_ref() }.map(|functions| functions.notify) else {
        return;
    };
    loop {
        relaxed::wait(&TELL, 0, None);
        TELL.store(0, SeqCst);
        subscription::notify(|range| {
            let (start, length) = (range.start as usize, range.bytes() as usize);
            // SAFETY: libfabric's own function, with the monitor that it knows.
            unsafe { notify(monitor, without_provenance(start), length) };
        });
        relaxed::wait(&AtomicU32::new(0), 0, Some(PAUSE));
    }
}
