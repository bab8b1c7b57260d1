// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits on the registrations of a process, and how much of each limit is used.

use crate::doctor::cgroup;
use crate::files::{read, status};
use crate::limit::Limit;
use crate::verbs::Verbs;
use std::collections::HashMap;

/// The limits of a process. A limit that is unlimited, or cannot be read, is absent.
pub fn of(pid: u32) -> Vec<Limit> {
    let process = pid.to_string();
    let bytes = |name, (used, most)| Limit {
        name,
        device: None,
        bytes: true,
        used,
        most,
    };
    let memlock = memlock(pid).map(|limit| bytes("RLIMIT_MEMLOCK", limit));
    let memory = cgroup::memory(&process).into_iter();
    let memory = memory.map(|limit| bytes("memory.max", limit));
    let rdma = cgroup::rdma(&process);
    memlock.into_iter().chain(memory).chain(rdma).collect()
}

/// The used part of RLIMIT_MEMLOCK, and the limit, if the limit holds for the process.
fn memlock(pid: u32) -> Option<(u64, u64)> {
    const CAP_IPC_LOCK: u32 = 14;
    let text = read(format!("/proc/{pid}/limits"))?;
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max locked memory"))?;
    let most = line.split_whitespace().next()?.parse().ok()?;
    let rights = u64::from_str_radix(&status(pid, "CapEff")?, 16).ok()?;
    if rights >> CAP_IPC_LOCK & 1 == 1 {
        return None;
    }
    let pinned = status(pid, "VmPin")?;
    let kib: u64 = pinned.split_whitespace().next()?.parse().ok()?;
    Some((kib << 10, most))
}

/// The most regions of each device, asked once.
#[derive(Default)]
pub struct Devices(HashMap<String, Option<u64>>);

impl Devices {
    /// `max_mr` of a device, which this user may open.
    pub fn most(&mut self, name: &str) -> Option<u64> {
        let ask = || Verbs::load().ok()?.most_regions(name);
        *self.0.entry(name.to_owned()).or_insert_with(ask)
    }
}
