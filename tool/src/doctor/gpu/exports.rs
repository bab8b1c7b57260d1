// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the drivers of the GPUs export their memory: as a dma-buf, or by a module that pins it
//! for RDMA devices (nvidia_peermem).

use super::super::check::{Check, Obstacle, obstacle};
use super::pci::{AMD, Gpu, NVIDIA, Vendor};
use crate::files::{of_system, read};
use std::os::fd::AsRawFd;
use std::path::Path;

/// The driver of a vendor's GPUs.
pub struct Exports {
    pub vendor: Vendor,
    pub dma_buf: Result<(), Obstacle>,
    /// Whether nvidia_peermem is loaded.
    pub has_peer_memory: bool,
    /// The driver, in words.
    found: String,
}

/// The drivers of these GPUs, one for each vendor, on this version of Linux.
pub fn of(root: &Path, gpus: &[Gpu], kernel: (u32, u32)) -> Vec<Exports> {
    let has = |vendor: &Vendor| gpus.iter().any(|gpu| gpu.vendor == *vendor);
    let exports = [NVIDIA, AMD].into_iter().filter(has).map(|vendor| {
        let has_peer_memory = vendor == NVIDIA && root.join("sys/module/nvidia_peermem").exists();
        let (mut found, dma_buf) = match vendor {
            NVIDIA => nvidia(root, kernel),
            _ => amd(root),
        };
        if vendor == NVIDIA {
            let not = if has_peer_memory { "" } else { "not " };
            found += &format!("; nvidia_peermem is {not}loaded");
        }
        Exports {
            vendor,
            dma_buf,
            has_peer_memory,
            found,
        }
    });
    exports.collect()
}

pub fn describe(exports: &Exports) -> Check {
    const SUBJECT: &str = "gpu driver";
    match &exports.dma_buf {
        Ok(()) => Check::ok(SUBJECT, &exports.found),
        Err(_) if exports.has_peer_memory => Check::ok(SUBJECT, &exports.found),
        Err(obstacle) => Check::warning(SUBJECT, &exports.found)
            .meaning(format!("No dma-buf of the GPU's memory: {}.", obstacle.why))
            .fix(&obstacle.fix),
    }
}

/// What NVIDIA's driver is, and whether it exports dma-bufs: the open modules do (its documentation of
/// GPUDirect RDMA).
fn nvidia(root: &Path, kernel: (u32, u32)) -> (String, Result<(), Obstacle>) {
    let text = read(root.join("proc/driver/nvidia/version")).unwrap_or_default();
    let Some((version, are_open)) = modules(&text) else {
        let none = obstacle(
            "NVIDIA's kernel modules are not loaded",
            "install NVIDIA's driver, with the open kernel modules (nvidia-open), and: modprobe nvidia",
        );
        return ("NVIDIA: no driver".into(), none);
    };
    let kind = if are_open { "open" } else { "closed" };
    let dma_buf = match are_open {
        false => obstacle(
            "NVIDIA's closed kernel modules export none",
            "install NVIDIA's open kernel modules (nvidia-open), or: modprobe nvidia_peermem",
        ),
        true if kernel < (5, 12) => obstacle(
            "the driver exports none before Linux 5.12",
            "modprobe nvidia_peermem",
        ),
        true => Ok(()),
    };
    (format!("NVIDIA {version}, {kind} kernel modules"), dma_buf)
}

