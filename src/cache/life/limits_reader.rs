// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that reads files for the cache: how much memory the machine has, what the control
//! groups allow, how many mappings the process has. It has an empty table of descriptors of its
//! own. In the program's table a file that is open even for a moment takes the lowest free number,
//! and a program may rely on that number: `close(0); open(...)` returns 0.
//!
//! No thread waits for it for long. Until it has read the limits for the first time, the settings
//! and the device's own number hold; from the fourth region on, a registration waits a moment for
//! that first reading (`limits.rs`). `helper_thread.rs` has the rules that the thread obeys.

use crate::watch::listeners::is_retired;
use crate::watch::watcher::Watch;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use core::time::Duration;
use rdmamr_sys::futex::{self, Remaining};

/// The limits reader, as the other threads see it.
pub struct LimitsReader {
    /// The number of the last question. A futex.
    pub(super) asked: AtomicU32,
    /// The number of the last question that has been answered. A futex.
    pub(super) answered: AtomicU32,
    /// Whether the machine was short of memory at the last answer.
    pub(super) is_short: AtomicBool,
    /// Whether the thread exists.
    pub(super) running: AtomicBool,
    /// 1 once the thread holds none of the program's files. A futex.
    pub(super) is_apart: AtomicU32,
}

/// How long a thread waits for an answer.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long the thread that starts the limits reader waits until it holds no file of the program.
/// To close the last of them may wait for a server of its file system, which may be this process.
const TO_BE_APART: Duration = Duration::from_secs(1);

/// How long a thread that is about to filter system calls waits for the limits reader.
const TO_REST: Duration = Duration::from_secs(1);

impl LimitsReader {
    pub fn new() -> LimitsReader {
        LimitsReader {
            asked: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            is_short: AtomicBool::new(false),
            running: AtomicBool::new(false),
            is_apart: AtomicU32::new(0),
        }
    }

    /// Has the limits reader read everything anew. Returns the question's number.
    pub fn ask(&self) -> u32 {
        if is_retired() {
            // A seccomp filter may apply to the limits reader too.
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

    /// Memory is about to be watched. Has the limits reader count the mappings if a count is due,
    /// and waits a moment for the count if the mappings seem to be too many.
    #[inline]
    pub fn mind_mappings(&self, watch: &Watch) {
        if watch.mappings.should_be_counted() {
            self.ask();
        }
        if watch.mappings.is_full() {
            self.wait();
        }
    }

    /// Waits until the limits reader makes no system call that a filter might forbid. The cache has
    /// ended already.
    pub fn wait_to_rest(&self) {
        self.wait_for(self.asked.load(SeqCst), TO_REST);
    }

    /// Waits until the limits reader holds no file of the program: as long as it holds a copy of the
    /// program's descriptors, a file that the program closes stays open.
    pub(super) fn wait_until_apart(&self) {
        let mut remaining = Remaining::new(TO_BE_APART, TO_BE_APART / 100);
        while self.is_apart.load(Acquire) == 0 && !remaining.is_over() {
            remaining.wait(&self.is_apart, 0);
        }
    }

    fn wait_for(&self, number: u32, patience: Duration) {
        let mut remaining = Remaining::new(patience, patience / 8);
        loop {
            let answered = self.answered.load(SeqCst);
            let is_answered = number.wrapping_sub(answered) as i32 <= 0;
            if is_answered || remaining.is_over() || !self.running.load(SeqCst) {
                return;
            }
            remaining.wait(&self.answered, answered);
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
