// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is this process's: its devices and their regions, its counters.
//!
//! A forked child must not touch what is its parent's: the regions are registered for the parent's memory,
//! a lock may have been held by a thread that the child has not got. So the pointer to all of it lies on a
//! page that the kernel gives the child as zeros (MADV_WIPEONFORK, Linux 4.14): the child finds nothing,
//! at the cost of one load and with no call at the fork, and starts its own when it registers memory.

use crate::mr::devices::Devices;
use crate::mr::retired::Retired;

use crate::stats::Counters;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

/// All that is this process's.
pub struct Process {
    pub devices: Devices,
    pub retired: Retired,
    pub counters: Counters,
}

/// The largest page that a kernel of this architecture may have.
const PAGE_SIZE: usize = if cfg!(target_arch = "aarch64") {
    65536
} else {
    4096
};

/// A page that a fork wipes. In .bss and not mapped when needed: a mapping could come to lie in a hole
/// that the program has just made, and change what a later call finds there.
#[repr(C)]
#[cfg_attr(target_arch = "aarch64", repr(align(65536)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(align(4096)))]
struct Page {
    process: AtomicPtr<Process>,
    rest: [u8; PAGE_SIZE - size_of::<AtomicPtr<Process>>()],
}
const _: () = assert!(align_of::<Page>() == PAGE_SIZE && size_of::<Page>() == PAGE_SIZE);

static PAGE: Page = Page {
    process: AtomicPtr::new(null_mut()),
    rest: [0; PAGE_SIZE - size_of::<AtomicPtr<Process>>()],
};

/// This process's, if it has used the library.
#[inline]
pub fn existing() -> Option<&'static Process> {
    let process = PAGE.process.load(Acquire);
    // SAFETY: null, or a box that `create` leaked in this process.
    unsafe { process.as_ref() }
}

/// This process's; made now if it is the first use.
#[inline]
pub fn current() -> &'static Process {
    existing().unwrap_or_else(create)
}

#[cold]
fn create() -> &'static Process {
    have_fork_wipe();
    let new = Box::into_raw(Box::new(Process {
        devices: Devices::new(),
        retired: Retired::new(),
        counters: Counters::new(),
    }));
    match PAGE
        .process
        .compare_exchange(null_mut(), new, AcqRel, Acquire)
    {
        // SAFETY: just leaked.
        Ok(_) => unsafe { &*new },
        Err(other) => {
            // SAFETY: `new` was not published, so it is ours alone.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: what another thread published is never freed.
            unsafe { &*other }
        }
    }
}

/// Sees to it that a child finds a null pointer on the page.
fn have_fork_wipe() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, AcqRel) {
        return;
    }
    let page = (&raw const PAGE).cast_mut().cast();
    // SAFETY: the page is whole, ours, and holds nothing else.
    if unsafe { libc::madvise(page, PAGE_SIZE, libc::MADV_WIPEONFORK) } != 0 {
        // Linux before 4.14, or larger pages: let the fork itself run one store.
        // SAFETY: the handler is a function of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(forget_parent)) };
    }
}

unsafe extern "C" fn forget_parent() {
    PAGE.process.store(null_mut(), Release);
}
