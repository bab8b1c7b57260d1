// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walks the call stack: by libgcc's unwinder, which std links, and from code that has no
//! description of its frames (`.eh_frame`), such as Go's, on by the chain of frame pointers.
//!
//! From glibc 2.35 and libgcc 12 on the unwinder takes no lock to find a description, except for
//! code that the program has announced by `__register_frame` (libgcc 12). Before, it asks
//! dl_iterate_phdr(3). The walk ends at a frame that a signal interrupted: there a description may
//! be wrong, and the unwinder trusts it.

use super::loaded_files::Object;
use super::memory::is_readable;
use core::ffi::{c_int, c_void};
use core::num::NonZeroUsize;
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// `struct _Unwind_Context`, which libgcc alone reads.
#[repr(C)]
struct Context([u8; 0]);

unsafe extern "C" {
    fn _Unwind_Backtrace(
        each: extern "C" fn(*mut Context, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut Context, is_interrupted: *mut c_int) -> usize;
    fn _Unwind_GetGR(context: *mut Context, register: c_int) -> usize;
    fn _Unwind_FindEnclosingFunction(address: *mut c_void) -> *mut c_void;
}

/// `_URC_NO_REASON`, and `_URC_NORMAL_STOP`.
const GO_ON: c_int = 0;
const STOP: c_int = 4;

/// DWARF's number of x86-64's frame pointer.
const BP: c_int = 6;

struct Walk<'a> {
    each: &'a mut dyn FnMut(usize) -> bool,
    /// The last frame's return address and frame pointer.
    last: (usize, usize),
    stopped: bool,
    interrupted: bool,
}

/// Calls `each` with the return addresses, from the caller's own on outwards, until it returns
/// false. Returns true if a signal handler made the call.
#[inline(never)]
pub fn walk(each: &mut dyn FnMut(usize) -> bool) -> bool {
    let mut walk = Walk {
        each,
        last: (0, 0),
        stopped: false,
        interrupted: false,
    };
    // SAFETY: `frame` gets the walk, which outlives the call, and does not unwind.
    unsafe { _Unwind_Backtrace(frame, (&raw mut walk).cast()) };
    if cfg!(target_arch = "x86_64") && !walk.stopped {
        walk.follow_pointers();
    }
    walk.interrupted
}

extern "C" fn frame(context: *mut Context, walk: *mut c_void) -> c_int {
    // SAFETY: `walk` passed its own variable, and waits.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    let mut is_interrupted = 0;
    // SAFETY: libgcc passed the context, and `is_interrupted` is writable.
    let address = unsafe { _Unwind_GetIPInfo(context, &raw mut is_interrupted) };
    if cfg!(target_arch = "x86_64") {
        // SAFETY: libgcc passed the context, and the processor has the register.
        walk.last = (address, unsafe { _Unwind_GetGR(context, BP) });
    }
    walk.interrupted = is_interrupted != 0;
    walk.stopped = walk.interrupted || !(walk.each)(address);
    if walk.stopped { STOP } else { GO_ON }
}

impl Walk<'_> {
    /// A frame pointer points to the caller's frame pointer, with the return address behind it. If
    /// another stack made the call, as in Go, the chain leads to that stack once; after that it must
    /// go up.
    #[cold]
    fn follow_pointers(&mut self) -> Option<()> {
        let (address, mut frame) = self.last;
        // SAFETY: the function takes any address.
        let known = unsafe { _Unwind_FindEnclosingFunction(with_exposed_provenance_mut(address)) };
        if !known.is_null() {
            // The outermost frame.
            return None;
        }
        loop {
            let (next, address) = (word(frame)?, word(frame.checked_add(8)?)?);
            Object::with(NonZeroUsize::new(address)?)?;
            if !(self.each)(address) || next <= frame {
                return None;
            }
            frame = next;
        }
    }
}

/// The word at an address of this thread's stacks. `None` if it is not aligned, or not readable.
fn word(address: usize) -> Option<usize> {
    let from = with_exposed_provenance::<usize>(address);
    // SAFETY: the kernel has just read the word. The read is volatile, since the program knows
    // nothing of it.
    (from.is_aligned() && is_readable(address)).then(|| unsafe { from.read_volatile() })
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[inline(never)]
    fn inner() -> Vec<usize> {
        let mut found = Vec::new();
        assert!(!walk(&mut |address| {
            found.push(address);
            found.len() < 8
        }));
        found
    }

    #[test]
    fn the_callers_are_found_from_the_inside_out() {
        let found = inner();
        assert_eq!(found.len(), 8);
        let start = |address| {
            // SAFETY: the function takes any address.
            unsafe { _Unwind_FindEnclosingFunction(with_exposed_provenance_mut(address)) }.addr()
        };
        let place = found
            .iter()
            .position(|&address| start(address) == inner as *const () as usize);
        let here = the_callers_are_found_from_the_inside_out as *const () as usize;
        assert_eq!(start(found[place.unwrap() + 1]), here);
    }

    #[test]
    fn what_is_mapped_is_read_and_what_is_not_is_refused() {
        let words = [7usize, 8];
        let address = words.as_ptr().expose_provenance();
        assert_eq!((word(address), word(address + 8)), (Some(7), Some(8)));
        assert_eq!((word(address + 1), word(0), word(!7)), (None, None, None));
    }
}
