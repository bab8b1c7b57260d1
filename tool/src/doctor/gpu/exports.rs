// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the drivers of the GPUs export their memory: as a dma-buf, or by a module that pins it
//! for RDMA devices (nvidia_peermem).

use super::super::check::{Check, Obstacle, obstacle};
use super::libcuda::Answer;
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

/// The drivers of these GPUs, one for each vendor. `ask` asks the library of NVIDIA's, which knows
/// the size of their memory.
pub fn of(root: &Path, gpus: &mut [Gpu], ask: impl Fn() -> Answer) -> Vec<Exports> {
    let mut vendors = vec![NVIDIA, AMD];
    vendors.retain(|&vendor| gpus.iter().any(|gpu| gpu.vendor == vendor));
    let of = |vendor| match vendor {
        NVIDIA => nvidia(root, gpus, ask()),
        _ => amd(root),
    };
    vendors.into_iter().map(of).collect()
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

fn nvidia(root: &Path, gpus: &mut [Gpu], answer: Answer) -> Exports {
    const OPEN: &str =
        "install NVIDIA's open kernel modules (nvidia-open), or: modprobe nvidia_peermem";
    /// The step of `libcuda.rs` that fails if the driver serves no program.
    const NO_DRIVER: &str = "cuInit";
    /// `CUDA_ERROR_NO_DEVICE`, also by a setting for this process alone (CUDA_VISIBLE_DEVICES).
    const NO_DEVICE: &str = "error 100";
    let text = read(root.join("proc/driver/nvidia/version")).unwrap_or_default();
    let Some((version, are_open)) = modules(&text) else {
        return Exports {
            vendor: NVIDIA,
            dma_buf: obstacle(
                "NVIDIA's kernel modules are not loaded",
                "install NVIDIA's driver, with the open kernel modules (nvidia-open), and: modprobe nvidia",
            ),
            has_peer_memory: false,
            found: "NVIDIA: no driver".into(),
        };
    };
    for gpu in gpus {
        let mut asked = answer.iter().flatten();
        let asked = asked.find(|asked| asked.address.ends_with(&gpu.place.address));
        let memory = asked.map(|asked| asked.memory);
        gpu.memory = memory.filter(|&memory| memory > 0).or(gpu.memory);
    }
    let answer = answer.and_then(|asked| match asked.len() {
        0 => Err("it shows no GPU".into()),
        all => Ok((asked.iter().filter(|asked| !asked.has_dma_buf).count(), all)),
    });
    let says = match &answer {
        Ok((0, _)) => "it exports dma-bufs".into(),
        Ok((refusing, all)) => format!("{refusing} of {all} GPUs export no dma-buf"),
        Err(why) => format!("libcuda.so.1 does not say whether it exports dma-bufs ({why})"),
    };
    let dma_buf = match &answer {
        Ok((0, _)) => Ok(()),
        _ if !are_open => obstacle("NVIDIA's closed kernel modules export none", OPEN),
        Ok(_) => obstacle(
            "libcuda.so.1 says that the driver exports none (it needs Linux 5.12, and a GPU that supports it)",
            "modprobe nvidia_peermem",
        ),
        Err(why) if why.starts_with(NO_DRIVER) && !why.ends_with(NO_DEVICE) => {
            obstacle(format!("no program can use the GPUs ({why})"), "nvidia-smi")
        }
        Err(_) => Ok(()),
    };
    let has_peer_memory = root.join("sys/module/nvidia_peermem").exists();
    let kind = if are_open { "open" } else { "closed" };
    let not = if has_peer_memory { "" } else { "not " };
    Exports {
        vendor: NVIDIA,
        dma_buf,
        has_peer_memory,
        found: format!(
            "NVIDIA {version}, {kind} kernel modules; {says}; nvidia_peermem is {not}loaded"
        ),
    }
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

fn amd(root: &Path) -> Exports {
    /// The first version of its interface for computing that exports a dma-buf.
    const EXPORTS: (u32, u32) = (1, 12);
    let exports = |found: String, dma_buf| Exports {
        vendor: AMD,
        dma_buf,
        has_peer_memory: false,
        found,
    };
    let module = root.join("sys/module/amdgpu");
    if !module.exists() {
        let none = obstacle("the module amdgpu is not loaded", "modprobe amdgpu");
        return exports("AMD: no driver".into(), none);
    }
    let version = read(module.join("version")).map_or(String::new(), |it| format!(" {it}"));
    let (says, dma_buf) = match kfd(&root.join("dev/kfd")) {
        Some(kfd @ (major, minor)) if kfd < EXPORTS => (
            "it exports no dma-bufs",
            obstacle(
                format!("amdgpu's kfd {major}.{minor} exports none: 1.12 and later do"),
                "a later kernel, or AMD's own driver (amdgpu-dkms)",
            ),
        ),
        Some(_) => ("it exports dma-bufs", Ok(())),
        None => ("/dev/kfd does not say whether it exports dma-bufs", Ok(())),
    };
    exports(format!("amdgpu{version} is loaded; {says}"), dma_buf)
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
    use super::super::libcuda::Asked;
    use super::super::pci::tests::Fake;
    use super::*;

    const CLOSED: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n\
                          GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
    const OPEN: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder)\n";

    fn says(has_dma_buf: bool) -> Answer {
        Ok(vec![Asked {
            address: "00000000:18:00.0".into(),
            has_dma_buf,
            memory: 80 << 30,
        }])
    }

    /// What a machine with this driver has.
    fn of_nvidia(version: Option<&str>, peer_memory: bool, answer: Answer) -> Exports {
        let fake = Fake::new();
        fake.gpu("pci0000:17/0000:17:01.0/0000:18:00.0", NVIDIA.0, "0");
        if let Some(version) = version {
            fake.write("proc/driver/nvidia/version", version);
        }
        if peer_memory {
            fake.write("sys/module/nvidia_peermem/refcnt", "0");
        }
        let mut gpus = fake.gpus();
        let mut found = of(fake.root(), &mut gpus, || answer.clone());
        assert_eq!(found.len(), 1);
        if version.is_some() && answer.is_ok() {
            assert_eq!(gpus[0].memory, Some(80 << 30));
        }
        found.remove(0)
    }

    #[test]
    fn modules_are_open_or_closed() {
        assert_eq!(modules(CLOSED), Some(("535.129.03", false)));
        assert_eq!(modules(OPEN), Some(("570.86.15", true)));
        assert_eq!(modules("nothing of that"), None);
    }

    #[test]
    fn nvidias_driver_exports_if_its_library_says_so() {
        let good = of_nvidia(Some(OPEN), true, says(true));
        assert!(good.dma_buf.is_ok() && good.has_peer_memory);
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
        fake.gpu("pci0000:17/0000:17:01.0/0000:18:00.0", AMD.0, "0");
        let of = || of(fake.root(), &mut fake.gpus(), || Err(String::new()));
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
