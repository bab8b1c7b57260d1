// SPDX-License-Identifier: MIT OR Apache-2.0
//! The way between a GPU and an RDMA device: the PCIe bridges that both are below, the IOMMU, and
//! access control of PCIe (ACS).

use super::super::check::Check;
use super::pci::{Gpu, Place};
use crate::files::read;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, PathBuf};

/// How far two PCI devices are from each other, the nearest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Distance {
    Switch,
    Root,
    Node,
    OtherRoot,
    OtherNode,
}

impl Distance {
    fn words(self) -> &'static str {
        match self {
            Distance::Switch => "below the same PCIe switch",
            Distance::Root => "at the same root complex",
            Distance::Node => "at another root complex of the same NUMA node",
            Distance::OtherRoot => "at another root complex",
            Distance::OtherNode => "on another NUMA node",
        }
    }

    fn between(one: &Place, other: &Place) -> Distance {
        let (one_way, other_way) = (way(one), way(other));
        let shared = one_way
            .iter()
            .zip(&other_way)
            .take_while(|(one, other)| one == other);
        match (shared.count(), one.node, other.node) {
            (2.., ..) => Distance::Switch,
            (1, ..) => Distance::Root,
            (_, Some(one), Some(other)) if one == other => Distance::Node,
            (_, Some(_), Some(_)) => Distance::OtherNode,
            _ => Distance::OtherRoot,
        }
    }
}

/// The root complex ("pci0000:17") and the bridges above a device, in this order.
fn way(place: &Place) -> Vec<String> {
    let parts = place
        .folder
        .parent()
        .into_iter()
        .flat_map(|folder| folder.components());
    let names = parts.filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        _ => None,
    });
    names.skip_while(|name| !is_root(name)).collect()
}

/// Whether a folder is a root complex: "pci0000:17".
fn is_root(name: &str) -> bool {
    name.strip_prefix("pci")
        .is_some_and(|rest| rest.contains(':'))
}

/// The GPUs by their distance from an RDMA device, in words.
pub fn nearest(nic: Option<&Place>, gpus: &[Gpu]) -> String {
    let Some(nic) = nic else {
        return "The device is no PCI device.".into();
    };
    let mut by_distance: BTreeMap<Distance, Vec<&str>> = BTreeMap::new();
    for gpu in gpus {
        let distance = Distance::between(nic, &gpu.place);
        by_distance
            .entry(distance)
            .or_default()
            .push(&gpu.place.address);
    }
    let words = by_distance
        .into_iter()
        .enumerate()
        .map(|(n, (distance, gpus))| match (n, &gpus[..]) {
            (_, [one]) => format!("{one} is {}", distance.words()),
            // The nearest are those to use.
            (0, _) => format!("{} are {}", gpus.join(", "), distance.words()),
            (_, _) => format!("{} are {}", gpus.len(), distance.words()),
        });
    format!("{}.", words.collect::<Vec<_>>().join("; "))
}

/// Whether the IOMMU translates the addresses of these devices.
pub fn iommu(gpus: &[Gpu], nics: &[Place]) -> Check {
    const SUBJECT: &str = "iommu";
    let places = gpus.iter().map(|gpu| &gpu.place).chain(nics);
    let kinds: BTreeSet<_> = places
        .map(|place| read(place.folder.join("iommu_group/type")).unwrap_or_default())
        .collect();
    let translated: Vec<_> = kinds
        .iter()
        .filter(|kind| kind.starts_with("DMA"))
        .collect();
    if let Some(kind) = translated.first() {
        return Check::warning(SUBJECT, format!("on, and it translates addresses ({kind})"))
            .meaning(
                "Data between GPU and RDMA device passes the root complex, not the PCIe switch below it; some drivers \
                 refuse to map a GPU's memory then.",
            )
            .fix("iommu=pt on the kernel's command line");
    }
    if kinds.contains("identity") {
        return Check::ok(SUBJECT, "on, without translation (passthrough)");
    }
    Check::ok(SUBJECT, "off for GPUs and RDMA devices")
}

/// Whether the bridges between GPUs and RDMA devices redirect data from one to the other (PCIe's ACS,
/// P2P Request Redirect). Nothing to say if no bridge has both below it.
pub fn access_control(gpus: &[Gpu], nics: &[Place]) -> Option<Check> {
    const SUBJECT: &str = "acs";
    let mut bridges: BTreeSet<PathBuf> = BTreeSet::new();
    for nic in nics {
        for gpu in gpus
            .iter()
            .filter(|gpu| Distance::between(nic, &gpu.place) == Distance::Switch)
        {
            for place in [nic, &gpu.place] {
                let above = place.folder.ancestors().skip(1);
                let is_bridge = |folder: &&std::path::Path| {
                    folder
                        .file_name()
                        .is_some_and(|name| !is_root(&name.to_string_lossy()))
                };
                bridges.extend(above.take_while(is_bridge).map(PathBuf::from));
            }
        }
    }
    if bridges.is_empty() {
        return None;
    }
    let states: Vec<_> = bridges
        .iter()
        .map(|bridge| (bridge, redirects(bridge)))
        .collect();
    let redirecting: Vec<_> = states
        .iter()
        .filter(|(_, state)| *state == Some(true))
        .filter_map(|(bridge, _)| Some(bridge.file_name()?.to_string_lossy().into_owned()))
        .collect();
    if let Some(first) = redirecting.first() {
        let check = Check::warning(
            SUBJECT,
            format!(
                "{} redirect requests to the root complex (ACS)",
                redirecting.join(", ")
            ),
        );
        let check = check
            .meaning(
                "Data between a GPU and an RDMA device below the same PCIe switch takes the way by the root complex, \
                 which is slower. Virtual machines need it so.",
            )
            .fix(format!("setpci -s {first} ECAP_ACS+6.w=0000 (or pci=disable_acs_redir=... at boot)"));
        return Some(check);
    }
    let unread = states.iter().filter(|(_, state)| state.is_none()).count();
    Some(match unread {
        0 => Check::ok(
            SUBJECT,
            "no bridge between GPUs and RDMA devices redirects their requests",
        ),
        _ => Check::ok(SUBJECT, unread_words()),
    })
}

