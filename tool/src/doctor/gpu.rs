// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of GPUs: the GPUs of this machine, and how each RDMA device can register their memory. It
//! takes a dma-buf, which the GPU's driver exports and the RDMA device's driver imports, or
//! NVIDIA's module nvidia_peermem.

mod exports;
mod imports;
mod libcuda;
mod pci;

use super::check::Check;
use crate::files::{of_system, read};
use crate::report::units::bytes;
use crate::verbs::{Context, Verbs};
use anyhow::Result;
use exports::Exports;
use flate2::read::GzDecoder;
use imports::Imports;
pub use libcuda::as_child;
use pci::{Gpu, NVIDIA, Place};
use std::path::Path;

/// Checks the GPUs, and these RDMA devices, each with its context if it could be opened.
pub fn check(verbs: &Result<Verbs>, devices: &[(String, Option<Context>)]) -> Vec<Check> {
    let root = Path::new("/");
    let mut gpus = pci::gpus(root);
    if gpus.is_empty() {
        return vec![Check::ok("gpu", "none")];
    }
    let exports = exports::of(root, &mut gpus, libcuda::ask);
    let mut checks: Vec<Check> = gpus.iter().map(describe).collect();
    checks.extend(exports.iter().map(exports::describe));
    let mut places: Vec<Place> = gpus.iter().map(|gpu| gpu.place.clone()).collect();
    for (device, context) in devices {
        let imports = imports::of(verbs, context.as_ref());
        let nic = pci::of_rdma(root, device);
        let near = nearest(nic.as_ref(), &gpus);
        let verdict = |of| verdict(device, of, &imports, &near);
        checks.extend(exports.iter().map(verdict));
        places.extend(nic);
    }
    checks.push(kernel(root));
    checks.push(iommu(&places));
    checks
}

/// What the kernel was built without, and transfers between a GPU and another device need. Without it
/// a registration may succeed.
fn kernel(root: &Path) -> Check {
    const SUBJECT: &str = "gpu kernel";
    let Some(config) = configuration(root) else {
        return Check::ok(
            SUBJECT,
            "not known: the kernel's configuration is neither in /boot and /lib/modules nor at /proc/config.gz",
        );
    };
    let mut lacking = Vec::new();
    // A kernel without device memory (ZONE_DEVICE) does not name this option.
    if !config.contains("CONFIG_PCI_P2PDMA=y") {
        lacking.push("CONFIG_PCI_P2PDMA");
    }
    // A kernel that always moves dma-bufs does not name this one.
    if config.contains("# CONFIG_DMABUF_MOVE_NOTIFY is not set") {
        lacking.push("CONFIG_DMABUF_MOVE_NOTIFY");
    }
    if lacking.is_empty() {
        return Check::ok(SUBJECT, "built with what transfers between devices need");
    }
    Check::warning(SUBJECT, format!("built without {}", lacking.join(" and ")))
        .meaning(
            "A registration of a GPU's memory as a dma-buf may succeed, and its transfers fail or take the way \
             through the processor's memory. Without CONFIG_DMABUF_MOVE_NOTIFY the memory stays pinned as long as \
             it is registered.",
        )
        .fix("a kernel that is built with it")
}

/// The running kernel's configuration. A container sees that of its image in /boot, if any, under
/// another release.
fn configuration(root: &Path) -> Option<String> {
    let release = read(root.join("proc/sys/kernel/osrelease"))?;
    let in_boot = read(root.join(format!("boot/config-{release}")));
    let in_modules = || read(root.join(format!("lib/modules/{release}/config")));
    in_boot.or_else(in_modules).or_else(|| {
        let compressed = of_system(root.join("proc/config.gz"), false).ok()?;
        std::io::read_to_string(GzDecoder::new(compressed)).ok()
    })
}

