// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an interposed memory call does for the pool. It writes the changed memory to the log before
//! the real call and after it, and announces a change under way in between. If no region can be in
//! that memory, it does nothing.
//!
//! These functions run wherever the program or one of its libraries changes memory: in malloc, in
//! signal handlers, in threads that have no thread-local variables yet. They take no lock and
//! allocate nothing.

use super::changes::{Change, Kind};
use super::{Instance, existing};
use crate::sys::pages::PageRange;
use crate::sys::symbols::{self, Scope};
use core::ffi::c_void;
use core::ptr::without_provenance;

/// A change that is about to be made. The change is over when this value is dropped.
pub struct Changing(Option<UnderWay>);

struct UnderWay {
    relaxed: &'static Instance,
    change: Change,
    announced: bool,
}

impl Changing {
    /// A change that the pool need not hear of.
    pub const NOTHING: Changing = Changing(None);
}

const NOTHING: PageRange = PageRange { start: 0, end: 0 };

/// The hull of a range: its whole pages. An empty range, or one that runs past the end of the
/// address space, gives [`NOTHING`].
fn pages(addr: usize, length: usize) -> PageRange {
    PageRange::hull(addr as u64, length as u64).unwrap_or(NOTHING)
}

/// A call is about to change memory. This costs one load as long as the process has no relaxed
/// registration.
#[inline(always)]
pub fn changing(addr: usize, length: usize) -> Changing {
    Changing(existing().map(|relaxed| begin(relaxed, pages(addr, length))))
}

/// A call may change memory. The caller says by [`Changing::changed`] whether the call did, and
/// which memory.
#[inline(always)]
pub fn may_change(addr: usize, length: usize) -> Changing {
    Changing(existing().map(|relaxed| {
        let announced = relaxed.pool.filter.may_hold(pages(addr, length));
        if announced {
            // The log has no change yet. The announcement alone keeps every hit from succeeding.
            relaxed.pool.changes.begin();
        }
        UnderWay {
            relaxed,
            change: change(NOTHING, Kind::Called),
            announced,
        }
    }))
}

fn change(range: PageRange, kind: Kind) -> Change {
    Change {
        start: range.start,
        end: range.end,
        kind,
    }
}

#[cold]
fn begin(relaxed: &'static Instance, range: PageRange) -> UnderWay {
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
    /// Adds this memory to what the call has changed.
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
            let range = PageRange {
                start: change.start,
                end: change.end,
            };
            // Another thread may have registered a region there since the check before the call.
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

/// Stops watching memory whose regions a change under way has just withdrawn. Returns true if any
/// of the memory was watched.
#[cold]
pub fn unwatch(addr: usize, length: usize) -> bool {
    let range = pages(addr, length);
    let errno = errno::errno();
    let unwatched = existing().is_some_and(|relaxed| relaxed.watch.unwatch_moving(range));
    errno::set_errno(errno);
    unwatched
}

/// Whether the memory calls of the process come to this library first. They do not come first if
/// dlopen loaded the library, and a static program does not have the library at all.
pub fn are_in_place() -> bool {
    let home = |address: *const c_void| {
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: `info` is a local structure that the call may write.
        unsafe { libc::dladdr(address, info.as_mut_ptr()) };
        // SAFETY: `Dl_info` has only pointers: all zeros is a valid value, and so is what dladdr(3)
        // wrote.
        unsafe { info.assume_init() }.dli_fbase
    };
    let first = symbols::find(Scope::Program, c"munmap", None);
    let own = are_in_place as fn() -> bool as *const c_void;
    first.is_some_and(|first| home(without_provenance(first.get())) == home(own))
}

/// Whether the pool must hear of changes.
#[inline(always)]
pub fn is_in_use() -> bool {
    existing().is_some()
}
