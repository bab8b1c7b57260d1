// SPDX-License-Identifier: MIT OR Apache-2.0
//! The open devices that memory was registered on: the facts about each, and our regions on it.
//!
//! A lookup by the address of an `ibv_context` first reads one of a few places; each place holds
//! the device last found there. A hit there is two loads. A miss walks the list of all devices,
//! without a lock. Devices are never freed, only reused for another context, so a reader always
//! finds a device, though perhaps not the right one.
//!
//! Only the registration that adds a device takes a lock, so that no context gets two devices. If a
//! signal handler interrupted a thread that holds the lock and called us, the handler would wait
//! forever. [`thread::enter`] marks the time in which the lock is held, and libibverbs then serves
//! the handler's call. The handler may also keep the thread until another thread's call has
//! returned, as a garbage collector does. So no thread waits for longer than a moment: libibverbs
//! serves its call as well.

use super::rows::Rows;
use crate::report::stats;
use crate::sys::futex;
use crate::sys::thread;
use crate::uverbs::context::{Facts, KnownFacts};
use core::iter::successors;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard};

/// In the place of a context's address: no context, and the device waits for reuse. No context has
/// this address.
const UNUSED: usize = usize::MAX;
/// The context is being closed, or was closed, and the device still has its regions.
const ENDING: usize = usize::MAX - 1;

/// An open device.
pub struct Device {
    /// The address of the device's context, [`UNUSED`] or [`ENDING`].
    context: AtomicUsize,
    pub facts: KnownFacts,
    pub rows: Rows,
    /// The device that was added before this one.
    older: Option<&'static Device>,
}

/// How many devices are found without the list if their addresses hash to different places.
const PLACES: usize = 16;

/// All devices.
pub struct Devices {
    last_found: [AtomicPtr<Device>; PLACES],
    newest: AtomicPtr<Device>,
    /// Held by the thread that adds a device.
    adding: Mutex<()>,
}

impl Devices {
    /// No devices.
    pub const fn new() -> Self {
        Devices {
            last_found: [const { AtomicPtr::new(null_mut()) }; PLACES],
            newest: AtomicPtr::new(null_mut()),
            adding: Mutex::new(()),
        }
    }

    #[inline(always)]
    fn place(&self, context: usize) -> &AtomicPtr<Device> {
        // Contexts come from malloc, so the low four bits carry no information.
        &self.last_found[(context >> 4 ^ context >> 12) % PLACES]
    }

