// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registrations of much memory: helper threads may populate it while the kernel pins
//! (`prefault/`).

use super::request::Request;
use rdmamr_config::{config, disabled};
use rdmamr_prefault::{self as prefault, Pin};
use rdmamr_sys::pages::page_size;

pub use rdmamr_prefault::is_large;

/// Runs `register`, which has another driver than a device's pin this memory.
pub fn around_host_register(
    addr: usize,
    length: usize,
    has_pages: bool,
    writing: bool,
    register: impl FnOnce(),
) {
    if disabled() || config().prefault == 0 || !is_large(length) {
        return register();
    }
    let pin = Pin {
        addr,
        length,
        pins: has_pages,
        writing,
        by_gpu: true,
        is_watched: false,
    };
    prefault::around(pin, config().prefault, config().progress, register);
}

/// Runs `register`, which registers this memory, beside the threads of `prefault/`.
#[cold]
pub fn around<T>(request: &Request, is_watched: bool, register: impl FnOnce() -> T) -> T {
    if disabled() {
        return register();
    }
    let Request { addr, access, .. } = *request;
    let is_refused =
        access.refusal().is_some() || (addr.addr() as u64 ^ request.iova) % page_size() != 0;
    let pin = Pin {
        addr: addr.addr(),
        length: request.length,
        pins: !access.on_demand() && !is_refused,
        writing: access.pins_for_writing(),
        by_gpu: false,
        is_watched,
    };
    prefault::around(pin, config().prefault, config().progress, register)
}
