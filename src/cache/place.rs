// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache's place in the address space, and which parts of it are mapped.
//!
//! The place is as large as the cache may ever become, 64 MiB. Only what is in use is mapped, some
//! 500 KiB at first: a process may have little room (RLIMIT_AS, RLIMIT_DATA), and mlockall(2) makes
//! each mapping resident. Nothing is reserved. The place lies far from where the kernel maps, and
//! what cannot be mapped there, for want of room or since something else has come there, the cache
//! does without.
//!
//! A reference to the cache covers memory that is not mapped. The cache consists of atomics, so the
//! compiler assumes of no part of it that it can be read, and each part says what of it may be.

use crate::cache::state::Regions;
use crate::sys::process::FAR_AWAY;
use core::ffi::c_void;
use core::ptr::without_provenance_mut;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// The addresses of the cache's objects, in this process or in the process that it was forked from:
/// the first address, and the end of what is mapped. No other object lies between the two.
static OBJECTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Whether an object is or was an object of a cache, of this process or of its parent.
#[inline(always)]
pub fn is_object(address: usize) -> bool {
    address < OBJECTS[1].load(Relaxed) && address >= OBJECTS[0].load(Relaxed)
}

/// Whether this process or its parent has had a cache.
#[inline(always)]
pub fn was_taken() -> bool {
    OBJECTS[1].load(Relaxed) != 0
}

/// The cache is about to have objects at these addresses.
pub fn take(objects: core::ops::Range<usize>) {
    OBJECTS[0].store(objects.start, Relaxed);
    OBJECTS[1].fetch_max(objects.end, Release);
}

/// Maps a part of an array that lies in the cache: from the byte `from` to the byte `to`, both
/// multiples of the page size or the array's end. False if the kernel maps nothing there.
///
/// A system call: this library's own mmap would ask for the cache. Any thread may call this.
#[cfg(not(any(test, loom, miri)))]
pub fn map<T>(array: *const T, from: usize, to: usize, in_huge_pages: bool) -> bool {
    let start = array.addr() + from;
    let length = (to - from).next_multiple_of(crate::sys::process::PAGE_SIZE);
    if !map_at(start, length) {
        return false;
    }
    if in_huge_pages {
        // SAFETY: the memory has just been mapped; the advice keeps its content.
        unsafe { libc::syscall(libc::SYS_madvise, start, length, libc::MADV_HUGEPAGE) };
    }
    true
}

/// The tests' caches are whole.
#[cfg(any(test, loom, miri))]
pub fn map<T>(_: *const T, _: usize, _: usize, _: bool) -> bool {
    true
}

/// Maps zeroed memory at this address. False if something is there, or the kernel refuses.
fn map_at(address: usize, length: usize) -> bool {
    map_with(address, length, libc::PROT_READ | libc::PROT_WRITE) == Some(address)
}

fn map_with(address: usize, length: usize, protection: i32) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let flags = if address == 0 {
        flags
    } else {
        flags | libc::MAP_FIXED_NOREPLACE
    };
    let place: *mut c_void = without_provenance_mut(address);
    // SAFETY: a new mapping where there is none touches no other memory.
    let mapped =
        unsafe { libc::syscall(libc::SYS_mmap, place, length, protection, flags, -1, 0usize) };
    if mapped == -1 {
        return None;
    }
    let mapped = mapped as usize;
    if address != 0 && mapped != address {
        // Before Linux 4.17 the kernel maps elsewhere instead.
        unmap(mapped, length);
        return None;
    }
    Some(mapped)
}

fn unmap(address: usize, length: usize) {
    // SAFETY: the caller has mapped this memory, and nobody uses it.
    unsafe { libc::syscall(libc::SYS_munmap, address, length) };
}

/// Finds a place for the cache, and maps what an empty cache needs.
pub fn find() -> Option<&'static Regions> {
    const PLACES: usize = 8;
    const APART: usize = (size_of::<Regions>() + align_of::<Regions>()).next_multiple_of(32 << 20);
    let mut places = (0..PLACES)
        .map(|n| (FAR_AWAY + (1 << 24) + n * APART).next_multiple_of(align_of::<Regions>()));
    places.find_map(begin).or_else(|| begin(free_place()?))
}

/// A place where nothing is mapped, in an address space that does not reach so far.
fn free_place() -> Option<usize> {
    let size = size_of::<Regions>() + align_of::<Regions>();
    let start = map_with(0, size, libc::PROT_NONE)?;
    unmap(start, size);
    Some(start.next_multiple_of(align_of::<Regions>()))
}

fn begin(address: usize) -> Option<&'static Regions> {
    let first = Regions::FIRST.map(|(from, length)| (address + from, length));
    for (n, &(start, length)) in first.iter().enumerate() {
        if !map_at(start, length) {
            first[..n]
                .iter()
                .for_each(|&(start, length)| unmap(start, length));
            return None;
        }
    }
    let regions = core::ptr::with_exposed_provenance::<Regions>(address);
    // SAFETY: zeroed memory is an empty cache, whose parts say what of them is mapped. The address
    // is aligned, and nothing is unmapped from now on.
    let regions = unsafe { &*regions };
    regions.has_first();
    Some(regions)
}

/// An array that begins at a page, so that its parts can be mapped.
#[repr(C)]
#[cfg_attr(target_arch = "aarch64", repr(align(65536)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(align(4096)))]
pub struct Paged<T>(T);

impl<T> core::ops::Deref for Paged<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
