// SPDX-License-Identifier: MIT OR Apache-2.0
//! On-demand paging: registration that pins nothing, where a device can wait for pages.

use super::Check;
use crate::abi::uapi::*;
use crate::uverbs::bundle::Bundle;
use crate::uverbs::context::identify;
use crate::uverbs::kernel::{Kernel, Uverbs};
use crate::verbs::Context;

/// IB_USER_VERBS_EX_CMD_QUERY_DEVICE, with the mark of the extended commands.
const QUERY_DEVICE_EX: u64 = 0x8000_0001;
/// `struct ib_uverbs_ex_query_device_resp`, its `response_length` and its `odp_caps`.
const ANSWER: usize = 304;
const ANSWER_LENGTH: usize = 180;
const ODP_CAPABILITIES: usize = 184;

const SUPPORT: u64 = 1 << 0;
const SUPPORT_IMPLICIT: u64 = 1 << 1;

/// Asks the kernel, past the provider, which adds nothing to it.
pub fn check(device: &str, context: &Context) -> Check {
    const SUBJECT: &str = "odp";
    let check = match capabilities(context) {
        Err(why) => Check::warning(SUBJECT, format!("unknown: {why}"))
            .meaning("Whether IBV_ACCESS_ON_DEMAND works can only be tried."),
        Ok(bits) if bits & SUPPORT == 0 => Check::ok(
            SUBJECT,
            "none: memory is pinned while it is registered, as on most devices",
        ),
        Ok(bits) if bits & SUPPORT_IMPLICIT == 0 => Check::ok(
            SUBJECT,
            "on-demand paging by IBV_ACCESS_ON_DEMAND; not for the whole address space at once",
        ),
        Ok(_) => Check::ok(
            SUBJECT,
            "on-demand paging by IBV_ACCESS_ON_DEMAND, and for the whole address space at once",
        ),
    };
    check.of(device)
}

fn capabilities(context: &Context) -> Result<u64, String> {
    let driver = identify(&Uverbs, context.fd())
        .ok()
        .and_then(|facts| facts.driver());
    let driver = driver.ok_or("the driver is unknown")?;
    let mut answer = [0u8; ANSWER];
    let mut bundle = Bundle::<3>::new(driver.id, UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
    bundle.inline(UVERBS_ATTR_WRITE_CMD, 8, QUERY_DEVICE_EX);
    // struct ib_uverbs_ex_query_device, all zero.
    bundle.inline(UVERBS_ATTR_CORE_IN, 8, 0);
    bundle.output(UVERBS_ATTR_CORE_OUT, &mut answer);
    // SAFETY: the answer outlives the call, and its attribute states its size.
    unsafe { Uverbs.ioctl(context.fd(), bundle.as_mut_ptr()) }
        .map_err(|error| error.to_string())?;
    let length = u32::from_ne_bytes(part(&answer, ANSWER_LENGTH));
    // A kernel before 3.19 says less.
    if (length as usize) < ODP_CAPABILITIES + 8 {
        return Ok(0);
    }
    Ok(u64::from_ne_bytes(part(&answer, ODP_CAPABILITIES)))
}

fn part<const N: usize>(answer: &[u8; ANSWER], at: usize) -> [u8; N] {
    std::array::from_fn(|n| answer[at + n])
}
