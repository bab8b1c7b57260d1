// SPDX-License-Identifier: MIT OR Apache-2.0
//! What limits the registrations of a process, and how much of each limit is used.

use super::pages::status;
use crate::doctor::cgroup;
use crate::verbs::Verbs;
use serde::Serialize;
use std::collections::HashMap;
use std::fs;

/// A limit.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct Limit {
    /// RLIMIT_MEMLOCK, memory.max and hca_object of a control group, max_mr of a device.
    pub name: &'static str,
    /// The device, if the limit is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Whether both numbers are bytes.
    pub bytes: bool,
    pub used: u64,
    pub most: u64,
}

/// The limits of a process. What is unlimited, or cannot be read, is absent.
pub fn of(pid: u32) -> Vec<Limit> {
    let mut limits: Vec<Limit> = memlock(pid).into_iter().collect();
    let process = pid.to_string();
    for group in cgroup::groups(&process, "memory") {
        let used = cgroup::number(&group, &["memory.current", "memory.usage_in_bytes"]);
        let most = cgroup::number(&group, &["memory.max", "memory.limit_in_bytes"]);
        if let (Some(used), Some(most)) = (used, most.filter(|&most| most < 1 << 60)) {
            limits.push(Limit {
                name: "memory.max",
                device: None,
                bytes: true,
                used,
                most,
            });
        }
    }
    for group in cgroup::groups(&process, "rdma") {
        let lines = |name| fs::read_to_string(group.join(name)).unwrap_or_default();
        let current = lines("rdma.current");
        for (device, most) in lines("rdma.max").lines().filter_map(cgroup::objects) {
            let mut used = current.lines().filter_map(cgroup::objects);
            limits.push(Limit {
                name: "hca_object",
                device: Some(device.to_owned()),
                bytes: false,
                used: used.find(|used| used.0 == device).map_or(0, |used| used.1),
                most,
            });
        }
    }
    limits
}

/// RLIMIT_MEMLOCK, if it holds for the process.
fn memlock(pid: u32) -> Option<Limit> {
    const CAP_IPC_LOCK: u32 = 14;
    let text = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    let most = line.split_whitespace().next()?.parse().ok()?;
    let rights = u64::from_str_radix(&status(pid, "CapEff:")?, 16).ok()?;
    if rights >> CAP_IPC_LOCK & 1 == 1 {
        return None;
    }
    let pinned = status(pid, "VmPin:")?;
    let kib: u64 = pinned.split_whitespace().next()?.parse().ok()?;
    Some(Limit {
        name: "RLIMIT_MEMLOCK",
        device: None,
        bytes: true,
        used: kib << 10,
        most,
    })
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
