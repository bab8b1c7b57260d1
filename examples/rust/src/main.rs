// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers memory by `ibverbs`, a binding that knows nothing of librdmamr, which is linked
//! statically: its `ibv_reg_mr` comes first. Prints how many registrations the kernel made;
//! RDMAMR_CACHE=all makes them few.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int};

const REGISTRATIONS: u8 = 100;

/// The first fields of `struct rdmamr_stats` in rdmamr.h: the library writes no more than asked for.
#[repr(C)]
#[derive(Default)]
struct Stats {
    reg_kernel: u64,
    reg_next: u64,
}

unsafe extern "C" {
    fn rdmamr_version() -> *const c_char;
    fn rdmamr_last_reason() -> *const c_char;
    fn rdmamr_get_stats(stats: *mut Stats, size: usize) -> c_int;
}

fn main() -> Result<(), Box<dyn Error>> {
    let devices = ibverbs::devices()?;
    let context = devices.get(0).ok_or("there is no RDMA device")?.open()?;
    let domain = context.alloc_pd()?;
    for number in 0..REGISTRATIONS {
        let mut region = domain.allocate::<u8>(64 << 10).map_err(|error| {
            // SAFETY: the reason is a string of this thread, valid until its next call.
            let reason = unsafe { CStr::from_ptr(rdmamr_last_reason()) };
            format!("{error}: {}", reason.to_string_lossy())
        })?;
        region[0] = number;
    }

    let mut stats = Stats::default();
    // SAFETY: `stats` has as many writable bytes as the call says.
    unsafe { rdmamr_get_stats(&mut stats, size_of::<Stats>()) };
    // SAFETY: the version is a constant string.
    let version = unsafe { CStr::from_ptr(rdmamr_version()) };
    println!(
        "librdmamr {}: {REGISTRATIONS} registrations, {} of them by the kernel, {} by libibverbs",
        version.to_string_lossy(),
        stats.reg_kernel,
        stats.reg_next
    );
    Ok(())
}
