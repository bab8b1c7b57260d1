// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of GPUs: the GPUs of this machine, and how each RDMA device can register their memory. It
//! takes a dma-buf, which the GPU's driver exports and the RDMA device's driver imports, or
//! NVIDIA's module nvidia_peermem.

mod exports;
mod imports;
mod libcuda;
mod path;
mod pci;

use super::check::{Check, bytes};
use crate::verbs::{Context, Verbs};
use exports::Exports;
use imports::Imports;
pub use libcuda::as_child;
use pci::{Gpu, Pci, Vendor};
use std::path::Path;

const SUBJECT: &str = "gpu";

/// The reason why a way does not work, and what helps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Obstacle {
    why: String,
    fix: String,
}

impl Obstacle {
    fn new(why: impl Into<String>, fix: impl Into<String>) -> Obstacle {
        Obstacle {
            why: why.into(),
            fix: fix.into(),
        }
    }
}

/// Checks the GPUs, and these RDMA devices, each with its context if it could be opened.
pub fn check(verbs: &Result<Verbs, String>, devices: &[(String, Option<Context>)]) -> Vec<Check> {
    let pci = Pci::new(Path::new("/"));
    let gpus = pci.gpus();
    if gpus.is_empty() {
        return vec![Check::ok(SUBJECT, "none")];
    }
    let mut checks: Vec<Check> = Vec::new();
    let exports = exports::of(&pci, &gpus, libcuda::ask);
    checks.extend(gpus.iter().map(|gpu| describe(gpu, &exports)));
    checks.extend(exports.iter().map(exports::describe));
    for (device, context) in devices {
        let imports = imports::of(verbs, context.as_ref());
        let nic = pci.of_rdma(device);
        let near = path::nearest(nic.as_ref(), &gpus);
        checks.extend(
            exports
                .iter()
                .map(|of| verdict(device, of, &imports, &near)),
        );
    }
    let nics: Vec<_> = devices
        .iter()
        .filter_map(|(name, _)| pci.of_rdma(name))
        .collect();
    checks.push(path::iommu(&gpus, &nics));
    checks.extend(path::access_control(&gpus, &nics));
    checks
}

/// A GPU, and the part of its memory that other devices reach.
fn describe(gpu: &Gpu, exports: &[Exports]) -> Check {
    let of_libcuda = exports
        .iter()
        .find_map(|of| of.memory_of(&gpu.place.address));
    let memory = gpu.memory.or(of_libcuda);
    let driver = gpu.driver.as_deref().unwrap_or("none");
    let mut found = format!("{} {:04x}, driver {driver}", gpu.vendor.name(), gpu.id);
    if let Some(node) = gpu.place.node {
        found += &format!(", NUMA node {node}");
    }
    if let Some(bar) = gpu.bar {
        found += &format!(", BAR of {}", bytes(bar));
        if let Some(memory) = memory {
            found += &format!(" for {} of memory", bytes(memory));
        }
    }
    let check = match (gpu.bar, memory) {
        // The memory that the driver reports lacks what it keeps for itself, so no BAR is too long.
        (Some(bar), Some(memory)) if bar < memory => Check::warning(SUBJECT, found)
            .meaning(
                "Other devices reach the GPU's memory through its BAR, so they can map no more than the BAR's size \
                 of it at once.",
            )
            .fix("enable \"Above 4G Decoding\" and \"Resizable BAR\" in the firmware (NVIDIA: nvidia-smi -q -d MEMORY)"),
        _ => Check::ok(SUBJECT, found),
    };
    check.of(&gpu.place.address)
}

/// How an RDMA device can register memory of the GPUs of a vendor.
fn verdict(device: &str, exports: &Exports, imports: &Imports, near: &str) -> Check {
    const SUBJECT: &str = "gpu memory";
    let whose = match exports.is_only {
        true => "GPU memory",
        false => exports.vendor.memory(),
    };
    let found = |way: &str| format!("{whose} can be registered on {device}: {way}");
    let obstacle = match (&exports.dma_buf, &imports.dma_buf) {
        (Ok(()), Ok(())) => None,
        // Whoever repairs the other part meets this one.
        (Err(_), Err(obstacle)) if !imports.takes_peer_memory => Some(obstacle),
        (Err(obstacle), _) | (_, Err(obstacle)) => Some(obstacle),
    };
    let by_peer_memory = exports.has_peer_memory && imports.takes_peer_memory;
    let check = match (obstacle, by_peer_memory) {
        (None, true) => {
            Check::ok(SUBJECT, found("by dma-buf, and by nvidia_peermem")).meaning(near)
        }
        (None, false) => Check::ok(SUBJECT, found("by dma-buf")).meaning(format!(
            "A program that registers it by its address (ibv_reg_mr) needs the library for that: rdmamr run -- \
             ./app. {near}"
        )),
        (Some(obstacle), true) => Check::ok(SUBJECT, found("by nvidia_peermem"))
            .meaning(format!("Not by dma-buf: {}. {near}", obstacle.why)),
        (Some(obstacle), false) => {
            let or = match (exports.vendor, &exports.dma_buf) {
                (Vendor::Nvidia, Ok(())) if imports.takes_peer_memory => {
                    "; or: modprobe nvidia_peermem"
                }
                _ => "",
            };
            Check::warning(SUBJECT, found(&format!("not: {}", obstacle.why)))
                .meaning(format!(
                    "A registration of it fails, usually with EFAULT (\"Bad address\"). {near}"
                ))
                .fix(format!("{}{or}", obstacle.fix))
        }
    };
    check.of(device)
}

