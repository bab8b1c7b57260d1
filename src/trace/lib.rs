// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recording every registration call, `RDMAMR_TRACE`: start, duration, memory, caller and result.
//!
//! A call is a record of 64 bytes in a buffer of the process (`buffers.rs`), without a lock and
//! without a system call. A call that finds the buffer full, or its last block 10 ms old, writes
//! the buffer to the file as a block (`file.rs`). A killed program loses the records still in the
//! buffers, from the last 10 ms in which it made calls. A program that registers without pause pays
//! for one write in 1024 calls.

mod buffers;
mod file;
mod modules;
mod place;
mod python;
mod recording;
mod stacks;
pub mod switch;

pub use rdmamr_trace_format as format;
pub use recording::exiting;

use core::sync::atomic::Ordering::Relaxed;
use errno::{errno, set_errno};
use format::{Call, call, how};
use rdmamr_sys::caller::Caller;
use rdmamr_sys::{clock, thread};
use recording::{LOOK, OFF, ON, RECORD, TRACE, Trace, WANTED};

/// Turns the recording on.
pub fn turn_on() {
    WANTED.store(true, Relaxed);
    ON.store(RECORD, Relaxed);
}

/// Whether this process may have to record its calls: [`begin`] decides.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Relaxed) != OFF
}

/// Begins a call, if calls are recorded.
#[inline(always)]
pub fn begin() -> Option<Began> {
    if is_on() { Began::now() } else { None }
}

/// Calls its argument once, with the words that say why this thread's call failed.
pub type Reason = fn(&mut dyn FnMut(&str));

/// A call that has begun.
#[derive(Clone, Copy)]
pub struct Began {
    time: u64,
}

/// A call whose arguments are recorded. The function that completes the call takes it and writes
/// it.
#[derive(Clone, Copy)]
pub struct Pending {
    pub began: Began,
    pub record: Call,
    pub caller: Caller,
}

impl Pending {
    /// The record of a call that begins now, if calls are recorded.
    pub fn begin(call: u8, caller: Caller) -> Option<Pending> {
        let record = Call { call, ..NOTHING };
        let pending = |began| Pending {
            began,
            record,
            caller,
        };
        begin().map(pending)
    }

    /// Ends the measured time: the rest of the call is not counted.
    pub fn done(&mut self) {
        self.record.duration = self.began.duration(clock::monotonic());
    }

    /// Records the call.
    pub fn write(self, reason: Reason) {
        self.began.write(self.record, self.caller, reason);
    }
}

impl Began {
    #[inline(never)]
    fn now() -> Option<Began> {
        if ON.load(Relaxed) == LOOK {
            switch::follow();
        }
        (ON.load(Relaxed) == RECORD).then(|| Began {
            time: clock::monotonic(),
        })
    }

    /// The duration of the call, at least 1.
    fn duration(self, now: u64) -> u32 {
        now.saturating_sub(self.time).clamp(1, u32::MAX.into()) as u32
    }

    /// Records the call. `reason` says why it failed, if it did.
    #[inline(never)]
    pub fn write(self, mut record: Call, caller: Caller, reason: Reason) {
        let now = clock::monotonic();
        let errno = errno();
        let trace = TRACE.get_or_make(Trace::new);
        let ready = trace.file.is_started();
        if record.errno != 0 {
            record.how = how::NONE;
            if ready {
                reason(&mut |words| record.reason = trace.file.reason(words));
            }
        }
        record.time = self.time;
        if record.duration == 0 {
            record.duration = self.duration(now);
        }
        record.caller = caller.address() as u64;
        record.thread = thread::id((&raw const *trace).addr());
        let file = &trace.file;
        modules::with(&[record.caller], false);
        let stacks = trace.stacks.as_ref().filter(|_| ready);
        let stack = stacks.and_then(|stacks| stacks.number(caller, file));
        let stack = stack.unwrap_or(0);
        trace.buffers.add(&record, stack, now, ready, |block| {
            file.modules();
            file.calls(block);
        });
        set_errno(errno);
    }
}

/// An empty record.
// SAFETY: a record consists of numbers, for which zeros are valid.
pub const NOTHING: Call = unsafe { core::mem::zeroed() };
const _: () = assert!(NOTHING.how == how::NONE);

/// The record of a region that the cache has just deregistered with the kernel, if calls are
/// recorded.
pub fn end_of(region: impl FnOnce() -> Call) -> Option<Call> {
    is_on().then(|| Call {
        time: clock::monotonic_by_kernel(),
        call: call::CACHE,
        how: how::KERNEL,
        ..region()
    })
}

/// Adds a record of [`end_of`]. The caller holds no lock: this may write to the file, whose file
/// system may be slow. The cache's own threads call it too: they have no thread-local variables and
/// must not call functions that another library may replace.
pub fn ended(record: &Call) {
    // The cache exists, so the process has registered memory and has a trace; a child has no cache.
    let Some(trace) = TRACE.get() else {
        return;
    };
    let errno = errno();
    let now = record.time;
    let Trace { buffers, file, .. } = trace;
    // Only a thread of the program can write the block that identifies the process. The call that
    // made the region has written it.
    buffers.add(record, 0, now, true, |block| file.calls(block));
    set_errno(errno);
}
