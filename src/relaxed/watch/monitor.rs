// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that reads the events of userfaultfd. A thread that changes watched memory waits for
//! the monitor. So the monitor waits for no thread but at the gate (`gate.rs`), which is closed for
//! one system call. `helper_thread.rs` says what the monitor must not do.

use super::super::changes::{Change, Changes, Kind};
use super::super::pool::Pool;
use super::gate::GATE;
use super::userfaultfd::{Fence, Message, Report, Userfaultfd};
use crate::sys::helper_thread;
use crate::sys::pages::PageRange;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::*;
use errno::Errno;

/// Starts the monitor. Returns false if the kernel gives it no thread.
pub fn start(file: Userfaultfd, pool: &'static Pool) -> bool {
    pool.userfaultfd.store(file.fd(), Relaxed);
    let argument: *const Pool = pool;
    // SAFETY: `run` keeps to the rules of `helper_thread.rs`, and a pool is never freed.
    unsafe { helper_thread::start(run, argument.cast_mut().cast()) }
}

extern "C" fn run(argument: *mut c_void) -> c_int {
    // SAFETY: `start` passed a `&'static Pool`, and a pool is never freed.
    let pool = unsafe { &*argument.cast::<Pool>() };
    let file = Userfaultfd::of_fd(pool.userfaultfd.load(Relaxed));
    helper_thread::set_name(c"rdmamr-monitor");
    let changes = &pool.changes;
    let mut messages = [Message::default(); 32];
    loop {
        let ready = file.wait();
        // The announcement precedes the read: as soon as the monitor has read an event, the event's
        // thread goes on.
        changes.begin();
        GATE.pass();
        let drained = ready && drain(file, changes, &mut messages).is_ok();
        if !drained {
            write(changes, EVERYTHING, Kind::Lost);
            // The program may have closed the file, and the number may be another file's by now.
            if file.fence() != Fence::Lost {
                file.close();
            }
        }
        changes.end();
        if !drained {
            return 0;
        }
    }
}

const EVERYTHING: PageRange = PageRange {
    start: 0,
    end: u64::MAX,
};

fn drain(file: Userfaultfd, changes: &Changes, messages: &mut [Message]) -> Result<(), Errno> {
    loop {
        let count = file.read(messages)?;
        for message in messages.iter().take(count) {
            match message.report() {
                Report::Unmapped(range) => write(changes, range, Kind::Reported),
                Report::Dropping(range) => write(changes, range, Kind::Dropping),
                Report::Moved(from, to) => {
                    write(changes, from, Kind::Reported);
                    write(changes, to, Kind::Reported);
                }
                Report::Other => {}
            }
        }
        if count == 0 {
            return Ok(());
        }
    }
}

fn write(changes: &Changes, range: PageRange, kind: Kind) {
    changes.write(Change {
        start: range.start,
        end: range.end,
        kind,
    });
}
