// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first use of the cache in a process: the cache's memory, the watch, the cleaner.

use crate::account::LimitsRead;
use crate::counted::CALLS;
use crate::ended::{cache_gave_up, ended_by, forget_tasks, give_up, panicked, say_once};
use crate::instance::{Cache, existing, is_child_without_cache, publish, starting};
use crate::life::cleaner::Cleaner;
use crate::life::limits::{self, NO_LIMIT};
use crate::life::{cleaner_thread, flush};
use crate::lock::LONG;
use crate::permitted;
use crate::regions;
use crate::watch::calls::{self, TO_CACHE, listen};
use crate::watch::event_reader::Receivers;
use crate::watch::watch_fd::{TABLE, WATCH_FD};
use crate::watch::watcher::{self, Watch};
use rdmamr_config::CacheLimits;
use rdmamr_mr::gpu;
use rdmamr_stats as stats;
use rdmamr_sys::allocator::has_memory;
use rdmamr_sys::{aside, process, thread};
use std::panic::{AssertUnwindSafe, catch_unwind};

unsafe extern "C" fn before_fork() {
    // The C library calls this, so a panic ends here.
    if let Some(cache) = existing().filter(|_| !cache_gave_up()) {
        if catch_unwind(AssertUnwindSafe(|| flush::before_fork(cache))).is_err() {
            panicked();
        }
    }
}

unsafe extern "C" fn in_child() {
    WATCH_FD.close();
    CALLS.forget();
    forget_tasks();
    gpu::forget();
}

/// Asks the dynamic linker what the cache may need, and prepares for forks. Called when the library
/// is loaded: later the linker's lock may be held for long. The cache may start inside another fork
/// handler, and there pthread_atfork(3) waits for ever before glibc 2.36. Returns whether libibverbs
/// comes before this library.
pub fn at_load() -> bool {
    watcher::look_for_one_thread();
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(in_child)) };
    calls::find_where_calls_lead()
}

/// Whether a start of the cache by this thread would keep files open that the program expects to be
/// closed: the cleaner shares the starting thread's table of descriptors for ever. When a thread
/// that has left the program's table ends, the kernel should close the files of its table. (The
/// first thread's table is the process's.)
pub fn would_keep_files() -> bool {
    existing().is_none() && TABLE.this_thread_left()
}

/// Sets the cache's limits ([`rdmamr_config::set_cache_limits`]). False if the cache has started, or
/// is about to, in this process or its parent: it has read the limits.
pub fn set_limits(limits: CacheLimits) -> bool {
    if is_child_without_cache() || thread::is_inside() {
        return false;
    }
    let _inside = thread::enter();
    let Some(_starting) = starting().lock(LONG) else {
        return false;
    };
    let is_first = existing().is_none();
    if is_first {
        rdmamr_config::set_cache_limits(limits);
    }
    is_first
}

/// This process's instance. The first call makes it. `None` in a child whose parent had one, in a
/// signal handler that interrupted the library, in a process in which the cache cannot run or has ended,
/// while another thread makes it, and if memory is short.
pub fn current() -> Option<&'static Cache> {
    if let Some(cache) = existing() {
        return Some(cache);
    }
    if is_child_without_cache() || thread::is_inside() || !permitted::may_start() {
        return None;
    }
    if let Some(why) = ended_by() {
        say_once(why);
        return None;
    }
    aside::run(make).flatten()
}

fn make() -> Option<&'static Cache> {
    let _inside = thread::enter();
    // The thread that starts the cache may be stopped until this one goes on. In that case this
    // thread registers without the cache.
    let _starting = starting().lock(LONG)?;
    if let Some(cache) = existing() {
        return Some(cache);
    }
    if !has_memory() {
        return None;
    }
    let regions = regions::map_new()?;
    listen(TO_CACHE);
    let linger = rdmamr_config::cache();
    // The reader starts first, so that the rest of the start runs beside the reader's own start.
    let watch = Watch::start(Receivers {
        ring: &regions.ring,
        heard: cleaner_thread::heard,
    });
    let may_pin = limits::may_pin();
    // No other thread knows the regions yet.
    regions
        .account
        .set_limit(limits::of_settings(may_pin), NO_LIMIT);
    let cache = Cache {
        regions,
        spare: limits::spare(may_pin).into(),
        watch,
        cleaner: Cleaner::new(linger.linger_remote, linger.linger_local),
        counters: stats::counters(),
        limits_read: LimitsRead::default(),
        process: process::id(),
    };
    let cache: &'static Cache = Box::leak(Box::new(cache));
    cleaner_thread::start(cache);
    regions::take_objects(regions.objects(0));
    publish(cache);
    // This thread still holds the lock, for which the thread that ends the cache waits.
    if let Some(why) = ended_by() {
        give_up(cache, why);
    }
    Some(cache)
}
