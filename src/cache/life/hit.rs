// SPDX-License-Identifier: MIT OR Apache-2.0
//! A hit: a registration that a cached region serves. Every hit takes the steps of [`in_order`], on whose
//! order the proof rests; the loom tests and the memory monitor run that same function.
//!
//! # What a hit touches
//! Between two hits a program does other work, which fills the processor's caches. The cache lines
//! that a hit touches then cost more than its instructions. With the fence, a pair of
//! `ibv_reg_mr_relaxed` and `ibv_dereg_mr_relaxed` touches these lines:
//!
//! 1. The pointer to the instance. It is on a page of its own, which a forked child gets empty.
//! 2. Whether calls are recorded (`trace::ON`).
//! 3. Beside it, the descriptor number that the fence asks ([`crate::watch::watch_fd::WATCH_FD`]).
//! 4. The first line of the [`Cache`]: where the cache is, whether the process has had threads, the
//!    cleaner's clock, and whether the cleaner sleeps.
//! 5. One line of [`crate::regions::Regions`]: whether the cache is full, the table's shape, the
//!    ring's counts.
//! 6. The entry in the table.
//! 7. The region's slot, the only one of these lines that is written.
//! 8. The program's protection domain: a hit reads its device and the kernel's number of it. That
//!    costs about half a ns of 18.
//!
//! Neither a hit nor a release writes to the lines 1 to 5, so threads share them. With the fence the pair
//! reads a thread-local line: whether the thread has the program's table of descriptors. The pair also
//! touches three or four lines of the stack, 21 lines of code on one page, and two lines by which
//! the program finds the two functions. A process with one thread does not read line 3, but the
//! words of the C library and of the linker that show that it has one thread, and the second line
//! of the instance.
//!
//! Therefore code that few calls need is in separate functions, which are not inlined.

use crate::instance::{Cache, existing};
use crate::life::ending;
use crate::region::slot::{Id, LookupKey};
use crate::region::state::{AfterRelease, Grant};
use crate::watch::ring::Ring;
use crate::watch::userfaultfd::Fence;
use core::ptr::with_exposed_provenance_mut;
use rdmamr_abi::rdma_core::ibv_mr;
use rdmamr_mr::Access;
use rdmamr_next::Pd;
use rdmamr_stats::counter;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::{probe, thread};

/// The answer of [`hit()`]: the address of a region's object, or the reason why there is none.
///
/// It fits into a register. A `Result` with an error was passed through memory, and the load
/// stalled: a hit with its release took 25 ns instead of 17.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Answer(usize);

impl Answer {
    /// No cached region serves.
    pub const NONE: Answer = Answer(0);
    /// An event is in flight, or has not been applied.
    const UNSETTLED: Answer = Answer(1);

    /// The region that the hit has taken for the caller.
    #[inline(always)]
    pub fn region(self) -> Option<*mut ibv_mr> {
        (self.0 > Answer::UNSETTLED.0).then(|| with_exposed_provenance_mut(self.0))
    }

    /// Whether there is no region because of an event.
    pub fn is_unsettled(self) -> bool {
        self == Answer::UNSETTLED
    }
}

/// Finds a cached region that serves, and takes it for one more user. With `exclusive`, takes only a
/// region without users.
#[inline(always)]
pub fn hit(pd: Pd, addr: usize, length: usize, access: Access, exclusive: bool) -> Answer {
    let Some(cache) = existing() else {
        return Answer::NONE;
    };
    let (addr, length) = (addr as u64, length as u64);
    let Some(page_range) = PageRange::around(addr, length) else {
        return Answer::NONE;
    };
    let lookup_key = cache.lookup_key(pd, page_range, access, exclusive);
    hit_by(cache, &lookup_key, addr, length)
}

