// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C library's calls on descriptors that the cache must learn of (`cache/life/change.rs`):
//! those that close or replace a number, which may be the number of the library's userfaultfd or of a
//! device, and `ioctl`, by which another userfaultfd may end the watch of memory.
//!
//! As in `memory.rs`, the symbols have no version node, and the next functions are looked up when
//! the library is loaded.
//!
//! # Safety
//! **Same contract**: each function has the contract of its manual page (section 2), and forwards
//! its arguments, or a part of the range that they name, to a function or a system call with that same
//! contract.

use super::forward::{call_next, during, next};
use super::ret;
use core::ffi::{c_int, c_uint, c_ulong, c_void};
use core::ops::Range;
use rdmamr_cache::dispatch::changes;
use rdmamr_cache::dispatch::{self, DEVICE_FILES, End, TABLE, WATCH_FD};

next! {
    CLOSE = c"close": unsafe extern "C" fn(c_int) -> c_int;
    CLOSEFROM = c"closefrom": unsafe extern "C" fn(c_int);
    CLOSE_RANGE = c"close_range": unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;
    DUP2 = c"dup2": unsafe extern "C" fn(c_int, c_int) -> c_int;
    DUP3 = c"dup3": unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    UNSHARE = c"unshare": unsafe extern "C" fn(c_int) -> c_int;
    PRCTL = c"prctl": unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;
    IOCTL = c"ioctl": unsafe extern "C" fn(c_int, c_ulong, ...) -> c_int;
}

/// Whether a call on the numbers from `first` to `last` of the caller must step over one of them:
/// that of the library's userfaultfd. If it closes them for the process, it may also close devices.
#[inline(always)]
fn kept_in(first: c_uint, last: c_uint, closes: bool) -> Option<c_int> {
    ret::always(None, || {
        if closes {
            DEVICE_FILES.before_closing(first, last);
        }
        WATCH_FD.kept_in(first, last)
    })
}

/// The library's number is not one of the program's, so there is nothing to close.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    if kept_in(fd as c_uint, fd as c_uint, true).is_some() {
        errno::set_errno(errno::Errno(libc::EBADF));
        return -1;
    }
    call_next!(CLOSE(fd), SYS_close)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn closefrom(first: c_int) {
    let mut first = first.max(0) as c_uint;
    if let Some(kept) = kept_in(first, c_uint::MAX, true) {
        if close_numbers(first..kept as c_uint, 0) != 0 {
            // close_range(2) is refused.
            for fd in first..kept as c_uint {
                // SAFETY: same contract: the call closes what the caller asked to close.
                unsafe { libc::syscall(libc::SYS_close, fd) };
            }
        }
        first = kept as c_uint + 1;
    }
    match CLOSEFROM.get() {
        // SAFETY: same contract: the argument is the caller's.
        Some(next) => unsafe { next(first as c_int) },
        // The C library lacks the function. closefrom(3) returns nothing, so the result is dropped.
        // SAFETY: same contract: the call closes what the caller asked to close.
        None => drop(unsafe { libc::syscall(libc::SYS_close_range, first, c_uint::MAX, 0) }),
    }
}

/// close_range(2) of these numbers, if there are any.
fn close_numbers(numbers: Range<c_uint>, flags: c_int) -> c_int {
    if numbers.is_empty() {
        return 0;
    }
    let (first, last) = (numbers.start, numbers.end - 1);
    call_next!(CLOSE_RANGE(first, last, flags), SYS_close_range)
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    /// CLOSE_RANGE_UNSHARE of <linux/close_range.h>.
    const UNSHARE: c_int = 2;
    let call = |first, last| call_next!(CLOSE_RANGE(first, last, flags), SYS_close_range);
    // With other flags the process keeps its files.
    let closed = match kept_in(first, last, flags == 0) {
        None => call(first, last),
        // Nothing is to be closed, but the kernel looks at the flags.
        Some(_) if first == last => call(c_uint::MAX, c_uint::MAX),
        Some(kept) => match close_numbers(first..kept as c_uint, flags) {
            0 if (kept as c_uint) < last => call(kept as c_uint + 1, last),
            result => result,
        },
    };
    if flags & UNSHARE != 0 {
        ret::always((), || TABLE.ask_again());
    }
    closed
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    let result = call_next!(UNSHARE(flags), SYS_unshare);
    if flags & libc::CLONE_FILES != 0 {
        ret::always((), || TABLE.ask_again());
    }
    result
}

/// The call of dup2(2) or dup3(2), which replaces nothing if it fails.
#[inline(always)]
fn duplicating(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let minds = ret::always(false, || WATCH_FD.is(new) || DEVICE_FILES.may_be(new));
    let mut has_way = true;
    if minds && old != new && is_open(old) {
        if let Some(kept) = kept_in(new as c_uint, new as c_uint, true) {
            has_way = ret::always(true, || WATCH_FD.make_way(kept));
        }
    }
    let made = call();
    if !has_way && made < 0 {
        WATCH_FD.stays(new);
    }
    made
}

/// Whether the number is in use.
fn is_open(fd: c_int) -> bool {
    // SAFETY: the call takes no pointers.
    (unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) }) >= 0
}

/// dup2(2), by dup3(2): not every architecture has a system call dup2.
unsafe fn dup2_by_kernel(old: c_int, new: c_int) -> c_int {
    if old == new {
        return if is_open(old) { new } else { -1 };
    }
    // SAFETY: same contract: the arguments are the caller's.
    (unsafe { libc::syscall(libc::SYS_dup3, old, new, 0) }) as c_int
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    duplicating(old, new, || match DUP2.get() {
        // SAFETY: same contract: the arguments are the caller's, unchanged.
        Some(next) => unsafe { next(old, new) },
        // SAFETY: same contract: the arguments are the caller's, unchanged.
        None => unsafe { dup2_by_kernel(old, new) },
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    let call = || call_next!(DUP3(old, new, flags), SYS_dup3);
    if flags & !libc::O_CLOEXEC != 0 {
        // The kernel refuses it.
        return call();
    }
    duplicating(old, new, call)
}

/// A seccomp filter may kill the process for a system call that the program itself never makes, and
/// the cache makes such calls. So the cache ends before the filter is set. libseccomp sets its
/// filter by a raw system call, but calls prctl(2) before that to set PR_SET_NO_NEW_PRIVS, which
/// the kernel requires.
///
/// In C all arguments but the first are variadic and may be absent, like the third of [`ioctl`].
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    if matches!(option, libc::PR_SET_SECCOMP | libc::PR_SET_NO_NEW_PRIVS) {
        ret::always((), || {
            rdmamr_stats::before_filter();
            rdmamr_mr::devices::before_filter();
            dispatch::end_for_good(End::Filter);
        });
    }
    call_next!(PRCTL(option, second, third, fourth, fifth), SYS_prctl)
}

/// UFFDIO_UNREGISTER of <linux/userfaultfd.h>.
const UNREGISTER: u32 = 0x8010_aa01;

/// In C the third argument is variadic, and absent with some requests. In the ABIs of Linux it lies
/// where a fixed argument would lie. If it is absent, the function forwards whatever lies there,
/// and does not look at it.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // The kernel reads 32 bits of the request.
    if request as u32 == UNREGISTER {
        return unregister(fd, request, argument);
    }
    call_next!(IOCTL(fd, request, argument), SYS_ioctl)
}

#[cold]
#[inline(never)]
fn unregister(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    during(
        || changes::unregistering(argument.addr()),
        || call_next!(IOCTL(fd, request, argument), SYS_ioctl),
    )
}
