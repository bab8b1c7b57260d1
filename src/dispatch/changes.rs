// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interposed memory calls (`capi/memory.rs`) tell the cache here about changes of memory.
//! While the cache is off, each function costs one load, and another for the trace.

use super::listeners::{CACHE, RANGES, cache_is_on, listens, turn_cache_on};
use super::reuse;
use crate::cache::life::retire::retire;
use crate::cache::life::{change, tasks};
use crate::trace;
use crate::watch::in_place;
use crate::watch::watch_fd::{TABLE, WATCH_FD};
pub use change::{Changing, Frame, Touching, Unreported};

/// Tells the trace of a change, so that a reader knows what a cache would have lost.
#[inline(always)]
fn traced(addr: usize, length: usize) {
    if trace::is_on() {
        trace::changing(addr, length);
    }
}

/// A call is about to change memory.
#[inline(always)]
pub fn changing(frame: &Frame, addr: usize, length: usize) -> Changing<'_> {
    traced(addr, length);
    if !listens(CACHE | RANGES) {
        return Changing::NOTHING;
    }
    if listens(RANGES) {
        reuse::memory_changes(addr, length);
    }
    if cache_is_on() {
        change::changing(frame, addr, length)
    } else {
        Changing::NOTHING
    }
}

/// A call is about to map memory in place of other memory.
#[inline(always)]
pub fn replacing(frame: &Frame, addr: usize, length: usize) -> Changing<'_> {
    traced(addr, length);
    if !listens(CACHE | RANGES) {
        return Changing::NOTHING;
    }
    if listens(RANGES) {
        reuse::memory_changes(addr, length);
    }
    if cache_is_on() {
        change::replacing(frame, addr, length)
    } else {
        Changing::NOTHING
    }
}

/// A call is about to change memory in a way that userfaultfd does not report. Such a change is
/// counted while the cache is off, too: the cache may start before the change takes effect.
pub fn unreported(frame: &Frame, addr: usize, length: usize) -> Unreported<'_> {
    traced(addr, length);
    change::unreported(frame, addr, length)
}

/// As [`unreported`], of a call that maps memory in place of other memory.
pub fn replacing_unreported(frame: &Frame, addr: usize, length: usize) -> Unreported<'_> {
    traced(addr, length);
    change::replacing_unreported(frame, addr, length)
}

/// A call may change any memory; [`Changing::changed`] says whether it has.
#[inline(always)]
pub fn may_change_any(frame: &Frame) -> Changing<'_> {
    if cache_is_on() {
        change::may_change_any(frame)
    } else {
        Changing::NOTHING
    }
}

/// A call needs pages that no device has pinned: the idle regions of this memory end. They count as
/// changed, though their pages have not. (What another thread registers during the call is in the
/// call's way without the library, too.)
pub fn let_go(addr: usize, length: usize) {
    drop(changing(&Frame::new(), addr, length));
}

/// As [`changing`], of a call that needs pages that no device has pinned, and that the kernel may
/// refuse where memory is watched.
pub fn changing_unwatched(frame: &Frame, addr: usize, length: usize) -> Changing<'_> {
    traced(addr, length);
    if listens(RANGES) {
        reuse::memory_changes(addr, length);
    }
    if cache_is_on() {
        change::changing_unwatched(frame, addr, length)
    } else {
        Changing::NOTHING
    }
}

/// A call has given memory a protection key. From then on the cache keeps nothing: a thread may
/// take the key's rights away without a call.
pub fn keyed() {
    change::keyed();
}

/// A call may change memory; [`Changing::changed`] says whether it has, and which.
#[inline(always)]
pub fn may_change(frame: &Frame, addr: usize, length: usize) -> Changing<'_> {
    traced(addr, length);
    if cache_is_on() {
        change::may_change(frame, addr, length)
    } else {
        Changing::NOTHING
    }
}

/// Whether the cache must hear of changes.
#[inline(always)]
pub fn are_wanted() -> bool {
    cache_is_on() && change::is_in_use()
}

/// Stops watching memory that a change under way moves, and whose regions it has just invalidated.
/// Returns true if some of the memory may have been watched.
pub fn unwatch(addr: usize, length: usize) -> bool {
    cache_is_on() && change::unwatch(addr, length)
}

/// The C library is about to make a mapping larger by an mremap(2) of its own.
pub fn growing(addr: usize, length: usize) {
    change::growing(addr, length);
}

/// Whether the kernel moves several mappings by one mremap(2).
pub fn several_can_move() -> bool {
    cache_is_on() && change::several_can_move()
}

/// A call is about to close or to replace the numbers from `first` to `last`.
#[inline(always)]
pub fn touching(first: u32, last: u32) -> Option<Touching<'static>> {
    WATCH_FD.touching(first, last)
}

/// The calling thread may have left its table of descriptors.
pub fn left_table() {
    TABLE.left();
}

/// Whether the number is that of the library's userfaultfd.
#[inline(always)]
pub fn is_our_number(fd: i32) -> bool {
    WATCH_FD.is(fd)
}

/// A call is about to have a userfaultfd unregister memory. The call's argument lies at `argument`.
pub fn unregistering(frame: &Frame, argument: usize) -> Option<Unreported<'_>> {
    cache_is_on().then(|| change::unregistering(frame, argument))?
}

/// The program is about to make a task by clone(2) with these flags.
#[inline]
pub fn making_task(flags: core::ffi::c_int) {
    // Also while the cache is off: it may be turned on later.
    tasks::making(flags);
}

/// A call is about to have a userfaultfd move pages to another address. The call's argument lies at
/// `argument`.
pub fn moving_pages(frame: &Frame, argument: usize) -> Option<Changing<'_>> {
    cache_is_on().then(|| change::moving_pages(frame, argument))?
}

/// The program is about to filter its system calls, seccomp(2), or to give up what keeps it from
/// that.
pub fn filtering() {
    retire("the program filters its system calls (seccomp)");
}

/// Whether the memory calls of the process come to this library.
pub fn are_in_place() -> bool {
    turn_cache_on();
    in_place::are_in_place()
}
