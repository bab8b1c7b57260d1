// SPDX-License-Identifier: MIT OR Apache-2.0
//! The open devices on which memory was registered: the facts about each, and our regions on it.
//!
//! A lookup by the address of an `ibv_context` first reads one of a few places; each place holds
//! the device last found there. A hit there is two loads. A miss searches a map. Devices are never
//! freed, only reused for another context, so a reader of a place always finds a device, though
//! perhaps not the right one.
//!
//! The map has locks. If a signal handler interrupted a thread that holds one and called us, the
//! handler would wait forever. [`thread::enter`] marks the time in which the lock is held, and the
//! handler's call is forwarded. The handler may also stop the thread until another thread's call
//! has returned, as a garbage collector does. So no thread waits for longer than a moment. After
//! that its call is forwarded as well.

use super::rows::Rows;
use core::hash::{BuildHasherDefault, Hasher};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};
use core::time::Duration;
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use dashmap::try_result::TryResult;
use rdmamr_stats as stats;
use rdmamr_sys::futex;
use rdmamr_sys::thread;
use rdmamr_uverbs::context::{Facts, KnownFacts};
use std::sync::Mutex;

/// The context address of a device that waits for reuse. No context has this address.
const UNUSED: usize = usize::MAX;

pub struct Device {
    /// The address of the device's context, or [`UNUSED`].
    context: AtomicUsize,
    pub facts: KnownFacts,
    pub rows: Rows,
    /// The device made before this one, or null.
    older: *const Device,
}

// SAFETY: `older` names a device that is never freed, and does not change once other threads can
// reach this device. The other fields are for all threads.
unsafe impl Sync for Device {}

