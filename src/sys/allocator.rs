// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's allocator: the C library's, and a reserve for when that has no memory.
//!
//! While the library is loaded it uses memory of its own: the C library's `malloc` may be the
//! program's, which a constructor of the program has yet to make ready.
//!
//! Rust ends a process whose allocation fails, and the library must not end a program that can
//! handle ENOMEM. An allocation that the C library refuses is therefore served from the reserve. A
//! call that allocates asks first whether it may: [`has_memory`] is false once half of the reserve
//! is used and the C library has no memory either, and the call then fails with ENOMEM. No call
//! allocates as much as the other half, except by `try_reserve`.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::alloc::System;

/// The reserve, in bytes. A page of .bss that is never touched costs nothing.
const RESERVE: usize = 256 << 10;

struct Reserve {
    memory: UnsafeCell<[u8; RESERVE]>,
    /// How many bytes are used, and above that how many pieces are in use. A freed piece leaves a
    /// gap, and freeing the last piece frees the whole reserve. One word and no lock: the reserve
    /// also serves signal handlers, and children whose parent was in this code at the fork.
    state: AtomicU64,
}

const PIECE: u64 = 1 << 32;

// SAFETY: the memory is given out in pieces that do not overlap.
unsafe impl Sync for Reserve {}

static RESERVED: Reserve = Reserve::new();
/// For [`IS_LOADED`]. What is allocated then stays, so it is no part of the other one.
static AT_LOAD: Reserve = Reserve::new();
static IS_LOADED: AtomicBool = AtomicBool::new(false);

/// The library is loaded: from now on the C library's `malloc` serves it.
pub fn loaded() {
    IS_LOADED.store(true, Relaxed);
}

impl Reserve {
    const fn new() -> Reserve {
        Reserve {
            memory: UnsafeCell::new([0; RESERVE]),
            state: AtomicU64::new(0),
        }
    }

    /// Whether a pointer is to a piece of the reserve.
    fn holds(&self, pointer: *mut u8) -> bool {
        pointer.addr().wrapping_sub(self.memory.get().addr()) < RESERVE
    }

    /// A piece of the reserve. NULL if there is no room.
    fn alloc(&self, layout: Layout) -> *mut u8 {
        let (start, mut from) = (self.memory.get().addr(), 0);
        let taken = self.state.fetch_update(AcqRel, Acquire, |state| {
            let used = state % PIECE;
            let free = start + used as usize;
            from = free.checked_next_multiple_of(layout.align())? - start;
            let to = from.checked_add(layout.size())?;
            (to <= RESERVE).then_some(state - used + PIECE + to as u64)
        });
        match taken {
            Ok(_) => self.memory.get().cast::<u8>().wrapping_add(from),
            Err(_) => core::ptr::null_mut(),
        }
    }

    fn dealloc(&self) {
        let fewer = |state| Some(state - PIECE).map(|rest| if rest < PIECE { 0 } else { rest });
        let _ = self.state.fetch_update(AcqRel, Acquire, fewer);
    }

    fn is_half_used(&self) -> bool {
        (self.state.load(Relaxed) % PIECE) as usize > RESERVE / 2
    }
}

/// Whether a call may allocate. If not, the call must fail with ENOMEM before it changes anything.
pub fn has_memory() -> bool {
    if !RESERVED.is_half_used() {
        return true;
    }
    // Without `black_box` the compiler drops the pair of calls, and says that there is memory.
    // SAFETY: malloc takes no pointers.
    let some = black_box(unsafe { libc::malloc(RESERVE / 2) });
    // SAFETY: malloc has just returned the pointer, or NULL, which free ignores.
    unsafe { libc::free(some) };
    !some.is_null()
}

/// A value in memory that the system provides as zeros, which touches no page that is not used. `None`
/// if there is no memory.
///
/// # Safety
/// Zeros are a valid `T`, which has a size.
pub unsafe fn zeroed<T>() -> Option<Box<T>> {
    // SAFETY: this function's contract: the size is not 0.
    let memory = unsafe { std::alloc::alloc_zeroed(Layout::new::<T>()) }.cast::<T>();
    // SAFETY: the allocator gave the memory for this type, and zeros are valid.
    (!memory.is_null()).then(|| unsafe { Box::from_raw(memory) })
}

/// Memory of the first of the three that has some.
fn allocate(layout: Layout, system: impl FnOnce() -> *mut u8) -> *mut u8 {
    if !IS_LOADED.load(Relaxed) {
        let memory = AT_LOAD.alloc(layout);
        if !memory.is_null() {
            return memory;
        }
    }
    let memory = system();
    if memory.is_null() {
        return RESERVED.alloc(layout);
    }
    memory
}

struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

// SAFETY: each piece is the C library's, or one of the reserve's, which do not overlap, and goes back
// to where it came from. Nothing here unwinds.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`.
        allocate(layout, || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        let memory = allocate(layout, || unsafe { System.alloc_zeroed(layout) });
        if RESERVED.holds(memory) || AT_LOAD.holds(memory) {
            // SAFETY: the reserve gave that many bytes, to this caller alone.
            unsafe { memory.write_bytes(0, layout.size()) };
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let mut reserves = [&RESERVED, &AT_LOAD].into_iter();
        if let Some(reserve) = reserves.find(|it| it.holds(memory)) {
            return reserve.dealloc();
        }
        // SAFETY: `System` allocated the memory, by the caller's promise with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserve() -> Box<Reserve> {
        let mut reserve = Box::<Reserve>::new_uninit();
        // SAFETY: the memory is the box's.
        unsafe { reserve.as_mut_ptr().write_bytes(0, 1) };
        // SAFETY: zeros are an unused reserve.
        unsafe { reserve.assume_init() }
    }

    #[test]
    fn pieces_do_not_overlap_and_are_aligned() {
        let reserve = reserve();
        let mut end = 0;
        for (size, align) in [(1, 1), (24, 8), (3, 1), (4096, 4096), (100, 64)] {
            let piece = reserve.alloc(Layout::from_size_align(size, align).unwrap());
            assert!(reserve.holds(piece));
            assert_eq!(piece.addr() % align, 0);
            assert!(piece.addr() >= end, "the last piece ends before this one");
            end = piece.addr() + size;
        }
    }

    #[test]
    fn it_ends_and_begins_anew_with_its_last_piece() {
        let reserve = reserve();
        let half = Layout::from_size_align(RESERVE / 2, 1).unwrap();
        let more = Layout::from_size_align(RESERVE / 2 + 1, 1).unwrap();
        assert!(!reserve.alloc(half).is_null());
        assert!(!reserve.is_half_used());
        assert!(reserve.alloc(more).is_null(), "no room");
        assert!(!reserve.alloc(half).is_null(), "the rest");
        assert!(reserve.is_half_used());
        assert!(
            reserve.alloc(Layout::new::<u8>()).is_null(),
            "nothing is left"
        );
        reserve.dealloc();
        assert!(
            reserve.alloc(Layout::new::<u8>()).is_null(),
            "one is in use"
        );
        reserve.dealloc();
        assert!(!reserve.alloc(half).is_null(), "all came back");
    }
}
