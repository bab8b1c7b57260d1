// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits on the registrations of a process, and how much of each limit is used.

use crate::doctor::cgroup;
use crate::doctor::memlock::may_pin;
use crate::files::{read, status};
use crate::limit::Limit;
use crate::verbs::Verbs;
use std::collections::HashMap;

/// The limits of a process. A limit that is unlimited, or cannot be read, is absent.
pub fn of(pid: u32) -> Vec<Limit> {
    let process = pid.to_string();
    let (memory, rdma) = (cgroup::memory(&process), cgroup::rdma(&process));
    memlock(pid).into_iter().chain(memory).chain(rdma).collect()
}

/// RLIMIT_MEMLOCK, if the limit holds for the process.
fn memlock(pid: u32) -> Option<Limit> {
    let text = read(format!("/proc/{pid}/limits"))?;
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max locked memory"))?;
    let most = line.split_whitespace().next()?.parse().ok()?;
    if may_pin(&status(pid, "CapEff")?) {
        return None;
    }
    let pinned = status(pid, "VmPin")?;
    let kib: u64 = pinned.split_whitespace().next()?.parse().ok()?;
    Some(Limit::of_bytes("RLIMIT_MEMLOCK", kib << 10, most))
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
