// SPDX-License-Identifier: MIT OR Apache-2.0
//! The open devices on which memory was registered: the facts about each, and our regions on it.
//!
//! A lookup by the address of an `ibv_context` walks the list of the devices, without a lock: two
//! loads for each. Devices are never freed, only reused for another context. So the list has as many
//! as were open at one time, which are few.
//!
//! A new device takes a lock, so that no context has two. If a signal handler interrupted a thread
//! that holds it and called us, the handler would wait forever. [`thread::enter`] marks the time in
//! which the lock is held, and the handler's call is forwarded. The handler may also stop the thread
//! until another thread's call has returned, as a garbage collector does. So no thread waits for
//! longer than a moment. After that its call is forwarded as well.
//!
//! A forked child starts without devices.

use super::rows::Rows;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use core::time::Duration;
use rdmamr_config::disabled;
use rdmamr_next::Context;
use rdmamr_stats as stats;
use rdmamr_sys::process::PerProcess;
use rdmamr_sys::{futex, thread};
use rdmamr_uverbs::Uverbs;
use rdmamr_uverbs::context::{self, Facts, KnownFacts, Most};
use std::sync::{Mutex, MutexGuard};

/// What an open device can have at most. `None` if the kernel does not tell.
pub fn most_of(context: Context) -> Option<Most> {
    let fd = context.fd()?;
    let facts = context::identify(&Uverbs, fd).ok()?;
    context::most(&Uverbs, fd, facts).ok()
}

/// The context addresses of a device that waits for reuse, and of one that is being closed. No
/// context has these addresses.
const UNUSED: usize = usize::MAX;
const CLOSING: usize = usize::MAX - 1;

pub struct Device {
    /// The address of the device's context, [`UNUSED`] or [`CLOSING`].
    context: AtomicUsize,
    pub facts: KnownFacts,
    pub rows: Rows,
    /// The device made before this one, or null.
    older: *const Device,
}

// SAFETY: `older` names a device that is never freed, and does not change once other threads can
// reach this device. The other fields are for all threads.
unsafe impl Sync for Device {}

/// The number of tries of the lock, 0.2 ms apart.
const MOMENT: u32 = 100;

#[derive(Default)]
pub struct Devices {
    /// The device made last. By [`Device::older`] it leads to all devices.
    newest: AtomicPtr<Device>,
    /// Held by a thread that gives a device to a context.
    giving: Mutex<()>,
}

static DEVICES: PerProcess<Devices> = PerProcess::new();

/// The program is about to filter its system calls: asks what the first registration would ask.
pub fn before_filter() {
    DEVICES.wipe_at_fork();
}

/// The devices of this process, if the process has used the library.
#[inline]
pub fn existing() -> Option<&'static Devices> {
    DEVICES.get()
}

/// The device of the context at this address. `None` if the library registers no memory on it.
#[inline]
pub fn of_context(context: usize) -> Option<&'static Device> {
    existing().filter(|_| !disabled())?.get(context)
}

/// The devices of this process, created at the first use.
#[inline]
pub fn current() -> &'static Devices {
    DEVICES.get_or_make(Box::default)
}

impl Device {
    /// Whether this is still the device of the context at that address.
    pub fn is_of(&self, context: usize) -> bool {
        self.context.load(Acquire) == context
    }

    /// Ends a device after its close.
    pub fn end(&self) {
        self.rows.clear();
        self.context.store(UNUSED, Release);
    }

    /// Puts back a device whose close failed.
    pub fn put_back(&self, context: usize) {
        self.context.store(context, Release);
    }
}

