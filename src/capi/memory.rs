// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory calls of the C library that the pool of relaxed regions must hear of (`relaxed/hooks.rs`).
//!
//! They are exported without a version node: a symbol under a node of ours would not stand in for
//! `munmap@GLIBC_2.2.5`. Each does what the next library of that name does, so that AddressSanitizer,
//! jemalloc and other libraries that stand in for them keep working above and below. The next ones are
//! looked up when the library is loaded, never in a call; before that, and in programs that have no dynamic
//! linker, the kernel is called as the C library does.
//!
//! # Safety
//! Each has the contract of its manual page, section 2, and passes its arguments on unchanged.

#![cfg_attr(test, allow(dead_code, reason = "unit tests stand in for nothing"))]

use crate::relaxed::hooks;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicPtr, Ordering::*};

type Address = *mut c_void;

/// The next library's function of a name.
struct Next<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    signature: core::marker::PhantomData<F>,
}
// SAFETY: the address of a function can be used by any thread.
unsafe impl<F> Sync for Next<F> {}

impl<F: Copy> Next<F> {
    const fn new(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<Address>()) };
        Next {
            name,
            found: AtomicPtr::new(null_mut()),
            signature: core::marker::PhantomData,
        }
    }

    #[inline(always)]
    fn get(&self) -> Option<F> {
        let found = self.found.load(Relaxed);
        // SAFETY: a function of that name has that type, by the declarations below.
        (!found.is_null()).then(|| unsafe { core::mem::transmute_copy(&found) })
    }

    fn find(&self) {
        // SAFETY: the name ends with a NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Relaxed);
    }
}

/// Declares the next functions, and what finds them all.
macro_rules! next {
    ($( $name:ident = $symbol:literal: fn($($arg:ty),*) -> $ret:ty; )*) => {
        $( static $name: Next<unsafe extern "C" fn($($arg),*) -> $ret> = Next::new($symbol); )*
        fn find_all() { $( $name.find(); )* MREMAP.find(); }
    };
}
next! {
    MUNMAP = c"munmap": fn(Address, usize) -> c_int;
    MMAP = c"mmap": fn(Address, usize, c_int, c_int, c_int, libc::off_t) -> Address;
    MMAP64 = c"mmap64": fn(Address, usize, c_int, c_int, c_int, libc::off64_t) -> Address;
    MADVISE = c"madvise": fn(Address, usize, c_int) -> c_int;
    PROCESS_MADVISE = c"process_madvise":
        fn(c_int, *const libc::iovec, usize, c_int, c_uint) -> isize;
    MPROTECT = c"mprotect": fn(Address, usize, c_int) -> c_int;
    PKEY_MPROTECT = c"pkey_mprotect": fn(Address, usize, c_int, c_int) -> c_int;
    BRK = c"brk": fn(Address) -> c_int;
    SBRK = c"sbrk": fn(isize) -> Address;
    SHMAT = c"shmat": fn(c_int, *const c_void, c_int) -> Address;
    SHMDT = c"shmdt": fn(*const c_void) -> c_int;
    FTRUNCATE = c"ftruncate": fn(c_int, libc::off_t) -> c_int;
    FTRUNCATE64 = c"ftruncate64": fn(c_int, libc::off64_t) -> c_int;
    TRUNCATE = c"truncate": fn(*const c_char, libc::off_t) -> c_int;
    TRUNCATE64 = c"truncate64": fn(*const c_char, libc::off64_t) -> c_int;
    FALLOCATE = c"fallocate": fn(c_int, c_int, libc::off_t, libc::off_t) -> c_int;
    FALLOCATE64 = c"fallocate64": fn(c_int, c_int, libc::off64_t, libc::off64_t) -> c_int;
    REMAP_FILE_PAGES = c"remap_file_pages": fn(Address, usize, c_int, usize, c_int) -> c_int;
}
/// Variadic in C, and so here: some ABIs pass such arguments in another way.
static MREMAP: Next<unsafe extern "C" fn(Address, usize, usize, c_int, ...) -> Address> =
    Next::new(c"mremap");

unsafe extern "C" {
    /// glibc's own name for sbrk, which only glibc has.
    fn __sbrk(increment: isize) -> Address;
}

/// The next function if it is known, else the system call of the same arguments.
macro_rules! call_next {
    ($next:ident($($arg:expr),*), $number:ident) => {
        match $next.get() {
            // SAFETY: the caller's own arguments.
            Some(next) => unsafe { next($($arg),*) },
            // SAFETY: as above.
            None => (unsafe { libc::syscall(libc::$number, $($arg),*) }) as _,
        }
    };
}

