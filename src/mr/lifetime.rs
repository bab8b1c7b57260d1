// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a domain or a device. libibverbs ends it; what we know of it goes too, so that another at the
//! same address is met as new.

use super::table::{Name, Region};
use super::{Context, Error, Pd, count_vanished};
use crate::config::disabled;
use crate::process::{self, Process};
use crate::{next, thread};
use errno::Errno;

/// Deallocates a protection domain.
pub fn dealloc_pd(pd: Pd) -> Result<(), Error> {
    let next = next::DEALLOC_PD
        .get()
        .ok_or(Error::NoNext(next::DEALLOC_PD.name()))?;
    let address = pd.address();
    let orphans = Orphans::find(|_, region| region.pd == address);
    // SAFETY: the program's own domain, to the function that it meant.
    match unsafe { next(pd.as_ptr()) } {
        0 => {
            // The kernel refuses (EBUSY) while regions exist, so these had vanished.
            orphans.forget();
            Ok(())
        }
        errno => Err(Error::Next(Errno(errno))),
    }
}

/// Closes a device.
pub fn close_device(context: Context) -> Result<(), Error> {
    let next = next::CLOSE_DEVICE
        .get()
        .ok_or(Error::NoNext(next::CLOSE_DEVICE.name()))?;
    let address = context.address();
    let orphans = Orphans::find(|name, _| name.context == address);
    // Before the close: the next device to be opened may get this address while the close returns.
    if let Some(process) = process::existing() {
        process.contexts.forget(address);
    }
    // SAFETY: the program's own device, to the function that it meant.
    match unsafe { next(context.as_ptr()) } {
        0 => {
            // The kernel has ended all its regions. Their objects are leaked, as by libibverbs: the program
            // may still look at them.
            orphans.forget();
            Ok(())
        }
        errno => Err(Error::Next(Errno(errno))),
    }
}

/// The regions that will have ended when a call returns. They are found before it: afterwards another
/// thread may have registered new ones for a domain or device at the same address.
struct Orphans(Option<(&'static Process, Vec<(Name, Region)>)>);

impl Orphans {
    fn find(belongs: impl Fn(&Name, &Region) -> bool) -> Orphans {
        let process = process::existing()
            .filter(|process| !disabled() && !thread::is_inside() && process.counters.live() > 0);
        Orphans(process.map(|process| (process, process.table.find(belongs))))
    }

    fn forget(self) {
        let Some((process, regions)) = self.0 else {
            return;
        };
        for (name, region) in regions {
            if process.table.orphan(name, region) {
                count_vanished(process, region);
            }
        }
    }
}