impl Devices {
    /// Makes a device, for ever. The caller has the lock.
    fn make(&self) -> &'static Device {
        let device = Box::leak(Box::new(Device {
            context: AtomicUsize::new(UNUSED),
            facts: KnownFacts::new(),
            rows: Rows::new(),
            older: self.newest.load(Relaxed),
        }));
        self.newest.store(device, Release);
        device
    }

    /// All devices, also those that wait for reuse.
    #[inline(always)]
    fn all(&self) -> impl Iterator<Item = &'static Device> {
        // SAFETY: the list has devices alone, which are never freed.
        let at = |device: *const Device| unsafe { device.as_ref() };
        let newest = at(self.newest.load(Acquire));
        core::iter::successors(newest, move |device| at(device.older))
    }

    /// The device of a context, if memory was registered on it.
    #[inline(always)]
    pub fn get(&self, context: usize) -> Option<&'static Device> {
        self.all().find(|device| device.is_of(context))
    }

    /// The lock. `None` if another thread keeps it for longer than a moment: threads hold it for
    /// microseconds, but a thread that holds it may be stopped.
    fn lock(&self) -> Option<MutexGuard<'_, ()>> {
        (0..MOMENT).find_map(|_| {
            let locked = self.giving.try_lock().ok();
            if locked.is_none() {
                futex::pause(Duration::from_micros(200));
            }
            locked
        })
    }

    /// Adds a context. `None` in a signal handler that interrupted the library, or while another thread
    /// keeps the lock.
    pub fn insert(&self, context: usize, name: &[u8; 64], facts: Facts) -> Option<&'static Device> {
        if thread::is_inside() {
            return None;
        }
        let place = stats::counters().enter_device(name);
        let _inside = thread::enter();
        let _locked = self.lock()?;
        if let Some(device) = self.get(context) {
            return Some(device);
        }
        let unused = self.all().find(|device| device.is_of(UNUSED));
        let device = unused.unwrap_or_else(|| self.make());
        device.facts.set(facts);
        device.rows.set_place(place);
        device.context.store(context, Release);
        Some(device)
    }

    /// Removes a context before its address can come back as another context's. The caller owns the
    /// device and passes it to `end` or `put_back`.
    pub fn take(&self, context: usize) -> Option<&'static Device> {
        let device = self.get(context)?;
        let named = &device.context;
        let taken = named.compare_exchange(context, CLOSING, AcqRel, Relaxed);
        taken.is_ok().then_some(device)
    }

    /// The number of our regions on all devices, and the sum of their lengths. Takes no lock: a
    /// device without a context has no regions, but for those that it has while it is closed.
    pub fn total(&self) -> (u64, u64) {
        self.all().fold((0, 0), |sum, device| {
            let (count, bytes) = device.rows.total();
            (sum.0 + count, bytes.wrapping_add(sum.1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::Known;
    use super::*;

    #[test]
    fn devices_come_and_go() {
        let devices = Devices::default();
        let contexts = || (1..=100usize).map(|n| n * 0x150);
        for round in 0..3u32 {
            for context in contexts() {
                assert!(devices.get(context).is_none());
                let facts = Facts::from_bits_retain(context as u32 + round);
                let device = devices.insert(context, &[0; 64], facts).unwrap();
                let region = Known {
                    object: context,
                    pd: 2,
                    length: 10,
                    lkey: 1,
                };
                device.rows.insert(0, region);
            }
            assert_eq!(devices.total(), (100, 1000));
            for context in contexts() {
                let device = devices.get(context).unwrap();
                assert_eq!(device.facts.get().bits(), context as u32 + round);
                let taken = devices.take(context).unwrap();
                assert!(core::ptr::eq(device, taken) && devices.get(context).is_none());
                taken.put_back(context);
                assert!(devices.get(context).is_some());
                devices.take(context).unwrap().end();
                assert_eq!(taken.rows.total(), (0, 0));
                assert!(devices.take(context).is_none());
            }
        }
        assert_eq!(devices.all().count(), 100, "they are used again");
    }

    #[test]
    fn threads_that_open_and_close_never_find_each_others_device() {
        let devices = Devices::default();
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let devices = &devices;
                scope.spawn(move || {
                    for n in 0..2000usize {
                        let context = 0x1000 + 16 * (thread * 40 + n % 40);
                        let facts = Facts::from_bits_retain(context as u32);
                        // Beside a thread that waits for a processor, it may be refused.
                        while devices.insert(context, &[0; 64], facts).is_none() {}
                        assert_eq!(devices.get(context).unwrap().facts.get(), facts);
                        devices.take(context).unwrap().end();
                        assert!(devices.get(context).is_none());
                    }
                });
            }
        });
    }

    #[test]
    fn a_context_has_one_device() {
        let devices = Devices::default();
        std::thread::scope(|scope| {
            let insert = || while devices.insert(0x150, &[0; 64], Facts::empty()).is_none() {};
            (0..4).for_each(|_| drop(scope.spawn(insert)));
        });
        assert_eq!(devices.all().count(), 1);
    }

    #[test]
    fn nobody_waits_for_a_thread_that_keeps_the_lock() {
        let devices = Devices::default();
        devices.insert(0x150, &[0; 64], Facts::empty());
        let _kept = devices.giving.lock();
        assert!(devices.get(0x150).is_some());
        assert!(devices.insert(0x2a0, &[0; 64], Facts::empty()).is_none());
        devices.take(0x150).unwrap().end();
        assert!(devices.get(0x150).is_none());
    }

    #[test]
    fn a_handler_that_interrupts_an_operation_is_forwarded() {
        let devices = Devices::default();
        devices.insert(0x100, &[0; 64], Facts::empty());
        let region = Known {
            object: 1,
            pd: 2,
            length: 10,
            lkey: 1,
        };
        devices.get(0x100).unwrap().rows.insert(0, region);
        let _interrupted = thread::enter();
        assert!(devices.insert(0x200, &[0; 64], Facts::empty()).is_none());
        assert!(devices.get(0x200).is_none());
        assert_eq!(devices.total(), (1, 10), "the statistics need no lock");
        assert!(devices.take(0x100).is_some(), "nor does the end");
    }
}
