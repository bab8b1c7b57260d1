// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's own calls: cbindgen makes `include/rdmamr.h` from this file.

use super::export::versioned;
use super::ret;
use ::rdmamr_stats::log::{self, Level};
use ::rdmamr_stats::text::Text;
use ::rdmamr_stats::{self as stats, counter, rdmamr_stats};
use core::ffi::{CStr, c_char, c_int};
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use once_cell::race::OnceBox;
use rdmamr_cache::dispatch;
use rdmamr_config::{CacheLimits, Output, config};
use rdmamr_mr::explain;
use rdmamr_sys::append::{Manner, Refused, append};
use rdmamr_sys::descriptor::{self, Descriptor};
use rdmamr_sys::seccomp::is_filtered;
use rdmamr_sys::{allocator, process, standard_error};
use rdmamr_trace as trace;
use std::ffi::CString;

/// The major version of this header: 1 in 1.2.3.
pub const RDMAMR_VERSION_MAJOR: u32 = 0;
/// The minor version of this header: 2 in 1.2.3.
pub const RDMAMR_VERSION_MINOR: u32 = 3;
/// The patch version of this header: 3 in 1.2.3.
#[allow(dead_code, reason = "for the header")]
pub const RDMAMR_VERSION_PATCH: u32 = 0;

/// The statistics at this moment.
fn statistics() -> rdmamr_stats {
    let Some(counters) = stats::existing() else {
        return rdmamr_stats::default();
    };
    let (live, live_bytes) =
        dispatch::devices::existing().map_or((0, 0), |devices| devices.total());
    let [(idle, idle_bytes), (used, used_bytes)] = dispatch::relaxed_totals();
    rdmamr_stats {
        live: live + used,
        live_bytes: live_bytes.wrapping_add(used_bytes),
        hits: dispatch::relaxed_hits(|| counters.get(counter!(hits))),
        idle,
        idle_bytes,
        ..counters.sums()
    }
}

/// Returns the version of the library that the process has loaded, such as "0.1.0".
///
/// The string is static: the caller does not free it. Any thread may call this function at any
/// time.
#[unsafe(no_mangle)]
pub extern "C" fn rdmamr_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
versioned!(rdmamr_version, "RDMAMR_1.0");

/// Writes the statistics of this process up to now to `stats`.
///
/// `size` is sizeof(struct rdmamr_stats) in the header that the program was compiled with, in
/// bytes; `stats` must point to `size` writable bytes. A library that knows more fields writes only
/// the first `size` bytes, and a library that knows fewer fields writes 0 to the rest. Any thread
/// may call this function. While other threads register memory, the figures of one call may differ
/// from each other by some registrations.
///
/// Returns 0, or EINVAL: `stats` is NULL, or `size` is 0 or not a multiple of 8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdmamr_get_stats(stats: *mut rdmamr_stats, size: usize) -> c_int {
    if stats.is_null() || size == 0 || size % size_of::<u64>() != 0 {
        return libc::EINVAL;
    }
    let now = ret::always(rdmamr_stats::default(), statistics);
    let known = size.min(size_of::<rdmamr_stats>());
    let out = stats.cast::<u8>();
    // SAFETY: `stats` points to `size` writable bytes, as the caller promises; `known` is at most
    // `size` and at most the structure's size.
    unsafe { out.copy_from_nonoverlapping((&raw const now).cast(), known) };
    // SAFETY: the bytes from `known` to `size` lie in the `size` writable bytes that the caller
    // promises.
    unsafe { out.wrapping_add(known).write_bytes(0, size - known) };
    0
}
versioned!(rdmamr_get_stats, "RDMAMR_1.0");

/// Returns the reason, in words, why the last failed call of this thread failed.
///
/// The words say what the call tried, what refused the call with which errno, and the likely cause
/// with figures: RLIMIT_MEMLOCK against the memory that is pinned, a mapping that is read-only or
/// missing, the rule of the access flags that the call broke. The string is empty if no call of
/// this thread has failed.
///
/// The reason is about this library's calls: ibv_reg_mr() and its family, the relaxed calls, and
/// the libfabric calls on this library's objects. The function looks at memory and limits when it
/// is called, so call it right after the failure. The library owns the string, for the calling
/// thread: the string is valid until this thread calls the function again. errno does not change.
#[unsafe(no_mangle)]
pub extern "C" fn rdmamr_last_reason() -> *const c_char {
    ret::always(c"".as_ptr(), || explain::last_in_words().cast())
}
versioned!(rdmamr_last_reason, "RDMAMR_1.0");

/// The value of a limit that rdmamr_set_cache_limits() leaves as it is.
pub const RDMAMR_UNCHANGED: u64 = 0xffff_ffff_ffff_ffff;

