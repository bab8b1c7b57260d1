// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why no memory can be watched.

use crate::watch::userfaultfd::NO_WRITE_PROTECTION;
use core::sync::atomic::AtomicBool;
use errno::Errno;
use rdmamr_stats::log::{always, once};

/// Why the watch has not started.
pub enum Failure {
    /// userfaultfd(2) failed.
    File(Errno),
    /// The kernel does not count the changes in flight (`in_flight.rs`).
    NotCounted,
    /// The kernel does not tell shared memory from private memory.
    NotTold,
    /// fstat(2) of the file failed.
    Unseen(Errno),
    /// The kernel gave the reader no thread.
    Thread(Errno),
    /// The program's memory calls bypass the library.
    PassedBy,
}

impl Failure {
    /// Whether another attempt may succeed, because a resource is short.
    pub fn is_passing(&self) -> bool {
        let (Failure::File(errno) | Failure::Thread(errno)) = self else {
            return false;
        };
        matches!(
            errno.0,
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN
        )
    }

    pub fn say(&self) {
        match self {
            Failure::PassedBy => say_passed_by(),
            Failure::File(NO_WRITE_PROTECTION) => always(format_args!(
                "regions are not reused once they are released: userfaultfd(2) of this kernel has no write \
                 protection, which x86-64 has from Linux 5.7 on, arm64 from 6.10 on"
            )),
            Failure::File(errno) if self.is_passing() => always(format_args!(
                "regions are not reused for now: userfaultfd(2) failed ({errno}). The library tries again later"
            )),
            Failure::File(errno) => always(format_args!(
                "regions are not reused once they are released: userfaultfd(2) is refused ({errno}). Before \
                 Linux 5.11: sysctl vm.unprivileged_userfaultfd=1. In a container: allow it in the seccomp profile, \
                 or (Linux 6.1) pass the device /dev/userfaultfd, readable for the process"
            )),
            Failure::NotCounted => always(format_args!(
                "regions are not reused once they are released: userfaultfd(2) of this kernel forgets a change of \
                 memory that is in flight when another one ends. Linux does not from 5.15 on"
            )),
            Failure::NotTold => always(format_args!(
                "regions are not reused once they are released: userfaultfd(2) of this kernel does not tell shared \
                 memory from private memory. Linux does from 5.14 on"
            )),
            Failure::Unseen(errno) => always(format_args!(
                "regions are not reused once they are released: fstat(2) of the library's userfaultfd fails ({errno})"
            )),
            Failure::Thread(errno) if self.is_passing() => always(format_args!(
                "regions are not reused for now: the kernel gives the library no thread ({errno}): see RLIMIT_NPROC, \
                 and pids.max of the cgroup. The library tries again later"
            )),
            Failure::Thread(errno) => always(format_args!(
                "regions are not reused once they are released: the kernel gives the library no thread ({errno})"
            )),
        }
    }
}

/// Says once that the kernel does not tell how many mappings the process has left.
pub fn say_uncounted() {
    static SAID: AtomicBool = AtomicBool::new(false);
    once(
        &SAID,
        format_args!(
            "regions are not reused for now: the mappings of this process cannot be counted (/proc/self/maps, \
             /proc/sys/vm/max_map_count)"
        ),
    );
}

/// Says once that the program's memory calls bypass the library.
pub fn say_passed_by() {
    static SAID: AtomicBool = AtomicBool::new(false);
    once(
        &SAID,
        format_args!(
            "regions are not reused once they are released: dlopen loaded the library, so the program's memory \
             calls bypass it. Preload the library (LD_PRELOAD), or link the program to it"
        ),
    );
}
