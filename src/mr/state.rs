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
    STATE.get_or_make(State::new, forget)
}

impl State {
    /// Made where it stays: the first thread to register may have a stack of 16 KiB, which is less than this takes.
    fn new() -> Box<State> {
        let mut state = Box::<State>::new_uninit();
        let place = state.as_mut_ptr();
        // SAFETY: the box has room for it; so have the two that follow.
        let devices = unsafe { &raw mut (*place).devices };
        // SAFETY: as above.
        let retired = unsafe { &raw mut (*place).retired };
        // SAFETY: as above.
        let counters = unsafe { &raw mut (*place).counters };
        // SAFETY: ours, and written for the first time; so are the two that follow.
        unsafe { devices.write(Devices::new()) };
        // SAFETY: as above.
        unsafe { retired.write(const { Retired::new() }) };
        // SAFETY: as above.
        unsafe { counters.write(const { Counters::new() }) };
        // SAFETY: it has no other field.
        unsafe { state.assume_init() }
    }
}

unsafe extern "C" fn forget() {
    STATE.forget();
}
