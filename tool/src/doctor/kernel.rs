// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's side of verbs: its version, its interface, and whether this process may use it.

use super::check::Check;
use crate::files::{kernel_release, kernel_version, names, of_system, read};
use crate::report::units::{printable, reason};
use crate::verbs::{Context, Verbs};
use anyhow::{Result, anyhow};
use std::io::ErrorKind;

/// The version of the uverbs interface that libibverbs speaks, the same since 2005.
const ABI: &str = "6";
const NODES: &str = "/sys/class/infiniband_verbs";
const SUBJECT: &str = "uverbs";

/// Opens a device by its file, then by libibverbs, and adds a check: that it opens, or the obstacle.
pub fn open(device: &str, verbs: &Result<Verbs>, checks: &mut Vec<Check>) -> Option<Context> {
    let (check, context) = match try_open(device, verbs) {
        Ok((path, context)) => (Check::ok(SUBJECT, format!("{path} opens")), Some(context)),
        Err(obstacle) => (obstacle, None),
    };
    checks.push(check.of(device));
    context
}

/// The path of a device's file, and the device.
fn try_open(device: &str, verbs: &Result<Verbs>) -> Result<(String, Context), Check> {
    let Some(node) = node(device) else {
        let found = "the device has no uverbs file in /sys/class/infiniband_verbs";
        return Err(Check::failure(SUBJECT, found)
            .meaning("The module ib_uverbs is not loaded.")
            .fix("modprobe ib_uverbs"));
    };
    let path = format!("/dev/infiniband/{node}");
    if let Err(error) = of_system(&path, true) {
        let (kind, why) = (error.kind(), reason(&error.into()));
        let check = Check::failure(SUBJECT, format!("{path} cannot be opened: {why}"));
        return Err(match kind {
            ErrorKind::NotFound => match unit_of_private_devices() {
                Some(unit) => check
                    .meaning(format!("/dev is a small one of {unit}: likely its PrivateDevices= hides the device."))
                    .fix(format!(
                        "systemctl edit {unit}: [Service] PrivateDevices=no; systemctl restart {unit}"
                    )),
                None => check
                    .meaning("The kernel has the device, but /dev does not: pass the device into the container.")
                    .fix("docker run --device=/dev/infiniband ... (outside of containers: udevadm trigger)"),
            },
            ErrorKind::PermissionDenied => check
                .meaning("The file's mode, or the device cgroup of this container or service, forbids it.")
                .fix(format!("chmod 666 {path} (a service: DeviceAllow=char-infiniband_verbs rw)")),
            _ => check.meaning("The device is gone, or its driver has failed: see dmesg."),
        });
    }
    let opened = match verbs {
        Ok(verbs) if !verbs.names().iter().any(|name| name == device) => {
            let found = format!("{path} opens, but libibverbs has no provider for the device");
            return Err(Check::failure(SUBJECT, found)
                .meaning("Programs do not see it.")
                .fix("apt-get install ibverbs-providers"));
        }
        Ok(verbs) => verbs.open(device),
        Err(error) => Err(anyhow!("{error}")),
    };
    match opened {
        Ok(context) => Ok((path, context)),
        Err(error) => Err(Check::failure(
            SUBJECT,
            format!("{path} opens, but the device does not: {error}"),
        )
        .meaning("No program can use it; the error comes from libibverbs or its provider.")),
    }
}

/// The unit of systemd of this process, if its /dev is a tmpfs, as under PrivateDevices=.
fn unit_of_private_devices() -> Option<String> {
    let mounts = read("/proc/self/mountinfo")?;
    let is_dev = |mount: &&str| mount.split(' ').nth(4) == Some("/dev");
    let dev = mounts.lines().rfind(is_dev)?;
    let groups = read("/proc/self/cgroup")?;
    let mut names = groups.lines().flat_map(|line| line.rsplit('/'));
    let unit = names.find(|name| name.ends_with(".service"))?;
    let is_it = dev.contains(" - tmpfs ") && super::container::runtime().is_none();
    is_it.then(|| printable(unit))
}

/// The name of a device's file, such as "uverbs0".
fn node(device: &str) -> Option<String> {
    let is_its = |node: &String| read(format!("{NODES}/{node}/ibdev")).as_deref() == Some(device);
    names(NODES).into_iter().find(is_its)
}

/// Checks the version, and says what the library does with it.
pub fn check() -> Check {
    const SUBJECT: &str = "kernel";
    let release = kernel_release();
    let abi = read(format!("{NODES}/abi_version"));
    let found = match &abi {
        Some(abi) => format!("Linux {release}, uverbs ABI {abi}"),
        None => format!("Linux {release}, without uverbs"),
    };
    match kernel_version() {
        _ if abi.as_ref().is_some_and(|abi| abi != ABI) => Check::failure(SUBJECT, found)
            .meaning(format!("libibverbs speaks ABI {ABI}.")),
        version if version < (5, 0) => Check::warning(SUBJECT, found)
            .meaning("Before Linux 5.0 the kernel has no ioctl for a registration, so libibverbs registers all memory."),
        version if version < (5, 11) => Check::warning(SUBJECT, found).meaning(
            "Before Linux 5.11 userfaultfd(2), by which the cache watches memory, needs a privilege or a sysctl.",
        ),
        version if version < (5, 13) => Check::warning(SUBJECT, found)
            .meaning("Before Linux 5.13 a program that forks may lose registered pages, unless it calls ibv_fork_init."),
        _ => Check::ok(SUBJECT, found),
    }
}