/// Hashes an address. Contexts come from malloc, so the low four bits carry no information, and the
/// map takes its shard from the high bits.
#[derive(Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_usize(byte.into()));
    }

    fn write_usize(&mut self, address: usize) {
        let mixed = (self.0 ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// How many devices are found without the map if their addresses hash to different places.
const PLACES: usize = 16;

/// Shards of the map. The number is fixed, because asking for the number of processors reads files.
const SHARDS: usize = 4;

/// The number of tries, 0.2 ms apart: `MOMENT` for a call that can be forwarded, `LONG` for the end
/// of a device, whose address another device may get.
const MOMENT: u32 = 100;
const LONG: u32 = 10_000;

/// Tries until there is a result, but at most this many times. Threads hold the locks for
/// microseconds, but a thread that holds one may be stopped.
#[cold]
fn patiently<T>(sleeps: u32, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    const YIELDS: u32 = 16;
    for tries in 0..YIELDS + sleeps {
        if let Some(result) = attempt() {
            return Some(result);
        }
        if tries < YIELDS {
            std::thread::yield_now();
        } else {
            let never = AtomicU32::new(0);
            futex::wait(&never, 0, Some(Duration::from_micros(200)));
        }
    }
    None
}

pub struct Devices {
    last_found: [AtomicPtr<Device>; PLACES],
    by_context: DashMap<usize, &'static Device, BuildHasherDefault<AddressHasher>>,
    unused: Mutex<Vec<&'static Device>>,
    /// The device made last. By [`Device::older`] it leads to all devices, so that the statistics
    /// need no lock.
    newest: AtomicPtr<Device>,
}

impl Device {
    /// Whether this is still the device of the context at that address.
    pub fn is_of(&self, context: usize) -> bool {
        self.context.load(Acquire) == context
    }
}

impl Devices {
    pub fn new() -> Self {
        Devices {
            last_found: [const { AtomicPtr::new(null_mut()) }; PLACES],
            by_context: DashMap::with_capacity_and_hasher_and_shard_amount(
                0,
                Default::default(),
                SHARDS,
            ),
            unused: Mutex::new(Vec::new()),
            newest: AtomicPtr::new(null_mut()),
        }
    }

    /// Makes a device, for ever.
    fn make(&self) -> &'static Device {
        let device = Box::into_raw(Box::new(Device {
            context: AtomicUsize::new(UNUSED),
            facts: KnownFacts::new(),
            rows: Rows::new(),
            older: null(),
        }));
        let mut newest = self.newest.load(Relaxed);
        loop {
            // SAFETY: no other thread can reach the device before the exchange.
            unsafe { (*device).older = newest };
            match self
                .newest
                .compare_exchange(newest, device, Release, Relaxed)
            {
                // SAFETY: the box was leaked, so the device is never freed.
                Ok(_) => return unsafe { &*device },
                Err(other) => newest = other,
            }
        }
    }

    /// All devices, also those that wait for reuse.
    fn all(&self) -> impl Iterator<Item = &'static Device> {
        // SAFETY: the list has devices alone, which are never freed.
        let at = |device: *const Device| unsafe { device.as_ref() };
        core::iter::successors(
            at(self.newest.load(Acquire)),
            move |device| at(device.older),
        )
    }

    #[inline(always)]
    fn place(&self, context: usize) -> &AtomicPtr<Device> {
        &self.last_found[(context >> 4 ^ context >> 12) % PLACES]
    }

    /// The device of a context, if memory was registered on it. Also `None` inside a signal handler
    /// that interrupted this thread in this module.
    #[inline(always)]
    pub fn get(&self, context: usize) -> Option<&'static Device> {
        let last = self.place(context).load(Acquire);
        // SAFETY: a place holds null or a device, and devices are never freed.
        let last = unsafe { last.as_ref() };
        last.filter(|device| device.is_of(context))
            .or_else(|| self.look_up(context))
    }

    #[cold]
    fn look_up(&self, context: usize) -> Option<&'static Device> {
        if thread::is_inside() {
            return None;
        }
        let _inside = thread::enter();
        let device = patiently(MOMENT, || match self.by_context.try_get(&context) {
            TryResult::Present(device) => Some(Some(*device)),
            TryResult::Absent => Some(None),
            TryResult::Locked => None,
        })??;
        self.remember(context, device);
        Some(device)
    }

    fn remember(&self, context: usize, device: &'static Device) {
        let device: *const Device = device;
        self.place(context).store(device.cast_mut(), Release);
    }

    /// Adds a context. `None` inside a signal handler that interrupted this thread in this module.
    pub fn insert(&self, context: usize, name: &[u8; 64], facts: Facts) -> Option<&'static Device> {
        if thread::is_inside() {
            return None;
        }
        let place = stats::counters().enter_device(name);
        let _inside = thread::enter();
        let entry = patiently(MOMENT, || self.by_context.try_entry(context))?;
        let device = *entry.or_insert_with(|| {
            let unused = self.unused.try_lock().ok();
            let unused = unused.and_then(|mut unused| unused.pop());
            let device = unused.unwrap_or_else(|| self.make());
            device.facts.set(facts);
            device.rows.set_place(place);
            device.context.store(context, Release);
            device
        });
        self.remember(context, device);
        Some(device)
    }

    /// Removes a context before its address can come back as another context's. The caller owns the
    /// device and passes it to `end` or `put_back`.
    pub fn take(&self, context: usize) -> Option<&'static Device> {
        if thread::is_inside() {
            return None;
        }
        let _inside = thread::enter();
        let device = match patiently(LONG, || self.by_context.try_entry(context))? {
            Entry::Occupied(entry) => entry.remove(),
            Entry::Vacant(_) => return None,
        };
        device.context.store(UNUSED, Release);
        Some(device)
    }

    /// Ends a device after its close.
    pub fn end(&self, device: &'static Device) {
        device.rows.clear();
        let _inside = thread::enter();
        // A device that does not get onto this list is never reused.
        if let Some(mut unused) = patiently(MOMENT, || self.unused.try_lock().ok()) {
            unused.push(device);
        }
    }

    /// Puts back a device whose close failed.
    pub fn put_back(&self, context: usize, device: &'static Device) {
        let _inside = thread::enter();
        device.context.store(context, Release);
        if let Some(entry) = patiently(LONG, || self.by_context.try_entry(context)) {
            entry.insert(device);
        }
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
        assert_eq!(
            devices.unused.lock().unwrap().len(),
            100,
            "they are used again"
        );
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
    fn nobody_waits_for_a_thread_that_stays_in_the_map() {
        let devices = Devices::new();
        let contexts = || (1..=64usize).map(|n| n * 0x150);
        for context in contexts() {
            devices.insert(context, &[0; 64], Facts::empty());
        }
        for place in &devices.last_found {
            place.store(null_mut(), Release);
        }
        let stays = devices.by_context.entry(0x150);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let missing = contexts().find(|&context| devices.get(context).is_none());
                let refused = devices.insert(0x150, &[0; 64], Facts::empty()).is_none();
                (missing, refused, devices.total())
            });
            assert_eq!(other.join().unwrap(), (Some(0x150), true, (0, 0)));
        });
        drop(stays);
        assert!(contexts().all(|context| devices.get(context).is_some()));
    }

    #[test]
    fn a_handler_that_interrupts_an_operation_is_forwarded() {
        let devices = Devices::new();
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
        assert!(devices.take(0x100).is_none() && devices.get(0x200).is_none());
        assert_eq!(devices.total(), (1, 10), "the statistics need no lock");
        assert!(
            devices.get(0x100).is_some(),
            "what was found last needs no lock"
        );
    }
}
