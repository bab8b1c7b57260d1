// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that reads files for the cache: how much memory the machine has, what the control
//! groups allow, how many mappings the process has. It has a table of descriptors of its own, with
//! nothing in it. A file that is open in the program's table, if only for a moment, has the lowest
//! free number, which a program may count on: `close(0); open(...)` is 0.
//!
//! Nobody waits for the thread for long. Until it has read the limits for the first time, the
//! settings and the device's own number hold; from the fourth region on a registration waits a
//! moment for that (`limits.rs`). `helper_thread.rs` says what the thread must not do.

use crate::cache::Cache;
use crate::sys::{clock, futex, helper_thread, proc};
use crate::watch;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*, fence};
use core::time::Duration;

/// The limits reader, as the other threads see it.
pub struct LimitsReader {
    /// The number of the last question. A futex.
    asked: AtomicU32,
    /// The number of the last question that has been answered. A futex.
    answered: AtomicU32,
    /// Whether the machine was short of memory at the last answer.
    is_short: AtomicBool,
    /// Whether the thread exists.
    running: AtomicBool,
}

/// How long a thread waits for an answer.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long a thread that is about to filter system calls waits for the limits reader.
const TO_REST: Duration = Duration::from_secs(1);

impl LimitsReader {
    pub fn new() -> LimitsReader {
        LimitsReader {
            asked: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            is_short: AtomicBool::new(false),
            running: AtomicBool::new(false),
        }
    }

    /// Has the limits reader read everything anew. Returns the question's number.
    pub fn ask(&self) -> u32 {
        if watch::is_retired() {
            // A filter of system calls may hold for the limits reader too.
            return self.answered.load(SeqCst);
        }
        let number = self.asked.fetch_add(1, SeqCst).wrapping_add(1);
        futex::wake(&self.asked, 1);
        number
    }

    /// As [`LimitsReader::ask`], and waits a moment for the answer.
    pub fn ask_and_wait(&self) {
        self.wait_for(self.ask(), PATIENCE);
    }

    /// Waits a moment until the limits reader has answered all that it was asked.
    pub fn wait(&self) {
        self.wait_for(self.asked.load(SeqCst), PATIENCE);
    }

    /// Waits until the limits reader makes no system call that a filter would not allow. The cache
    /// has ended.
    pub fn wait_to_rest(&self) {
        self.wait_for(self.asked.load(SeqCst), TO_REST);
    }

    fn wait_for(&self, number: u32, patience: Duration) {
        let now = || Duration::from_nanos(clock::monotonic_by_kernel());
        let end = now() + patience;
        loop {
            let answered = self.answered.load(SeqCst);
            let is_answered = number.wrapping_sub(answered) as i32 <= 0;
            let left = end.checked_sub(now()).filter(|left| !left.is_zero());
            let Some(left) = left.filter(|_| !is_answered && self.running.load(SeqCst)) else {
                return;
            };
            futex::wait(&self.answered, answered, Some(left));
        }
    }

    /// Whether the limits reader has read everything once.
    pub fn has_answered(&self) -> bool {
        self.answered.load(Relaxed) != 0
    }

    /// Whether the thread exists, or is being started.
    #[inline(always)]
    pub fn is_running(&self) -> bool {
        self.running.load(Relaxed)
    }

    /// Whether the machine was short of memory when that was last read.
    pub fn is_short_of_memory(&self) -> bool {
        self.is_short.load(Relaxed)
    }
}

/// Starts the thread, if it does not run. False if it does not.
pub fn start(cache: &'static Cache) -> bool {
    let limits_reader = &cache.limits_reader;
    // More than one thread may come here.
    if limits_reader.running.swap(true, SeqCst) {
        return true;
    }
    // Either this look finds that the cache has ended, or the thread that ends it waits for the
    // limits reader's first answer (`retire.rs`).
    fence(SeqCst);
    if watch::is_retired() {
        limits_reader.running.store(false, Relaxed);
        return true;
    }
    // Who waits for the limits reader to rest waits for its start, too.
    limits_reader.asked.fetch_add(1, SeqCst);
    let argument = (&raw const *cache).cast_mut();
    // SAFETY: `run` keeps to the rules of `helper_thread.rs`, and `cache` is never freed.
    let started = unsafe { helper_thread::start_apart(run, argument.cast()) };
    if !started {
        limits_reader.running.store(false, Relaxed);
    }
    started
}

extern "C" fn run(argument: *mut c_void) -> c_int {
    // SAFETY: `start` passed a `&'static Cache`.
    let cache = unsafe { &*argument.cast::<Cache>() };
    helper_thread::close_from(0);
    helper_thread::set_name(c"rdmamr-limits");
    helper_thread::run_anywhere();
    let limits_reader = &cache.limits_reader;
    loop {
        let asked = limits_reader.asked.load(SeqCst);
        if asked == limits_reader.answered.load(Relaxed) {
            futex::wait(&limits_reader.asked, asked, None);
            continue;
        }
        if watch::is_retired() {
            limits_reader.answered.store(asked, SeqCst);
            futex::wake(&limits_reader.answered, i32::MAX);
            continue;
        }
        cache.read_limits();
        cache.watch.count_mappings();
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