fn is_error(address: Address) -> bool {
    address == libc::MAP_FAILED
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn munmap(addr: Address, length: usize) -> c_int {
    let _changing = hooks::changing(addr.addr(), length);
    call_next!(MUNMAP(addr, length), SYS_munmap)
}

/// What a mapping has replaced, and whether others share it.
#[inline(always)]
fn map(
    (addr, length, flags, fd): (Address, usize, c_int, c_int),
    map: impl FnOnce() -> Address,
) -> Address {
    let replaces = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED;
    let mapped = if replaces {
        let _changing = hooks::changing(addr.addr(), length);
        map()
    } else {
        map()
    };
    // MAP_SHARED and MAP_SHARED_VALIDATE have that bit, MAP_PRIVATE has not.
    if flags & libc::MAP_SHARED != 0 && hooks::is_in_use() && !is_error(mapped) {
        let file = (flags & libc::MAP_ANONYMOUS == 0).then_some(fd);
        hooks::mapped_shared(mapped.addr(), length, file);
    }
    mapped
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
    map((addr, length, flags, fd), || match MMAP.get() {
        // SAFETY: the caller's own arguments.
        Some(next) => unsafe { next(addr, length, protection, flags, fd, offset) },
        // SAFETY: as above.
        None => unsafe { map_by_kernel(addr, length, protection, flags, fd, offset) },
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
    map((addr, length, flags, fd), || match MMAP64.get() {
        // SAFETY: the caller's own arguments.
        Some(next) => unsafe { next(addr, length, protection, flags, fd, offset) },
        // SAFETY: as above.
        None => unsafe { map_by_kernel(addr, length, protection, flags, fd, offset) },
    })
}

unsafe fn map_by_kernel(
    addr: Address,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> Address {
    // SAFETY: the caller's own arguments.
    let mapped =
        unsafe { libc::syscall(libc::SYS_mmap, addr, length, protection, flags, fd, offset) };
    without_provenance_mut(mapped as usize)
}

/// In C the last argument is there only with some flags. As the ABIs of Linux have it, it is where a fixed
/// argument would be, and what is there otherwise is passed on and not looked at.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mremap(
    old: Address,
    old_size: usize,
    new_size: usize,
    flags: c_int,
    new: Address,
) -> Address {
    const DONTUNMAP: c_int = 4;
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let mut target = fixed.then(|| hooks::changing(new.addr(), new_size));
    let mut changing = hooks::may_change(old.addr(), old_size);
    let call = || match MREMAP.get() {
        // SAFETY: the caller's own arguments.
        Some(next) => unsafe { next(old, old_size, new_size, flags, new) },
        // SAFETY: as above.
        None => without_provenance_mut(unsafe {
            libc::syscall(libc::SYS_mremap, old, old_size, new_size, flags, new)
        } as usize),
    };
    let mut moved = call();
    if is_error(moved) && errno::errno().0 == libc::EFAULT {
        // It takes one mapping, and to watch part of it may have made it several: join them.
        changing.changed(old.addr(), old_size);
        if hooks::unwatch(old.addr(), old_size) {
            moved = call();
        }
    }
    if is_error(moved) {
        // It may have unmapped the target, or what was to be cut off.
        changing.changed(old.addr(), old_size);
    } else if moved != old || flags & DONTUNMAP != 0 {
        changing.changed(old.addr(), old_size);
        if let Some(target) = &mut target {
            target.changed(moved.addr(), new_size);
        }
        hooks::moved(moved.addr(), new_size);
    } else if new_size > old_size {
        hooks::moved(old.addr() + old_size, new_size - old_size);
    } else if new_size < old_size {
        changing.changed(old.addr() + new_size, old_size - new_size);
    }
    moved
}

/// Whether advice lets pages go, or forbids them. Advice that keeps what is in a pinned page does not
/// matter.
fn drops_pages(advice: c_int) -> bool {
    const DONTNEED_LOCKED: c_int = 24;
    const GUARD_INSTALL: c_int = 102;
    const GUARD_REMOVE: c_int = 103;
    matches!(
        advice,
        libc::MADV_DONTNEED
            | libc::MADV_FREE
            | libc::MADV_REMOVE
            | libc::MADV_HWPOISON
            | libc::MADV_SOFT_OFFLINE
            | DONTNEED_LOCKED
            | GUARD_INSTALL
            | GUARD_REMOVE
    )
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn madvise(addr: Address, length: usize, advice: c_int) -> c_int {
    let _changing = drops_pages(advice).then(|| hooks::changing(addr.addr(), length));
    call_next!(MADVISE(addr, length, advice), SYS_madvise)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    ranges: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    // Taken for our own process, whose file it may be, and for all of its memory: the list may be bad.
    let _changing = drops_pages(advice).then(|| hooks::changing(0, usize::MAX / 2));
    call_next!(
        PROCESS_MADVISE(pidfd, ranges, count, advice, flags),
        SYS_process_madvise
    )
}

/// A region that was pinned with more rights than its pages have now must not serve.
#[inline(always)]
fn protecting(addr: Address, length: usize, protection: c_int) -> Option<hooks::Changing> {
    let all = libc::PROT_READ | libc::PROT_WRITE;
    (protection & all != all).then(|| hooks::changing(addr.addr(), length))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mprotect(addr: Address, length: usize, protection: c_int) -> c_int {
    let _changing = protecting(addr, length, protection);
    call_next!(MPROTECT(addr, length, protection), SYS_mprotect)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn pkey_mprotect(
    addr: Address,
    length: usize,
    protection: c_int,
    key: c_int,
) -> c_int {
    let _changing = protecting(addr, length, protection);
    call_next!(
        PKEY_MPROTECT(addr, length, protection, key),
        SYS_pkey_mprotect
    )
}

fn move_break(increment: isize) -> Address {
    match SBRK.get() {
        // SAFETY: the program's own wish.
        Some(next) => unsafe { next(increment) },
        // SAFETY: as above.
        None => unsafe { __sbrk(increment) },
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn brk(end: Address) -> c_int {
    let now = if hooks::is_in_use() {
        move_break(0)
    } else {
        end
    };
    let _changing = hooks::changing(end.addr(), now.addr().saturating_sub(end.addr()));
    match BRK.get() {
        // SAFETY: the caller's own argument.
        Some(next) => unsafe { next(end) },
        None => {
            let increment = end.addr().wrapping_sub(move_break(0).addr()) as isize;
            if is_error(move_break(increment)) {
                -1
            } else {
                0
            }
        }
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn sbrk(increment: isize) -> Address {
    if increment >= 0 || !hooks::is_in_use() {
        return move_break(increment);
    }
    let freed = increment.unsigned_abs();
    let end = move_break(0).addr();
    let _changing = hooks::changing(end.saturating_sub(freed), freed);
    move_break(increment)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn shmat(id: c_int, addr: *const c_void, flags: c_int) -> Address {
    let size = || {
        let mut about = core::mem::MaybeUninit::<libc::shmid_ds>::uninit();
        // SAFETY: the structure is writable.
        if unsafe { libc::shmctl(id, libc::IPC_STAT, about.as_mut_ptr()) } != 0 {
            return usize::MAX / 2;
        }
        // SAFETY: filled by the call.
        unsafe { about.assume_init() }.shm_segsz
    };
    if !hooks::is_in_use() {
        return call_next!(SHMAT(id, addr, flags), SYS_shmat);
    }
    let errno = errno::errno();
    let size = size();
    errno::set_errno(errno);
    let replaces = flags & libc::SHM_REMAP != 0;
    let changing = replaces.then(|| hooks::changing(addr.addr(), size));
    let attached: Address = call_next!(SHMAT(id, addr, flags), SYS_shmat);
    drop(changing);
    if !is_error(attached) {
        hooks::attached(attached.addr(), size);
    }
    attached
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn shmdt(addr: *const c_void) -> c_int {
    let _changing = hooks::detaching(addr.addr());
    call_next!(SHMDT(addr), SYS_shmdt)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ftruncate(fd: c_int, length: libc::off_t) -> c_int {
    let _changing = hooks::cutting_file();
    call_next!(FTRUNCATE(fd, length), SYS_ftruncate)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ftruncate64(fd: c_int, length: libc::off64_t) -> c_int {
    let _changing = hooks::cutting_file();
    call_next!(FTRUNCATE64(fd, length), SYS_ftruncate)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn truncate(path: *const c_char, length: libc::off_t) -> c_int {
    let _changing = hooks::cutting_file();
    call_next!(TRUNCATE(path, length), SYS_truncate)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn truncate64(path: *const c_char, length: libc::off64_t) -> c_int {
    let _changing = hooks::cutting_file();
    call_next!(TRUNCATE64(path, length), SYS_truncate)
}

/// Every mode but that of plain allocation (0, and keeping the size) changes pages that exist.
#[inline(always)]
fn allocating(mode: c_int) -> Option<hooks::Changing> {
    (mode & !libc::FALLOC_FL_KEEP_SIZE != 0).then(hooks::cutting_file)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn fallocate(
    fd: c_int,
    mode: c_int,
    offset: libc::off_t,
    length: libc::off_t,
) -> c_int {
    let _changing = allocating(mode);
    call_next!(FALLOCATE(fd, mode, offset, length), SYS_fallocate)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn fallocate64(
    fd: c_int,
    mode: c_int,
    offset: libc::off64_t,
    length: libc::off64_t,
) -> c_int {
    let _changing = allocating(mode);
    call_next!(FALLOCATE64(fd, mode, offset, length), SYS_fallocate)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn remap_file_pages(
    addr: Address,
    size: usize,
    protection: c_int,
    offset: usize,
    flags: c_int,
) -> c_int {
    let _changing = hooks::changing(addr.addr(), size);
    call_next!(
        REMAP_FILE_PAGES(addr, size, protection, offset, flags),
        SYS_remap_file_pages
    )
}

/// Finds the next functions when the library is loaded.
unsafe extern "C" fn load() {
    find_all();
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: unsafe extern "C" fn() = load;
