// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the drivers of the GPUs export their memory: as a dma-buf, or by a module that pins it
//! for RDMA devices (nvidia_peermem).

use super::super::check::Check;
use super::Obstacle;
use super::libcuda::{Answer, Asked};
use super::pci::{Gpu, Pci, Vendor};
use crate::files::{of_system, read};
use std::os::fd::AsRawFd;
use std::path::Path;

/// The driver of a vendor's GPUs.
pub struct Exports {
    pub vendor: Vendor,
    /// Whether all GPUs are of this vendor.
    pub is_only: bool,
    pub dma_buf: Result<(), Obstacle>,
    /// Whether nvidia_peermem is loaded.
    pub has_peer_memory: bool,
    /// The driver, in words.
    found: String,
    /// What the driver's library tells of each GPU.
    asked: Vec<Asked>,
}

impl Exports {
    fn new(vendor: Vendor, found: impl Into<String>, dma_buf: Result<(), Obstacle>) -> Exports {
        Exports {
            vendor,
            is_only: true,
            dma_buf,
            has_peer_memory: false,
            found: found.into(),
            asked: Vec::new(),
        }
    }

    /// The size of a GPU's memory.
    pub fn memory_of(&self, address: &str) -> Option<u64> {
        let asked = self.asked.iter().find(|asked| asked.address == address)?;
        Some(asked.memory).filter(|&memory| memory > 0)
    }
}

