// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters of begun changes, by which a hit knows without a system call that no change has
//! begun since the kernel last answered that none was in flight (W11). `rdmamr_fence` has their
//! layout, `service.rs` gets them.
//!
//! The kernel counts an unmap or an mremap before its effect, and holds the mmap lock from before
//! the count until it has marked the change as in flight. (Emptying by madvise has its effect only
//! after the reader has read the event.) A thread that knows of the effect sees the count. So a hit
//! that finds the counters as they were before the fence last passed knows that every change of
//! which it must know was counted before that fence. Between its reading of the counters and the
//! fence, the thread that asked took the mmap lock: those changes had been marked. The fence
//! passed, so their events had been read.
//!
//! The counters only grow. So their sum stands for all of them.

use crate::watch::userfaultfd::Fence;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use rdmamr_fence::{GAPS, MOVES, OPEN};

/// An atomic word: that of `core`, or loom's.
pub trait Word {
    fn get(&self, order: core::sync::atomic::Ordering) -> u64;
    fn set(&self, value: u64);
}

impl Word for core::sync::atomic::AtomicU64 {
    #[inline(always)]
    fn get(&self, order: core::sync::atomic::Ordering) -> u64 {
        self.load(order)
    }

    #[inline(always)]
    fn set(&self, value: u64) {
        self.store(value, Release);
    }
}

#[cfg(loom)]
impl Word for rdmamr_sys::atomics::AtomicU64 {
    fn get(&self, order: core::sync::atomic::Ordering) -> u64 {
        self.load(order)
    }

    fn set(&self, value: u64) {
        self.store(value, Release);
    }
}

type Plain = core::sync::atomic::AtomicU64;

/// What the kernel counts for this process.
pub struct Counters<'a, W = Plain> {
    /// How often a processor began to skip counts, and how many may skip counts now.
    pub gaps: &'a W,
    pub open: &'a W,
    /// The unmaps and moves that began.
    pub moves: &'a W,
}

/// The sum of `gaps` and `moves` before the fence last passed.
#[repr(transparent)]
pub struct Kept<W = Plain>(pub W);

/// In place of a sum: the counters begin with 0, and do not get that far.
pub const NONE: u64 = u64::MAX;

impl<W: Word> Kept<W> {
    /// Whether no change has begun since the fence last passed.
    ///
    /// The kept sum is loaded first, with acquire. So the counters are read after the thread that
    /// kept the sum read them, no counter is behind that thread's, and equal sums mean equal
    /// counters. The caller's later loads also see what that thread's fence saw: the reader's
    /// announcement of each event that had been read.
    #[inline(always)]
    pub fn stands(&self, counters: &Counters<'_, W>) -> bool {
        let kept = self.0.get(Acquire);
        kept == (counters.moves.get(Relaxed)).wrapping_add(counters.gaps.get(Relaxed))
    }

    /// Asks the kernel by `fence`, and keeps the counters if they are certain. `hold` takes and
    /// releases the mmap lock, and returns whether it has.
    pub fn ask(
        &self,
        counters: &Counters<'_, W>,
        hold: impl FnOnce() -> bool,
        fence: impl FnOnce() -> Fence,
    ) -> Fence {
        // `gaps` comes before `open`. A task that keeps its processor from counting raises `open`,
        // then `gaps`. If that was before this load of `gaps`, then either `open` shows the task, or
        // the task has gone on, and a change that was not counted meanwhile has the mmap lock or
        // has been marked. If it was after this load, `gaps` differs at the next hit. Acquire keeps
        // the order of these loads.
        let gaps = counters.gaps.get(Acquire);
        let certain = counters.open.get(Acquire) == 0;
        let moves = counters.moves.get(Acquire);
        // The changes that are counted keep the mmap lock until they are marked.
        let certain = certain && hold();
        let answer = fence();
        if certain && answer == Fence::Passed {
            self.0.set(moves.wrapping_add(gaps));
        }
        answer
    }
}

/// The counters of this process, once they are proven.
#[repr(C)]
pub struct Counts {
    /// The first line, and this process's own. Null: the kernel does not count for this process.
    first: AtomicPtr<u8>,
    own: AtomicPtr<u8>,
    kept: Kept,
}

impl Counts {
    pub const fn none() -> Counts {
        Counts {
            first: AtomicPtr::new(null_mut()),
            own: AtomicPtr::new(null_mut()),
            kept: Kept(Plain::new(NONE)),
        }
    }

    /// From now on hits read these counters.
    ///
    /// # Safety
    /// The pointers are to two lines of counters, which stay mapped.
    pub unsafe fn set(&self, first: *mut u8, own: *mut u8) {
        self.first.store(first, Relaxed);
        self.own.store(own, Release);
    }

    /// From now on hits ask the kernel. The lines stay mapped, since a hit may be reading them.
    pub fn forget(&self) {
        self.own.store(null_mut(), Release);
    }

    /// The counters, if hits read them.
    #[inline(always)]
    pub fn get(&self) -> Option<Counters<'static>> {
        let own = self.own.load(Acquire);
        // SAFETY: `set` stored both pointers, to lines that stay mapped.
        (!own.is_null()).then(|| unsafe { counters(self.first.load(Relaxed), own) })
    }

    /// Whether no change has begun since the fence last passed. `None` without counters.
    #[inline(always)]
    pub fn stand(&self) -> Option<bool> {
        Some(self.kept.stands(&self.get()?))
    }

    /// As [`Kept::ask`]; as `fence` answers without counters.
    pub fn ask(&self, hold: impl FnOnce() -> bool, fence: impl FnOnce() -> Fence) -> Fence {
        match self.get() {
            None => fence(),
            Some(counters) => self.kept.ask(&counters, hold, fence),
        }
    }
}

/// A word of counters.
///
/// # Safety
/// The line is of counters that stay mapped while the reference is used, and has the word.
#[inline(always)]
pub unsafe fn word(line: *mut u8, at: usize) -> &'static Plain {
    // SAFETY: the word is an aligned u64 of a line that stays mapped (this function's contract), and
    // the kernel changes it atomically.
    unsafe { &*line.wrapping_add(at).cast::<Plain>() }
}

/// The counters in two lines.
///
/// # Safety
/// The pointers are to two lines of counters, which stay mapped while the references are used.
#[inline(always)]
pub unsafe fn counters(first: *mut u8, own: *mut u8) -> Counters<'static> {
    // SAFETY: the lines have these words (this function's contract).
    let [gaps, open, moves] =
        [(first, GAPS), (first, OPEN), (own, MOVES)].map(|(line, at)| unsafe { word(line, at) });
    Counters { gaps, open, moves }
}
