// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether this process may make the system calls of the cache at all. An error would be an answer,
//! but two environments end the process: valgrind at a thread of the library, and a seccomp filter
//! that kills, as systemd's SystemCallFilter does. There every registration is plain.
//!
//! A filter that was in force when the library was loaded is asked by a child, which makes the calls
//! and may die of one: the whole child, even if the filter kills a thread alone (`end_together`). The
//! child is made at load alone: later, fork would copy the pages that are
//! registered by then. A filter that the program sets afterwards ends the cache (`ended.rs`).

use crate::life::cleaner_thread;
use crate::regions;
use crate::watch::event_reader::{self, Receivers};
use crate::watch::watcher::Watch;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use rdmamr_config::variable;
use rdmamr_stats::log;
use rdmamr_sys::pages::{LARGEST_PAGE, PageRange};
use rdmamr_sys::symbols::{self, Scope};
use rdmamr_sys::{clock, helper_thread, proc, valgrind};

/// The filter kills a process that makes the cache's calls, or nobody knows whether it does.
static KILLS: AtomicBool = AtomicBool::new(false);

/// Asks the filter that is in force, if there is one and the process may use the cache. Called when
/// the library is loaded, before the program runs.
pub fn ask_filter() {
    let may_register = || {
        // Not by `config`, which a later step of the load reads (`capi/load.rs`).
        variable(c"RDMAMR_CACHE").is_some_and(|which| which != c"off")
            || symbols::find(Scope::Program, c"ibv_open_device", None).is_some()
    };
    if may_register() && proc::is_filtered() && !valgrind::is_running() && child_is_killed() {
        KILLS.store(true, Relaxed);
    }
}

/// Whether the cache may start. If not, prints the reason once.
pub fn may_start() -> bool {
    let why = if KILLS.load(Relaxed) {
        "the seccomp filter of this process kills at a system call of the library, such as userfaultfd(2). \
         Have it allow the call, or answer by an error (systemd: SystemCallErrorNumber=EPERM)"
    } else if valgrind::is_running() {
        "valgrind does not support the library's threads, nor its module for LD_AUDIT"
    } else {
        return true;
    };
    static SAID: AtomicBool = AtomicBool::new(false);
    log::once(
        &SAID,
        format_args!("regions are not reused once they are released: {why}"),
    );
    false
}

/// Whether a child is killed that makes the calls of the cache.
fn child_is_killed() -> bool {
    // No signal at its end, which the program would get: only __WCLONE finds such a child.
    let no_signal_at_end = 0;
    // SAFETY: a fork: the child has a copy of the memory. The other arguments are unused.
    let child = unsafe { libc::syscall(libc::SYS_clone, no_signal_at_end, 0, 0, 0, 0) };
    if child == 0 {
        make_calls();
        // SAFETY: nothing of the C library need be flushed: the parent goes on.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    }
    let mut status = 0;
    loop {
        // SAFETY: the word is local, and no resource usage is asked for.
        let ended = unsafe {
            let usage = core::ptr::null_mut::<libc::rusage>();
            libc::syscall(
                libc::SYS_wait4,
                child,
                &raw mut status,
                libc::__WCLONE,
                usage,
            )
        };
        if ended == child {
            return status != 0;
        }
        if ended >= 0 || errno::errno().0 != libc::EINTR {
            return true;
        }
    }
}

/// In the child: makes the calls by a watch of one page. Their results do not matter.
fn make_calls() {
    let call = |number: libc::c_long, arguments: [libc::c_long; 4]| {
        let [a, b, c, d] = arguments;
        // SAFETY: the calls below change this child alone, and get no pointer but null.
        unsafe { libc::syscall(number, a, b, c, d) }
    };
    // The kernel would report a crash, and the child's lines would be the program's.
    call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 0, 0, 0]);
    call(libc::SYS_close, [libc::STDERR_FILENO.into(), 0, 0, 0]);
    helper_thread::end_together();
    let this = call(libc::SYS_getpid, [0; 4]);
    const KCMP_FILES: libc::c_long = 2;
    call(libc::SYS_kcmp, [this, this, KCMP_FILES, 0]);
    for number in [libc::SYS_mincore, libc::SYS_capget] {
        call(number, [0; 4]);
    }
    call(libc::SYS_faccessat, [libc::AT_FDCWD.into(), 0, 0, 0]);
    helper_thread::run_anywhere();
    // A reader of events ends once a newer one runs.
    extern "C" fn end(_: *mut c_void) -> c_int {
        0
    }
    // SAFETY: `end` does nothing.
    if let Some(thread) = unsafe { helper_thread::start_ending(end, null_mut()) } {
        thread.join();
    }
    let _ = (
        clock::monotonic_by_kernel(),
        proc::Status::read(),
        proc::mappings(),
        proc::limit(libc::RLIMIT_NOFILE),
    );
    let (Some(page), Some(regions)) = (helper_thread::map(LARGEST_PAGE), regions::map_new()) else {
        return;
    };
    let watch = Watch::start(Receivers {
        ring: &regions.ring,
        heard: cleaner_thread::heard,
    });
    if let Some(range) = PageRange::around(page.addr() as u64, LARGEST_PAGE as u64) {
        let _ = (watch.is_on(), watch.watch(range));
        let _ = (watch.is_private(range), watch.fence());
    }
    // SAFETY: `map` returned the page, which is not used any more.
    unsafe { helper_thread::unmap(page, LARGEST_PAGE) };
    // The reader has more to do after the event for which the call above has waited.
    event_reader::wait_to_rest();
    watch.give_up();
}