/// Takes a cached region that the key finds, for the memory at `addr`.
#[inline(always)]
pub fn hit_by(cache: &Cache, lookup_key: &LookupKey, addr: u64, length: u64) -> Answer {
    let (id, grant) = match in_order(&cache.regions.ring, Take(cache, lookup_key)) {
        Ok(taken) => taken,
        Err(Miss::None) => return Answer::NONE,
        Err(Miss::Unsettled(taken)) => {
            if let Some((id, grant)) = taken {
                cache.return_use(id, grant);
            }
            return Answer::UNSETTLED;
        }
    };
    let Some(object) = cache.regions.object(id, grant, addr, length) else {
        cache.return_use(id, grant);
        return Answer::NONE;
    };
    if grant == Grant::Another {
        cache.count_shared();
    }
    probe!("hit", addr, length);
    Answer(object)
}

/// Why no region could be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Miss<T> {
    /// No cached region serves.
    None,
    /// An event is in flight, or has not been applied. The caller must give back the region that was
    /// taken.
    Unsettled(Option<T>),
}

/// The steps of a hit. This is a trait because its methods can be marked for inlining and closures
/// cannot: calling closures took 40 of the 470 instructions of an fi_mr_reg() and fi_close() pair.
pub trait Steps {
    type Taken;
    /// Whether the fence must be asked.
    fn must_fence(&self) -> bool;
    /// Whether a region may serve; if none does, the fence need not be asked. Also has the
    /// processor prefetch the region.
    fn look(&self) -> bool;
    /// Takes a region that serves.
    fn take(&self) -> Option<Self::Taken>;
    /// Whether no event is in flight.
    fn fence(&self) -> bool;
    /// Counts that the fence refused, although a region was taken.
    fn refused(&self);
}

/// Takes a region for this memory and verifies that its translation holds: the ring's position is read
/// first and compared last, and the fence lies between the two (docs/proof.md, P4).
///
/// The fence precedes the taking of the region for speed alone: the processor fetches the slot during
/// the system call. With 100 000 regions the slot comes from memory, which takes as long as the system
/// call. A hit took 255 ns instead of 410.
#[inline(always)]
pub fn in_order<S: Steps>(ring: &Ring, steps: S) -> Result<S::Taken, Miss<S::Taken>> {
    let position = ring.applied().ok_or(Miss::Unsettled(None))?;
    let fenced = steps.must_fence();
    if fenced && !steps.look() {
        return Err(Miss::None);
    }
    let passed = !fenced || steps.fence();
    let taken = steps.take().ok_or(Miss::None)?;
    if passed && ring.still(position) {
        return Ok(taken);
    }
    if !passed {
        steps.refused();
    }
    Err(Miss::Unsettled(Some(taken)))
}

/// The steps of a hit that takes its region.
struct Take<'a>(&'a Cache, &'a LookupKey);

impl Steps for Take<'_> {
    type Taken = (Id, Grant);

    #[inline(always)]
    fn must_fence(&self) -> bool {
        self.0.watch.must_fence()
    }

    #[inline(always)]
    fn look(&self) -> bool {
        self.0.regions.fetch(self.1)
    }

    #[inline(always)]
    fn take(&self) -> Option<(Id, Grant)> {
        self.0.regions.take(self.1)
    }

    #[inline(always)]
    fn fence(&self) -> bool {
        self.0.watch.fence() == Fence::Passed
    }

    fn refused(&self) {
        self.0.refused_by_fence();
    }
}

impl Cache {
    #[cold]
    #[inline(never)]
    pub fn refused_by_fence(&self) {
        let thread = thread::number();
        self.counters.add(thread, counter!(stale_avoided_fence), 1);
    }

    #[inline(never)]
    fn count_shared(&self) {
        let thread = thread::number();
        self.counters.add(thread, counter!(hits), 1);
        self.counters.add(thread, counter!(shared), 1);
    }

    /// Ends a use that was granted and is not handed out.
    #[cold]
    #[inline(never)]
    pub fn return_use(&self, id: Id, grant: Grant) {
        let region = self.regions.region(id);
        match region.state.release(grant) {
            Some(AfterRelease::MustEnd(generation)) => {
                thread::keep_errno(|| ending::after_last_use(self, id, generation));
            }
            Some(AfterRelease::Idle) if self.cleaner.is_dormant() => {
                self.cleaner.became_idle(region);
            }
            _ => {}
        }
    }
}
