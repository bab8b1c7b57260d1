// SPDX-License-Identifier: MIT OR Apache-2.0
//! A registered memory region: what `ibv_reg_mr` and its kin mean, done by our own kernel calls where
//! they can be done exactly as rdma-core does them, and passed on to it where not.
//!
//! Not here: C's pointers and return conventions (`capi/`), the bytes that the kernel gets (`uverbs/`).

pub mod access;
pub mod bare;
mod deregister;
pub mod devices;
mod fork;
mod lifetime;
mod object;
mod passed_on;
mod prefault;
mod register;
mod register_ex;
mod rereg;
pub mod retired;
mod rows;
pub mod state;

pub use access::Access;
pub use deregister::deregister;
pub use lifetime::{close_device, dealloc_pd};
pub use object::Mr;
pub use object::Object;
pub use passed_on::reg_dmabuf_mr;
pub use register::register;
pub use register_ex::{plain_memory, reg_other_memory};
pub use rereg::{CHANGED_BUT_NOT_FOR_CHILDREN, Change, move_region, rereg};

use crate::abi::rdma_core::*;
use crate::next::Next;
use crate::stats::Counter;
use crate::thread;
use core::ffi::c_void;
use core::ptr::NonNull;
use errno::Errno;
use state::State;

/// An open device.
#[derive(Clone, Copy)]
pub struct Context(NonNull<ibv_context>);

impl Context {
    /// The device that C names; `None` for a null pointer.
    ///
    /// # Safety
    /// What is not null is a context that libibverbs made and that is not closed.
    pub unsafe fn from_c(context: *mut ibv_context) -> Option<Context> {
        NonNull::new(context).map(Context)
    }

    /// As C sees it.
    pub fn as_ptr(self) -> *mut ibv_context {
        self.0.as_ptr()
    }

    /// The address by which it is remembered.
    #[inline]
    pub fn address(self) -> usize {
        self.0.expose_provenance().get()
    }

    /// The kernel's file for it; `None` where there is none that we may use: the provider works without
    /// the kernel, or what made the context was not libibverbs.
    #[inline]
    pub fn fd(self) -> Option<i32> {
        // SAFETY: an open context, by `from_c` or a PD's own pointer to it.
        let context = unsafe { self.0.as_ref() };
        let (fd, abi) = (context.cmd_fd, context.abi_compat);
        (fd >= 0 && abi.addr() == usize::MAX).then_some(fd)
    }
}

/// A protection domain.
#[derive(Clone, Copy)]
pub struct Pd(NonNull<ibv_pd>);

// SAFETY: protection domains of libibverbs may be used by any thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// The domain that C names; `None` for a null pointer.
    ///
    /// # Safety
    /// What is not null is a protection domain that libibverbs made and that is not deallocated.
    pub unsafe fn from_c(pd: *mut ibv_pd) -> Option<Pd> {
        NonNull::new(pd).map(Pd)
    }

    /// As C sees it.
    pub fn as_ptr(self) -> *mut ibv_pd {
        self.0.as_ptr()
    }

    /// The address by which regions name it.
    #[inline]
    pub fn address(self) -> usize {
        self.0.expose_provenance().get()
    }

    /// The kernel's name for it. A parent domain has that of the domain that it was made from.
    #[inline]
    pub fn handle(self) -> u32 {
        // SAFETY: a protection domain that exists, by `from_c`.
        unsafe { (*self.as_ptr()).handle }
    }

    /// What kind of network its device is on, `enum ibv_transport_type`.
    pub fn transport(self) -> Option<i32> {
        // SAFETY: a protection domain's own device, which is open as long as the domain exists.
        let context = unsafe { self.context().as_ref() }?;
        // SAFETY: an open device has one.
        let device = unsafe { context.device.as_ref() }?;
        Some(device.transport_type)
    }

    /// Its device, as C sees it.
    #[inline]
    pub fn context(self) -> *mut ibv_context {
        // SAFETY: a protection domain that exists, by `from_c`.
        unsafe { (*self.as_ptr()).context }
    }
}

/// Memory to be registered.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub addr: *mut c_void,
    pub length: usize,
    /// The address at which peers reach `addr`.
    pub iova: u64,
    pub access: Access,
}

impl Request {
    /// Memory that peers reach at its own address.
    #[inline(always)]
    pub fn at_address(addr: *mut c_void, length: usize, access: Access) -> Request {
        let iova = addr.addr() as u64;
        Request {
            addr,
            length,
            iova,
            access,
        }
    }
}

/// Why a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// An argument that is refused without asking anybody.
    Argument(&'static str),
    /// The kernel said so.
    Kernel(Errno),
    /// libibverbs said so.
    Next(Errno),
    /// libibverbs could not keep the memory from being shared with a child (`ibv_fork_init`).
    Fork(Errno),
    /// There is no memory for the object.
    Memory,
    /// The region is deregistered already.
    Gone,
    /// Something still depends on it.
    Busy(&'static str),
    /// There is not enough of something now, and there soon will be.
    Shortage(&'static str),
    /// No libibverbs underneath has that function.
    NoNext(&'static str),
    /// Refused by a rule of libfabric's, with its code.
    Refused(i32, &'static str),
    /// The library itself is at fault.
    Panic,
}

impl Error {
    /// The errno for C.
    pub fn errno(self) -> i32 {
        match self {
            Error::Argument(_) | Error::Gone => libc::EINVAL,
            Error::Kernel(errno) | Error::Next(errno) | Error::Fork(errno) => errno.0,
            Error::Refused(code, _) => code,
            Error::Busy(_) => libc::EBUSY,
            Error::Shortage(_) => libc::EAGAIN,
            Error::Memory | Error::Panic => libc::ENOMEM,
            Error::NoNext(_) => libc::EOPNOTSUPP,
        }
    }
}

/// An object for a region; `None` where there is no memory.
#[inline(always)]
fn object(state: &State, thread: thread::Number) -> Option<Object> {
    let object = state.retired.take(thread).and_then(Object::at);
    object.or_else(Object::allocate)
}

/// An object for a use of a region of the pool.
#[inline(always)]
pub fn new_object() -> Option<Object> {
    object(state::current(), thread::number())
}

/// Keeps such an object for another, when the use has ended.
#[inline(always)]
pub fn put_object_away(object: Object) {
    put_away(state::current(), thread::number(), object);
}

/// Keeps an object whose region is deregistered, or came to nothing, for another.
#[inline(always)]
fn put_away(state: &State, thread: thread::Number, object: Object) {
    let unneeded = state.retired.put(thread, object.address());
    for unneeded in unneeded.filter_map(Object::at) {
        // SAFETY: it waits no longer, by the word of `put`.
        unsafe { unneeded.free() };
    }
}

/// A function of the libibverbs underneath, which must be there.
fn require<F: Copy>(next: &Next<F>) -> Result<F, Error> {
    next.get().ok_or_else(|| Error::NoNext(next.name()))
}

/// Counts regions of ours that ended past us.
fn count_vanished(state: &State, regions: u64) {
    let counters = &state.counters;
    counters.add(thread::number(), Counter::Vanished, regions);
}
