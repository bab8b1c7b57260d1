// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of ibv_fork_init(3) on registrations. Many programs call it at their start.

use super::check::Check;
use crate::files::kernel_version;
use crate::verbs::{Loaded, Verbs};
use std::env;
use std::ffi::{c_int, c_void};

/// Values of `ibv_is_fork_initialized` (rdma-core 35 and later).
const ENABLED: i32 = 1;
const UNNEEDED: i32 = 2;

/// libibverbs checks whether these are set and ignores their values.
const VARIABLES: [&str; 3] = ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE", "RDMAV_HUGEPAGES_SAFE"];

const MEANING: &str = "Such a registration costs a madvise(2) and up to two VMAs, and the cache (--cache, relaxed calls) \
                       keeps no region: `rdmamr report` counts these registrations as not served.";

/// Asks libibverbs, which asks the kernel.
pub fn check(verbs: &Result<Verbs, String>) -> Check {
    const SUBJECT: &str = "fork";
    let Ok(verbs) = verbs else {
        return Check::ok(SUBJECT, "unknown: there is no libibverbs to ask");
    };
    // SAFETY: <infiniband/verbs.h> gives this type.
    let asked = unsafe {
        verbs
            .library
            .function::<unsafe extern "C" fn() -> c_int>(c"ibv_is_fork_initialized")
    };
    // SAFETY: the function may be called at any time.
    let mode = asked.map(|ask| unsafe { ask() });
    // Without an RDMA device libibverbs cannot ask the kernel, and says that fork support is off. The
    // kernel copies since 5.12, and answers since 5.13.
    let unneeded = match mode {
        Some(UNNEEDED) => true,
        Some(ENABLED) => false,
        _ => kernel_version() >= (5, 13),
    };
    let set = VARIABLES
        .into_iter()
        .find(|name| env::var_os(name).is_some());
    let marks = marks_memory(verbs.library);
    match (set, marks) {
        (Some(name), _) if unneeded => {
            Check::warning(SUBJECT, format!("{name} is set, and this kernel does not need it"))
                .meaning(format!(
                    "The kernel copies registered pages for a child. {}",
                    match marks {
                        Some(false) => "This libibverbs does nothing then.",
                        _ => "Without the library, libibverbs still marks registered memory MADV_DONTFORK: a \
                              registration costs a madvise(2) and up to two VMAs. Under the library it does not.",
                    }
                ))
                .fix(format!("unset {name}"))
        }
        (Some(name), _) => Check::warning(SUBJECT, format!("{name} is set: libibverbs keeps registered memory from children"))
            .meaning(MEANING),
        (None, Some(false)) => Check::ok(
            SUBJECT,
            "not needed: this kernel copies registered pages for a child, and ibv_fork_init does nothing here",
        ),
        (None, Some(true)) if unneeded => Check::ok(
            SUBJECT,
            "not needed by this kernel; a program that calls ibv_fork_init (UCX, NCCL, Open MPI) has its registered \
             memory kept from children all the same, unless it runs under the library",
        ),
        (None, _) if unneeded => Check::ok(
            SUBJECT,
            "not needed: this kernel copies registered pages for a child (the effect of ibv_fork_init is unknown)",
        ),
        (None, _) if mode == Some(ENABLED) => {
            Check::warning(SUBJECT, "fork support of libibverbs is on (ibv_fork_init)").meaning(MEANING)
        }
        (None, _) => Check::warning(SUBJECT, "fork support of libibverbs is off, and this kernel needs it")
            .meaning("A program that forks while memory is registered loses that memory to the child.")
            .fix("RDMAV_FORK_SAFE=1, only for programs that fork (or Linux 5.13 and later)"),
    }
}

/// Whether ibv_fork_init marks memory MADV_DONTFORK. The test runs in a child of this process and
/// uses an address that no process has, as the library does: only a libibverbs that marks memory
/// notices that no memory is there.
fn marks_memory(library: Loaded) -> Option<bool> {
    const NOWHERE: usize = usize::MAX / 2 + 1 - (64 << 10);
    type DontforkRange = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
    // SAFETY: <infiniband/verbs.h> gives this type.
    let init = unsafe { library.function::<unsafe extern "C" fn() -> c_int>(c"ibv_fork_init") }?;
    // SAFETY: rdma-core's driver.h gives this type.
    let dontfork = unsafe { library.function::<DontforkRange>(c"ibv_dontfork_range") }?;
    // SAFETY: this process has one thread, so the child may call any function.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: this process has registered no memory.
            let answer = unsafe { init() };
            let status = if answer != 0 {
                2
            } else {
                let nowhere = std::ptr::without_provenance_mut(NOWHERE);
                // SAFETY: libibverbs accepts any range and reports a range that it cannot advise
                // on.
                c_int::from(unsafe { dontfork(nowhere, 1) } != 0)
            };
            // SAFETY: the child ends without running the parent's exit handlers.
            unsafe { libc::_exit(status) }
        }
        -1 => None,
        child => {
            let mut status = 0;
            // SAFETY: the status is writable.
            let ended = unsafe { libc::waitpid(child, &mut status, 0) } == child;
            match (ended && libc::WIFEXITED(status)).then(|| libc::WEXITSTATUS(status)) {
                Some(0) => Some(false),
                Some(1) => Some(true),
                _ => None,
            }
        }
    }
}
