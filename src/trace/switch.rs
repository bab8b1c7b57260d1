// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recording that is switched while the program runs, `rdmamr trace --pid`: another process of the
//! user puts a request into the live page, and the next call of the program follows it. This needs
//! no signal and no thread, and a hit reads nothing that it did not read before.
//!
//! Any process of the user can write the page. So a request must not have this process do what that
//! process could not do: one with more rights than its user follows none ([`has_more_rights`]), and
//! a request makes no file and changes none but a trace of the user's (`append.rs`).

use super::file::File;
use super::recording::{LOOK, OFF, ON, RECORD, TRACE, Trace, WANTED, close};
use core::sync::atomic::{AtomicU32, Ordering::*};
use errno::{errno, set_errno};
use libc::syscall;
use rdmamr_live_page::{NOT_FOLLOWED, NOT_POSSIBLE, TraceSwitch};
use rdmamr_stats as stats;
use rdmamr_sys::{proc, process};
use rdmamr_trace_format::kind;
use std::ffi::CString;

/// Has the next call look at the request, if there is one. Callers are the registrations that enter
/// the kernel, and the cache's cleaner, which has no thread-local variables.
pub fn look() {
    if stats::existing().is_some_and(|counters| has_request(counters.trace_switch())) {
        ON.store(LOOK, Relaxed);
    }
}

fn has_request(switch: &TraceSwitch) -> bool {
    switch.number.load(Relaxed) != switch.answered.load(Relaxed)
}

/// Follows the request. A second thread that comes meanwhile is not recorded.
#[cold]
pub(super) fn follow() {
    /// The process of which a thread is here, or 0. A child may find its parent's number.
    static BUSY: AtomicU32 = AtomicU32::new(0);
    let this = process::id();
    if BUSY.swap(this, Acquire) == this {
        return;
    }
    let errno = errno();
    if let Some(counters) = stats::existing() {
        let switch = counters.trace_switch();
        let number = switch.number.load(Acquire);
        if number != switch.answered.load(Relaxed) {
            let state = match switch.wanted.load(Relaxed) {
                _ if has_more_rights() => NOT_FOLLOWED,
                1 => start(switch),
                _ => stop(),
            };
            switch.state.store(state, Relaxed);
            switch.answered.store(number, Release);
        }
    }
    let wanted = WANTED.load(Relaxed);
    ON.store(if wanted { RECORD } else { OFF }, Relaxed);
    BUSY.store(0, Release);
    set_errno(errno);
}

/// Whether this process may do what other processes of its user may not: it has capabilities, or it
/// has been closed to them (prctl(2), PR_SET_DUMPABLE; the kernel does so for a daemon that changes
/// its user). A process of root has all capabilities by its user, and so has whoever can write its
/// page: what a request can do at all is the bound there.
///
/// The calling thread stands for all: it opens the file, and later blocks of any thread go only into
/// that same file.
fn has_more_rights() -> bool {
    // SAFETY: the call takes no arguments.
    let user = unsafe { syscall(libc::SYS_geteuid) };
    // SAFETY: the call takes no pointers.
    let dumpable = unsafe { syscall(libc::SYS_prctl, libc::PR_GET_DUMPABLE, 0, 0, 0, 0) };
    let has_capabilities = proc::capabilities().is_none_or(|sets| {
        sets.iter()
            .any(|[effective, permitted, _]| effective | permitted != 0)
    });
    dumpable != 1 || (user != 0 && has_capabilities)
}

/// Begins a trace in the file that the request names. Earlier records stay in their file. The
/// memory of that recording is not freed: a thread may be writing there.
fn start(switch: &TraceSwitch) -> u32 {
    let bytes = switch.path.iter().map(|byte| byte.load(Relaxed));
    let path: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
    let whole = path.len() < switch.path.len() && path.starts_with(b"/");
    let Some(path) = CString::new(path).ok().filter(|_| whole) else {
        return NOT_POSSIBLE;
    };
    let trace = Trace::into(File::requested(path));
    // The cache's threads may record from now on, so the block that identifies the process comes
    // first.
    if !trace.file.is_started() || trace.file.failed.load(Relaxed) {
        return NOT_POSSIBLE;
    }
    if WANTED.load(Relaxed) {
        stop();
    }
    TRACE.replace(trace);
    WANTED.store(true, Relaxed);
    1
}

/// Writes the recorded calls, and that the process runs on. A record that another thread adds
/// meanwhile is written at the exit.
fn stop() -> u32 {
    close(kind::STOPPED);
    WANTED.store(false, Relaxed);
    0
}
