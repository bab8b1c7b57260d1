// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is this process's: its table of regions, its contexts, its counters.
//!
//! A forked child must not touch what is its parent's: the regions are registered for the parent's memory,
//! a lock may have been held by a thread that the child has not got. So the pointer to all of it lies on a
//! page that the kernel gives the child as zeros (MADV_WIPEONFORK, Linux 4.14): the child finds nothing,
//! at the cost of one load and with no call at the fork, and starts its own when it registers memory.

use crate::mr::table::Table;
use crate::stats::Counters;
use crate::uverbs::context::Contexts;
use core::ptr::{null_mut, with_exposed_provenance};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

/// All that is this process's.
pub struct Process {
    pub table: Table,
    pub contexts: Contexts,
    pub counters: Counters,
}

/// The page that a fork wipes, as an address; 0 before there is one. The page is never unmapped.
static PAGE: AtomicUsize = AtomicUsize::new(0);

/// What the page holds.
type Cell = AtomicPtr<Process>;

#[inline]
fn page() -> Option<&'static Cell> {
    let page = with_exposed_provenance::<Cell>(PAGE.load(Acquire));
    // SAFETY: null, or the start of a mapping that `map_page` made and nobody unmaps; its zeros are a
    // null pointer.
    unsafe { page.as_ref() }
}

/// This process's, if it has used the library.
#[inline]
pub fn existing() -> Option<&'static Process> {
    let process = page()?.load(Acquire);
    // SAFETY: null, or a box that `create` leaked in this process.
    unsafe { process.as_ref() }
}

/// This process's; made now if it is the first use. `None` where there is no memory for it.
#[inline]
pub fn current() -> Option<&'static Process> {
    existing().or_else(create)
}

#[cold]
fn create() -> Option<&'static Process> {
    let page = page().or_else(map_page)?;
    let new = Box::into_raw(Box::new(Process {
        table: Table::new(),
        contexts: Contexts::new(),
        counters: Counters::new(),
    }));
    match page.compare_exchange(null_mut(), new, AcqRel, Acquire) {
        // SAFETY: just leaked.
        Ok(_) => unsafe { new.as_ref() },
        Err(other) => {
            // SAFETY: `new` was not published, so it is ours alone.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: what another thread published is never freed.
            unsafe { other.as_ref() }
        }
    }
}

fn map_page() -> Option<&'static Cell> {
    const SIZE: usize = 4096;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let mapping = unsafe { libc::mmap(null_mut(), SIZE, protection, flags, -1, 0) };
    if mapping == libc::MAP_FAILED {
        return None;
    }
    match PAGE.compare_exchange(0, mapping.expose_provenance(), AcqRel, Acquire) {
        Ok(_) => {
            // SAFETY: the mapping is ours, and has that size.
            if unsafe { libc::madvise(mapping, SIZE, libc::MADV_WIPEONFORK) } != 0 {
                // Linux before 4.14: let the fork itself run one store.
                // SAFETY: the handler is a function of this library, which is never unloaded.
                unsafe { libc::pthread_atfork(None, None, Some(forget_parent)) };
            }
        }
        Err(_) => {
            // SAFETY: another thread's page is in use; this one is ours alone.
            unsafe { libc::munmap(mapping, SIZE) };
        }
    }
    page()
}

unsafe extern "C" fn forget_parent() {
    if let Some(page) = page() {
        page.store(null_mut(), Release);
    }
}