/// Limits of the cache of registrations, for rdmamr_set_cache_limits(). A limit that is
/// RDMAMR_UNCHANGED stays as the environment sets it, or else the library's default.
#[allow(non_camel_case_types)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdmamr_cache_limits {
    /// How long a released region without remote rights stays registered, in ms
    /// (RDMAMR_CACHE_LINGER, which counts in seconds; by default 60 000). With less than 5 the cache
    /// does not reuse such regions.
    pub linger_local: u64,
    /// The same for a region with remote rights, whose rkey stays valid, from its first release on (by
    /// default 1 000).
    pub linger_remote: u64,
    /// How many released regions stay registered (RDMAMR_CACHE_MAX_IDLE; by default 16 384).
    pub max_idle: u64,
    /// How many bytes of released regions stay registered (RDMAMR_CACHE_MAX_IDLE_BYTES; by default
    /// an eighth of the memory, and half of RLIMIT_MEMLOCK).
    pub max_idle_bytes: u64,
}

/// Sets limits of the cache of registrations in this process, in place of those of the environment.
///
/// A program calls this function before its first registration: the cache reads the limits when it
/// starts, with the first relaxed registration, or with the first plain one under RDMAMR_CACHE that
/// comes for the second time. `size` is sizeof(struct rdmamr_cache_limits) in the header that the
/// program was compiled with, in bytes; `limits` must point to `size` readable bytes. Limits beyond
/// `size` stay as they are. Any thread may call this function.
///
/// Returns 0, or an errno, and then no limit has changed. EINVAL: `limits` is NULL, or `size` is 0
/// or not a multiple of 8, or a linger time is 10^12 ms or longer. E2BIG: `size` covers limits that
/// this library does not know, and one of them is not RDMAMR_UNCHANGED. EBUSY: the cache has started
/// or is starting, in this process or in the process that forked it, or a signal handler makes the
/// call while it interrupts the library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdmamr_set_cache_limits(
    limits: *const rdmamr_cache_limits,
    size: usize,
) -> c_int {
    if limits.is_null() || size == 0 || size % size_of::<u64>() != 0 {
        return libc::EINVAL;
    }
    // SAFETY: `limits` points to `size` readable bytes, as the caller promises, and each limit is a
    // `u64`.
    let given =
        unsafe { core::slice::from_raw_parts(limits.cast::<u64>(), size / size_of::<u64>()) };
    ret::always(libc::EBUSY, || match known_limits(given) {
        Ok(limits) if dispatch::set_limits(limits) => 0,
        Ok(_) => libc::EBUSY,
        Err(errno) => errno,
    })
}

/// The limits that the caller's structure names, in the order of [`rdmamr_cache_limits`]; an older
/// structure has fewer. An error is an errno.
fn known_limits(given: &[u64]) -> Result<CacheLimits, c_int> {
    const KNOWN: usize = size_of::<rdmamr_cache_limits>() / size_of::<u64>();
    const LONGEST: u64 = 1_000_000_000_000;
    let given_at = |n: usize| given.get(n).copied();
    let limit = |n| given_at(n).filter(|&limit| limit != RDMAMR_UNCHANGED);
    if (KNOWN..given.len()).any(|n| limit(n).is_some()) {
        return Err(libc::E2BIG);
    }
    let limits: [_; KNOWN] = core::array::from_fn(limit);
    let mut times = limits.iter().take(2).flatten();
    if times.any(|&linger| linger >= LONGEST) {
        return Err(libc::EINVAL);
    }
    Ok(limits)
}
versioned!(rdmamr_set_cache_limits, "RDMAMR_1.1");

/// The process that loaded the library. A forked child has another process ID.
static LOADED_BY: AtomicU32 = AtomicU32::new(0);

/// In the program that `rdmamr run --stats` was asked to run, and in no helper or child of it: the
/// file that the launcher finds removed once the library has written the end of the statistics. A
/// program that leaves by _exit(2) does not come there.
static REMOVED_AT_END: OnceBox<CString> = OnceBox::new();

/// How the launcher's name of that file begins.
const LAUNCHERS: &str = ".rdmamr-run-";