/// Why the configuration of a bridge is not known.
fn unread_words() -> &'static str {
    // SAFETY: geteuid has no preconditions.
    match unsafe { libc::geteuid() } {
        0 => "unknown: this machine does not show the extended configuration of its bridges",
        _ => "unknown: only root can read it",
    }
}

/// Whether a bridge redirects requests between the devices below it, by its configuration space.
/// `None` if the extended part is not readable: only root reads it.
fn redirects(bridge: &std::path::Path) -> Option<bool> {
    const EXTENDED: usize = 0x100;
    const ACS: u16 = 0x0d;
    const CONTROL: usize = 6;
    const REQUEST_REDIRECT: u16 = 1 << 2;
    let config = fs::read(bridge.join("config")).ok()?;
    let word = |at: usize| Some(u16::from_le_bytes([*config.get(at)?, *config.get(at + 1)?]));
    let mut at = EXTENDED;
    word(at)?;
    // Each capability is at least 8 bytes long, and none comes twice.
    for _ in 0..config.len() / 8 {
        if word(at)? == ACS {
            return Some(word(at + CONTROL)? & REQUEST_REDIRECT != 0);
        }
        at = usize::from(word(at + 2)? >> 4);
        if at < EXTENDED {
            break;
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::super::pci::tests::Fake;
    use super::*;

    /// A GPU below the NIC's switch, one at its root complex, one on its node, and two far away.
    fn machine() -> Fake {
        let fake = Fake::new();
        fake.nic(
            "mlx5_0",
            "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0",
            "0",
        );
        for (path, node) in [
            (
                "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:01.0/0000:1b:00.0",
                "0",
            ),
            ("pci0000:17/0000:17:03.0/0000:1c:00.0", "0"),
            ("pci0000:30/0000:30:01.0/0000:31:00.0", "0"),
            ("pci0000:90/0000:90:01.0/0000:91:00.0", "1"),
            ("pci0000:a0/0000:a0:01.0/0000:a1:00.0", "1"),
            ("pci0000:b0/0000:b0:01.0/0000:b1:00.0", "-1"),
        ] {
            fake.gpu(path, "0x10de", node);
        }
        fake
    }

    #[test]
    fn distances_are_those_of_the_bridges() {
        let fake = machine();
        assert_eq!(
            nearest(fake.pci.of_rdma("mlx5_0").as_ref(), &fake.pci.gpus()),
            "0000:1b:00.0 is below the same PCIe switch; 0000:1c:00.0 is at the same root complex; \
             0000:31:00.0 is at another root complex of the same NUMA node; 0000:b1:00.0 is at another root \
             complex; 2 are on another NUMA node."
        );
        assert_eq!(
            nearest(None, &fake.pci.gpus()),
            "The device is no PCI device."
        );
    }

    #[test]
    fn the_iommu_is_that_of_the_devices() {
        let fake = machine();
        let check = || iommu(&fake.pci.gpus(), &[fake.pci.of_rdma("mlx5_0").unwrap()]).found;
        assert_eq!(check(), "off for GPUs and RDMA devices");
        let group = |kind| {
            fake.write(
                "sys/devices/pci0000:30/0000:30:01.0/0000:31:00.0/iommu_group/type",
                kind,
            )
        };
        group("identity\n");
        assert_eq!(check(), "on, without translation (passthrough)");
        group("DMA-FQ\n");
        assert_eq!(check(), "on, and it translates addresses (DMA-FQ)");
    }

    #[test]
    fn acs_is_read_from_the_bridges_above_both() {
        let fake = machine();
        let check =
            || access_control(&fake.pci.gpus(), &[fake.pci.of_rdma("mlx5_0").unwrap()]).unwrap();
        assert_eq!(check().found, unread_words());
        // Two extended capabilities: AER at 0x100, ACS at 0x148.
        let mut config = vec![0; 4096];
        config[0x100..0x104].copy_from_slice(&[0x01, 0, 0x01, 0x14]);
        config[0x102..0x104].copy_from_slice(&(0x148u16 << 4 | 1).to_le_bytes());
        config[0x148] = 0x0d;
        let bridges = [
            "0000:17:01.0",
            "0000:17:01.0/0000:18:00.0",
            "0000:17:01.0/0000:18:00.0/0000:19:00.0",
            "0000:17:01.0/0000:18:00.0/0000:19:01.0",
        ];
        for bridge in bridges {
            fake.write(&format!("sys/devices/pci0000:17/{bridge}/config"), &config);
        }
        assert!(check().found.starts_with("no bridge"), "{}", check().found);
        config[0x14e] = 1 << 2;
        fake.write(
            &format!("sys/devices/pci0000:17/{}/config", bridges[3]),
            &config,
        );
        assert_eq!(
            check().found,
            "0000:19:01.0 redirect requests to the root complex (ACS)"
        );
        // A user who is not root reads the first part alone.
        fake.write(
            &format!("sys/devices/pci0000:17/{}/config", bridges[3]),
            &config[..64],
        );
        assert_eq!(check().found, unread_words());
    }
}
