// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory calls of the C library that change mappings: the cache must learn of each such change
//! (`cache/life/change.rs`).
//!
//! The symbols here have no version node: a symbol under a node of this library would not replace
//! `munmap@GLIBC_2.2.5`. Each function calls the next library's function of the same name, so that
//! AddressSanitizer, jemalloc and other libraries that replace these calls keep working above and
//! below this library. The library looks up the next functions when it is loaded, never in a call.
//! Before that, and in programs without a dynamic linker, a function makes the system call as the C
//! library does.
//!
//! # Safety
//! **Same contract**: each function has the contract of its manual page (section 2), and forwards
//! its arguments, or a part of the range that they name, to a function or a system call with that same
//! contract.

use super::forward::{around, call_next, during, next};
use super::ret;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use rdmamr_cache::dispatch::changes::{self, CallUnderWay};
use rdmamr_cache::dispatch::{self, End};
use rdmamr_sys::function::Function;
use rdmamr_sys::loaded_files::Object;
use rdmamr_sys::memory::has_page;
use rdmamr_sys::pages::page_size;
use rdmamr_sys::symbols::{self, Scope};
use rdmamr_sys::thread;

type Address = *mut c_void;

next! {
    MUNMAP = c"munmap": unsafe extern "C" fn(Address, usize) -> c_int;
    MMAP = c"mmap":
        unsafe extern "C" fn(Address, usize, c_int, c_int, c_int, libc::off_t) -> Address;
    MMAP64 = c"mmap64":
        unsafe extern "C" fn(Address, usize, c_int, c_int, c_int, libc::off64_t) -> Address;
    // Variadic here as in C, since some ABIs pass variadic arguments differently.
    MREMAP = c"mremap": unsafe extern "C" fn(Address, usize, usize, c_int, ...) -> Address;
    MADVISE = c"madvise": unsafe extern "C" fn(Address, usize, c_int) -> c_int;
    PROCESS_MADVISE = c"process_madvise":
        unsafe extern "C" fn(c_int, *const libc::iovec, usize, c_int, c_uint) -> isize;
    MPROTECT = c"mprotect": unsafe extern "C" fn(Address, usize, c_int) -> c_int;
    PKEY_MPROTECT = c"pkey_mprotect":
        unsafe extern "C" fn(Address, usize, c_int, c_int) -> c_int;
    BRK = c"brk": unsafe extern "C" fn(Address) -> c_int;
    SBRK = c"sbrk": unsafe extern "C" fn(isize) -> Address;
    SHMAT = c"shmat": unsafe extern "C" fn(c_int, *const c_void, c_int) -> Address;
}

unsafe extern "C" {
    /// glibc's internal name for sbrk. Other C libraries do not have this name.
    fn __sbrk(increment: isize) -> Address;
}

/// The next realloc.
static REALLOC: Function<unsafe extern "C" fn(Address, usize) -> Address> =
    // SAFETY: the signature is that of realloc(3).
    unsafe { Function::new() };

/// Whether the next realloc is glibc's own, whose blocks [`mapping_that_grows`] can read. Other
/// allocators define `__libc_realloc` too (tcmalloc), so the file that has the function decides.
static IS_GLIBCS: AtomicBool = AtomicBool::new(false);

