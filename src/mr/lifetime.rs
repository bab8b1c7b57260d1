// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a domain or a device. libibverbs ends it; what we know of it goes too, so that another at the
//! same address is met as new.

use super::state;
use super::{Context, Error, Pd, count_vanished, require};
use crate::config::disabled;
use crate::next;
use errno::Errno;

/// Deallocates a protection domain.
pub fn dealloc_pd(pd: Pd) -> Result<(), Error> {
    let next = require(&next::DEALLOC_PD)?;
    let state = state::existing().filter(|_| !disabled());
    let device = state.and_then(|state| state.devices.get(pd.context().expose_provenance()));
    // The kernel refuses (EBUSY) while regions exist, so what is found had vanished if it does not. It is
    // found before: afterwards another thread may have regions in a new domain at the same address.
    let orphans = device.map(|device| device.rows.of_pd(pd.address()));
    // SAFETY: the program's own domain, to the function that it meant.
    match unsafe { next(pd.as_ptr()) } {
        0 => {
            if let (Some(state), Some(device)) = (state, device) {
                let orphans = orphans.into_iter().flatten();
                let forgotten =
                    orphans.filter(|&(handle, object)| device.rows.orphan(handle, object));
                count_vanished(state, forgotten.count() as u64);
            }
            Ok(())
        }
        errno => Err(Error::Next(Errno(errno))),
    }
}

/// Closes a device.
pub fn close_device(context: Context) -> Result<(), Error> {
    let next = require(&next::CLOSE_DEVICE)?;
    let address = context.address();
    let state = state::existing().filter(|_| !disabled());
    // Before the close: the next device to be opened may get this address while the close returns.
    let device = state.and_then(|state| state.devices.take(address));
    // SAFETY: the program's own device, to the function that it meant.
    let result = unsafe { next(context.as_ptr()) };
    if let (Some(state), Some(device)) = (state, device) {
        if result == 0 {
            // The kernel has ended all its regions. Their objects are leaked, as by libibverbs: the program
            // may still look at them.
            count_vanished(state, state.devices.end(device));
        } else {
            state.devices.put_back(address, device);
        }
    }
    match result {
        0 => Ok(()),
        errno => Err(Error::Next(Errno(errno))),
    }
}
