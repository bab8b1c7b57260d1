// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether this process may watch its memory by userfaultfd(2), which the library needs to cache
//! regions.

use super::check::Check;
use super::container;
use crate::files::{field, kernel_version, of_system, read};
use crate::report::units::reason;
use crate::userfaultfd::{DEVICE, EVENTS, open};
use std::io;

/// Write protection. Without it the library caches no region.
const WRITE_PROTECTION: u64 = 1 << 0;
/// Write protection of huge pages and of shared memory.
const MORE_MAPPINGS: u64 = 1 << 12;

const SUBJECT: &str = "userfaultfd";
const COST: &str = "Every registration makes a new region: relaxed registration and RDMAMR_CACHE cost as much as \
                    plain registration.";

/// Tries the calls that the library makes.
pub fn check() -> Check {
    match open(EVENTS).map(|opened| opened.1) {
        Ok(features) if features & WRITE_PROTECTION == 0 => Check::warning(
            SUBJECT,
            "this kernel's userfaultfd has no write protection",
        )
        .meaning(format!(
            "The library needs it to watch memory; x86-64 has it since Linux 5.7, arm64 since 6.10. {COST}"
        )),
        Ok(_) if kernel_version() < (5, 15) => Check::warning(
            SUBJECT,
            "allowed; this kernel may forget a change of memory that is in flight",
        )
        .meaning(format!(
            "Linux before 5.15 does when another change ends, unless the distribution has later code. The cache \
             tries it when it starts, and says so if it cannot be used. Then: {COST}"
        )),
        Ok(features) if features & MORE_MAPPINGS != 0 => Check::ok(
            SUBJECT,
            "allowed; this kernel watches anonymous memory, also of huge pages",
        ),
        Ok(_) => Check::ok(SUBJECT, "allowed; this kernel watches anonymous memory"),
        Err(error) => refused(error),
    }
}

/// How this process could get the device.
fn device() -> String {
    let runtime = container::runtime().map(|runtime| runtime.name);
    let opened = of_system(DEVICE, false).map_err(|error| error.kind());
    match (opened, runtime) {
        (Err(io::ErrorKind::PermissionDenied), _) => format!(
            "chgrp GROUP {DEVICE} && chmod 660 {DEVICE} (a group that may use it: whoever opens it can hold up \
             page faults of the kernel in own memory, which helps exploits of other bugs; do not use 666)"
        ),
        (Ok(_), _) => format!("{DEVICE} refuses as well"),
        _ if kernel_version() < (6, 1) => "Linux 6.1 or later, for /dev/userfaultfd".into(),
        (_, Some("Docker" | "Podman")) => format!("--device={DEVICE}"),
        (_, Some("Kubernetes")) => format!(
            "a device plugin for {DEVICE} (a hostPath volume does not help: the device cgroup refuses to open it)"
        ),
        _ => format!("pass {DEVICE} into the container"),
    }
}

fn refused(error: io::Error) -> Check {
    let errno = error.raw_os_error().unwrap_or(0);
    let check = Check::warning(SUBJECT, format!("refused: {}", reason(&error.into())));
    let filtered = field("/proc/self/status", "Seccomp").as_deref() == Some("2");
    if filtered && matches!(errno, libc::EPERM | libc::ENOSYS | libc::EACCES) {
        return check
            .meaning(format!(
                "A seccomp filter refuses it, as in many containers, and {DEVICE} does not help \
                 yet. {COST}"
            ))
            .fix(format!(
                "a seccomp profile that also allows \"userfaultfd\" (docker run --security-opt seccomp=PROFILE), or: {}",
                device()
            ));
    }
    match errno {
        libc::ENOSYS => check.meaning(format!(
            "The kernel is built without it (CONFIG_USERFAULTFD). {COST}"
        )),
        libc::EPERM if kernel_version() < (5, 11) => {
            let setting = read("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
            check
                .meaning(format!(
                    "Before Linux 5.11 it needs CAP_SYS_PTRACE or vm.unprivileged_userfaultfd=1 (it is \
                     {setting}). {COST}"
                ))
                .fix("sysctl -w vm.unprivileged_userfaultfd=1")
        }
        libc::EPERM => check
            .meaning(format!(
                "A security module refuses it (SELinux: the class anon_inode); see the audit log. {COST}"
            ))
            .fix(device()),
        libc::EINVAL => check.meaning(format!(
            "The kernel lacks the events that the library needs (Linux 4.11). {COST}"
        )),
        libc::EMFILE | libc::ENFILE => check.meaning(COST).fix("ulimit -n 65536"),
        _ => check.meaning(COST),
    }
}