#[cfg(test)]
mod tests {
    use super::super::check::State;
    use super::pci::tests::Fake;
    use super::*;

    fn exports(dma_buf: bool, has_peer_memory: bool) -> Exports {
        let fake = Fake::new();
        fake.gpu("pci0000:17/0000:17:01.0/0000:18:00.0", "0x10de", "0");
        let kind = if dma_buf {
            "Open Kernel Module for x86_64"
        } else {
            "x86_64 Kernel Module"
        };
        fake.write(
            "proc/driver/nvidia/version",
            format!("NVRM version: NVIDIA UNIX {kind} 570.1"),
        );
        if has_peer_memory {
            fake.write("sys/module/nvidia_peermem/refcnt", "0");
        }
        exports::of(&fake.pci, &fake.pci.gpus(), || Err("none".into())).remove(0)
    }

    fn imports(takes: bool, is_soft: bool) -> Imports {
        let obstacle = Obstacle::new("rxe takes no dma-buf", "another device");
        Imports {
            dma_buf: if takes { Ok(()) } else { Err(obstacle) },
            takes_peer_memory: !is_soft,
        }
    }

    #[test]
    fn the_verdict_names_the_way_or_the_obstacle() {
        let judge = |exports: Exports, imports| {
            let check = verdict("mlx5_0", &exports, &imports, "Near.");
            let way = check
                .found
                .strip_prefix("GPU memory can be registered on mlx5_0: ");
            let way = way.expect(&check.found).to_owned();
            (
                check.state,
                way,
                check.meaning.unwrap_or_default(),
                check.fix.unwrap_or_default(),
            )
        };
        let (state, way, meaning, _) = judge(exports(true, false), imports(true, false));
        assert_eq!((state, way.as_str()), (State::Ok, "by dma-buf"));
        assert!(
            meaning.contains("rdmamr run") && meaning.ends_with("Near."),
            "{meaning}"
        );
        let (state, way, ..) = judge(exports(true, true), imports(true, false));
        assert_eq!(
            (state, way.as_str()),
            (State::Ok, "by dma-buf, and by nvidia_peermem")
        );
        for (dma_buf, takes) in [(false, true), (true, false), (false, false)] {
            let (state, way, meaning, _) = judge(exports(dma_buf, true), imports(takes, false));
            assert_eq!((state, way.as_str()), (State::Ok, "by nvidia_peermem"));
            assert!(meaning.starts_with("Not by dma-buf: "), "{meaning}");
        }
        let (state, way, _, fix) = judge(exports(false, false), imports(true, false));
        assert_eq!(
            (state, way.as_str()),
            (
                State::Warning,
                "not: NVIDIA's closed kernel modules export none"
            )
        );
        assert!(
            fix.contains("nvidia-open") && fix.contains("modprobe nvidia_peermem"),
            "{fix}"
        );
        let (_, way, _, fix) = judge(exports(true, false), imports(false, false));
        assert_eq!(way, "not: rxe takes no dma-buf");
        assert_eq!(fix, "another device; or: modprobe nvidia_peermem");
        // Soft-RoCE can have neither.
        for dma_buf in [true, false] {
            let (state, way, _, fix) = judge(exports(dma_buf, true), imports(false, true));
            assert_eq!(
                (state, way.as_str()),
                (State::Warning, "not: rxe takes no dma-buf")
            );
            assert_eq!(fix, "another device");
        }
    }

    #[test]
    fn a_bar_shorter_than_the_memory_is_a_warning() {
        let fake = Fake::new();
        fake.gpu("pci0000:17/0000:17:01.0/0000:18:00.0", "0x1002", "1");
        let of = |memory: u64| {
            fake.write(
                "sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/mem_info_vram_total",
                memory.to_string(),
            );
            describe(&fake.pci.gpus()[0], &[])
        };
        let check = of(128 << 30);
        assert_eq!(check.state, State::Ok);
        assert_eq!(
            check.found,
            "AMD 2330, driver none, NUMA node 1, BAR of 128 GiB for 128 GiB of memory"
        );
        assert_eq!(of(192 << 30).state, State::Warning);
    }
}
