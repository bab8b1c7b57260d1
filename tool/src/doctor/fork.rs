// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether registered memory outlives a fork(2) of the program.

use super::{Check, kernel_version};
use crate::verbs::Verbs;
use std::env;

/// What `ibv_is_fork_initialized` returns (rdma-core 35 and later).
const ENABLED: i32 = 1;
const UNNEEDED: i32 = 2;

/// Asks libibverbs, which asks the kernel.
pub fn check(verbs: &Result<Verbs, String>) -> Check {
    const SUBJECT: &str = "fork";
    let asked = verbs.as_ref().ok().and_then(|verbs| {
        // SAFETY: its type in <infiniband/verbs.h>.
        unsafe {
            verbs
                .library
                .function::<unsafe extern "C" fn() -> i32>(c"ibv_is_fork_initialized")
        }
    });
    // SAFETY: it may be called at any time.
    let mode = asked.map(|ask| unsafe { ask() });
    // libibverbs looks whether they are set, not to what.
    let set = ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE", "RDMAV_HUGEPAGES_SAFE"]
        .into_iter()
        .find(|name| env::var_os(name).is_some());
    match (mode, set) {
        (Some(UNNEEDED), Some(name)) => Check::warning(SUBJECT, format!("{name} is set, and this kernel does not need it"))
            .meaning(
                "The kernel copies registered pages for a child. libibverbs before release 52 obeys all the same: each \
                 registration then costs a madvise(2) and up to two mappings, and relaxed regions are not kept.",
            )
            .fix(format!("unset {name}")),
        (Some(UNNEEDED), None) => Check::ok(SUBJECT, "not needed: this kernel copies registered pages for a child"),
        (Some(ENABLED), _) | (_, Some(_)) => Check::warning(SUBJECT, "fork support of libibverbs is on (ibv_fork_init)")
            .meaning("Each registration costs a madvise(2) and up to two mappings, and relaxed regions are not kept."),
        (_, None) if kernel_version() >= (5, 12) => {
            Check::ok(SUBJECT, "not needed: Linux 5.12 and later copy registered pages for a child (libibverbs cannot say)")
        }
        (Some(_), None) => Check::warning(SUBJECT, "fork support of libibverbs is off, and this kernel needs it")
            .meaning("A program that forks while memory is registered loses that memory to the child.")
            .fix("RDMAV_FORK_SAFE=1, only for programs that fork (or Linux 5.12 and later)"),
        (None, None) => Check::ok(SUBJECT, "unknown: libibverbs cannot be asked (release 35 and later can)"),
    }
}
