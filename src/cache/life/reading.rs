// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits reader's thread, and its start. `helper_thread.rs` has the rules that the thread
//! obeys.

use crate::instance::Cache;
use crate::watch::listeners::is_retired;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{Ordering::*, fence};
use rdmamr_sys::{futex, helper_thread, proc};

/// Starts the thread, if it does not run. False if it cannot be started.
pub fn start(cache: &'static Cache) -> bool {
    let limits_reader = &cache.limits_reader;
    // More than one thread may call this.
    if limits_reader.running.swap(true, SeqCst) {
        return true;
    }
    // Either this thread finds that the cache has ended, or the thread that ends it waits for the
    // limits reader's first answer (`retire.rs`).
    fence(SeqCst);
    if is_retired() {
        limits_reader.running.store(false, Relaxed);
        return true;
    }
    // A thread that waits for the limits reader to rest waits for its start, too.
    limits_reader.asked.fetch_add(1, SeqCst);
    let argument = (&raw const *cache).cast_mut();
    // SAFETY: `run` keeps to the rules of `helper_thread.rs`, and `cache` is never freed.
    let started = unsafe { helper_thread::start_apart(run, argument.cast()) };
    if started {
        limits_reader.wait_until_apart();
    } else {
        limits_reader.running.store(false, Relaxed);
    }
    started
}

extern "C" fn run(argument: *mut c_void) -> c_int {
    // SAFETY: `start` passed a `&'static Cache`.
    let cache = unsafe { &*argument.cast::<Cache>() };
    let limits_reader = &cache.limits_reader;
    helper_thread::close_from(0);
    limits_reader.is_apart.store(1, Release);
    futex::wake(&limits_reader.is_apart, 1);
    helper_thread::set_name(c"rdmamr-limits");
    helper_thread::run_anywhere();
    loop {
        let asked = limits_reader.asked.load(SeqCst);
        if asked == limits_reader.answered.load(Relaxed) {
            futex::wait(&limits_reader.asked, asked, None);
            continue;
        }
        if is_retired() {
            limits_reader.answered.store(asked, SeqCst);
            futex::wake(&limits_reader.answered, i32::MAX);
            continue;
        }
        cache.limits.read(cache.regions);
        cache.watch.mappings.count();
        limits_reader.is_short.store(is_short_of_memory(), Relaxed);
        limits_reader.answered.store(asked, SeqCst);
        futex::wake(&limits_reader.answered, i32::MAX);
    }
}

/// Whether less than a thirty-second of the machine's memory is available.
fn is_short_of_memory() -> bool {
    let (total, available) = proc::memory_kib();
    available < total / 32
}
