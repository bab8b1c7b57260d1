// SPDX-License-Identifier: MIT OR Apache-2.0
//! The effect of ibv_fork_init(3) on registrations. Many programs call it at their start.

use super::check::Check;
use super::rdma_core;
use crate::files::kernel_version;
use crate::verbs::Verbs;
use anyhow::Result;
use std::env;
use std::ffi::c_int;

/// Values of `ibv_is_fork_initialized` (rdma-core 35 and later).
const ENABLED: i32 = 1;
const UNNEEDED: i32 = 2;

/// The first release of rdma-core whose ibv_fork_init marks no memory MADV_DONTFORK where the kernel
/// copies registered pages.
const MARKS_NOTHING: u32 = 51;

/// libibverbs checks whether these are set and ignores their values.
const VARIABLES: [&str; 3] = ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE", "RDMAV_HUGEPAGES_SAFE"];

const MEANING: &str = "Such a registration costs a madvise(2) and up to two VMAs, and the cache (--cache, relaxed calls) \
                       keeps no region: `rdmamr report` counts these registrations as not served.";

const COPIES: &str = "A fork copies pinned private memory, which takes long; posix_spawn, vfork and MADV_DONTFORK avoid it.";

/// Asks libibverbs, which asks the kernel.
pub fn check(verbs: &Result<Verbs>) -> Check {
    const SUBJECT: &str = "fork";
    type Ask = unsafe extern "C" fn() -> c_int;
    let Ok(verbs) = verbs else {
        return Check::ok(SUBJECT, "unknown: there is no libibverbs to ask");
    };
    // SAFETY: <infiniband/verbs.h> gives this type.
    let asked = unsafe { verbs.library.function::<Ask>(c"ibv_is_fork_initialized") };
    // SAFETY: the function may be called at any time.
    let mode = asked.ok().map(|ask| unsafe { ask() });
    // Without an RDMA device libibverbs cannot ask the kernel, and says that fork support is off. The
    // kernel copies since 5.12, and answers since 5.13.
    let unneeded = match mode {
        Some(UNNEEDED) => true,
        Some(ENABLED) => false,
        _ => kernel_version() >= (5, 13),
    };
    let mut variables = VARIABLES.into_iter();
    let set = variables.find(|name| env::var_os(name).is_some());
    let marks = rdma_core::found(verbs).1 < MARKS_NOTHING;
    match (set, marks) {
        (Some(name), _) if unneeded => {
            Check::warning(SUBJECT, format!("{name} is set, and this kernel does not need it"))
                .meaning(format!(
                    "The kernel copies registered pages for a child. {}",
                    match marks {
                        false => "This libibverbs does nothing then.",
                        true => "Without the library, libibverbs still marks registered memory MADV_DONTFORK: a \
                                 registration costs a madvise(2) and up to two VMAs. Under the library it does not.",
                    }
                ))
                .fix(format!("unset {name}"))
        }
        (Some(name), _) => Check::warning(SUBJECT, format!("{name} is set: libibverbs keeps registered memory from children"))
            .meaning(MEANING),
        (None, false) if unneeded => Check::ok(
            SUBJECT,
            "not needed: this kernel copies registered pages for a child, and ibv_fork_init does nothing here",
        )
        .meaning(COPIES),
        (None, true) if unneeded => Check::ok(
            SUBJECT,
            "not needed by this kernel; a program that calls ibv_fork_init (UCX, NCCL, Open MPI) has its registered \
             memory kept from children all the same, unless it runs under the library",
        )
        .meaning(COPIES),
        (None, _) if mode == Some(ENABLED) => {
            Check::warning(SUBJECT, "fork support of libibverbs is on (ibv_fork_init)").meaning(MEANING)
        }
        (None, _) => Check::warning(SUBJECT, "fork support of libibverbs is off, and this kernel needs it")
            .meaning("A program that forks while memory is registered loses that memory to the child.")
            .fix("RDMAV_FORK_SAFE=1, only for programs that fork (or Linux 5.13 and later)"),
    }
}
