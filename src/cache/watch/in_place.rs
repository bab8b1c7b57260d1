// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the program's memory calls reach this library. userfaultfd reports neither guard pages
//! nor protection, so without these calls the cache watches no memory.

use crate::watch::listeners::{CACHE, listen};
use core::ffi::{c_int, c_void};
use core::num::NonZeroUsize;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::*};
use rdmamr_sys::helper_thread;
use rdmamr_sys::pages::page_size;
use rdmamr_sys::symbols::{self, Library, Scope};

/// The address that [`are_in_place`] unmaps; [`SEEN`] once that call has reached this library.
static PROBE: AtomicUsize = AtomicUsize::new(0);
const SEEN: usize = 1;

/// A memory call of the program has reached this library, and the process has no cache yet.
#[inline(always)]
pub fn call_came(addr: usize) {
    let _ = PROBE.compare_exchange(addr, SEEN, Relaxed, Relaxed);
}

/// Whether the memory calls of the process reach this library. They do not if dlopen loaded the
/// library. They do if the program's munmap is this library's, or that of another library that
/// calls this one's (AddressSanitizer's). The first call of this function comes before the process
/// has a cache, and finds this out by an munmap.
pub fn are_in_place() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    const IN_PLACE: u8 = 1;
    const PASSED_BY: u8 = 2;
    if KNOWN.load(Relaxed) == 0 {
        let known = if is_first() || probe() {
            IN_PLACE
        } else {
            PASSED_BY
        };
        KNOWN.store(known, Relaxed);
    }
    KNOWN.load(Relaxed) == IN_PLACE
}

/// The munmap to which calls of the program are bound.
fn munmap_of_program() -> Option<NonZeroUsize> {
    symbols::find(Scope::In(Library::program()?), c"munmap", None)
}

/// Whether the program's munmap is this library's.
fn is_first() -> bool {
    let home = |address: *const c_void| {
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: `info` is a local structure that the call may write.
        unsafe { libc::dladdr(address, info.as_mut_ptr()) };
        // SAFETY: `Dl_info` has only pointers: all zeros is a valid value, and so is what dladdr(3)
        // wrote.
        unsafe { info.assume_init() }.dli_fbase
    };
    let first = munmap_of_program();
    let own = is_first as fn() -> bool as *const c_void;
    first.is_some_and(|first| home(with_exposed_provenance(first.get())) == home(own))
}

/// Whether the program's munmap reaches this library.
fn probe() -> bool {
    let page = page_size() as usize;
    let (Some(first), Some(memory)) = (munmap_of_program(), helper_thread::map(page)) else {
        return false;
    };
    let munmap = with_exposed_provenance::<c_void>(first.get());
    // SAFETY: the symbol is munmap(2), or a function that stands for it.
    let munmap: unsafe extern "C" fn(*mut c_void, usize) -> c_int =
        unsafe { core::mem::transmute(munmap) };
    listen(CACHE);
    PROBE.store(memory.addr(), Relaxed);
    // SAFETY: this function mapped the page, and nothing else uses it.
    unsafe { munmap(memory, page) };
    PROBE.swap(0, Relaxed) == SEEN
}
