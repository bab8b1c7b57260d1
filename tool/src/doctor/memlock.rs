// SPDX-License-Identifier: MIT OR Apache-2.0
//! The amount of memory that this process may pin.

use super::{Check, bytes, field};
use std::fs;

const CAP_IPC_LOCK: u32 = 14;
/// Some systems' default is less than this, and too little for most programs.
const LITTLE: u64 = 1 << 30;

/// Checks the limit, and the right to exceed it.
pub fn check() -> Check {
    const SUBJECT: &str = "memlock";
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    let shown = |limit| {
        if limit == libc::RLIM_INFINITY {
            "unlimited".into()
        } else {
            bytes(limit)
        }
    };
    let (soft, hard) = (shown(limit.rlim_cur), shown(limit.rlim_max));
    if limit.rlim_cur == libc::RLIM_INFINITY {
        return Check::ok(SUBJECT, "unlimited");
    }
    if may_lock() {
        return Check::ok(
            SUBJECT,
            format!("this process may pin any memory (CAP_IPC_LOCK); without that, {soft}"),
        );
    }
    let found = format!(
        "soft limit {soft}, hard limit {hard} (VmPin of each process, in /proc/PID/status)"
    );
    if limit.rlim_cur >= LITTLE {
        return Check::ok(SUBJECT, found);
    }
    let check = Check::warning(SUBJECT, found).meaning(
        "A process that has that much registered gets ENOMEM (EPERM if the limit is 0) for more.",
    );
    if limit.rlim_max == libc::RLIM_INFINITY {
        return check.fix("ulimit -l unlimited (a service: LimitMEMLOCK=infinity)");
    }
    check.fix(
        "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/rdma.conf, and log in again (a service: \
         LimitMEMLOCK=infinity; a container: docker run --ulimit memlock=-1)",
    )
}

/// Whether CAP_IPC_LOCK is effective and this is the first user namespace, where it counts.
fn may_lock() -> bool {
    let effective = field("/proc/self/status", "CapEff").unwrap_or_default();
    let effective = u64::from_str_radix(&effective, 16).unwrap_or(0);
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    effective >> CAP_IPC_LOCK & 1 == 1 && map.trim_end().ends_with(" 4294967295")
}
