// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of this process: its devices with their regions, and objects kept for reuse.

use super::devices::{Device, Devices};
use super::object::Object;
use super::retired::Retired;
use rdmamr_config::disabled;
use rdmamr_sys::process::PerProcess;
use rdmamr_sys::thread;

/// The state of a process. A forked child starts without one.
pub struct State {
    pub devices: Devices,
    retired: Retired,
}

static STATE: PerProcess<State> = PerProcess::new();

/// The state of this process, if the process has used the library.
#[inline]
pub fn existing() -> Option<&'static State> {
    STATE.get()
}

/// The device of the context at this address. `None` if the library registers no memory on it.
pub fn device(context: usize) -> Option<&'static Device> {
    existing()
        .filter(|_| !disabled())
        .and_then(|state| state.devices.get(context))
}

/// The state of this process, created at the first use.
#[inline]
pub fn current() -> &'static State {
    STATE.get_or_make(State::new, forget)
}

/// An object for one use of a cached region.
#[inline(always)]
pub fn new_object() -> Option<Object> {
    current().new_object(thread::number())
}

/// Keeps the object of an ended use for reuse.
#[inline(always)]
pub fn put_object_away(object: Object) {
    current().put_away(thread::number(), object);
}

impl State {
    /// An object for a new region. `None` if memory is exhausted.
    #[inline(always)]
    pub fn new_object(&self, thread: thread::Number) -> Option<Object> {
        let retired = self.retired.take(thread).and_then(Object::at);
        retired.or_else(Object::allocate)
    }

    /// Keeps the object of a deregistered region, or of a failed registration, for reuse.
    #[inline(always)]
    pub fn put_away(&self, thread: thread::Number, object: Object) {
        let displaced = self.retired.put(thread, object.address());
        if let Some(displaced) = displaced.and_then(Object::at) {
            // SAFETY: `put` returned this object, so the object is in no queue and its region has
            // ended.
            unsafe { displaced.free() };
        }
    }

    /// Builds the state in place: it has 9 KiB, and the first registering thread may have a stack
    /// of only 16 KiB.
    fn new() -> Box<State> {
        let mut state = Box::<State>::new_uninit();
        let place = state.as_mut_ptr();
        // SAFETY: `place` points to the box, which has room for all fields.
        let devices = unsafe { &raw mut (*place).devices };
        // SAFETY: `place` points to the box, which has room for all fields.
        let retired = unsafe { &raw mut (*place).retired };
        // SAFETY: only this thread knows the box, and the field is still uninitialised.
        unsafe { devices.write(Devices::new()) };
        // SAFETY: only this thread knows the box, and the field is still uninitialised.
        unsafe { retired.write(const { Retired::new() }) };
        // SAFETY: both fields, the only ones, are written.
        unsafe { state.assume_init() }
    }
}

unsafe extern "C" fn forget() {
    STATE.forget();
}
