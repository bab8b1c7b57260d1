// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first use of relaxed registration in a process: the cache's memory, the watch, the cleaner.

use crate::cache::CACHE;
use crate::cache::Cache;
use crate::cache::existing;
use crate::cache::life::account::Amount;
use crate::cache::life::admission::Admission;
use crate::cache::life::change;
use crate::cache::life::cleaner::{self, Cleaner};
use crate::cache::life::flush;
use crate::cache::life::limits::Limits;
use crate::cache::life::limits_reader::LimitsReader;
use crate::cache::life::tasks;
use crate::cache::lock::{Lock, Owner, Patience};
use crate::cache::place;
use crate::config::config;
use crate::report::stats;
use crate::sys::allocator::has_memory;
use crate::sys::aside;
use crate::sys::proc;
use crate::sys::process::{self, PerProcess};
use crate::sys::thread;
use crate::watch::watch_fd::TABLE;
use crate::watch::{Reader, Watch};

/// The thread that makes the instance holds this lock.
static STARTING: PerProcess<Lock> = PerProcess::new();

unsafe extern "C" fn forget() {
    STARTING.forget();
    CACHE.forget();
}

unsafe extern "C" fn before_fork() {
    if let Some(cache) = existing() {
        flush::before_fork(cache);
    }
}

/// Whether this process is a child of one that had a cache. Such a child has no cache, and makes
/// none.
#[inline(always)]
pub fn is_of_parent() -> bool {
    existing().is_none() && place::was_taken()
}

/// Whether a start of the cache by this thread would keep files open that the program closes: the
/// cleaner shares the starter's table of descriptors for ever. A thread that has left the program's
/// table may end, and its files are closed then. (The first thread's table is the process's.)
pub fn would_keep_files() -> bool {
    existing().is_none() && has_left_table()
}

/// Whether this thread has left the table of descriptors of the program.
pub fn has_left_table() -> bool {
    !TABLE.is_here() && thread::id_by_kernel() != std::process::id()
}

/// This process's instance. The first call makes it. `None` in a child whose parent had one, in a
/// signal handler that interrupted the library, and if memory is short.
pub fn current() -> Option<&'static Cache> {
    if let Some(cache) = existing() {
        return Some(cache);
    }
    if is_of_parent() || thread::is_inside() {
        return None;
    }
    aside::run(make).flatten()
}

fn make() -> Option<&'static Cache> {
    let _inside = thread::enter();
    // The thread that starts the cache may be stopped until this one goes on. Then this one
    // registers without the cache.
    let _starting = STARTING
        .get_or_make(|| Box::new(Lock::new()), forget)
        .lock(Owner::ask(), Patience::Long)
        .ok()?;
    if let Some(cache) = existing() {
        return Some(cache);
    }
    if tasks::were_made() {
        tasks::say();
        return None;
    }
    if !has_memory() {
        return None;
    }
    let regions = place::find()?;
    let linger = &config().cache;
    // The reader comes first: the rest of the start goes on beside its own.
    let watch = Watch::start(Reader {
        changes: &regions.changes,
        heard: cleaner::heard,
    });
    let may_pin = may_pin();
    let cache = Cache {
        regions,
        watch,
        admission: Admission::default(),
        cleaner: Cleaner::new(linger.linger_remote, linger.linger_local),
        counters: stats::counters(),
        limits: Limits::new(settings(may_pin)),
        limits_reader: LimitsReader::new(),
        may_pin_all: may_pin.is_none(),
        process: process::id(),
    };
    let cache: &'static Cache = Box::leak(Box::new(cache));
    cleaner::start(cache);
    place::take(regions.objects());
    CACHE.publish(cache, forget);
    // SAFETY: the handler is a function of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), None, None) };
    change::mind_keys(&regions.changes);
    if tasks::were_made() {
        tasks::give_up(cache);
    }
    Some(cache)
}

/// Waits a moment for a thread that is starting the cache.
pub fn wait_for_start() {
    if existing().is_none()
        && !thread::is_inside()
        && let Some(starting) = STARTING.get()
    {
        let _inside = thread::enter();
        drop(starting.lock(Owner::ask(), Patience::Moment));
    }
}

/// How many bytes the process may pin. `None` if no limit applies.
pub fn may_pin() -> Option<u64> {
    proc::memlock_limit().filter(|_| !proc::may_lock())
}

/// How much may be idle by the settings, and whether they say it in bytes. Without a setting for
/// bytes, at most half of `may_pin`, what the process may pin.
pub fn settings(may_pin: Option<u64>) -> (Amount, bool) {
    let cache = &config().cache;
    let signed = |amount: u64| amount.min(i64::MAX as u64) as i64;
    let half = || may_pin.map_or(u64::MAX, |limit| limit / 2);
    let settings = Amount {
        regions: signed(cache.max_idle),
        bytes: signed(cache.max_idle_bytes.unwrap_or_else(half)),
    };
    (settings, cache.max_idle_bytes.is_some())
}
