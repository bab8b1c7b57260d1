// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of this process: its devices with their regions.

use super::devices::{Device, Devices};
use rdmamr_config::disabled;
use rdmamr_sys::process::PerProcess;

/// The state of a process. A forked child starts without one.
#[derive(Default)]
pub struct State {
    pub devices: Devices,
}

static STATE: PerProcess<State> = PerProcess::new();

/// The state of this process, if the process has used the library.
#[inline]
pub fn existing() -> Option<&'static State> {
    STATE.get()
}

/// The device of the context at this address. `None` if the library registers no memory on it.
#[inline]
pub fn device(context: usize) -> Option<&'static Device> {
    let state = existing().filter(|_| !disabled())?;
    state.devices.get(context)
}

/// The state of this process, created at the first use.
#[inline]
pub fn current() -> &'static State {
    STATE.get_or_make(Box::default, forget)
}

unsafe extern "C" fn forget() {
    STATE.forget();
}
