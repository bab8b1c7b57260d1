// SPDX-License-Identifier: MIT OR Apache-2.0
//! The RDMA devices of this machine.

use super::{Check, read};
use std::fs;
use std::path::Path;

const SUBJECT: &str = "device";

/// The checks, and the devices for closer checks.
pub fn check(wanted: &[String]) -> (Vec<Check>, Vec<String>) {
    let found = fs::read_dir("/sys/class/infiniband")
        .into_iter()
        .flatten()
        .flatten();
    let mut present: Vec<String> = found
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    present.sort();
    if present.is_empty() && wanted.is_empty() {
        let check = Check::failure(SUBJECT, "this machine has no RDMA device")
            .meaning(
                "Nothing can be registered. Hardware needs its driver (mlx5_ib, irdma, bnxt_re, efa and so on). \
                 Any network interface can have soft-RoCE:",
            )
            .fix(format!(
                "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {}",
                network_interface().unwrap_or_else(|| "eth0".into())
            ));
        return (vec![check], Vec::new());
    }
    let wanted = if wanted.is_empty() { &present } else { wanted };
    let (mut checks, mut devices) = (Vec::new(), Vec::new());
    for name in wanted {
        if !present.contains(name) {
            let found = format!("there is none of that name; there are: {}", list(&present));
            checks.push(Check::failure(SUBJECT, found).of(name));
            continue;
        }
        checks.push(ports(name).of(name));
        devices.push(name.clone());
    }
    (checks, devices)
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none".into()
    } else {
        names.join(", ")
    }
}

/// An interface other than the loopback, preferably one that is up.
fn network_interface() -> Option<String> {
    let interfaces = fs::read_dir("/sys/class/net").ok()?.flatten();
    let names = interfaces.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name != "lo").collect();
    names.sort_by_key(|name| {
        read(format!("/sys/class/net/{name}/operstate")).is_none_or(|state| state != "up")
    });
    names.into_iter().next()
}

/// Checks the ports. Registration needs no port, but every use of a region does.
fn ports(device: &str) -> Check {
    let ports = Path::new("/sys/class/infiniband")
        .join(device)
        .join("ports");
    let mut numbers: Vec<String> = fs::read_dir(&ports)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    numbers.sort();
    let mut active = false;
    let words = numbers.iter().map(|number| {
        let port = ports.join(number);
        // "4: ACTIVE"
        let state = read(port.join("state")).unwrap_or_default();
        active |= state.contains("ACTIVE");
        let state = state.rsplit(' ').next().unwrap_or_default().to_lowercase();
        let layer = read(port.join("link_layer")).unwrap_or_default();
        let netdev = read(port.join("gid_attrs/ndevs/0")).map(|name| format!(" over {name}"));
        format!(
            "port {number} {state}, {layer}{}",
            netdev.unwrap_or_default()
        )
    });
    let words = words.collect::<Vec<_>>().join("; ");
    if active || numbers.is_empty() {
        return Check::ok(
            SUBJECT,
            if words.is_empty() {
                "no ports".into()
            } else {
                words
            },
        );
    }
    Check::warning(SUBJECT, words)
        .meaning("Memory can be registered, but no data can move.")
        .fix("rdma link show; ip link set dev INTERFACE up")
}
