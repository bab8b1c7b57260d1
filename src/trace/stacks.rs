// SPDX-License-Identifier: MIT OR Apache-2.0
//! The call stacks of the trace: the frames beyond the caller. A stack is walked at each call, and
//! written to the file once, under the number that the record then names.
//!
//! A walk takes some 0.15 us for each frame. Writing a stack costs more, and is done once for each.
//! It has a budget, so that a call costs little more in the mean: a process may spend
//! [`AT_START`], and then [`PER_CALL`] for each call in the file. A program that calls seldom may
//! spend a [`PART`] of its time in addition: otherwise 200 calls of pyverbs, each with another
//! stack, paid for one stack. A call that would need more has no stack. Python's frames
//! (`python.rs`) cost as much at each call, so a program in Python that registers without pause has
//! stacks for a part of its calls. `RDMAMR_TRACE_STACKS=all` lifts the budget.
//!
//! The walk takes no lock (`sys/unwind.rs` names the exceptions) and allocates nothing.

use super::file::File;
use super::modules;
use super::python::Python;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicU64, Ordering::*};
use rdmamr_config::config;
use rdmamr_sys::allocator::zeroed;
use rdmamr_sys::caller::Caller;
use rdmamr_sys::{clock, unwind};
use rdmamr_trace_format::kind;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The processor time in ns that a process may spend on new stacks: at its start, and for each call
/// that it has recorded.
const AT_START: u64 = 5_000_000;
const PER_CALL: u64 = 150;
/// In addition, this part of the time since its first call: 1 %.
const PART: u64 = 100;

/// The most frames of a stack. The outermost are left out.
const MOST: usize = 64;
/// More frames than the library itself has between an exported function and this module.
const OWN: usize = 24;
/// How many stacks a trace can have, as a power of two; how many places a stack may have.
const STACKS: u32 = 14;
const PLACES: usize = 4;

/// The fingerprint of stack number n, or 0, at index n - 1.
type Table = [AtomicU64; 1 << STACKS];

/// The stacks of a process that are known.
pub struct Stacks {
    table: Box<Table>,
    /// The processor time in ns spent so far.
    spent: AtomicU64,
    /// The time of the first call.
    began: u64,
}

/// A number that two different stacks are unlikely to share. Never 0.
fn fingerprint(addresses: &[u64], lines: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    addresses.hash(&mut hasher);
    lines.hash(&mut hasher);
    hasher.finish() | 1
}

/// The places of a stack in the table.
fn places(fingerprint: u64) -> impl Iterator<Item = usize> {
    let first = (fingerprint.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - STACKS)) as usize;
    (0..PLACES).map(move |n| (first + n) & ((1 << STACKS) - 1))
}

impl Stacks {
    /// An empty table, in memory that the system provides as zeros. `None` if there is none.
    pub fn new() -> Option<Stacks> {
        // The first walk initializes libgcc, which a signal handler must not interrupt.
        unwind::walk(&mut |_| false);
        Some(Stacks {
            // SAFETY: zeros are an empty table.
            table: unsafe { zeroed() }?,
            spent: AtomicU64::new(0),
            began: clock::monotonic(),
        })
    }

    /// Does the work if any of the budget is left, and of the room in the file.
    #[cold]
    fn within_budget<R>(&self, file: &File, work: impl FnOnce() -> R) -> Option<R> {
        let ran = clock::monotonic().saturating_sub(self.began);
        let for_calls = file.written.load(Relaxed).saturating_mul(PER_CALL);
        let budget = (AT_START + ran / PART).saturating_add(for_calls);
        let is_spent = self.spent.load(Relaxed) >= budget && !config().trace_all_stacks;
        if file.full.load(Relaxed) || is_spent {
            return None;
        }
        let began = clock::of_thread();
        let result = work();
        let spent = clock::of_thread().saturating_sub(began);
        self.spent.fetch_add(spent, Relaxed);
        Some(result)
    }

    /// The number of this call's stack in the file, if it has one there.
    #[inline(never)]
    pub fn number(&self, caller: Caller, file: &File) -> Option<u32> {
        let walked = Walked::from(caller)?;
        // CPython's dump is a hundred system calls, so it has the same budget.
        let lines = match walked.python() {
            Some((python, thread)) => self.within_budget(file, || python.lines(thread))?,
            None => String::new(),
        };
        let fingerprint = fingerprint(walked.addresses(), &lines);
        let at = |place: usize| self.table[place].load(Relaxed);
        let place = places(fingerprint).find(|&place| [0, fingerprint].contains(&at(place)))?;
        let number = place as u32 + 1;
        if at(place) == fingerprint {
            return Some(number);
        }
        self.within_budget(file, || {
            match self.table[place].compare_exchange(0, fingerprint, Relaxed, Relaxed) {
                Ok(_) => write(number, &walked, &lines, file),
                Err(other) if other == fingerprint => {}
                Err(_) => return None,
            }
            Some(number)
        })?
    }
}

/// Writes a stack, with the lines of its frames of Python.
#[cold]
fn write(number: u32, walked: &Walked, lines: &str, file: &File) {
    let addresses = walked.addresses();
    let mut bytes = Vec::with_capacity(8 + size_of_val(addresses) + lines.len());
    bytes.extend(number.to_le_bytes());
    bytes.extend((addresses.len() as u32).to_le_bytes());
    for address in addresses {
        bytes.extend(address.to_le_bytes());
    }
    bytes.extend(lines.as_bytes());
    modules::with(addresses, true);
    file.modules();
    file.block(kind::STACK, &bytes);
}

/// A stack.
struct Walked {
    addresses: [u64; MOST],
    frames: usize,
    /// A signal handler made the call.
    interrupted: bool,
}

impl Walked {
    /// Walks from the program's call outwards. `None` if the call is not on this stack.
    fn from(caller: Caller) -> Option<Walked> {
        let caller = caller.address();
        let mut walked = Walked {
            addresses: [0; MOST],
            frames: 0,
            interrupted: false,
        };
        let mut own = 0;
        walked.interrupted = unwind::walk(&mut |address| {
            if walked.frames > 0 || address == caller {
                walked.addresses[walked.frames] = address as u64;
                walked.frames += 1;
            } else {
                own += 1;
            }
            walked.frames < MOST && own < OWN
        });
        (walked.frames > 0).then_some(walked)
    }

    /// The return addresses, the program's call first.
    #[inline(always)]
    fn addresses(&self) -> &[u64] {
        self.addresses.get(..self.frames).unwrap_or_default()
    }

    /// The interpreter's state of this thread. `None` if a signal interrupted the thread: it may
    /// have been changing its frames.
    #[inline(always)]
    fn python(&self) -> Option<(&'static Python, NonZeroUsize)> {
        if self.interrupted {
            return None;
        }
        let python = modules::with(self.addresses(), false)?.python.as_ref()?;
        Some((python, python.thread()?))
    }
}

#[cfg(test)]
mod tests;
