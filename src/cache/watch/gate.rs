// SPDX-License-Identifier: MIT OR Apache-2.0
//! A gate before the reader. While the gate is closed, the reader reads no event, so a thread
//! that unmaps watched memory stays in its system call.
//!
//! The gate is closed for a few system calls. The thread that closes it blocks its own signals,
//! takes no lock until the gate is open, and changes no memory. So the reader never waits for a
//! thread that waits for the reader.
//!
//! A task that shares the memory may be killed while it holds the gate closed, and a debugger may
//! stop a thread there. So the gate names the task that closed it, and the reader opens the gate if
//! that task is dead, or does not open it in time. (A dead task does nothing after the gate. A
//! stopped task may end another userfaultfd's watch, if that userfaultfd registers the same memory
//! meanwhile.)

use core::sync::atomic::{AtomicU32, Ordering::*};
use core::time::Duration;
use rdmamr_sys::futex;
use rdmamr_sys::signals::{self, Signals};
use rdmamr_sys::thread;

const OPEN: u32 = 0;

/// How often the reader looks again whether the gate is open, 10 ms apart: for a minute. The thread
/// that closed the gate blocks its signals and waits for no thread, but may lack a processor; only
/// a debugger stops it alone.
const LOOKS: u32 = tiny_or!(100, 6000);

/// The gate: [`OPEN`], or the number of the task that has closed it. Only a thread that holds the
/// cache's lock closes the gate, so one thread at a time does.
pub struct Gate(AtomicU32);

/// The gate of this process's one reader.
pub static GATE: Gate = Gate(AtomicU32::new(OPEN));

/// A closed gate. It opens when this value is dropped.
pub struct Closed<'a> {
    gate: &'a Gate,
    by: u32,
    signals: Signals,
}

impl Gate {
    pub fn close(&self) -> Closed<'_> {
        let signals = signals::block();
        let by = thread::id_by_kernel();
        // SeqCst: either the reader sees the closed gate, or this thread sees that the reader has
        // announced a change under way.
        self.0.store(by, SeqCst);
        core::sync::atomic::fence(SeqCst);
        Closed {
            gate: self,
            by,
            signals,
        }
    }

    /// Waits until the gate is open. The reader has announced a change under way before this call.
    pub fn pass(&self) {
        core::sync::atomic::fence(SeqCst);
        let mut looks = 0;
        loop {
            let by = self.0.load(SeqCst);
            if by == OPEN {
                return;
            }
            if looks > 0 && (looks == LOOKS || !thread::exists(by)) {
                let _ = self.0.compare_exchange(by, OPEN, SeqCst, SeqCst);
                return;
            }
            futex::wait(&self.0, by, Some(Duration::from_millis(10)));
            looks += 1;
        }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // The reader may have opened the gate, and another task may have closed it.
        let _ = (self.gate.0).compare_exchange(self.by, OPEN, SeqCst, SeqCst);
        futex::wake(&self.gate.0, 1);
        signals::restore(self.signals);
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn the_monitor_passes_a_gate_whose_closer_is_dead_or_stays() {
        let gate = Gate(AtomicU32::new(OPEN));
        gate.pass();
        std::thread::scope(|scope| {
            let dies = scope.spawn(|| core::mem::forget(gate.close()));
            dies.join().unwrap();
        });
        assert_ne!(gate.0.load(SeqCst), OPEN);
        gate.pass();
        assert_eq!(gate.0.load(SeqCst), OPEN);
        let closed = gate.close();
        std::thread::scope(|scope| {
            scope.spawn(|| gate.pass());
        });
        assert_eq!(gate.0.load(SeqCst), OPEN);
        gate.0.store(OPEN + 1, SeqCst);
        drop(closed);
        assert_eq!(gate.0.load(SeqCst), OPEN + 1, "another's");
    }
}
