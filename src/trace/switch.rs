// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recording that is switched while the program runs, `rdmamr trace --pid`: another process of the
//! user puts a request into the live page, and the next call of the program follows it. This needs
//! no signal and no thread, and a hit reads nothing that it did not read before.

use super::file::File;
use super::recording::{LOOK, OFF, ON, RECORD, TRACE, Trace, WANTED, close};
use core::sync::atomic::{AtomicBool, Ordering::*};
use errno::{errno, set_errno};
use rdmamr_live_page::TraceSwitch;
use rdmamr_stats as stats;
use rdmamr_trace_format::kind;
use std::ffi::CString;

/// A value of [`TraceSwitch::state`].
const NOT_POSSIBLE: u32 = 2;

/// Has the next call look at the request, if there is one. Callers are the registrations that enter
/// the kernel, and the cache's cleaner, which has no thread-local variables.
#[inline]
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
    static BUSY: AtomicBool = AtomicBool::new(false);
    if BUSY.swap(true, Acquire) {
        return;
    }
    let errno = errno();
    if let Some(counters) = stats::existing() {
        let switch = counters.trace_switch();
        let number = switch.number.load(Acquire);
        if number != switch.answered.load(Relaxed) {
            let state = match switch.wanted.load(Relaxed) {
                    1 => start(switch),
                _ => stop(),
            };
            switch.state.store(state, Relaxed);
            switch.answered.store(number, Release);
        }
    }
    let wanted = WANTED.load(Relaxed);
    ON.store(if wanted { RECORD } else { OFF }, Relaxed);
    BUSY.store(false, Release);
    set_errno(errno);
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
    let trace = Trace::into(File::at(path));
    // The cache's threads may record from now on, so the block that identifies the process comes
    // first.
    if !trace.file.is_started() || trace.file.has_failed() {
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