pub fn find_realloc() {
    let next = symbols::find(Scope::Next, c"realloc", None);
    let glibcs = symbols::find(Scope::Program, c"gnu_get_libc_version", None);
    let file = |function| Object::with(function).map(|file| file.start);
    let (own, glibcs) = (next.and_then(file), glibcs.and_then(file));
    let is_glibcs = own.is_some() && own == glibcs;
    IS_GLIBCS.store(is_glibcs, Relaxed);
    REALLOC.set(next);
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn munmap(addr: Address, length: usize) -> c_int {
    during(
        || changes::changing(addr.addr(), length),
        || call_next!(MUNMAP(addr, length), SYS_munmap),
    )
}

/// The common body of `mmap` and `mmap64`: reports the memory that the mapping replaces.
#[inline(always)]
fn map((addr, length, flags): (Address, usize, c_int), map: impl FnOnce() -> Address) -> Address {
    let replaces = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED;
    during(
        || replaces.then(|| changes::changing(addr.addr(), length)),
        map,
    )
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mmap(
    addr: Address,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> Address {
    map((addr, length, flags), || {
        call_next!(MMAP(addr, length, protection, flags, fd, offset), SYS_mmap)
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mmap64(
    addr: Address,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off64_t,
) -> Address {
    map((addr, length, flags), || {
        call_next! { MMAP64(addr, length, protection, flags, fd, offset), SYS_mmap }
    })
}

/// In C the last argument is present only with some flags. In the ABIs of Linux it lies where a
/// fixed argument would lie. If it is absent, the function forwards whatever lies there, and does
/// not look at it.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mremap(
    old: Address,
    old_size: usize,
    new_size: usize,
    flags: c_int,
    new: Address,
) -> Address {
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let before = || {
        let target = fixed.then(|| changes::changing(new.addr(), new_size));
        let source = changes::moving(old.addr(), old_size, new_size);
        let several = fixed && changes::several_can_move();
        if several || (fixed && changes::is_near(old.addr(), old_size)) {
            // The kernel moves several mappings one by one, and stops at a watched one. For a
            // single mapping it unmaps the target before it refuses the move.
            source.unwatch();
        }
        (several, source, target)
    };
    let remapping = ret::always(None, || Some(before()));
    // The arguments are the caller's, or those of a call that completes the caller's.
    let call = |old_size: usize| -> Address {
        call_next!(MREMAP(old, old_size, new_size, flags, new), SYS_mremap)
    };
    let before = errno::errno();
    let mut moved = call(old_size);
    let several = matches!(remapping, Some((true, ..)));
    if moved == libc::MAP_FAILED && errno::errno().0 == libc::EFAULT && !several {
        // mremap accepts a single VMA only, and the watch of a part, or the advice for huge pages on
        // a part, may have split the VMA: merge the parts. (A call that moves several mappings is
        // not repeated: some may have moved, and with MREMAP_DONTUNMAP a second call would move the
        // empty mappings that the first left.)
        let joined = ret::always(false, || {
            let source = remapping.as_ref().map(|(_, source, _)| source);
            let unwatched = source.is_some_and(CallUnderWay::unwatch);
            rdmamr_prefault::join(old.addr(), old_size) || unwatched
        });
        if joined && (!fixed || reserve(old, new, new_size)) {
            // With a fixed address the first call has cut off the source's end, and another thread
            // may have mapped memory there.
            errno::set_errno(before);
            moved = call(old_size.min(new_size));
        }
    }
    ret::always((), || drop(remapping));
    moved
}

/// Reserves the target of an mremap that has failed. The kernel has unmapped the target, and by now
/// another thread may have mapped memory there, which a second call would replace. If the second
/// call fails too, the kernel unmaps the target again, unless nothing is mapped at the source: in
/// that case this function reserves nothing. Returns whether the target is reserved. Leaves errno
/// unchanged.
fn reserve(source: Address, target: Address, length: usize) -> bool {
    let is_mapped = || has_page(source.addr()).is_some();
    let none = libc::PROT_NONE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let flags = flags | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: the kernel maps memory where there is none, or returns an error.
    let map = || unsafe { libc::syscall(libc::SYS_mmap, target, length, none, flags, -1, 0) };
    thread::keep_errno(|| is_mapped() && map() as usize == target.addr())
}

/// The address and length of the mapping of a glibc block, if the block has a mapping of its own
/// and realloc(3) would enlarge it. realloc then calls mremap(2) inside the C library.
fn mapping_that_grows(block: Address, size: usize) -> Option<(usize, usize)> {
    const IS_MAPPED: usize = 2;
    const FLAGS: usize = 7;
    const HEADER: usize = 16;
    /// In the first word, from glibc 2.43 on.
    const HAS_HUGE_PAGES: usize = 1;
    // A block with a memory tag: its header has another one, and to read it by this pointer is a fault.
    let is_tagged = block.addr() >> 56 != 0;
    if block.is_null() || is_tagged || !IS_GLIBCS.load(Relaxed) {
        return None;
    }
    let header = block.cast::<usize>().wrapping_sub(2);
    // SAFETY: same contract: the block is glibc's, and two words precede it. The C library wrote
    // the second word when it allocated the block.
    let length = unsafe { header.wrapping_add(1).read_unaligned() };
    if length & IS_MAPPED == 0 {
        return None;
    }
    // SAFETY: the block is a mapping, so the first word belongs to it as well. (Otherwise it may
    // belong to the block before this one, which another thread may be writing.)
    let before = unsafe { header.read_unaligned() } & !HAS_HUGE_PAGES;
    let start = block.addr().wrapping_sub(HEADER).wrapping_sub(before);
    let counted = before.wrapping_add(length & !FLAGS);
    // glibc makes the same check: an unaligned block is not a mapping. From 2.43 on it does not count
    // the header.
    let page = page_size() as usize;
    let length = counted.checked_next_multiple_of(page)?;
    let is_block = start % page == 0 && [0, HEADER].contains(&(length - counted));
    (is_block && size > length - before - HEADER).then_some((start, length))
}

/// mremap(2) accepts a single VMA only. If the cache watches a part of a block, or huge pages were
/// asked for a part (`RDMAMR_PREFAULT`), the C library's own mremap fails, and realloc copies the
/// block: that takes 400 times as long, and twice the memory.
unsafe extern "C" fn reallocate(block: Address, size: usize) -> Address {
    if changes::are_wanted() || rdmamr_prefault::has_split() {
        ret::always((), || {
            if let Some((start, length)) = mapping_that_grows(block, size) {
                let moving = changes::moving(start, length, size);
                if changes::is_near(start, length) {
                    moving.unwatch();
                }
                rdmamr_prefault::join(start, length);
            }
        });
    }
    if REALLOC.get().is_none() {
        // The caller is a constructor that runs before this library's. realloc is called neither in
        // a signal handler nor under a lock of the allocator, so a lookup is safe here.
        ret::always((), find_realloc);
    }
    match REALLOC.get() {
        // SAFETY: same contract: the arguments are the caller's, unchanged.
        Some(next) => unsafe { next(block, size) },
        None => {
            errno::set_errno(errno::Errno(libc::ENOMEM));
            core::ptr::null_mut()
        }
    }
}

// The symbol is weak. In a static program the C library has malloc and realloc in one object, and
// the linker would refuse a second realloc that is not weak.
#[cfg(not(test))]
super::export::stub!("realloc", ".text.rdmamr_realloc", ".weak ", reallocate, ());
#[cfg(test)]
const _: () = {
    let _ = reallocate;
};

/// Whether advice drops pages, and userfaultfd reports that.
fn drops_pages(advice: c_int) -> bool {
    const DONTNEED_LOCKED: c_int = 24;
    matches!(
        advice,
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE | DONTNEED_LOCKED
    )
}

/// Whether advice drops pages or forbids access to them without a report of userfaultfd. Other
/// advice keeps the content of a pinned page, and does not matter.
fn is_unreported(advice: c_int) -> bool {
    const GUARD_INSTALL: c_int = 102;
    const GUARD_REMOVE: c_int = 103;
    matches!(
        advice,
        libc::MADV_HWPOISON | libc::MADV_SOFT_OFFLINE | GUARD_INSTALL | GUARD_REMOVE
    )
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn madvise(addr: Address, length: usize, advice: c_int) -> c_int {
    let call = || call_next!(MADVISE(addr, length, advice), SYS_madvise);
    if is_unreported(advice) {
        advising(changes::unreported, addr, length, call)
    } else if drops_pages(advice) {
        advising(changes::changing, addr, length, call)
    } else {
        call()
    }
}

#[inline(never)]
fn advising<C>(
    begin: fn(usize, usize) -> C,
    addr: Address,
    length: usize,
    advise: impl FnOnce() -> c_int,
) -> c_int {
    during(|| begin(addr.addr(), length), advise)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    ranges: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    // `pidfd` may name this process, and `ranges` may be unreadable, so all memory of this process
    // may change.
    during(
        || is_unreported(advice).then(|| changes::unreported(0, usize::MAX / 2)),
        || -> isize {
            call_next!(
                PROCESS_MADVISE(pidfd, ranges, count, advice, flags),
                SYS_process_madvise
            )
        },
    )
}

/// Reports a change that takes rights away: the cache must not reuse a region that was pinned with
/// more rights than its pages have now.
#[inline(always)]
fn protecting(addr: Address, length: usize, protection: c_int) -> Option<CallUnderWay> {
    let all = libc::PROT_READ | libc::PROT_WRITE;
    (protection & all != all).then(|| {
        if protection & libc::PROT_GROWSDOWN != 0 {
            // With PROT_GROWSDOWN the kernel protects from the start of the mapping, wherever that
            // is.
            return changes::protecting(0, addr.addr().saturating_add(length));
        }
        changes::protecting(addr.addr(), length)
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mprotect(addr: Address, length: usize, protection: c_int) -> c_int {
    during(
        || protecting(addr, length, protection),
        || call_next!(MPROTECT(addr, length, protection), SYS_mprotect),
    )
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn pkey_mprotect(
    addr: Address,
    length: usize,
    protection: c_int,
    key: c_int,
) -> c_int {
    around(
        || protecting(addr, length, protection),
        || {
            call_next!(
                PKEY_MPROTECT(addr, length, protection, key),
                SYS_pkey_mprotect
            )
        },
        |changing, &result: &c_int| {
            drop(changing);
            if key > 0 && length > 0 && result == 0 {
                dispatch::end_for_good(End::Key);
            }
        },
    )
}

fn move_break(increment: isize) -> Address {
    match SBRK.get() {
        // SAFETY: same contract: the increment is the one that the program asked for.
        Some(next) => unsafe { next(increment) },
        // SAFETY: same contract: the increment is the one that the program asked for.
        None => unsafe { __sbrk(increment) },
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn brk(end: Address) -> c_int {
    let before = || {
        let now = if changes::are_wanted() {
            move_break(0)
        } else {
            end
        };
        changes::changing(end.addr(), now.addr().saturating_sub(end.addr()))
    };
    during(before, || match BRK.get() {
        // SAFETY: same contract: the argument is the caller's, unchanged.
        Some(next) => unsafe { next(end) },
        None => {
            let increment = end.addr().wrapping_sub(move_break(0).addr()) as isize;
            if move_break(increment) == libc::MAP_FAILED {
                -1
            } else {
                0
            }
        }
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn sbrk(increment: isize) -> Address {
    let before = || {
        (increment < 0 && changes::are_wanted()).then(|| {
            let freed = increment.unsigned_abs();
            let end = move_break(0).addr();
            changes::changing(end.saturating_sub(freed), freed)
        })
    };
    during(before, || move_break(increment))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn shmat(id: c_int, addr: *const c_void, flags: c_int) -> Address {
    let before = || {
        let replaces = flags & libc::SHM_REMAP != 0;
        replaces.then(|| {
            let size = thread::keep_errno(|| segment_size(id));
            changes::unreported(addr.addr(), size.saturating_add(LARGEST_PAGE))
        })
    };
    during(before, || call_next!(SHMAT(id, addr, flags), SYS_shmat))
}

/// The kernel rounds the size of a segment up to its pages, which may be huge.
const LARGEST_PAGE: usize = 1 << 30;

/// The size of a System V segment in bytes. For an unknown segment, the largest size that a segment
/// can have.
fn segment_size(id: c_int) -> usize {
    let mut about = core::mem::MaybeUninit::<libc::shmid_ds>::uninit();
    // SAFETY: `about` is writable memory of the size of the structure.
    if unsafe { libc::shmctl(id, libc::IPC_STAT, about.as_mut_ptr()) } != 0 {
        return usize::MAX / 2;
    }
    // SAFETY: shmctl returned 0, so it has filled the structure.
    unsafe { about.assume_init() }.shm_segsz
}
