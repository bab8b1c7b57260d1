// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits of a device, as the kernel gives them: the providers do not change the fields that
//! are read here.

use super::check::Check;
use crate::report::units::bytes;
use crate::top::kernel::{self, Device, Pools};
use crate::verbs::Context;
use rdmamr_abi::uapi::*;
use rdmamr_uverbs::bundle::Bundle;
use rdmamr_uverbs::kernel::{Kernel, Uverbs};

/// IB_USER_VERBS_EX_CMD_QUERY_DEVICE, with the flag of the extended commands.
const QUERY_DEVICE_EX: u32 = 0x8000_0001;
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
/// So many keys take a second to make, where one takes 0.2 ms.
const MANY_KEYS: u64 = 5_000;
/// More than any address space holds.
const ANY_SIZE: u64 = 1 << 57;

/// Checks the number of regions that the device has and allows, its pools of keys, on-demand paging,
/// and whether the machine is a confidential guest.
pub fn check(device: &str, context: &Context) -> Vec<Check> {
    let answer = match query(context) {
        Ok(answer) => answer,
        Err(why) => {
            let found = format!("the device's limits cannot be queried: {why}");
            let check = Check::warning("regions", found).meaning(
                "Only a registration shows whether on-demand paging (IBV_ACCESS_ON_DEMAND) works.",
            );
            return vec![check.of(device)];
        }
    };
    let listed = kernel::device(device);
    let pools = listed.as_ref().and_then(Device::pools);
    let checks = [most(&answer, listed.as_ref()), odp(&answer)].into_iter();
    let checks = checks.chain(guest(&answer));
    let checks = checks.chain(pools.map(|pools| of_pools(device, &pools)));
    checks.map(|check| check.of(device)).collect()
}

/// Checks the number and the length of regions, of a device that tells them.
pub fn regions(device: &str, context: &Context) -> Option<Check> {
    let answer = query(context).ok()?;
    Some(most(&answer, kernel::device(device).as_ref()).of(device))
}

/// The kernel says how many regions there are, and newer ones how many there can be.
fn most(answer: &[u8; ANSWER], listed: Option<&Device>) -> Check {
    let count = u32::from_ne_bytes(part(answer, MAX_MR)).into();
    let count = listed.and_then(|device| device.most).unwrap_or(count);
    let size = u64::from_ne_bytes(part(answer, MAX_MR_SIZE));
    let used = listed.map(|device| device.regions);
    let used = used.map_or("up to".into(), |used| format!("{used} of"));
    let used = format!("{used} {count}");
    let found = match size {
        ANY_SIZE.. => format!("{used}, of any size"),
        size => format!("{used}, of up to {} (max_mr_size)", bytes(size)),
    };
    if listed.is_some_and(|device| device.regions >= count) {
        return Check::warning("regions", found)
            .meaning("The device has no key left: the next registration fails, mostly with ENOMEM.")
            .fix("rdmamr top --sort regions");
    }
    let mut check = Check::ok("regions", found);
    if size < ANY_SIZE {
        check = check.meaning(
            "A longer registration fails, with EINVAL or ENOMEM: register the memory in parts.",
        );
    }
    check
}

/// Checks the keys that the driver keeps for registrations to come.
fn of_pools(device: &str, pools: &Pools) -> Check {
    let check = Check::ok("key pools", pools.words());
    // The first registrations make their keys, which later ones reuse.
    match pools.max_in_use > MANY_KEYS && pools.pinned == 0 {
        true => check
            .meaning(
                "A start that registers so much makes its keys first, unless the pools have them. They drop \
                 an unused key after a minute (aging), but not a pinned one. For each pool of rdma resource \
                 show frmr_pools, pin the number of its column max_in_use:",
            )
            .fix(format!(
                "sudo rdma resource set frmr_pools dev {device} pinned KEY NUMBER"
            )),
        false => check,
    }
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
    let found = "the device reaches only memory that this guest shares with the machine";
    let check = Check::failure("confidential guest", found).meaning(
        "The kernel refuses to register other memory (EOPNOTSUPP). A program needs \
         ibv_alloc_buf (rdma-core 64) in a parent domain that allows unprotected buffers, or \
         copies by send and receive.",
    );
    (capabilities & REACHES_SHARED_ALONE != 0).then_some(check)
}

fn query(context: &Context) -> Result<[u8; ANSWER], String> {
    let driver = context.driver().ok_or("its driver is unknown")?;
    let mut answer = [0u8; ANSWER];
    let mut bundle = Bundle::<3>::of_command(driver.id, QUERY_DEVICE_EX);
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
    use super::super::check::State;
    use super::*;

    #[test]
    fn a_confidential_guest_is_told() {
        let mut answer = [0; ANSWER];
        assert!(guest(&answer).is_none());
        // The flag of the kernel's header, in `device_cap_flags_ex`.
        answer[CAPABILITIES..][..8].copy_from_slice(&0x0200_0000_0000u64.to_ne_bytes());
        assert!(guest(&answer).is_some());
    }

    #[test]
    fn pinned_keys_are_advised_where_a_start_makes_many() {
        let mut pools = Pools {
            pools: 2,
            queue: 8,
            in_use: 640,
            max_in_use: MANY_KEYS,
            pinned: 0,
        };
        let check = |pools| of_pools("mlx5_0", &pools);
        let found = "8 keys at hand in 2 pools, 0 pinned; 640 in use, at most 5000 so far";
        assert_eq!(check(pools).found, found);
        assert_eq!(check(pools).fix, None);
        pools.max_in_use += 1;
        let fix = "sudo rdma resource set frmr_pools dev mlx5_0 pinned KEY NUMBER";
        assert_eq!(check(pools).fix.as_deref(), Some(fix));
        pools.pinned = 1;
        assert_eq!(check(pools).fix, None);
    }

    #[test]
    fn the_kernels_maximum_comes_before_the_devices() {
        let mut answer = [0; ANSWER];
        answer[MAX_MR..][..4].copy_from_slice(&100u32.to_ne_bytes());
        answer[MAX_MR_SIZE..][..8].copy_from_slice(&ANY_SIZE.to_ne_bytes());
        let found = |listed: Option<(u64, Option<u64>)>| {
            let listed = listed.map(|(regions, most)| Device {
                index: 0,
                name: "rxe0".into(),
                regions,
                most,
            });
            let check = most(&answer, listed.as_ref());
            (check.state, check.found)
        };
        let ok = |found: &str| (State::Ok, found.to_owned());
        assert_eq!(found(None), ok("up to 100, of any size"));
        assert_eq!(found(Some((7, None))), ok("7 of 100, of any size"));
        assert_eq!(found(Some((7, Some(90)))), ok("7 of 90, of any size"));
        assert_eq!(found(Some((90, Some(90)))).0, State::Warning);
    }
}
