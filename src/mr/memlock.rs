// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much memory the process may pin (RLIMIT_MEMLOCK, CAP_IPC_LOCK), as the reason of a refusal says it.

use super::request::Request;
use core::fmt::{self, Write};
use rdmamr_sys::cgroup;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::proc::{self, Capability};

/// The size of the memory's page range (its whole pages), in bytes.
pub fn pinned(start: u64, length: u64) -> u64 {
    PageRange::around(start, length).map_or(0, PageRange::bytes)
}

/// The memory that a call must pin, and the memory that it had pinned before.
pub struct Needed {
    kib: u64,
    before: u64,
}

impl Needed {
    pub fn by(request: &Request, before: u64) -> Needed {
        Needed {
            kib: pinned(request.addr.addr() as u64, request.length as u64) / 1024,
            before: before / 1024,
        }
    }
}

impl fmt::Display for Needed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this needs {} KiB", self.kib)?;
        match self.before {
            0 => Ok(()),
            before => write!(f, " beside {before} KiB of the same call"),
        }
    }
}

/// Advice on how to be allowed to pin more memory, for a process that has this much of
/// CAP_IPC_LOCK.
pub struct Raise(pub Capability);

impl fmt::Display for Raise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "Raise it (ulimit -l, LimitMEMLOCK= of a service), or gain CAP_IPC_LOCK: here it ",
        )?;
        f.write_str(match self.0 {
            Capability::Absent => "is not even in the bounding set",
            Capability::Bounding => "is in the bounding set alone, which helps only root",
            Capability::Permitted => "is permitted, but not effective",
            Capability::Effective => "does not count, in a user namespace",
        })
    }
}

/// How much memory the process may pin, and has pinned, in KiB.
pub struct Limits {
    status: proc::Status,
    limit: Option<u64>,
}

impl Limits {
    pub fn read() -> Limits {
        Limits {
            status: proc::Status::read().unwrap_or_default(),
            limit: proc::memlock_limit().map(|bytes| bytes / 1024),
        }
    }

    pub fn are_exceeded(&self, needed: &Needed) -> bool {
        self.leave_less_than(needed.kib + needed.before)
    }

    /// Whether the process may not pin that much more.
    pub fn leave_less_than(&self, kib: u64) -> bool {
        let wanted = self.status.pinned_kib.saturating_add(kib);
        !self.status.may_lock && self.limit.is_some_and(|limit| wanted > limit)
    }

    /// What is pinned of the limit, and advice.
    pub fn write_pinned(&self, out: &mut dyn Write) -> fmt::Result {
        let (pinned, limit) = (self.status.pinned_kib, self.limit.unwrap_or_default());
        let raise = Raise(self.status.ipc_lock);
        write!(
            out,
            "{pinned} of {limit} KiB are pinned already (VmPin). {raise}"
        )
    }

    pub fn write(&self, out: &mut dyn Write) -> fmt::Result {
        let pinned = self.status.pinned_kib;
        write!(out, "{pinned} KiB are pinned (VmPin), ")?;
        match self.limit {
            Some(_) if self.status.may_lock => {
                out.write_str("RLIMIT_MEMLOCK does not count (CAP_IPC_LOCK)")?;
            }
            Some(limit) => write!(out, "RLIMIT_MEMLOCK is {limit} KiB")?,
            None => out.write_str("RLIMIT_MEMLOCK is unlimited")?,
        }
        if let Some((used, most)) = cgroup::memory_used() {
            let (used, most) = (used / 1024, most / 1024);
            write!(out, ", the memory cgroup has {used} of {most} KiB")?;
        }
        out.write_str(if proc::has_movable_memory() {
            "; likely a page of a movable zone (ZONE_MOVABLE, CMA) that the kernel could not move before it pins, or"
        } else {
            ";"
        })?;
        out.write_str(" not known: what else the kernel ran out of")
    }
}
