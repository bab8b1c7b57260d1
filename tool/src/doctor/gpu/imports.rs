// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether an RDMA device registers dma-bufs: its provider in rdma-core and its driver in the kernel
//! must both have the call.

use super::super::check::{Obstacle, obstacle};
use super::super::rdma_core;
use crate::files::kernel_release;
use crate::verbs::{Context, Verbs};
use anyhow::Result;
use rdmamr_abi::rdma_core::{ibv_mr, ibv_pd};
use std::ffi::c_int;

/// The providers that register dma-bufs (`reg_dmabuf_mr` in their context operations), and the
/// first release of rdma-core in which each does.
#[rustfmt::skip]
const PROVIDERS: &[(&str, u32)] = &[
    ("mlx5", 34), ("efa", 38), ("irdma", 45), ("bnxt_re", 48), ("mana", 57), ("ionic", 61),
];
/// The drivers of NVIDIA's own devices, by which nvidia_peermem is called.
const WITH_PEER_MEMORY: &[&str] = &["mlx4", "mlx5"];

/// An RDMA device.
pub struct Imports {
    pub dma_buf: Result<(), Obstacle>,
    /// Whether nvidia_peermem may serve it.
    pub takes_peer_memory: bool,
}

/// Asks an open device.
pub fn of(verbs: &Result<Verbs>, context: Option<&Context>) -> Imports {
    let (Ok(verbs), Some(context)) = (verbs, context) else {
        let fix = "rdmamr doctor (the line \"uverbs\")";
        return Imports {
            dma_buf: obstacle("the device cannot be opened", fix),
            takes_peer_memory: false,
        };
    };
    let driver = context.driver().map_or("unknown", |driver| driver.name);
    let release = rdma_core::found(verbs).1;
    Imports {
        dma_buf: judge(driver, ask(verbs, context), release, &kernel_release()),
        takes_peer_memory: WITH_PEER_MEMORY.contains(&driver),
    }
}

/// Offers a file that is not open. A driver that takes dma-bufs answers EBADF (`dma_buf_get`). An
/// error is an answer that does not say it.
fn ask(verbs: &Verbs, context: &Context) -> Result<bool> {
    type RegDmabufMr =
        unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    const LOCAL_WRITE: c_int = 1;
    // SAFETY: <infiniband/verbs.h> gives this type.
    let register = unsafe { verbs.library.function::<RegDmabufMr>(c"ibv_reg_dmabuf_mr") };
    let Ok(register) = register else {
        return Ok(false);
    };
    let pd = verbs.alloc_pd(context)?;
    // SAFETY: the domain is live. No process has a file of this number, so no region is made.
    let region = unsafe { register(pd, 0, 4096, 0, c_int::MAX, LOCAL_WRITE) };
    match errno::errno().0 {
        libc::EBADF if region.is_null() => Ok(true),
        libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS | libc::ENOTTY => Ok(false),
        other => Err(errno::Errno(other).into()),
    }
}

fn judge(driver: &str, takes: Result<bool>, release: u32, kernel: &str) -> Result<(), Obstacle> {
    let provider = PROVIDERS.iter().find(|row| row.0 == driver);
    match (takes, provider) {
        (Ok(true), _) => Ok(()),
        (Ok(false), Some((_, since))) if release < *since => obstacle(
            format!("rdma-core {release} registers no dma-buf on {driver}: {since} and later do"),
            format!("install rdma-core {since} or later (libibverbs1, ibverbs-providers)"),
        ),
        (Ok(false), Some(_)) => obstacle(
            format!(
                "the driver of {driver} in Linux {kernel} takes no dma-buf: none before 5.12 does"
            ),
            "a later kernel (Linux 5.12 for mlx5), or the vendor's driver",
        ),
        (Ok(false), None) => {
            let drivers = PROVIDERS.iter().map(|row| row.0).collect::<Vec<_>>();
            let fix = format!("a device of one of these drivers: {}", drivers.join(", "));
            obstacle(format!("{driver} takes no dma-buf"), fix)
        }
        (Err(why), _) => obstacle(
            format!("the device does not say whether it takes dma-bufs ({why})"),
            "rdmamr run --log=warn -- ./app says more about a registration that fails",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_decides_and_the_release_explains() {
        let why = |driver, takes, release| {
            let judged = judge(driver, takes, release, "6.1.0-44");
            judged.unwrap_err().why
        };
        // A vendor's own provider may have the call before rdma-core's has it.
        assert!(judge("hns", Ok(true), 28, "6.1.0-44").is_ok());
        assert_eq!(
            why("irdma", Ok(false), 44),
            "rdma-core 44 registers no dma-buf on irdma: 45 and later do"
        );
        assert!(
            why("irdma", Ok(false), 45).starts_with("the driver of irdma in Linux 6.1.0-44 takes")
        );
        assert_eq!(why("rxe", Ok(false), 60), "rxe takes no dma-buf");
        assert!(why("mlx5", Ok(false), 33).contains("34 and later"));
        let error = Err(anyhow::anyhow!("Input/output error"));
        assert!(why("mlx5", error, 44).contains("(Input/output error)"));
    }
}
