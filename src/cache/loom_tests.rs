// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache's core under every interleaving that the memory model allows, by loom:
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib loom`.
//!
//! A region is reduced to its state, and the kernel to a few variables: which generation of memory
//! is at the address (generation 0 was pinned), whether an event is in flight, and whether the
//! region is registered. A thread that has seen new memory at the address must never get the region
//! again.

use crate::life::hit::{Miss, Steps, in_order};
use crate::noted::{Noted, Number};
use crate::region::state::{AfterRelease, Grant, Seen, State};
use crate::watch::ring::{Event, Kind, Ring};
use core::cell::Cell;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use loom::sync::{Arc, Mutex};
use loom::thread;
use rdmamr_sys::pages::PageRange;

struct World {
    ring: Ring,
    noted: Noted,
    state: State,
    /// The cache's lock.
    lock: Mutex<()>,
    /// The kernel's mmap lock.
    kernel: Mutex<()>,
    /// The generation of memory that is mapped at the address.
    mapped: AtomicU64,
    /// The kernel's `mmap_changing`.
    in_flight: AtomicBool,
    registered: AtomicBool,
}

const MEMORY: PageRange = PageRange::new(0x1000, 0x2000);

const ELSEWHERE: PageRange = PageRange::new(0x8000, 0x9000);

const EVENT: Event = Event {
    range: MEMORY,
    kind: Kind::Changed,
};

impl World {
    /// A world with one region, which is kept and idle.
    fn new() -> Arc<World> {
        let world = World {
            ring: Ring::new(),
            noted: Noted::new(),
            state: State::new(),
            lock: Mutex::new(()),
            kernel: Mutex::new(()),
            mapped: AtomicU64::new(0),
            in_flight: AtomicBool::new(false),
            registered: AtomicBool::new(true),
        };
        world.state.make();
        assert!(world.state.keep());
        assert_eq!(world.state.release(Grant::Own), Some(AfterRelease::Idle));
        Arc::new(world)
    }

    /// A call that the kernel does not report, which gets the lock before the real call, and after it,
    /// or not. Without the lock it records a loss. (A munmap without the lock leaves the change to the
    /// kernel's event.)
    fn unmap_by_call(&self, [before, after]: [bool; 2]) {
        let invalidates = |gets_lock: bool, note: &dyn Fn() -> Option<Number>| {
            if !gets_lock {
                self.ring.lose();
                return None;
            }
            let _lock = self.lock.lock().unwrap();
            self.state.invalidate();
            note()
        };
        let noted = invalidates(before, &|| self.noted.add(MEMORY));
        {
            let _kernel = self.kernel.lock().unwrap();
            self.mapped.store(1, Release);
        }
        invalidates(after, &|| None);
        noted
            .into_iter()
            .for_each(|number| self.noted.remove(number));
    }

    /// `munmap` by a raw system call. Its event is in flight from before the memory is unmapped
    /// until the event is read.
    fn unmap_unseen(&self) {
        self.in_flight.store(true, SeqCst);
        self.mapped.store(1, Release);
    }

    /// One round of the reader, which may find an event.
    fn read_events(&self) {
        if self.in_flight.load(SeqCst) {
            self.ring.announce();
            self.in_flight.store(false, SeqCst);
            self.ring.write(EVENT);
            self.ring.finish();
        }
    }

    fn apply(&self) {
        let _lock = self.lock.lock().unwrap();
        self.ring.apply(|event| {
            // None stands for any change.
            if event.is_none_or(|event| event.range == MEMORY) {
                self.state.invalidate();
            }
        });
    }

    /// Registers as the program does. The translation that it gets must not be older than the
    /// memory that it saw mapped before.
    fn register(&self) -> Option<Grant> {
        let mapped = self.mapped.load(Acquire);
        let got = in_order(&self.ring, self);
        match got {
            Ok(grant) => {
                assert_eq!(mapped, 0, "a stale translation");
                assert!(self.registered.load(Acquire), "a region that has ended");
                Some(grant)
            }
            Err(Miss::Unsettled(Some(grant))) => {
                self.release(grant);
                None
            }
            Err(_) => None,
        }
    }

    fn release(&self, grant: Grant) {
        assert!(self.registered.load(Acquire), "it ended while it was used");
        if matches!(self.state.release(grant), Some(AfterRelease::MustEnd(_))) {
            self.end_if_unused();
        }
    }

    /// Ends the region as a flush, the cleaner, or a thread that releases a spent region does.
    fn end_if_unused(&self) {
        let claimed = {
            let _lock = self.lock.lock().unwrap();
            self.state.claim()
        };
        if claimed {
            assert!(self.registered.swap(false, AcqRel), "it ended twice");
            let _lock = self.lock.lock().unwrap();
            self.state.free();
        }
    }
}

impl Steps for &World {
    type Taken = Grant;

    fn must_fence(&self) -> bool {
        true
    }

    fn look(&self) -> bool {
        true
    }

    fn take(&self) -> Option<Grant> {
        self.state.take_if(|_| true)
    }

    fn fence(&self) -> bool {
        !self.in_flight.load(SeqCst)
    }

    fn refused(&self) {}
}

fn explore(bound: Option<usize>, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = bound;
    model.check(test);
}

/// One thread changes the memory beside two hits. After it no hit may come.
fn changed_beside_hits(change: impl Fn(&World) + Copy + Send + Sync + 'static) {
    explore(None, move || {
        let world = World::new();
        let other = world.clone();
        let changing = thread::spawn(move || change(&other));
        world.register();
        world.apply();
        world.register();
        changing.join().unwrap();
        world.apply();
        assert_eq!(world.register(), None);
    });
}

#[test]
fn loom_a_call_that_changes_memory() {
    changed_beside_hits(|world| world.unmap_by_call([true; 2]));
}

#[test]
fn loom_a_call_without_the_lock() {
    changed_beside_hits(|world| world.unmap_by_call([false; 2]));
}

#[test]
fn loom_a_change_that_only_the_kernel_sees() {
    explore(Some(3), || {
        let world = World::new();
        let (other, monitor) = (world.clone(), world.clone());
        let unmapping = thread::spawn(move || other.unmap_unseen());
        let monitoring = thread::spawn(move || monitor.read_events());
        world.register();
        world.apply();
        world.register();
        unmapping.join().unwrap();
        monitoring.join().unwrap();
        world.read_events();
        world.apply();
        assert_eq!(world.register(), None);
    });
}

#[test]
fn loom_two_calls_at_once() {
    explore(Some(2), || {
        let world = World::new();
        let (first, second) = (world.clone(), world.clone());
        let threads = [
            thread::spawn(move || first.unmap_by_call([false; 2])),
            thread::spawn(move || second.unmap_by_call([false; 2])),
        ];
        world.register();
        world.apply();
        for thread in threads {
            thread.join().unwrap();
        }
        world.apply();
        assert!(world.ring.is_settled());
        assert_eq!(world.register(), None);
    });
}

#[test]
fn loom_hit_release_flush() {
    explore(Some(3), || {
        let world = World::new();
        let (other, flush) = (world.clone(), world.clone());
        let use_it = |world: &World| {
            if let Some(grant) = world.register() {
                world.release(grant);
            }
        };
        let threads = [
            thread::spawn(move || use_it(&other)),
            thread::spawn(move || flush.end_if_unused()),
        ];
        use_it(&world);
        for thread in threads {
            thread.join().unwrap();
        }
        // As in dealloc_pd: the region has no user, so a flush ends it.
        world.end_if_unused();
        assert!(!world.registered.load(Acquire));
    });
}

#[test]
fn loom_invalidated_while_used() {
    explore(Some(3), || {
        let world = World::new();
        let (unmap, flush) = (world.clone(), world.clone());
        let threads = [
            thread::spawn(move || {
                unmap.unmap_by_call([false; 2]);
                unmap.apply();
                unmap.end_if_unused();
            }),
            thread::spawn(move || flush.end_if_unused()),
        ];
        if let Some(grant) = world.register() {
            world.release(grant);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        world.apply();
        world.end_if_unused();
        assert!(!world.registered.load(Acquire));
    });
}

#[test]
fn loom_kept_while_its_memory_changes() {
    kept_while_its_memory_changes([true; 2]);
}

/// The call has stopped the watch, so there is no event.
#[test]
fn loom_kept_while_a_call_loses_the_lock() {
    kept_while_its_memory_changes([true, false]);
}

fn kept_while_its_memory_changes(locks: [bool; 2]) {
    explore(Some(3), move || {
        let world = World::new();
        world.end_if_unused();
        world.mapped.store(0, Release);
        // A new region is linked, then pinned, then kept, while its memory is unmapped.
        let other = world.clone();
        let unmapping = thread::spawn(move || other.unmap_by_call(locks));
        {
            let _lock = world.lock.lock().unwrap();
            world.state.make();
        }
        let pinned = {
            let _kernel = world.kernel.lock().unwrap();
            world.mapped.load(Acquire)
        };
        world.registered.store(true, Release);
        world.apply();
        let kept = {
            let _lock = world.lock.lock().unwrap();
            !world.noted.overlap(MEMORY) && world.ring.is_settled() && world.state.keep()
        };
        if kept && pinned == 0 {
            world.register();
        }
        unmapping.join().unwrap();
        world.apply();
        assert!(
            pinned == 1 || !world.state.load().can_be_taken(),
            "pinned before the change"
        );
    });
}

/// The ring is full when an event is to be written. A hit that began before the loss meets it.
#[test]
fn loom_a_full_ring() {
    explore(Some(3), || {
        let world = World::new();
        let elsewhere = Event {
            range: ELSEWHERE,
            kind: Kind::Changed,
        };
        // The ring of the tests has room for two.
        world.ring.write(elsewhere);
        world.ring.write(elsewhere);
        let (other, third) = (world.clone(), world.clone());
        let changing = thread::spawn(move || {
            other.unmap_unseen();
            other.read_events();
        });
        let registering = thread::spawn(move || {
            third.register();
        });
        world.apply();
        world.register();
        changing.join().unwrap();
        registering.join().unwrap();
        world.apply();
        assert_eq!(world.register(), None);
    });
}

/// A slot ends as one region and becomes another's, while other threads look at it.
#[test]
fn loom_a_slot_becomes_another_regions() {
    becomes_another(
        |state| {
            state.make();
            assert!(state.keep());
            assert!(state.release(Grant::Own).is_some());
        },
        |state| state.claim(),
        |state, serves| state.take_if(serves).is_some(),
    );
}

/// A slot ends as one monitored range and becomes another, while another thread looks at it.
#[test]
fn loom_a_slot_becomes_another_monitored() {
    becomes_another(
        |state| {
            state.make_monitored();
            assert!(state.keep());
        },
        |state| state.invalidate(),
        |state, is_it| state.is_monitored_that(is_it),
    );
}

fn becomes_another(
    keep: fn(&State),
    end: fn(&State) -> bool,
    look: fn(&State, &dyn Fn(Seen) -> bool) -> bool,
) {
    const GENERATION: u64 = 2;
    explore(None, move || {
        let slot = Arc::new((State::new(), AtomicU64::new(1)));
        let (state, field) = &*slot;
        keep(state);
        let other = slot.clone();
        let making = thread::spawn(move || {
            let (state, field) = &*other;
            if end(state) {
                state.free();
                state.before_fields();
                field.store(GENERATION, Relaxed);
                keep(state);
            }
        });
        let seen = Cell::new(0_u64);
        let is_later = |now: Seen| {
            seen.set(u64::from(now.generation()));
            field.load(Relaxed) == GENERATION
        };
        if look(state, &is_later) {
            assert_eq!(seen.get(), GENERATION, "the fields of a later one");
        }
        making.join().unwrap();
    });
}
