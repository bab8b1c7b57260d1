// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits of a device, as the kernel gives them: the providers do not change the fields that
//! are read here.

use super::check::Check;
use crate::report::units::bytes;
use crate::verbs::Context;
use rdmamr_abi::uapi::*;
use rdmamr_uverbs::bundle::Bundle;
use rdmamr_uverbs::context::identify;
use rdmamr_uverbs::kernel::{Kernel, Uverbs};

/// IB_USER_VERBS_EX_CMD_QUERY_DEVICE, with the flag of the extended commands.
const QUERY_DEVICE_EX: u64 = 0x8000_0001;
/// The size of `struct ib_uverbs_ex_query_device_resp`, and the offsets of its fields.
const ANSWER: usize = 304;
const MAX_MR_SIZE: usize = 24;
const MAX_MR: usize = 80;
const LENGTH: usize = 180;
const ODP_CAPABILITIES: usize = 184;
const CAPABILITIES: usize = 224;

const ODP: u64 = 1 << 0;
const ODP_IMPLICIT: u64 = 1 << 1;
/// IB_UVERBS_DEVICE_CC_DMA_BOUNCE (Linux 7.2).
const REACHES_SHARED_ALONE: u64 = 1 << 41;
/// More than any address space holds.
const ANY_SIZE: u64 = 1 << 57;

/// Checks the number of regions that the device allows, on-demand paging, and whether the machine is a
/// confidential guest.
pub fn check(device: &str, context: &Context) -> Vec<Check> {
    let answer = match query(context) {
        Ok(answer) => answer,
        Err(why) => {
            let check = Check::warning(
                "regions",
                format!("the device's limits cannot be queried: {why}"),
            )
            .meaning(
                "Only a registration shows whether on-demand paging (IBV_ACCESS_ON_DEMAND) works.",
            );
            return vec![check.of(device)];
        }
    };
    let checks = [most(&answer), odp(&answer)]
        .into_iter()
        .chain(guest(&answer));
    checks.map(|check| check.of(device)).collect()
}

/// Checks the number and the length of regions, of a device that tells them.
pub fn regions(device: &str, context: &Context) -> Option<Check> {
    let answer = query(context).ok()?;
    Some(most(&answer).of(device))
}

fn most(answer: &[u8; ANSWER]) -> Check {
    let count = u32::from_ne_bytes(part(answer, MAX_MR));
    let size = u64::from_ne_bytes(part(answer, MAX_MR_SIZE));
    if size >= ANY_SIZE {
        return Check::ok("regions", format!("up to {count}, of any size"));
    }
    Check::ok(
        "regions",
        format!("up to {count}, of up to {} (max_mr_size)", bytes(size)),
    )
    .meaning("A longer registration fails, with EINVAL or ENOMEM: register the memory in parts.")
}

/// Checks on-demand paging: such registrations pin nothing, since the device can wait for pages.
fn odp(answer: &[u8; ANSWER]) -> Check {
    let length = u32::from_ne_bytes(part(answer, LENGTH)) as usize;
    // Kernels before 3.19 give a shorter answer.
    let capabilities = match length {
        0..192 => 0,
        _ => u64::from_ne_bytes(part(answer, ODP_CAPABILITIES)),
    };
    let found = match (capabilities & ODP, capabilities & ODP_IMPLICIT) {
        (0, _) => {
            "no on-demand paging: memory is pinned while it is registered, as on most devices"
        }
        (_, 0) => "on-demand paging by IBV_ACCESS_ON_DEMAND, but not of a whole address space",
        _ => "on-demand paging by IBV_ACCESS_ON_DEMAND, also of a whole address space",
    };
    Check::ok("odp", found)
}

/// Checks whether the device can reach the machine's memory (`ib_umem_get`, drivers/infiniband/core/umem.c).
fn guest(answer: &[u8; ANSWER]) -> Option<Check> {
    let capabilities = u64::from_ne_bytes(part(answer, CAPABILITIES));
    (capabilities & REACHES_SHARED_ALONE != 0).then(|| {
        Check::failure(
            "confidential guest",
            "the device reaches only memory that this guest shares with the machine",
        )
        .meaning(
            "The kernel refuses to register other memory (EOPNOTSUPP). A program needs \
             ibv_alloc_buf (rdma-core 64) in a parent domain that allows unprotected buffers, or \
             copies by send and receive.",
        )
    })
}

fn query(context: &Context) -> Result<[u8; ANSWER], String> {
    let driver = identify(&Uverbs, context.fd())
        .ok()
        .and_then(|facts| facts.driver());
    let driver = driver.ok_or("its driver is unknown")?;
    let mut answer = [0u8; ANSWER];
    let mut bundle = Bundle::<3>::new(driver.id, UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
    bundle.inline(UVERBS_ATTR_WRITE_CMD, 8, QUERY_DEVICE_EX);
    // struct ib_uverbs_ex_query_device, all zero.
    bundle.inline(UVERBS_ATTR_CORE_IN, 8, 0);
    bundle.output(UVERBS_ATTR_CORE_OUT, &mut answer);
    // SAFETY: the answer outlives the call, and its attribute states its size.
    unsafe { Uverbs.ioctl(context.fd(), bundle.as_mut_ptr()) }
        .map_err(|error| error.to_string())?;
    Ok(answer)
}

fn part<const N: usize>(answer: &[u8; ANSWER], at: usize) -> [u8; N] {
    std::array::from_fn(|n| answer[at + n])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confidential_guest_is_told() {
        let mut answer = [0; ANSWER];
        assert!(guest(&answer).is_none());
        // The flag of the kernel's header, in `device_cap_flags_ex`.
        answer[CAPABILITIES..][..8].copy_from_slice(&0x0200_0000_0000u64.to_ne_bytes());
        assert!(guest(&answer).is_some());
    }
}
