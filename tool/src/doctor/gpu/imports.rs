// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether an RDMA device registers dma-bufs: its provider in rdma-core and its driver in the kernel
//! must both have the call.

use super::super::rdma_core;
use super::Obstacle;
use crate::files::kernel_release;
use crate::verbs::{Context, Verbs};
use rdmamr_abi::rdma_core::{ibv_mr, ibv_pd};
use rdmamr_uverbs::context::identify;
use rdmamr_uverbs::kernel::Uverbs;
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
pub fn of(verbs: &Result<Verbs, String>, context: Option<&Context>) -> Imports {
    let (Ok(verbs), Some(context)) = (verbs, context) else {
        return Imports {
            dma_buf: Err(Obstacle::new(
                "the device cannot be opened",
                "rdmamr doctor (the line \"uverbs\")",
            )),
            takes_peer_memory: false,
        };
    };
    let driver = identify(&Uverbs, context.fd()).ok();
    let driver = driver
        .and_then(|facts| facts.driver())
        .map_or("unknown", |driver| driver.name);
    Imports {
        dma_buf: judge(
            driver,
            &Asked::of(verbs, context),
            rdma_core::release_of(verbs),
            &kernel_release(),
        ),
        takes_peer_memory: WITH_PEER_MEMORY.contains(&driver),
    }
}

/// What the device answers to a dma-buf.
#[derive(Debug)]
enum Asked {
    Takes,
    Refuses,
    /// This libibverbs has no `ibv_reg_dmabuf_mr`.
    NoFunction,
    /// Another answer.
    Unknown(String),
}

impl Asked {
    /// Offers a file that is not open. A driver that takes dma-bufs answers EBADF (`dma_buf_get`).
    fn of(verbs: &Verbs, context: &Context) -> Asked {
        type RegDmabufMr =
            unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
        const LOCAL_WRITE: c_int = 1;
        // SAFETY: <infiniband/verbs.h> gives this type.
        let register = unsafe { verbs.library.function::<RegDmabufMr>(c"ibv_reg_dmabuf_mr") };
        let Some(register) = register else {
            return Asked::NoFunction;
        };
        let pd = match verbs.alloc_pd(context) {
            Ok(pd) => pd,
            Err(why) => return Asked::Unknown(why),
        };
        // SAFETY: the domain is live. No process has a file of this number, so no region is made.
        let region = unsafe { register(pd, 0, 4096, 0, c_int::MAX, LOCAL_WRITE) };
        match errno::errno().0 {
            libc::EBADF if region.is_null() => Asked::Takes,
            libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::ENOSYS | libc::ENOTTY => {
                Asked::Refuses
            }
            other => Asked::Unknown(errno::Errno(other).to_string()),
        }
    }
}

fn judge(driver: &str, asked: &Asked, release: u32, kernel: &str) -> Result<(), Obstacle> {
    let since = PROVIDERS
        .iter()
        .find(|row| row.0 == driver)
        .map(|row| row.1);
    let old = |since| {
        Obstacle::new(
            format!("rdma-core {release} registers no dma-buf on {driver}: {since} and later do"),
            format!("install rdma-core {since} or later (libibverbs1, ibverbs-providers)"),
        )
    };
    match (asked, since) {
        (Asked::Takes, _) => Ok(()),
        (Asked::NoFunction, since) => Err(old(since.unwrap_or(34))),
        (Asked::Refuses, Some(since)) if release < since => Err(old(since)),
        (Asked::Refuses, Some(_)) => Err(Obstacle::new(
            format!(
                "the driver of {driver} in Linux {kernel} takes no dma-buf: none before 5.12 does"
            ),
            "a later kernel (Linux 5.12 for mlx5), or the vendor's driver",
        )),
        (Asked::Refuses, None) => Err(Obstacle::new(
            format!("{driver} takes no dma-buf"),
            format!("a device of one of these drivers: {}", drivers()),
        )),
        (Asked::Unknown(why), _) => Err(Obstacle::new(
            format!("the device does not say whether it takes dma-bufs ({why})"),
            "rdmamr run --log=warn -- ./app says more about a registration that fails",
        )),
    }
}

fn drivers() -> String {
    let names: Vec<_> = PROVIDERS.iter().map(|row| row.0).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_decides_and_the_release_explains() {
        let why =
            |driver, asked, release| judge(driver, &asked, release, "6.1.0-44").unwrap_err().why;
        // A vendor's own provider may have the call before rdma-core's has it.
        assert!(judge("hns", &Asked::Takes, 28, "6.1.0-44").is_ok());
        assert_eq!(
            why("irdma", Asked::Refuses, 44),
            "rdma-core 44 registers no dma-buf on irdma: 45 and later do"
        );
        assert!(
            why("irdma", Asked::Refuses, 45)
                .starts_with("the driver of irdma in Linux 6.1.0-44 takes")
        );
        assert_eq!(why("rxe", Asked::Refuses, 60), "rxe takes no dma-buf");
        assert!(why("mlx5", Asked::NoFunction, 33).contains("34 and later"));
        assert!(why("rxe", Asked::NoFunction, 33).contains("34 and later"));
        assert!(
            why("mlx5", Asked::Unknown("Input/output error".into()), 44)
                .contains("(Input/output error)")
        );
    }
}