/// The drivers of these GPUs, one for each vendor. `ask` asks the library of NVIDIA's.
pub fn of(pci: &Pci, gpus: &[Gpu], ask: impl Fn() -> Answer) -> Vec<Exports> {
    let has = |vendor: &Vendor| gpus.iter().any(|gpu| gpu.vendor == *vendor);
    let vendors: Vec<_> = Vendor::ALL.into_iter().filter(has).collect();
    let is_only = vendors.len() == 1;
    let exports = vendors.iter().map(|vendor| {
        let exports = match vendor {
            Vendor::Nvidia => nvidia(pci, ask()),
            Vendor::Amd => amd(pci),
        };
        Exports { is_only, ..exports }
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

/// NVIDIA's kernel modules, by the text of /proc/driver/nvidia/version.
#[derive(PartialEq, Eq, Debug)]
struct Modules {
    version: String,
    are_open: bool,
}

fn modules(text: &str) -> Option<Modules> {
    let line = text
        .lines()
        .find(|line| line.starts_with("NVRM version:"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    Some(Modules {
        version: line.split_whitespace().find(is_version)?.into(),
        are_open: line.contains("Open Kernel Module"),
    })
}

fn nvidia(pci: &Pci, answer: Answer) -> Exports {
    const OPEN: &str =
        "install NVIDIA's open kernel modules (nvidia-open), or: modprobe nvidia_peermem";
    /// The step of `libcuda.rs` that fails if the driver serves no program.
    const NO_DRIVER: &str = "cuInit";
    /// `CUDA_ERROR_NO_DEVICE`, also by a setting for this process alone (CUDA_VISIBLE_DEVICES).
    const NO_DEVICE: &str = "error 100";
    let modules = read(pci.root.join("proc/driver/nvidia/version")).and_then(|text| modules(&text));
    let has_peer_memory = pci.root.join("sys/module/nvidia_peermem").exists();
    let peer_memory = match has_peer_memory {
        true => "nvidia_peermem is loaded",
        false => "nvidia_peermem is not loaded",
    };
    let Some(modules) = modules else {
        let obstacle = Obstacle::new(
            "NVIDIA's kernel modules are not loaded",
            "install NVIDIA's driver, with the open kernel modules (nvidia-open), and: modprobe nvidia",
        );
        return Exports::new(Vendor::Nvidia, "NVIDIA: no driver", Err(obstacle));
    };
    let kind = if modules.are_open { "open" } else { "closed" };
    let (asked, unknown) = match answer {
        Ok(asked) if asked.is_empty() => (asked, Some("it shows no GPU".into())),
        Ok(asked) => (asked, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let refusing = asked.iter().filter(|asked| !asked.has_dma_buf).count();
    let dma_buf = match (&unknown, modules.are_open) {
        (_, false) if refusing > 0 || unknown.is_some() => Err(Obstacle::new(
            "NVIDIA's closed kernel modules export none",
            OPEN,
        )),
        (None, _) if refusing > 0 => Err(Obstacle::new(
            "libcuda.so.1 says that the driver exports none (it needs Linux 5.12, and a GPU that supports it)",
            "modprobe nvidia_peermem",
        )),
        (Some(why), _) if why.starts_with(NO_DRIVER) && !why.ends_with(NO_DEVICE) => Err(
            Obstacle::new(format!("no program can use the GPUs ({why})"), "nvidia-smi"),
        ),
        _ => Ok(()),
    };
    let says = match unknown {
        Some(why) => format!("libcuda.so.1 does not say whether it exports dma-bufs ({why})"),
        None if refusing == 0 => "it exports dma-bufs".into(),
        None => format!("{refusing} of {} GPUs export no dma-buf", asked.len()),
    };
    let found = format!(
        "NVIDIA {}, {kind} kernel modules; {says}; {peer_memory}",
        modules.version
    );
    Exports {
        has_peer_memory,
        asked,
        ..Exports::new(Vendor::Nvidia, found, dma_buf)
    }
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

/// The first version of that interface that exports a dma-buf.
const EXPORTS: (u32, u32) = (1, 12);

fn amd(pci: &Pci) -> Exports {
    let module = pci.root.join("sys/module/amdgpu");
    if !module.exists() {
        let obstacle = Obstacle::new("the module amdgpu is not loaded", "modprobe amdgpu");
        return Exports::new(Vendor::Amd, "AMD: no driver", Err(obstacle));
    }
    let version = read(module.join("version")).map(|version| format!(" {version}"));
    let version = version.unwrap_or_default();
    let (says, dma_buf) = match kfd(&pci.root.join("dev/kfd")) {
        Some(kfd) if kfd < EXPORTS => (
            format!("its kfd {}.{} exports no dma-bufs", kfd.0, kfd.1),
            Err(Obstacle::new(
                format!(
                    "amdgpu's kfd {}.{} exports none: {}.{} and later do",
                    kfd.0, kfd.1, EXPORTS.0, EXPORTS.1
                ),
                "a later kernel, or AMD's own driver (amdgpu-dkms)",
            )),
        ),
        Some(_) => ("it exports dma-bufs".into(), Ok(())),
        None => (
            "/dev/kfd does not say whether it exports dma-bufs".into(),
            Ok(()),
        ),
    };
    let found = format!("amdgpu{version} is loaded; {says}");
    Exports::new(Vendor::Amd, found, dma_buf)
}

#[cfg(test)]
mod tests {
    use super::super::super::check::State;
    use super::super::pci::tests::Fake;
    use super::*;

    const CLOSED: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n\
                          GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
    const OPEN: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder)\n";

    fn says(has_dma_buf: bool) -> Answer {
        Ok(vec![Asked {
            address: "0000:18:00.0".into(),
            has_dma_buf,
            memory: 80 << 30,
        }])
    }

    /// What a machine with this driver has.
    fn of_nvidia(version: Option<&str>, peer_memory: bool, answer: Answer) -> Exports {
        let fake = Fake::new();
        fake.gpu("pci0000:17/0000:17:01.0/0000:18:00.0", "0x10de", "0");
        if let Some(version) = version {
            fake.write("proc/driver/nvidia/version", version);
        }
        if peer_memory {
            fake.write("sys/module/nvidia_peermem/refcnt", "0");
        }
        let mut found = of(&fake.pci, &fake.pci.gpus(), || answer.clone());
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    #[test]
    fn modules_are_open_or_closed() {
        let closed = modules(CLOSED).unwrap();
        assert_eq!(
            (closed.version.as_str(), closed.are_open),
            ("535.129.03", false)
        );
        let open = modules(OPEN).unwrap();
        assert_eq!((open.version.as_str(), open.are_open), ("570.86.15", true));
        assert_eq!(modules("nothing of that"), None);
    }

    #[test]
    fn nvidias_driver_exports_if_its_library_says_so() {
        let good = of_nvidia(Some(OPEN), true, says(true));
        assert!(good.dma_buf.is_ok() && good.has_peer_memory && good.is_only);
        assert_eq!(good.memory_of("0000:18:00.0"), Some(80 << 30));
        assert_eq!(
            good.found,
            "NVIDIA 570.86.15, open kernel modules; it exports dma-bufs; nvidia_peermem is loaded"
        );
        let none = of_nvidia(Some(OPEN), false, says(false));
        assert!(none.dma_buf.unwrap_err().why.contains("Linux 5.12") && !none.has_peer_memory);
        assert!(
            none.found.contains("1 of 1 GPUs export no dma-buf"),
            "{}",
            none.found
        );
        let closed = |has_peer_memory| of_nvidia(Some(CLOSED), has_peer_memory, says(false));
        assert_eq!(describe(&closed(true)).state, State::Ok);
        assert_eq!(describe(&closed(false)).state, State::Warning);
        // Without the library the kind of the modules decides.
        let silent = || Err("libcuda.so.1 is not installed".into());
        assert!(of_nvidia(Some(OPEN), false, silent()).dma_buf.is_ok());
        let broken = of_nvidia(Some(OPEN), false, Err("cuInit: error 803".into()));
        assert!(broken.dma_buf.unwrap_err().why.contains("error 803"));
        for answer in [silent(), says(false)] {
            let closed = of_nvidia(Some(CLOSED), false, answer).dma_buf.unwrap_err();
            assert!(
                closed.why.contains("closed") && closed.fix.contains("nvidia-open"),
                "{closed:?}"
            );
        }
        assert!(of_nvidia(Some(CLOSED), false, says(true)).dma_buf.is_ok());
        let none = of_nvidia(None, true, says(true));
        assert!(none.dma_buf.unwrap_err().why.contains("not loaded") && !none.has_peer_memory);
    }

    #[test]
    fn amds_driver_exports() {
        let fake = Fake::new();
        fake.gpu("pci0000:17/0000:17:01.0/0000:18:00.0", "0x1002", "0");
        let silent = || Err(String::new());
        assert!(of(&fake.pci, &fake.pci.gpus(), silent)[0].dma_buf.is_err());
        fake.write("sys/module/amdgpu/version", "6.10.5\n");
        let found = of(&fake.pci, &fake.pci.gpus(), silent);
        assert!(found[0].dma_buf.is_ok() && found[0].is_only);
        assert_eq!(
            found[0].found,
            "amdgpu 6.10.5 is loaded; /dev/kfd does not say whether it exports dma-bufs"
        );
        fake.gpu("pci0000:17/0000:17:02.0/0000:19:00.0", "0x10de", "0");
        let found = of(&fake.pci, &fake.pci.gpus(), silent);
        assert_eq!(
            found.iter().map(|of| of.is_only).collect::<Vec<_>>(),
            [false, false]
        );
    }
}
