// SPDX-License-Identifier: MIT OR Apache-2.0
//! A memory monitor for libfabric's registration cache, `RDMAMR_MONITOR=libfabric`. Some
//! providers, among them the verbs provider, register through that cache. libfabric's
//! monitors do not see all changes of memory.
//!
//! libfabric accepts a monitor only before it has a cache, so the library imports its monitor at
//! the program's first `fi_getinfo`. From then on libfabric asks the monitor before each reuse of
//! an entry. `src/monitor/` answers these questions. This file handles the differences
//! between versions of libfabric:
//!
//! - Before 1.14, libfabric forgets an imported monitor when it starts. The library imports none
//!   there.
//! - Before 2.1, libfabric does not unsubscribe. It ends an entry when the monitor's answer for it
//!   is no.
//! - Since 2.1, libfabric unsubscribes at the end of each entry. It crashes there if its imported
//!   monitor has been closed meanwhile. The library therefore never closes its monitor, and never
//!   unloads libfabric, which holds a pointer to the monitor.
//!
//! libfabric holds its lock when it calls the monitor, and takes the same lock when it is notified.
//! A separate thread therefore sends the notifications. The thread starts only when there is
//! something to notify. In a program of one thread, a second thread would slow down each hit,
//! because each hit then needs the fence.

use super::background::{self, Background};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::ptr::{null, null_mut, without_provenance};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::*};
use core::time::Duration;
use rdmamr_abi::libfabric::*;
use rdmamr_abi::libfabric_monitor::*;
use rdmamr_monitor as subscription;
use rdmamr_next as next;
use rdmamr_stats::log::{self, Level};
use rdmamr_sys::{futex, thread};

/// The oldest libfabric that keeps a monitor imported before libfabric has started.
const OLDEST: u32 = 1 << 16 | 14;

/// The oldest libfabric that unsubscribes.
const UNSUBSCRIBES: u32 = 2 << 16 | 1;

/// The interface version to ask for `mr_cache`: the first version that has it.
const MR_CACHE: u32 = 1 << 16 | 13;

/// The monitor, in memory that libfabric writes to.
struct SharedMonitor(UnsafeCell<fid_mem_monitor>);
// SAFETY: only libfabric writes to the monitor, while it imports it. Later threads only read it.
unsafe impl Sync for SharedMonitor {}

static MONITOR: SharedMonitor = SharedMonitor(UnsafeCell::new(fid_mem_monitor {
    fid: fid {
        fclass: FI_CLASS_MEM_MONITOR,
        context: null_mut(),
        ops: null_mut(),
    },
    export_ops: null(),
    import_ops: null(),
}));

/// The progress of the import: not tried yet, under way, or done.
static TRIED: AtomicU8 = AtomicU8::new(NOT_YET);
const NOT_YET: u8 = 0;
const NOW: u8 = 1;
const DONE: u8 = 2;

/// Whether this libfabric unsubscribes when it ends an entry.
static UNSUBSCRIBED: AtomicBool = AtomicBool::new(false);

/// Imports the monitor into libfabric just before the first use of libfabric. `disabled` says
/// whether the library is disabled.
pub fn import_once(functions: &'static fi_ops_mem_monitor, disabled: fn() -> bool) {
    if TRIED.load(Acquire) != DONE {
        import_now(functions, disabled);
    }
}

