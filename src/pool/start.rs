// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first use of relaxed registration in a process: the pool's memory, the watch, the cleaner.

use crate::config::config;
use crate::pool::INSTANCE;
use crate::pool::Instance;
use crate::pool::existing;
use crate::pool::life::account::Amount;
use crate::pool::life::admission::Admission;
use crate::pool::life::change;
use crate::pool::life::cleaner::{self, Cleaner};
use crate::pool::life::flush;
use crate::pool::life::limits::Limits;
use crate::pool::lock::Lock;
use crate::pool::state::Pool;
use crate::report::stats;
use crate::sys::allocator::has_memory;
use crate::sys::aside;
use crate::sys::proc;
use crate::sys::process::{FAR_AWAY, PerProcess};
use crate::sys::thread;
use crate::watch::{Reader, Watch};
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// The thread that makes the instance holds this lock.
static STARTING: PerProcess<Lock> = PerProcess::new();

unsafe extern "C" fn forget() {
    STARTING.forget();
    INSTANCE.forget();
}

unsafe extern "C" fn before_fork() {
    if let Some(relaxed) = existing() {
        flush::before_fork(relaxed);
    }
}

/// The addresses of the pool's objects, in this process or in the process that it was forked from:
/// the first address, and the end. No other object lies between the two.
static OBJECTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Whether an object is or was an object of a pool, of this process or of its parent.
#[inline(always)]
pub fn is_object(address: usize) -> bool {
    address < OBJECTS[1].load(Relaxed) && address >= OBJECTS[0].load(Relaxed)
}

/// Whether this process is a child of one that had a pool. Such a child has no pool, and makes
/// none.
#[inline(always)]
pub fn is_of_parent() -> bool {
    existing().is_none() && OBJECTS[1].load(Relaxed) != 0
}

/// This process's instance. The first call makes it. `None` in a child whose parent had one, in a
/// signal handler that interrupted the library, and if memory is short.
pub fn current() -> Option<&'static Instance> {
    if let Some(relaxed) = existing() {
        return Some(relaxed);
    }
    if is_of_parent() || thread::is_inside() {
        return None;
    }
    aside::run(make).flatten()
}

fn make() -> Option<&'static Instance> {
    let _inside = thread::enter();
    let _starting = STARTING
        .get_or_make(|| Box::new(Lock::new()), forget)
        .lock();
    if let Some(relaxed) = existing() {
        return Some(relaxed);
    }
    if !has_memory() {
        return None;
    }
    let pool = map_pool()?;
    let linger = &config().relaxed;
    let may_pin = may_pin();
    let cleaner: &'static Cleaner = Box::leak(Box::new(Cleaner::new(
        linger.linger_remote,
        linger.linger_local,
    )));
    let relaxed = Instance {
        pool,
        watch: Watch::start(Reader {
            changes: &pool.changes,
            heard: cleaner::heard,
        }),
        admission: Admission::default(),
        cleaner,
        counters: stats::counters(),
        limits: Limits::new(settings(may_pin)),
        may_pin_all: may_pin.is_none(),
    };
    let relaxed: &'static Instance = Box::leak(Box::new(relaxed));
    cleaner::start(relaxed);
    let objects = pool.objects();
    OBJECTS[0].store(objects.start, Relaxed);
    OBJECTS[1].store(objects.end, Relaxed);
    INSTANCE.publish(relaxed, forget);
    // SAFETY: the handler is a function of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), None, None) };
    change::mind_keys(&pool.changes);
    Some(relaxed)
}

/// Maps the pool's memory: as much address space as the pool may ever need. The kernel supplies
/// pages as they are touched.
fn map_pool() -> Option<&'static Pool> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let far = core::ptr::without_provenance_mut(FAR_AWAY + (1 << 24));
    // The pool may have to be moved up within the mapping, to be aligned.
    let size = size_of::<Pool>() + align_of::<Pool>();
    // SAFETY: a new mapping at an address that the kernel accepts touches no other memory: the
    // flags lack MAP_FIXED.
    let memory = unsafe { libc::mmap(far, size, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return None;
    }
    let up = memory.addr().wrapping_neg() % align_of::<Pool>();
    // SAFETY: the memory is zeroed, aligned, large enough and never unmapped, and all zeros is a
    // valid pool.
    Some(unsafe { &*memory.wrapping_byte_add(up).cast::<Pool>() })
}

/// How many bytes the process may pin. `None` if no limit applies.
pub fn may_pin() -> Option<u64> {
    let may_lock = || proc::Status::read().is_some_and(|status| status.may_lock);
    proc::memlock_limit().filter(|_| !may_lock())
}

/// How much may be idle by the settings, and whether they say it in bytes. Without a setting for
/// bytes, at most half of `may_pin`, what the process may pin.
pub fn settings(may_pin: Option<u64>) -> (Amount, bool) {
    let relaxed = &config().relaxed;
    let signed = |amount: u64| amount.min(i64::MAX as u64) as i64;
    let half = || may_pin.map_or(u64::MAX, |limit| limit / 2);
    let settings = Amount {
        regions: signed(relaxed.max_idle),
        bytes: signed(relaxed.max_idle_bytes.unwrap_or_else(half)),
    };
    (settings, relaxed.max_idle_bytes.is_some())
}
