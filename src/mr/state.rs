// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this process has: its devices and their regions, objects to be used again, its counters.

use super::devices::Devices;
use super::retired::Retired;
use crate::process::PerProcess;
use crate::stats::Counters;

/// All of it. A forked child starts with nothing.
pub struct State {
    pub devices: Devices,
    pub retired: Retired,
    pub counters: Counters,
}

static STATE: PerProcess<State> = PerProcess::new();

/// This process's, if it has used the library.
#[inline]
pub fn existing() -> Option<&'static State> {
    STATE.get()
}

/// This process's; made now if it is the first use.
#[inline]
pub fn current() -> &'static State {
    STATE.get_or_make(
        || State {
            devices: Devices::new(),
            retired: Retired::new(),
            counters: Counters::new(),
        },
        forget,
    )
}

unsafe extern "C" fn forget() {
    STATE.forget();
}
