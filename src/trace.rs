// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing down every registration call, `RDMAMR_TRACE`: when, how long, of what memory, by whom, with what end.
//!
//! A call is a record of 64 bytes in a buffer of the process (`buffers.rs`), without a lock and without a system
//! call. A buffer that is full, or that a call finds 10 ms after the last time, goes to the file as a block
//! (`file.rs`), so a program that is killed loses what its last 10 ms of calls have left in the buffers, and a
//! program that registers without pause pays for one write in 1024 calls.

mod buffers;
mod file;
#[allow(dead_code, reason = "names are for who reads the file")]
pub mod format;
mod modules;

use crate::caller::Caller;
use crate::process::PerProcess;
use crate::thread;
use buffers::Buffers;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use errno::{errno, set_errno};
use file::File;
use format::{Call, call, how};

/// What is written down in this process.
struct Trace {
    buffers: Buffers,
    file: File,
}

static TRACE: PerProcess<Trace> = PerProcess::new();

unsafe extern "C" fn forget() {
    TRACE.forget();
}

static ON: AtomicBool = AtomicBool::new(false);

/// Writes down from now on.
pub fn turn_on() {
    ON.store(true, Relaxed);
}

/// Whether calls are written down in this process.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Begins a call, if calls are written down.
#[inline(always)]
pub fn begin() -> Option<Began> {
    is_on().then(Began::now)
}

/// A call that has begun.
#[derive(Clone, Copy)]
pub struct Began {
    time: u64,
}

/// A call of which all is known that its arguments say.
#[derive(Clone, Copy)]
pub struct Left {
    began: Began,
    pub record: Call,
    pub caller: Caller,
}

thread_local! {
    static LEFT: Cell<Option<Left>> = const { Cell::new(None) };
}

/// Leaves the call that runs on this thread to whoever completes it: what it is about may be gone when it returns.
pub fn leave(began: Began, record: Call, caller: Caller) {
    LEFT.set(Some(Left {
        began,
        record,
        caller,
    }));
}

/// Adds to what was left, if there is such a call, the region that it has now; what it still does is not counted.
pub fn describe(with: impl FnOnce(&mut Call)) {
    if let Some(mut left) = take_left() {
        with(&mut left.record);
        left.record.duration = left.began.duration(monotonic(libc::clock_gettime));
        LEFT.set(Some(left));
    }
}

/// Takes the call, for who takes it writes it down.
pub fn take_left() -> Option<Left> {
    if is_on() { LEFT.take() } else { None }
}

/// How the call that runs on this thread was done, where that does not show afterwards.
pub fn note(how: u8) {
    if is_on() {
        thread::set_note(how);
    }
}

impl Began {
    #[inline(never)]
    fn now() -> Began {
        Began {
            time: monotonic(libc::clock_gettime),
        }
    }

    /// How long it took, which is not 0.
    fn duration(self, now: u64) -> u32 {
        now.saturating_sub(self.time).clamp(1, u32::MAX.into()) as u32
    }

    /// Writes the call down. `record.how` is how it was done unless that was noted; `reason` says why it failed.
    #[inline(never)]
    pub fn write(self, mut record: Call, caller: Caller, reason: fn() -> &'static str) {
        let now = monotonic(libc::clock_gettime);
        let errno = errno();
        let trace = TRACE.get_or_make(Trace::new, forget);
        let ready = trace.file.is_started();
        let note = thread::take_note();
        if record.errno != 0 {
            record.how = how::NONE;
            if ready {
                record.reason = trace.file.reason(reason());
            }
        } else if note != how::NONE {
            record.how = note;
        }
        record.time = self.time;
        if record.duration == 0 {
            record.duration = self.duration(now);
        }
        record.caller = caller.address() as u64;
        record.thread = thread::id((&raw const *trace).addr());
        let file = &trace.file;
        trace.buffers.add(&record, now, ready, |block| {
            file.modules();
            file.calls(block);
        });
        set_errno(errno);
    }
}

/// No call.
pub const NOTHING: Call = Call {
    time: 0,
    duration: 0,
    call: 0,
    how: how::NONE,
    errno: 0,
    pd: 0,
    addr: 0,
    length: 0,
    access: 0,
    lkey: 0,
    caller: 0,
    thread: 0,
    reason: 0,
};

/// Writes down that the pool has really deregistered a region. Also for the pool's own threads, which have no
/// thread-local variables and must not call what another library may stand in for.
pub fn ended(region: impl FnOnce() -> Call) {
    if !is_on() {
        return;
    }
    // The pool exists, so there was a registration; a child has no pool.
    let Some(trace) = TRACE.get() else {
        return;
    };
    let errno = errno();
    let now = monotonic(clock_gettime);
    let record = Call {
        time: now,
        call: call::POOL,
        how: how::KERNEL,
        ..region()
    };
    let file = &trace.file;
    // Only a thread of the program can say which process this is; its call has.
    trace
        .buffers
        .add(&record, now, true, |block| file.calls(block));
    set_errno(errno);
}

/// Writes down what is in the buffers, when the process exits.
pub fn exiting() {
    if let Some(trace) = TRACE.get()
        && trace.file.is_started()
    {
        let file = &trace.file;
        let now = monotonic(libc::clock_gettime);
        file.modules();
        trace
            .buffers
            .flush(now, |_| true, |block| file.calls(block));
        file.end(now);
    }
}

impl Trace {
    fn new() -> Box<Trace> {
        Box::new(Trace {
            buffers: Buffers::new(),
            file: File::new(),
        })
    }
}

/// The monotonic clock, in ns.
fn monotonic(
    clock_gettime: unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> i32,
) -> u64 {
    nanoseconds(clock_gettime, libc::CLOCK_MONOTONIC)
}

fn nanoseconds(
    clock_gettime: unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> i32,
    clock: libc::clockid_t,
) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is writable.
    unsafe { clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The system call: another library may stand in for the function.
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> i32 {
    // SAFETY: the caller's time.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as i32 }
}
