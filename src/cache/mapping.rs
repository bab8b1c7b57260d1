// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mappings for the cache's arrays. Only the parts in use are mapped.

use core::ffi::c_void;
use core::ptr::without_provenance_mut;
use rdmamr_sys::pages::LARGEST_PAGE;

/// Maps a part of an array that lies in the cache: from the byte `from` to the byte `to`, both
/// multiples of the page size or the array's end. A large part is in huge pages as far as they fit.
/// False if the kernel maps nothing there.
///
/// Uses raw system calls, because this library's own mmap would look for the cache. Any thread may
/// call this. The tests allocate the whole cache at once.
pub fn map<T>(array: *const T, from: usize, to: usize) -> bool {
    if cfg!(any(test, feature = "tiny", loom, miri)) {
        return true;
    }
    let start = array.addr() + from;
    let length = (to - from).next_multiple_of(LARGEST_PAGE);
    let there = map_at(start, length);
    if there && length >= HUGE_PAGE {
        // SAFETY: the memory has just been mapped; the advice keeps its content.
        unsafe { libc::syscall(libc::SYS_madvise, start, length, libc::MADV_HUGEPAGE) };
    }
    there
}

/// Maps zeroed memory at this address. False if something is mapped there, or if the kernel
/// refuses.
pub(super) fn map_at(address: usize, length: usize) -> bool {
    map_with(address, length, libc::PROT_READ | libc::PROT_WRITE) == Some(address)
}

pub(super) fn map_with(address: usize, length: usize, protection: i32) -> Option<usize> {
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

pub(super) fn unmap(address: usize, length: usize) {
    // SAFETY: the caller has mapped this memory, and nothing uses it.
    unsafe { libc::syscall(libc::SYS_munmap, address, length) };
}

/// An array that begins at a page, so that its parts can be mapped.
#[repr(C)]
#[cfg_attr(target_arch = "aarch64", repr(align(65536)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(align(4096)))]
pub struct Paged<T>(pub T);

pub const HUGE_PAGE: usize = 2 << 20;

/// An array that deserves huge pages once a large part of it is in use: the processor then finds
/// 100 000 slots without a walk of page tables. The array begins at a multiple of 2 MiB. Its user
/// fills it from the start, and maps each part before that.
#[repr(C)]
#[cfg_attr(not(any(test, feature = "tiny")), repr(align(0x20_0000)))]
pub struct Large<T>(pub T);