/// A GPU, and the part of its memory that other devices reach.
fn describe(gpu: &Gpu) -> Check {
    let driver = gpu.driver.as_deref().unwrap_or("none");
    let mut found = format!("{} {:04x}, driver {driver}", gpu.vendor.1, gpu.id);
    if let Some(node) = gpu.place.node {
        found += &format!(", NUMA node {node}");
    }
    if let Some(bar) = gpu.bar {
        found += &format!(", BAR of {}", bytes(bar));
    }
    let memory = gpu.memory.filter(|_| gpu.bar.is_some());
    if let Some(memory) = memory {
        found += &format!(" for {} of memory", bytes(memory));
    }
    // The memory that the driver reports lacks what it keeps for itself, so no BAR is too long.
    let check = match gpu.bar < memory {
        true => Check::warning("gpu", found)
            .meaning(
                "Other devices reach the GPU's memory through its BAR, so they can map no more than the BAR's size \
                 of it at once.",
            )
            .fix("enable \"Above 4G Decoding\" and \"Resizable BAR\" in the firmware (NVIDIA: nvidia-smi -q -d MEMORY)"),
        false => Check::ok("gpu", found),
    };
    check.of(&gpu.place.address)
}

/// How an RDMA device can register memory of the GPUs of a vendor.
fn verdict(device: &str, exports: &Exports, imports: &Imports, near: &str) -> Check {
    const SUBJECT: &str = "gpu memory";
    let vendor = exports.vendor.1;
    let found = |way: &str| format!("{vendor} GPU memory can be registered on {device}: {way}");
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
            let is_nvidia = exports.vendor == NVIDIA && exports.dma_buf.is_ok();
            let or = match is_nvidia && imports.takes_peer_memory {
                true => "; or: modprobe nvidia_peermem",
                false => "",
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

/// The GPUs that are nearest to an RDMA device, by the bridges that both are below.
fn nearest(nic: Option<&Place>, gpus: &[Gpu]) -> String {
    let Some(nic) = nic else {
        return "The device is no PCI device.".into();
    };
    let shared = |gpu: &Gpu| {
        let mut above = nic.folder.ancestors();
        let shared = above.find(|above| gpu.place.folder.starts_with(above));
        let name = shared.and_then(Path::file_name).unwrap_or_default();
        match name.to_string_lossy() {
            name if name.starts_with("pci") => (1, "at the same root complex"),
            name if name.contains(':') => (0, "below the same PCIe switch"),
            _ if nic.node.is_some() && nic.node == gpu.place.node => (2, "on the same NUMA node"),
            _ => (3, "at another root complex"),
        }
    };
    let best = gpus.iter().map(shared).min().unwrap_or_default();
    let near = gpus.iter().filter(|gpu| shared(gpu) == best);
    let near: Vec<_> = near.map(|gpu| &gpu.place.address[..]).collect();
    format!("Nearest, {}: {}.", best.1, near.join(", "))
}

/// Whether the IOMMU translates the addresses of these devices.
fn iommu(places: &[Place]) -> Check {
    const SUBJECT: &str = "iommu";
    let kinds = places.iter().map(|of| of.folder.join("iommu_group/type"));
    let kinds: Vec<_> = kinds.filter_map(read).collect();
    match kinds.iter().find(|kind| kind.starts_with("DMA")) {
        Some(kind) => Check::warning(SUBJECT, format!("on, and it translates addresses ({kind})"))
            .meaning(
                "Data between GPU and RDMA device passes the root complex, not the PCIe switch below it; some drivers \
                 refuse to map a GPU's memory then.",
            )
            .fix("iommu=pt on the kernel's command line"),
        None if kinds.is_empty() => Check::ok(SUBJECT, "off for GPUs and RDMA devices"),
        None => Check::ok(SUBJECT, "on, without translation (passthrough)"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{State, obstacle};
    use super::pci::{AMD, tests::Fake};
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write as _;

    fn exports(dma_buf: bool, has_peer_memory: bool) -> Exports {
        let fake = Fake::new();
        fake.gpu("pci0000:17/0000:17:01.0/0000:18:00.0", NVIDIA.0, "0");
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
        exports::of(fake.root(), &mut fake.gpus(), || Err("none".into())).remove(0)
    }

    fn imports(takes: bool, is_soft: bool) -> Imports {
        let refused = obstacle("rxe takes no dma-buf", "another device");
        Imports {
            dma_buf: if takes { Ok(()) } else { refused },
            takes_peer_memory: !is_soft,
        }
    }

    #[test]
    fn a_kernel_without_transfers_between_devices_is_named() {
        let fake = Fake::new();
        let found = || {
            let check = kernel(fake.root());
            (check.state, check.found)
        };
        assert!(found().1.starts_with("not known: "));
        fake.write("proc/sys/kernel/osrelease", "7.2.0\n");
        assert!(found().1.starts_with("not known: "));
        // One place after another, each before the last one: the first that is there decides.
        let mut compressed = GzEncoder::new(Vec::new(), Compression::fast());
        let both = b"# CONFIG_PCI_P2PDMA is not set\n# CONFIG_DMABUF_MOVE_NOTIFY is not set\n";
        compressed.write_all(both).unwrap();
        fake.write("proc/config.gz", compressed.finish().unwrap());
        let lacks = "built without CONFIG_PCI_P2PDMA and CONFIG_DMABUF_MOVE_NOTIFY";
        assert_eq!(found(), (State::Warning, lacks.into()));
        fake.write("lib/modules/7.2.0/config", "CONFIG_ZONE_DEVICE=n\n");
        assert_eq!(
            found(),
            (State::Warning, "built without CONFIG_PCI_P2PDMA".into())
        );
        fake.write("boot/config-7.2.0", "CONFIG_PCI_P2PDMA=y\n");
        assert_eq!(found().0, State::Ok);
    }

    #[test]
    fn the_verdict_names_the_way_or_the_obstacle() {
        let judge = |exports: Exports, imports| {
            let check = verdict("mlx5_0", &exports, &imports, "Near.");
            let way = check
                .found
                .strip_prefix("NVIDIA GPU memory can be registered on mlx5_0: ");
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
        fake.gpu("pci0000:17/0000:17:01.0/0000:18:00.0", AMD.0, "1");
        let of = |memory: u64| {
            fake.write(
                "sys/devices/pci0000:17/0000:17:01.0/0000:18:00.0/mem_info_vram_total",
                memory.to_string(),
            );
            describe(&fake.gpus()[0])
        };
        let check = of(128 << 30);
        assert_eq!(check.state, State::Ok);
        assert_eq!(
            check.found,
            "AMD 2330, driver none, NUMA node 1, BAR of 128 GiB for 128 GiB of memory"
        );
        assert_eq!(of(192 << 30).state, State::Warning);
    }

    #[test]
    fn the_nearest_gpu_is_below_the_nearest_bridge() {
        let fake = Fake::new();
        let switch = "pci0000:17/0000:17:01.0/0000:18:00.0";
        fake.nic(
            "mlx5_0",
            &format!("{switch}/0000:19:00.0/0000:1a:00.0"),
            "0",
        );
        let near = || nearest(pci::of_rdma(fake.root(), "mlx5_0").as_ref(), &fake.gpus());
        for (path, node, wanted) in [
            (
                "pci0000:b0/0000:b0:01.0/0000:b1:00.0",
                "-1",
                "at another root complex: 0000:b1:00.0.",
            ),
            (
                "pci0000:90/0000:90:01.0/0000:91:00.0",
                "1",
                "at another root complex: 0000:91:00.0, 0000:b1:00.0.",
            ),
            (
                "pci0000:30/0000:30:01.0/0000:31:00.0",
                "0",
                "on the same NUMA node: 0000:31:00.0.",
            ),
            (
                "pci0000:17/0000:17:03.0/0000:1c:00.0",
                "0",
                "at the same root complex: 0000:1c:00.0.",
            ),
            (
                &format!("{switch}/0000:19:01.0/0000:1b:00.0"),
                "0",
                "below the same PCIe switch: 0000:1b:00.0.",
            ),
        ] {
            fake.gpu(path, NVIDIA.0, node);
            assert_eq!(near(), format!("Nearest, {wanted}"));
        }
        assert_eq!(nearest(None, &fake.gpus()), "The device is no PCI device.");
    }

    #[test]
    fn the_iommu_is_that_of_the_devices() {
        let fake = Fake::new();
        fake.gpu("pci0000:30/0000:31:00.0", NVIDIA.0, "0");
        let check = || iommu(&[fake.gpus()[0].place.clone()]).found;
        assert_eq!(check(), "off for GPUs and RDMA devices");
        let group = "sys/devices/pci0000:30/0000:31:00.0/iommu_group/type";
        fake.write(group, "identity\n");
        assert_eq!(check(), "on, without translation (passthrough)");
        fake.write(group, "DMA-FQ\n");
        assert_eq!(check(), "on, and it translates addresses (DMA-FQ)");
    }
}
