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
        // SAFETY: each field is written once, where it belongs; with all of them written it is whole.
        unsafe {
            (&raw mut (*place).devices).write(Devices::new());
            (&raw mut (*place).retired).write(const { Retired::new() });
            (&raw mut (*place).counters).write(const { Counters::new() });
            state.assume_init()
        }
    }
}

unsafe extern "C" fn forget() {
    STATE.forget();
}