/// The version of NVIDIA's kernel modules, and whether they are the open ones, by the text of
/// /proc/driver/nvidia/version.
fn modules(text: &str) -> Option<(&str, bool)> {
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with("NVRM version:"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    let version = line.split_whitespace().find(is_version)?;
    Some((version, line.contains("Open Kernel Module")))
}

/// What amdgpu is, and whether it exports dma-bufs.
fn amd(root: &Path) -> (String, Result<(), Obstacle>) {
    /// The first version of its interface for computing that exports a dma-buf.
    const EXPORTS: (u32, u32) = (1, 12);
    let module = root.join("sys/module/amdgpu");
    if !module.exists() {
        let none = obstacle("the module amdgpu is not loaded", "modprobe amdgpu");
        return ("AMD: no driver".into(), none);
    }
    let version = read(module.join("version")).map_or(String::new(), |it| format!(" {it}"));
    let (says, dma_buf) = match kfd(&root.join("dev/kfd")) {
        Some(kfd) if kfd < EXPORTS => (
            "it exports no dma-bufs",
            obstacle(
                format!(
                    "amdgpu's kfd {}.{} exports none: 1.12 and later do",
                    kfd.0, kfd.1
                ),
                "a later kernel, or AMD's own driver (amdgpu-dkms)",
            ),
        ),
        Some(_) => ("it exports dma-bufs", Ok(())),
        None => ("/dev/kfd does not say whether it exports dma-bufs", Ok(())),
    };
    (format!("amdgpu{version} is loaded; {says}"), dma_buf)
}

/// The version of amdgpu's interface for computing, AMDKFD_IOC_GET_VERSION (linux/kfd_ioctl.h).
fn kfd(device: &Path) -> Option<(u32, u32)> {
    const GET_VERSION: libc::c_ulong = 0x8008_4b01;
    let device = of_system(device, false).ok()?;
    let mut version = [0u32; 2];
    // SAFETY: the call writes two numbers.
    let asked = unsafe { libc::ioctl(device.as_raw_fd(), GET_VERSION, version.as_mut_ptr()) };
    (asked == 0).then_some((version[0], version[1]))
}

#[cfg(test)]
mod tests {
    use super::super::super::check::State;
    use super::super::pci::tests::Fake;
    use super::*;

    const CLOSED: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n\
                          GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
    const OPEN: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder)\n";

    const NEW: (u32, u32) = (6, 1);

    /// What a machine with this driver has.
    fn of_nvidia(version: Option<&str>, peer_memory: bool, kernel: (u32, u32)) -> Exports {
        let fake = Fake::new();
        fake.gpu("pci0000:17/0000:17:01.0/0000:18:00.0", NVIDIA.0, "0");
        if let Some(version) = version {
            fake.write("proc/driver/nvidia/version", version);
        }
        if peer_memory {
            fake.write("sys/module/nvidia_peermem/refcnt", "0");
        }
        let mut found = of(fake.root(), &fake.gpus(), kernel);
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    #[test]
    fn modules_are_open_or_closed() {
        assert_eq!(modules(CLOSED), Some(("535.129.03", false)));
        assert_eq!(modules(OPEN), Some(("570.86.15", true)));
        assert_eq!(modules("nothing of that"), None);
    }

    #[test]
    fn nvidias_open_modules_export() {
        let good = of_nvidia(Some(OPEN), true, NEW);
        assert!(good.dma_buf.is_ok() && good.has_peer_memory);
        assert_eq!(
            good.found,
            "NVIDIA 570.86.15, open kernel modules; nvidia_peermem is loaded"
        );
        let old = of_nvidia(Some(OPEN), false, (5, 10));
        assert!(old.dma_buf.unwrap_err().why.contains("Linux 5.12") && !old.has_peer_memory);
        let closed = |has_peer_memory| of_nvidia(Some(CLOSED), has_peer_memory, NEW);
        assert_eq!(describe(&closed(true)).state, State::Ok);
        assert_eq!(describe(&closed(false)).state, State::Warning);
        let closed = closed(false).dma_buf.unwrap_err();
        assert!(
            closed.why.contains("closed") && closed.fix.contains("nvidia-open"),
            "{closed:?}"
        );
        let none = of_nvidia(None, false, NEW);
        assert!(none.dma_buf.unwrap_err().why.contains("not loaded"));
    }

    #[test]
    fn amds_driver_exports() {
        let fake = Fake::new();
        fake.gpu("pci0000:17/0000:17:01.0/0000:18:00.0", AMD.0, "0");
        let of = || of(fake.root(), &fake.gpus(), NEW);
        assert!(of()[0].dma_buf.is_err());
        fake.write("sys/module/amdgpu/version", "6.10.5\n");
        assert!(of()[0].dma_buf.is_ok());
        assert_eq!(
            of()[0].found,
            "amdgpu 6.10.5 is loaded; /dev/kfd does not say whether it exports dma-bufs"
        );
        fake.gpu("pci0000:17/0000:17:02.0/0000:19:00.0", NVIDIA.0, "0");
        let vendors = of().iter().map(|of| of.vendor).collect::<Vec<_>>();
        assert_eq!(vendors, [NVIDIA, AMD]);
    }
}
