// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a domain or a device. libibverbs ends it, and this library drops its records, so that
//! a later domain or device at the same address counts as new.

use super::devices;
use super::outcome::Error;
use super::require::{done, require};
use rdmamr_config::disabled;
use rdmamr_next::{self as next, Context, Maker, Pd};
use rdmamr_sys::thread;

pub fn dealloc_pd(pd: Pd) -> Result<(), Error> {
    let next = require(&next::DEALLOC_PD, Maker::of(pd.device()))?;
    let device = devices::of_context(pd.context().expose_provenance());
    // The kernel refuses (EBUSY) while the domain has regions. If it does not refuse, the regions
    // listed here had ended elsewhere. List them before the call: after the call another thread may
    // have regions in a new domain at the same address.
    let orphans = device.map(|device| device.rows.of_pd(pd.address()));
    let _uncancelled = thread::uncancelled();
    // SAFETY: `Pd::from_c` was promised a live domain, and `next` is libibverbs' `ibv_dealloc_pd`.
    done(unsafe { next(pd.as_ptr()) })?;
    if let (Some(device), Some(orphans)) = (device, orphans) {
        device.rows.forget_those(&orphans);
    }
    Ok(())
}

pub fn close_device(context: Context) -> Result<(), Error> {
    let next = require(&next::CLOSE_DEVICE, Maker::of(context))?;
    let address = context.address();
    let devices = devices::existing().filter(|_| !disabled());
    // Take the record before the close: while the close returns, a newly opened device may get this
    // address.
    let device = devices.and_then(|devices| devices.take(address));
    let _uncancelled = thread::uncancelled();
    // SAFETY: the caller's context is open, and `next` is libibverbs' `ibv_close_device`.
    let result = unsafe { next(context.as_ptr()) };
    match device {
        // The kernel has ended all regions of the device. Like libibverbs, this library leaks their
        // objects: the program may still read them.
        Some(device) if result == 0 => device.end(),
        Some(device) => device.put_back(address),
        None => {}
    }
    done(result)
}
