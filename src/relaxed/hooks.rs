// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an interposed memory call does for the pool: it writes down which memory it changes, before the
//! real call and after it, and is under way in between. Where no region can be, it does nothing.
//!
//! These run wherever the program, or a library in it, changes memory: in malloc, in signal handlers, in
//! threads that have no thread-local variables yet. They take no lock and allocate nothing.

use super::changes::{Change, Kind};
use super::hull::{Range, page_size};
use super::{Instance, existing, start};
use core::ffi::c_void;

/// A change that is about to be made. It is over when this is dropped.
pub struct Changing(Option<UnderWay>);

struct UnderWay {
    relaxed: &'static Instance,
    change: Change,
    announced: bool,
}

const NOTHING: Range = Range { start: 0, end: 0 };

/// The whole pages of a range; nothing where it is empty or runs past the end.
fn pages(addr: usize, length: usize) -> Range {
    Range::hull(addr as u64, length as u64).unwrap_or(NOTHING)
}

/// A call is about to change memory. One load, as long as nothing is registered relaxed.
#[inline(always)]
pub fn changing(addr: usize, length: usize) -> Changing {
    Changing(existing().map(|relaxed| begin(relaxed, pages(addr, length))))
}

/// A call may change memory: whether it has, and which, is said by [`Changing::changed`].
#[inline(always)]
pub fn may_change(addr: usize, length: usize) -> Changing {
    Changing(existing().map(|relaxed| {
        let announced = relaxed.pool.filter.may_hold(pages(addr, length));
        if announced {
            // Nothing is written yet: that it is under way keeps every region from being used.
            relaxed.pool.changes.begin();
        }
        UnderWay {
            relaxed,
            change: change(NOTHING, Kind::Called),
            announced,
        }
    }))
}

/// A System V segment that begins at an address is about to be detached.
#[inline(always)]
pub fn detaching(addr: usize) -> Changing {
    let start = addr as u64 & !(page_size() - 1);
    let end = start + 1;
    Changing(
        existing().map(|relaxed| announce(relaxed, change(Range { start, end }, Kind::Detached))),
    )
}

/// A file is about to be cut or punched. It may be mapped anywhere.
#[inline(always)]
pub fn cutting_file() -> Changing {
    Changing(existing().map(|relaxed| announce(relaxed, change(NOTHING, Kind::Files))))
}

fn change(range: Range, kind: Kind) -> Change {
    Change {
        start: range.start,
        end: range.end,
        kind,
    }
}

#[cold]
fn begin(relaxed: &'static Instance, range: Range) -> UnderWay {
    let change = change(range, Kind::Called);
    if relaxed.pool.filter.may_hold(range) {
        return announce(relaxed, change);
    }
    UnderWay {
        relaxed,
        change,
        announced: false,
    }
}

#[cold]
fn announce(relaxed: &'static Instance, change: Change) -> UnderWay {
    relaxed.pool.changes.begin();
    relaxed.pool.changes.write(change);
    UnderWay {
        relaxed,
        change,
        announced: true,
    }
}

impl Changing {
    /// The call has changed this memory as well.
    pub fn changed(&mut self, addr: usize, length: usize) {
        if let Some(under_way) = &mut self.0 {
            under_way.write(change(pages(addr, length), Kind::Called));
        }
    }
}

impl UnderWay {
    fn write(&mut self, change: Change) {
        let pool = self.relaxed.pool;
        if !self.announced {
            let range = Range {
                start: change.start,
                end: change.end,
            };
            // A region may have come there since the look before the call.
            if !pool.filter.may_hold(range) {
                return;
            }
            pool.changes.begin();
            self.announced = true;
        }
        pool.changes.write(change);
    }

    #[cold]
    fn end(&mut self) {
        self.write(self.change);
        if self.announced {
            self.relaxed.pool.changes.end();
        }
    }
}

impl Drop for Changing {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(under_way) = &mut self.0 {
            under_way.end();
        }
    }
}

/// Something else has happened.
fn note(range: Range, kind: Kind) {
    if let Some(relaxed) = existing() {
        relaxed.pool.changes.begin();
        relaxed.pool.changes.write(change(range, kind));
        relaxed.pool.changes.end();
    }
}

/// Stops watching memory of which all regions have just been withdrawn, by a change that is under way. True if
/// that was something to do.
#[cold]
pub fn unwatch(addr: usize, length: usize) -> bool {
    let range = pages(addr, length);
    let errno = errno::errno();
    let unwatched = existing().is_some_and(|relaxed| relaxed.watch.unwatch(range));
    errno::set_errno(errno);
    unwatched
}

/// Whether the memory calls of the process come here first. They do not if the library was loaded by
/// dlopen, and a static program has not got it at all.
pub fn are_in_place() -> bool {
    let home = |address: *const c_void| {
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: the structure is writable.
        unsafe { libc::dladdr(address, info.as_mut_ptr()) };
        // SAFETY: all zeros is one, and so is what was written.
        unsafe { info.assume_init() }.dli_fbase
    };
    // SAFETY: a string.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"munmap".as_ptr()) };
    let own = are_in_place as fn() -> bool as *const c_void;
    !first.is_null() && home(first) == home(own)
}

/// Whether the pool must hear of shared mappings.
#[inline(always)]
pub fn is_in_use() -> bool {
    existing().is_some()
}

/// Memory has been mapped that others share. `fd` is the file's, if it has one.
pub fn mapped_shared(addr: usize, length: usize, fd: Option<i32>) {
    if !fd.is_some_and(start::is_sealed) {
        note(pages(addr, length), Kind::Shared);
    }
}

/// A mapping has been moved there, and whether it is shared is not known. The next registration reads it.
pub fn moved(addr: usize, length: usize) {
    note(pages(addr, length), Kind::Shared);
}

/// A System V segment has been attached.
pub fn attached(addr: usize, length: usize) {
    if existing().is_some_and(|relaxed| !relaxed.watch.has_stamp()) {
        note(pages(addr, length), Kind::Segment);
    }
}
