// SPDX-License-Identifier: MIT OR Apache-2.0
//! The RDMA devices of this machine.

use super::check::Check;
use crate::files::{names, read};
use std::path::Path;

const SUBJECT: &str = "device";
const DEVICES: &str = "/sys/class/infiniband";

/// The checks, and the devices for closer checks.
pub fn check(wanted: &[String]) -> (Vec<Check>, Vec<String>) {
    let present = names(DEVICES);
    if present.is_empty() && wanted.is_empty() {
        let check = Check::failure(SUBJECT, "this machine has no RDMA device")
            .meaning(
                "No memory can be registered. Hardware needs its driver (mlx5_ib, irdma, bnxt_re, efa and so \
                 on). Soft-RoCE runs on any network interface:",
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
            let there = match present.is_empty() {
                true => "none".into(),
                false => present.join(", "),
            };
            let found = format!("there is no such device; there are: {there}");
            checks.push(Check::failure(SUBJECT, found).of(name));
            continue;
        }
        checks.push(ports(name).of(name));
        devices.push(name.clone());
    }
    (checks, devices)
}

/// An interface other than the loopback, preferably one that is up.
fn network_interface() -> Option<String> {
    let is_down = |name: &String| {
        read(format!("/sys/class/net/{name}/operstate")).is_none_or(|state| state != "up")
    };
    let names = names("/sys/class/net").into_iter();
    names.filter(|name| name != "lo").min_by_key(is_down)
}

/// Checks the ports. Registration needs no port, but every use of a region does.
fn ports(device: &str) -> Check {
    let ports = Path::new(DEVICES).join(device).join("ports");
    let numbers = names(&ports);
    let mut active = false;
    let words = numbers.iter().map(|number| {
        let port = ports.join(number);
        // "4: ACTIVE"
        let state = read(port.join("state")).unwrap_or_default();
        active |= state.contains("ACTIVE");
        let state = state.rsplit(' ').next().unwrap_or_default().to_lowercase();
        let layer = read(port.join("link_layer")).unwrap_or_default();
        let netdev = read(port.join("gid_attrs/ndevs/0")).map(|name| format!(" over {name}"));
        let netdev = netdev.unwrap_or_default();
        format!("port {number} {state}, {layer}{netdev}")
    });
    let words = words.collect::<Vec<_>>().join("; ");
    if numbers.is_empty() {
        return Check::ok(SUBJECT, "no ports");
    }
    if active {
        return Check::ok(SUBJECT, words);
    }
    Check::warning(SUBJECT, words)
        .meaning("Memory can be registered, but no data can move.")
        .fix("rdma link show; ip link set dev INTERFACE up")
}
