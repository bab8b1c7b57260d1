// SPDX-License-Identifier: MIT OR Apache-2.0
//! Access flags, of verbs and of libfabric's calls.

use rdmamr_abi::libfabric::{FI_REMOTE_READ, FI_REMOTE_WRITE};
use rdmamr_abi::names::{ACCESS, FABRIC_ACCESS};
use rdmamr_abi::rdma_core::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
};
use rdmamr_trace_format::{Call, call, how, unserved};

const FABRIC_REMOTE: u32 = (FI_REMOTE_READ | FI_REMOTE_WRITE) as u32;

pub fn of_fabric(call: u8) -> bool {
    matches!(
        call,
        call::FI_MR_REG | call::FI_MR_REGV | call::FI_MR_REGATTR | call::FI_CLOSE
    )
}

/// Whether remote peers have access rights.
pub fn remote(call: u8, access: u32) -> bool {
    match of_fabric(call) {
        true => access & FABRIC_REMOTE != 0,
        false => rdmamr_policy::is_remote(access),
    }
}

/// The operations on a region, with the flags that they need: of verbs, and of libfabric, or 0. (Which of
/// libfabric's flags let a device write locally, its provider decides.)
#[rustfmt::skip]
const OPERATIONS: [(&str, u32, u64); 4] = [
    ("a receive or a read's result", IBV_ACCESS_LOCAL_WRITE, 0),
    ("a remote write", IBV_ACCESS_REMOTE_WRITE, FI_REMOTE_WRITE),
    ("a remote read", IBV_ACCESS_REMOTE_READ, FI_REMOTE_READ),
    ("a remote atomic operation", IBV_ACCESS_REMOTE_ATOMIC, FI_REMOTE_WRITE),
];

/// The operations that these flags refuse, each with the flag that it needs.
pub fn missing(call: u8, access: u32) -> impl Iterator<Item = (&'static str, String)> {
    let needs = OPERATIONS.into_iter();
    let needs = needs.map(move |(name, verbs, fabric)| match of_fabric(call) {
        true => (name, fabric as u32),
        false => (name, verbs),
    });
    let refused = needs.filter(move |&(_, flag)| flag != 0 && access & flag == 0);
    refused.map(move |(name, flag)| (name, words(call, flag)))
}

pub fn words(call: u8, access: u32) -> String {
    let names = match of_fabric(call) {
        true => FABRIC_ACCESS,
        false => ACCESS,
    };
    let (mut words, mut others) = (Vec::new(), access);
    for (flag, name) in names.iter().filter(|(flag, _)| access & flag != 0) {
        words.push(name.to_string());
        others &= !flag;
    }
    if others != 0 {
        words.push(format!("{others:#x}"));
    }
    match words.is_empty() {
        true => "local_read".to_string(),
        false => words.join("|"),
    }
}

/// Whether a registration is of a GPU's memory, also one that a region of the cache serves.
pub fn is_of_gpu(call: &Call) -> bool {
    let is_served = matches!(call.how, how::HIT | how::MISS);
    call.how == how::GPU || is_served && call.reason == unserved::DEVICE
}

/// Whether the memory of a registration is pinned: device memory and memory paged on demand are not.
pub fn pins(call: &Call) -> bool {
    match call.call {
        _ if is_of_gpu(call) => false,
        call::REG_DMABUF_MR | call::MLX5DV_REG_DMABUF_MR => false,
        // A umem without an address is of a dma-buf.
        call::MLX5DV_DEVX_UMEM_REG_EX => call.addr != 0,
        of => of_fabric(of) || call.access & IBV_ACCESS_ON_DEMAND == 0,
    }
}
