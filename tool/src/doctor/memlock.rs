// SPDX-License-Identifier: MIT OR Apache-2.0
//! The amount of memory that this process may pin.

use super::check::Check;
use super::container;
use crate::files::{field, read};
use crate::report::units::bytes;
use rustix::process::{Resource, Rlimit, getrlimit};

const CAP_IPC_LOCK: u32 = 14;
/// Some systems' default is less than this, and too little for most programs.
const LITTLE: u64 = 1 << 30;

/// Checks the limit, and the right to exceed it.
pub fn check() -> Check {
    const SUBJECT: &str = "memlock";
    let Rlimit { current, maximum } = getrlimit(Resource::Memlock);
    let Some(soft) = current else {
        return Check::ok(SUBJECT, "unlimited");
    };
    let (is_little, soft) = (soft < LITTLE, bytes(soft));
    let Err(right) = right() else {
        let found = format!("this process may pin any memory (CAP_IPC_LOCK); without that, {soft}");
        return Check::ok(SUBJECT, found);
    };
    let hard = maximum.map_or("unlimited".into(), bytes);
    let found = format!(
        "soft limit {soft}, hard limit {hard} (VmPin of each process, in /proc/PID/status)"
    );
    if !is_little {
        return Check::ok(SUBJECT, found);
    }
    let check = Check::warning(SUBJECT, found).meaning(format!(
        "A registration beyond the limit fails with ENOMEM (EPERM if the limit is 0). CAP_IPC_LOCK \
         would lift the limit; here it {right}."
    ));
    if maximum.is_none() {
        return check.fix("ulimit -l unlimited (a service: LimitMEMLOCK=infinity)");
    }
    check.fix(remedy())
}

/// The way to raise the hard limit of this process, which depends on what has set the limit.
fn remedy() -> &'static str {
    if container::is_slurm_job() {
        return "systemctl edit slurmd: [Service] LimitMEMLOCK=infinity; in slurm.conf: \
                PropagateResourceLimitsExcept=MEMLOCK";
    }
    container::runtime().map_or(
        "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/rdma.conf, and log in again (a service: \
         LimitMEMLOCK=infinity)",
        |runtime| runtime.memlock,
    )
}

/// Whether a set of capabilities, as /proc/PID/status shows it, has CAP_IPC_LOCK.
pub fn may_pin(set: &str) -> bool {
    u64::from_str_radix(set, 16).unwrap_or(0) >> CAP_IPC_LOCK & 1 == 1
}

/// Whether this process has CAP_IPC_LOCK, capabilities(7), and if not, how far.
fn right() -> Result<(), &'static str> {
    let has = |set| field("/proc/thread-self/status", set).is_some_and(|set| may_pin(&set));
    // The kernel asks for the capability in the machine's first user namespace.
    let map = read("/proc/self/uid_map").unwrap_or_default();
    match (has("CapEff"), has("CapPrm"), has("CapBnd")) {
        (true, ..) if map.ends_with(" 4294967295") => Ok(()),
        (true, ..) => Err("is one of a user namespace, which does not count"),
        (_, true, _) => Err("is permitted, but not effective: capset(2)"),
        (.., true) => Err(
            "is in the bounding set alone, which helps only root (a service of another user needs \
             AmbientCapabilities=CAP_IPC_LOCK)",
        ),
        _ => Err("is not even in the bounding set, as in a container without --cap-add=IPC_LOCK"),
    }
}
