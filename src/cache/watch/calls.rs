// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of the program on which the watch depends:
//!
//! 1. Who must be told of its memory calls. Without a listener, such a call costs one load.
//! 2. Whether the memory calls reach this library. userfaultfd reports neither guard pages nor
//!    protection, so without these calls the cache watches no memory.
//! 3. Whether the providers' deregistrations reach it.
//!
//! A provider frees the object of each region that it deregisters, and an object of the cache is no
//! memory of malloc. So without those deregistrations the cache gives out no region. They do not come if
//! dlopen loaded the library, and in a program that is linked with `-libverbs` before `-lrdmamr`:
//! it calls libibverbs' own functions.

use core::ffi::{c_int, c_void};
use core::num::NonZeroUsize;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::*};
use rdmamr_sys::helper_thread;
use rdmamr_sys::loaded_files::Object;
use rdmamr_sys::pages::page_size;
use rdmamr_sys::symbols::{self, Library, Scope};

/// A sum of the bits below.
static LISTENERS: AtomicU8 = AtomicU8::new(0);
/// The cache, of this process or of the process that it was forked from.
pub const TO_CACHE: u8 = 1;
/// The table of the ranges that were released, under `RDMAMR_CACHE`.
pub const TO_RANGES: u8 = 2;

/// Whether any of these listens.
#[inline(always)]
pub fn listens(who: u8) -> bool {
    LISTENERS.load(Relaxed) & who != 0
}

/// These listen from now on. Only the first call writes, because a store of each call would move
/// the cache line from processor to processor.
#[inline(always)]
pub fn listen(who: u8) {
    if !listens(who) {
        LISTENERS.fetch_or(who, Relaxed);
    }
}

/// The address that [`probe`] unmaps; [`SEEN`] once that call has reached this library.
static PROBE: AtomicUsize = AtomicUsize::new(0);
const SEEN: usize = 1;

/// A memory call of the program has reached this library, and the process has no cache, or one that has
/// given up.
#[inline(always)]
pub fn call_came(addr: usize) {
    let _ = PROBE.compare_exchange(addr, SEEN, Relaxed, Relaxed);
}

/// The munmap to which calls of the program are bound; 0 without one.
static FIRST: AtomicUsize = AtomicUsize::new(0);

static KNOWN: AtomicU8 = AtomicU8::new(0);
const IN_PLACE: u8 = 1;
const PASSED_BY: u8 = 2;

/// Looks where the program's calls lead. Called when the library is loaded. Returns true if the program
/// was started with this library behind libibverbs. (A library that dlopen loads is not in that order
/// yet.)
pub fn find_where_calls_lead() -> bool {
    let own =
        NonZeroUsize::new(find_where_calls_lead as fn() -> bool as usize).and_then(Object::with);
    let (Some(program), Some(own)) = (Library::program(), own) else {
        return false;
    };
    let names = [
        c"ibv_cmd_dereg_mr",
        c"munmap",
        c"ibv_reg_mr",
        c"ibv_node_type_str",
        c"rdmamr_version",
    ];
    let names = names.map(|name| (name, None));
    let [dereg, munmap, reg, mark, version] = symbols::find_each(Scope::In(program), names);
    let is_own = |function: &NonZeroUsize| own.has(function.get());
    ENDS_COME.store(dereg.filter(is_own).is_some(), Relaxed);
    if let Some(first) = munmap {
        FIRST.store(first.get(), Relaxed);
        if is_own(&first) {
            KNOWN.store(IN_PLACE, Relaxed);
        }
    }
    // Another library may interpose ibv_reg_mr, and call this one. The second function tells
    // libibverbs: no library has a reason to interpose it.
    let called = reg.filter(|it| !is_own(it));
    let is_libibverbs = |file: Object| {
        mark.is_some_and(|mark| file.has(mark.get())) && version.filter(is_own).is_some()
    };
    called.and_then(Object::with).is_some_and(is_libibverbs)
}

/// Whether the memory calls of the process reach this library. They do not if dlopen loaded the
/// library. They do if the program's munmap is this library's, or that of another library that
/// calls this one's (AddressSanitizer's). The first call of this function comes before the process
/// has a cache, and finds this out by an munmap.
pub fn are_in_place() -> bool {
    // Another thread that asks meanwhile takes it that they do not.
    if KNOWN
        .compare_exchange(0, PASSED_BY, Relaxed, Relaxed)
        .is_ok()
        && probe()
    {
        KNOWN.store(IN_PLACE, Relaxed);
    }
    KNOWN.load(Relaxed) == IN_PLACE
}

/// Whether the deregistrations of libibverbs' providers reach this library.
static ENDS_COME: AtomicBool = AtomicBool::new(false);

/// Whether the cache may give regions out: both kinds of calls reach this library.
pub fn all_calls_come() -> bool {
    ends_come() && are_in_place()
}

#[inline]
pub fn ends_come() -> bool {
    ENDS_COME.load(Relaxed)
}

/// Whether the program's munmap reaches this library.
fn probe() -> bool {
    let page = page_size() as usize;
    let first = FIRST.load(Relaxed);
    if first == 0 {
        return false;
    }
    let Some(memory) = helper_thread::map(page) else {
        return false;
    };
    let munmap = with_exposed_provenance::<c_void>(first);
    // SAFETY: the symbol is munmap(2), or a function that stands for it.
    let munmap: unsafe extern "C" fn(*mut c_void, usize) -> c_int =
        unsafe { core::mem::transmute(munmap) };
    listen(TO_CACHE);
    PROBE.store(memory.addr(), Relaxed);
    // SAFETY: this function mapped the page, and nothing else uses it.
    unsafe { munmap(memory, page) };
    PROBE.swap(0, Relaxed) == SEEN
}