#[cold]
fn import_now(functions: &'static fi_ops_mem_monitor, disabled: fn() -> bool) {
    match TRIED.compare_exchange(NOT_YET, NOW, AcqRel, Acquire) {
        Ok(_) => {
            match import(functions, disabled()) {
                Ok(()) => log::line(
                    Level::Info,
                    format_args!("libfabric's registration cache is told of changes of memory"),
                ),
                Err((level, reason)) => log::line(
                    level,
                    format_args!("RDMAMR_MONITOR=libfabric has no effect: {reason}"),
                ),
            }
            TRIED.store(DONE, Release);
        }
        // Another thread imports the monitor. A cache opened before that would keep libfabric's
        // monitor.
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

/// The reason why the monitor is not imported, and the level of the message: a user's choice is
/// information, a refusal by libfabric is a warning.
type NotImported = (Level, &'static str);

fn import(functions: &'static fi_ops_mem_monitor, disabled: bool) -> Result<(), NotImported> {
    let by_user = |reason| (Level::Info, reason);
    let by_libfabric = |reason| (Level::Warn, reason);
    if disabled {
        return Err(by_user("RDMAMR_DISABLE=1"));
    }
    // SAFETY: the name ends with a NUL; `chosen` is read before anything can change it.
    let chosen = unsafe { libc::getenv(c"FI_MR_CACHE_MONITOR".as_ptr()) };
    if !chosen.is_null() {
        // SAFETY: a non-null result of getenv is a string.
        return Err(match unsafe { CStr::from_ptr(chosen) } == c"disabled" {
            true => by_user("FI_MR_CACHE_MONITOR=disabled: libfabric has no registration cache"),
            false => by_libfabric("FI_MR_CACHE_MONITOR chooses one of libfabric's own monitors"),
        });
    }
    // SAFETY: `fi_version` is libfabric's function, and may be called at any time.
    let version = next::FI_VERSION.get().map_or(0, |ask| unsafe { ask() });
    let open = next::FI_OPEN.get().filter(|_| version >= OLDEST);
    let open = open.ok_or(by_libfabric("libfabric is older than 1.14"))?;
    UNSUBSCRIBED.store(version >= UNSUBSCRIBES, Relaxed);
    let _uncancelled = thread::uncancelled();
    let mut cache: *mut fid = null_mut();
    let name = c"mr_cache".as_ptr();
    // SAFETY: `fi_open` is libfabric's function. It takes no attributes here, and `cache` has
    // room for the result.
    let opened = unsafe { open(MR_CACHE, name, null_mut(), 0, 0, &mut cache, null_mut()) };
    // SAFETY: `cache` is null, or the object that `fi_open` has just opened.
    let opened = unsafe { cache.as_ref() }.filter(|_| opened == 0);
    // SAFETY: an open object has a valid table or NULL.
    let ops = opened.and_then(|cache| unsafe { cache.ops.as_ref() });
    let ops = ops.ok_or(by_libfabric("libfabric does not open its cache"))?;
    let monitor = MONITOR.0.get();
    // SAFETY: until the monitor is bound, only this thread uses it.
    unsafe { (*monitor).export_ops = functions };
    // SAFETY: `bind` is the cache's function, and the static monitor lives for ever.
    let bound = ops
        .bind
        .map_or(-FI_ENOSYS, |bind| unsafe { bind(cache, monitor.cast(), 0) });
    if let Some(close) = ops.close {
        // SAFETY: this function opened the object. Its close ends the access to the cache, and
        // leaves the monitor imported.
        unsafe { close(cache) };
    }
    match -bound {
        0 => Ok(()),
        FI_EBUSY => Err(by_libfabric(
            "libfabric has another imported monitor, or a cache already",
        )),
        _ => Err(by_libfabric("libfabric refuses the monitor")),
    }
}

/// libfabric calls this before it makes its first cache. After an error libfabric has no cache.
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

/// Subscribes a new entry of libfabric's cache. The call always succeeds: after an error some
/// versions of libfabric would end an entry that they have not begun.
pub fn subscribe(addr: *const c_void, length: usize) {
    if subscription::subscribe(addr.addr(), length) {
        tell();
    }
}

/// Whether an entry may be used again.
#[inline(always)]
pub fn is_valid(addr: *const c_void, length: usize) -> bool {
    let valid = subscription::is_valid(addr.addr(), length);
    if !valid && !UNSUBSCRIBED.load(Relaxed) {
        // libfabric now ends the entry, and does not say so.
        subscription::unsubscribe(addr.addr(), length);
    }
    valid
}

/// A futex: 1 while libfabric must be notified of something.
static TELL: AtomicU32 = AtomicU32::new(0);

/// The shortest time between two notifications. Each one takes libfabric's lock.
const PAUSE: Duration = Duration::from_millis(20);

/// Has the monitor's thread notify libfabric of invalidated memory.
#[cold]
fn tell() {
    let was_told = TELL.swap(1, SeqCst) != 0;
    if !STARTED.swap(true, SeqCst) {
        // If the thread cannot start now, the next call tries again. One that has started may have
        // ended by now.
        if !background::start(&THREAD) {
            STARTED.store(false, SeqCst);
        }
    } else if !was_told {
        futex::wake(&TELL, 1);
    }
}

/// Whether the thread runs, or is being started.
static STARTED: AtomicBool = AtomicBool::new(false);

/// The time that the thread waits for the next change before it ends. A process whose first thread
/// has called pthread_exit(3) ends with the last thread of the C library, and this is one.
const IDLE: Duration = Duration::from_millis(100);

/// Whether the thread may end. Otherwise there is something to notify.
fn may_end() -> bool {
    STARTED.store(false, SeqCst);
    // `tell` sets `TELL` first. So either it has seen `STARTED` and this thread sees `TELL`, or it
    // starts the next thread.
    TELL.load(SeqCst) == 0 || STARTED.swap(true, SeqCst)
}

static THREAD: Background = Background {
    name: c"rdmamr-monitor",
    work: run,
};

fn run() {
    let monitor = MONITOR.0.get();
    // SAFETY: libfabric has subscribed, so the import is over, and no thread writes the monitor.
    let functions = unsafe { (*monitor).import_ops };
    // SAFETY: the table is libfabric's, and libfabric is never unloaded.
    let Some(notify) = unsafe { functions.as_ref() }.map(|functions| functions.notify) else {
        return;
    };
    loop {
        futex::wait(&TELL, 0, Some(IDLE));
        if TELL.swap(0, SeqCst) == 0 {
            if may_end() {
                return;
            }
            continue;
        }
        subscription::notify(|range| {
            let (start, length) = (range.start as usize, range.bytes() as usize);
            // SAFETY: `notify` is libfabric's function, and libfabric has imported this
            // monitor.
            unsafe { notify(monitor, without_provenance(start), length) };
        });
        futex::pause(PAUSE);
    }
}
