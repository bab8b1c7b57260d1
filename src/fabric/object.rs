// SPDX-License-Identifier: MIT OR Apache-2.0
//! The common parts of the objects of this family: the tables of functions, the process that made
//! the object, and the count of the objects that keep it open.

use super::errors::{Result, ensure};
use super::refusals::OTHER_PROCESS;
use core::ffi::c_void;
use core::mem::offset_of;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use rdmamr_abi::libfabric::*;
use rdmamr_abi::libfabric_provider::domain_slots;
use rdmamr_cache::dispatch::devices::{self, Devices};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The tables of functions of all objects.
pub struct Tables {
    pub domain: fi_ops,
    pub domain_rest: domain_slots,
    pub memory: fi_ops_mr,
    pub region: fi_ops,
    pub queue: fi_ops,
    pub queue_rest: fi_ops_eq,
}

/// The beginning of each object, `struct fid`, whose context and class other threads may read.
#[repr(C)]
pub struct Head {
    pub class: AtomicUsize,
    pub context: AtomicPtr<c_void>,
    ops: &'static fi_ops,
}
const _: () = assert!(size_of::<Head>() == size_of::<fid>());
const _: () = assert!(offset_of!(Head, context) == offset_of!(fid, context));
const _: () = assert!(offset_of!(Head, ops) == offset_of!(fid, ops));

impl Head {
    pub fn new(class: usize, context: *mut c_void, ops: &'static fi_ops) -> Head {
        Head {
            class: AtomicUsize::new(class),
            context: AtomicPtr::new(context),
            ops,
        }
    }
}

/// The process in which an object was made.
#[derive(Clone, Copy)]
pub struct Process(&'static Devices);

impl Process {
    /// The calling process.
    pub fn this() -> Process {
        Process(devices::current())
    }

    /// Refuses an object that the parent process made before fork: the object's registrations
    /// concern the parent's memory, and a thread that does not exist in the child may hold its
    /// locks.
    #[inline(always)]
    pub fn check(self) -> Result<()> {
        let same = devices::existing().is_some_and(|devices| core::ptr::eq(devices, self.0));
        ensure(same, OTHER_PROCESS)
    }
}

/// Locks a mutex, also after a panic of a thread that held it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps an object open: the object cannot be closed while it counts a hold.
pub struct Hold(&'static AtomicUsize);

impl Hold {
    pub fn on(holds: &'static AtomicUsize) -> Hold {
        holds.fetch_add(1, AcqRel);
        Hold(holds)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AcqRel);
    }
}