    /// The device of a context, if memory was registered on it.
    #[inline(always)]
    pub fn get(&self, context: usize) -> Option<&'static Device> {
        let last = self.place(context).load(Acquire);
        // SAFETY: a place holds null or a device, and devices are never freed.
        if let Some(device) = unsafe { last.as_ref() }
            && device.context.load(Acquire) == context
        {
            return Some(device);
        }
        self.look_up(context)
    }

    fn all(&self) -> impl Iterator<Item = &'static Device> {
        // SAFETY: `newest` is null or a device, and devices are never freed.
        let newest: Option<&'static Device> = unsafe { self.newest.load(Acquire).as_ref() };
        successors(newest, |device| device.older)
    }

    fn of(&self, context: usize) -> Option<&'static Device> {
        self.all()
            .find(|device| device.context.load(Acquire) == context)
    }

    #[cold]
    fn look_up(&self, context: usize) -> Option<&'static Device> {
        self.of(context)
            .inspect(|device| self.remember(context, device))
    }

    fn remember(&self, context: usize, device: &'static Device) {
        let device: *const Device = device;
        self.place(context).store(device.cast_mut(), Release);
    }

    /// Tries for 20 ms. Threads hold the lock for microseconds, but one that holds it may be
    /// stopped.
    fn lock(&self) -> Option<MutexGuard<'_, ()>> {
        const YIELDS: u32 = 16;
        const SLEEPS: u32 = 100;
        for tries in 0..YIELDS + SLEEPS {
            if let Ok(held) = self.adding.try_lock() {
                return Some(held);
            }
            if tries < YIELDS {
                std::thread::yield_now();
            } else {
                futex::wait(&AtomicU32::new(0), 0, Some(Duration::from_micros(200)));
            }
        }
        None
    }

    /// Adds a context. `None` inside a signal handler that interrupted this thread in this library,
    /// or if another thread keeps the lock.
    pub fn insert(&self, context: usize, name: &[u8; 64], facts: Facts) -> Option<&'static Device> {
        if thread::is_inside() {
            return None;
        }
        let place = stats::counters().enter_device(name);
        let _inside = thread::enter();
        let _held = self.lock()?;
        let device = self.of(context).unwrap_or_else(|| {
            let device = self.of(UNUSED).unwrap_or_else(|| self.add());
            device.facts.set(facts);
            device.rows.set_place(place);
            device.context.store(context, Release);
            device
        });
        self.remember(context, device);
        Some(device)
    }

    /// Adds an unused device. The caller holds the lock.
    fn add(&self) -> &'static Device {
        let device = Box::leak(Box::new(Device {
            context: AtomicUsize::new(UNUSED),
            facts: KnownFacts::new(),
            rows: Rows::new(),
            older: self.all().next(),
        }));
        self.newest.store(device, Release);
        device
    }

    /// Removes a context before its address can come back as another context's. The caller owns the
    /// device and passes it to `end` or `put_back`.
    pub fn take(&self, context: usize) -> Option<&'static Device> {
        let device = self.of(context)?;
        let taken = device
            .context
            .compare_exchange(context, ENDING, AcqRel, Relaxed);
        taken.is_ok().then_some(device)
    }

    /// Ends a device after its close.
    pub fn end(&self, device: &'static Device) {
        device.rows.clear();
        device.context.store(UNUSED, Release);
    }

    /// Puts a device back whose close failed.
    pub fn put_back(&self, context: usize, device: &'static Device) {
        device.context.store(context, Release);
    }

    /// The number of our regions on all devices, and the sum of their lengths.
    pub fn total(&self) -> (u64, u64) {
        let open = |device: &&Device| device.context.load(Acquire) < ENDING;
        self.all()
            .filter(open)
            .fold((0, 0), |sum: (u64, u64), device| {
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
        let devices = Devices::new();
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
                devices.put_back(context, taken);
                assert!(devices.get(context).is_some());
                devices.end(devices.take(context).unwrap());
                assert_eq!(taken.rows.total(), (0, 0));
                assert!(devices.take(context).is_none());
            }
        }
        assert_eq!(devices.all().count(), 100, "they are used again");
    }

    #[test]
    fn threads_that_open_and_close_never_find_each_others_device() {
        let devices = Devices::new();
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let devices = &devices;
                scope.spawn(move || {
                    for n in 0..2000usize {
                        let context = 0x1000 + 16 * (thread * 40 + n % 40);
                        let facts = Facts::from_bits_retain(context as u32);
                        devices.insert(context, &[0; 64], facts);
                        assert_eq!(devices.get(context).unwrap().facts.get(), facts);
                        devices.end(devices.take(context).unwrap());
                        assert!(devices.get(context).is_none());
                    }
                });
            }
        });
    }

    #[test]
    fn one_context_has_one_device_whoever_adds_it() {
        let devices = Devices::new();
        for context in (1..=200usize).map(|n| n * 0x150) {
            let add = || devices.insert(context, &[0; 64], Facts::empty()).unwrap();
            std::thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(add));
                for thread in threads {
                    assert!(core::ptr::eq(thread.join().unwrap(), add()));
                }
            });
        }
        assert_eq!(devices.all().count(), 200);
    }

    #[test]
    fn nobody_waits_for_a_thread_that_stays_in_the_lock() {
        let devices = Devices::new();
        let contexts = || (1..=64usize).map(|n| n * 0x150);
        for context in contexts() {
            devices.insert(context, &[0; 64], Facts::empty());
        }
        for place in &devices.last_found {
            place.store(null_mut(), Release);
        }
        let stays = devices.lock();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let found = contexts().all(|context| devices.get(context).is_some());
                let taken = devices.take(0x150).map(|device| devices.end(device));
                let refused = devices.insert(0x150, &[0; 64], Facts::empty()).is_none();
                (found, taken, refused)
            });
            assert_eq!(other.join().unwrap(), (true, Some(()), true));
        });
        drop(stays);
        assert!(devices.insert(0x150, &[0; 64], Facts::empty()).is_some());
    }

    #[test]
    fn libibverbs_serves_a_handler_that_interrupts_an_operation() {
        let devices = Devices::new();
        devices.insert(0x100, &[0; 64], Facts::empty());
        let _interrupted = thread::enter();
        assert!(devices.insert(0x200, &[0; 64], Facts::empty()).is_none());
        assert!(devices.get(0x200).is_none());
        assert!(devices.get(0x100).is_some(), "what is there needs no lock");
    }
}
