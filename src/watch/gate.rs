// SPDX-License-Identifier: MIT OR Apache-2.0
//! A gate before the monitor. While the gate is closed, the monitor reads no event, so a thread
//! that unmaps watched memory stays in its system call.
//!
//! The gate is closed for a few system calls. The thread that closes it blocks its own signals, takes
//! no lock until the gate is open, and changes no memory. So the monitor never waits for a thread
//! that waits for the monitor.

use crate::sys::futex;
use crate::sys::signals::{self, Signals};
use core::sync::atomic::{AtomicU32, Ordering::*};
use core::time::Duration;

const OPEN: u32 = 0;
const CLOSED: u32 = 1;

/// The gate. Only a thread that holds the pool's lock closes it, so one thread at a time does.
pub struct Gate(AtomicU32);

/// The gate of this process's one monitor.
pub static GATE: Gate = Gate(AtomicU32::new(OPEN));

/// A closed gate. It opens when this value is dropped.
pub struct Closed<'a>(&'a Gate, Signals);

impl Gate {
    /// Closes the gate.
    pub fn close(&self) -> Closed<'_> {
        let signals = signals::block();
        // SeqCst: either the monitor sees the closed gate, or this thread sees that the monitor has
        // announced a change under way.
        self.0.store(CLOSED, SeqCst);
        core::sync::atomic::fence(SeqCst);
        Closed(self, signals)
    }

    /// Waits until the gate is open. The monitor has announced a change under way before this call.
    pub fn pass(&self) {
        core::sync::atomic::fence(SeqCst);
        while self.0.load(SeqCst) != OPEN {
            futex::wait(&self.0, CLOSED, Some(Duration::from_millis(10)));
        }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.0.store(OPEN, SeqCst);
        futex::wake(&self.0.0, 1);
        signals::restore(self.1);
    }
}