/// The last step of the library's load: from then on the C library's `malloc` serves it.
pub fn loaded() {
    ret::always((), || {
        LOADED_BY.store(process::id(), Relaxed);
        standard_error::remember();
        // Reads the settings, before the program can change its environment or its directory.
        if config().trace.is_some() {
            trace::turn_on();
        }
        let program = rdmamr_config::variable(c"_RDMAMR_PROGRAM").map(CStr::to_str);
        let program = program.and_then(|words| words.ok()?.split_once(' '));
        let mine = program.filter(|(pid, _)| pid.parse() == Ok(LOADED_BY.load(Relaxed)));
        let file = mine.map(|(_, file)| file).filter(|file| {
            let (_, name) = file.rsplit_once('/').unwrap_or(("", file));
            name.starts_with(LAUNCHERS)
        });
        if let Some(file) = file.and_then(|file| CString::new(file).ok()) {
            let _ = REMOVED_AT_END.set(Box::new(file));
        }
    });
    allocator::loaded();
}

/// Writes the end of the trace, and the statistics to the place that RDMAMR_STATS names, when the
/// process exits normally.
unsafe extern "C" fn exiting() {
    ret::always((), || {
        trace::exiting();
        write_statistics();
        if let Some(file) = removed_at_end().filter(|file| is_launchers(file)) {
            // SAFETY: the path is a C string.
            unsafe { libc::unlink(file.as_ptr()) };
        }
        log::exiting();
        stats::exiting();
    })
}

fn removed_at_end() -> Option<&'static CString> {
    // A filter of the program may kill at the question for the process's number.
    let is_program = |_: &_| !is_filtered() && process::id() == LOADED_BY.load(Relaxed);
    REMOVED_AT_END.get().filter(is_program)
}

/// Whether a file is as the launcher makes it: an empty file of this user. Anybody can set the variable
/// that names it.
fn is_launchers(file: &CStr) -> bool {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let file = Descriptor::open(libc::AT_FDCWD, file, flags, 0);
    let about = file.and_then(|file| descriptor::about(file.number()));
    // SAFETY: geteuid has no preconditions.
    let user = unsafe { libc::syscall(libc::SYS_geteuid) };
    about.is_ok_and(|about| {
        let is_regular = about.st_mode & libc::S_IFMT == libc::S_IFREG;
        is_regular && about.st_size == 0 && i64::from(about.st_uid) == user
    })
}

/// Writes a line for a program that has not called the library, and nothing for other such
/// processes: launchers and their helpers, which inherit the setting, would write a dozen lines of
/// zeros for each line with figures.
fn write_statistics() {
    let Some(output) = &config().stats else {
        return;
    };
    let pid = process::id();
    let statistics = statistics();
    if statistics == rdmamr_stats::default() {
        if removed_at_end().is_some() || log::wants(Level::Debug) {
            log::always(format_args!(
                "process {pid} has no statistics: it registered nothing"
            ));
        }
        return;
    }
    let mut text = Text::<2048>::new();
    if *output == Output::Table {
        let _ = writeln!(text, "rdmamr: process {pid}");
        let _ = statistics.write_table(&mut text);
    } else {
        let _ = statistics.write_json(&mut text);
        let _ = text.write_str("\n");
    }
    let bytes = text.as_bytes();
    let manner = Manner {
        mode: 0o644,
        ..Manner::default()
    };
    let written = match output {
        Output::Table | Output::Stderr => standard_error::write(bytes).map_err(Refused::Kernel),
        Output::File(path) => append(path, bytes, &manner),
    };
    if let Err(why) = written {
        log::always(format_args!("RDMAMR_STATS: cannot be written: {why}"));
    }
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static EXITING: unsafe extern "C" fn() = exiting;

#[cfg(test)]
mod tests {
    use super::*;

    const _: unsafe extern "C" fn() = exiting;

    #[test]
    fn the_headers_version_is_the_packages() {
        let (major, minor) = (RDMAMR_VERSION_MAJOR, RDMAMR_VERSION_MINOR);
        let version = format!("{major}.{minor}.{RDMAMR_VERSION_PATCH}");
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn a_caller_of_another_size_gets_what_both_know() {
        let mut bytes = [0xffu8; size_of::<rdmamr_stats>() + 16];
        let stats = bytes.as_mut_ptr().cast();
        // SAFETY: `bytes` is larger than every `size` that this test passes.
        let get = |size| unsafe { rdmamr_get_stats(stats, size) };
        assert_eq!(get(0), libc::EINVAL);
        assert_eq!(get(12), libc::EINVAL);
        assert_eq!(get(8), 0);
        assert_eq!(get(size_of::<rdmamr_stats>() + 8), 0);
        assert_eq!(
            bytes[size_of::<rdmamr_stats>()..size_of::<rdmamr_stats>() + 8],
            [0; 8]
        );
        assert_eq!(bytes[size_of::<rdmamr_stats>() + 8..], [0xff; 8]);
        // SAFETY: the function refuses NULL and writes nothing.
        let refused = unsafe { rdmamr_get_stats(core::ptr::null_mut(), 8) };
        assert_eq!(refused, libc::EINVAL);
    }
}
