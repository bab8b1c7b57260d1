// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registered memory regions: what `ibv_reg_mr` and its relatives do. The library makes the kernel
//! calls itself if it can do so exactly as rdma-core does, and calls libibverbs otherwise.
//!
//! Not here: C's pointers and return conventions (`capi/`), the bytes that the kernel gets
//! (`uverbs/`).

pub mod bare;
mod deregister;
pub mod devices;
mod fork;
mod forwarded;
mod large;
mod lifetime;
mod object;
mod register;
mod register_ex;
mod rereg;
pub mod retired;
mod rows;
pub mod state;

pub use deregister::{around_deregister_bypassed, deregister};
pub use fork::init as fork_init;
pub use forwarded::reg_dmabuf_mr;
pub use lifetime::{close_device, dealloc_pd};
pub use object::Mr;
pub use object::Object;
pub use register::{register, register_rarely};
pub use register_ex::{plain_memory, reg_other_memory};
pub use rereg::{CHANGED_BUT_NOT_FOR_CHILDREN, move_region, rereg};

use crate::call::Error;
use crate::next::{Next, Provider};
use crate::report::stats::{self, counter};
use crate::sys::thread;
use state::State;

/// An object for a new region. `None` if memory is exhausted.
#[inline(always)]
fn object(state: &State, thread: thread::Number) -> Option<Object> {
    let object = state.retired.take(thread).and_then(Object::at);
    object.or_else(Object::allocate)
}

/// An object for one use of a region of the cache.
#[inline(always)]
pub fn new_object() -> Option<Object> {
    object(state::current(), thread::number())
}

/// Keeps the object of an ended use for reuse.
#[inline(always)]
pub fn put_object_away(object: Object) {
    put_away(state::current(), thread::number(), object);
}

/// Keeps the object of a deregistered region, or of a failed registration, for reuse.
#[inline(always)]
fn put_away(state: &State, thread: thread::Number, object: Object) {
    let unneeded = state.retired.put(thread, object.address());
    for unneeded in unneeded.filter_map(Object::at) {
        // SAFETY: `put` returned this object, so the object is in no queue and its region has
        // ended.
        unsafe { unneeded.free() };
    }
}

/// The function of the libibverbs that opened a device; an error if libibverbs lacks the function.
fn require<F: Copy>(next: &Next<F>, provider: Provider) -> Result<F, Error> {
    next.by(provider).ok_or_else(|| Error::NoNext(next.name()))
}

/// Counts regions of ours that were deregistered without a call to this library.
fn count_ended_elsewhere(regions: u64) {
    stats::counters().add(thread::number(), counter!(ended_elsewhere), regions);
}
