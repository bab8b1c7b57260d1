// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a slot of the cache, in one atomic.
//!
//! ```text
//!            make             keep             claim            free
//!   FREE ----------> UNKEPT --------> KEPT ----------> ENDING --------> FREE
//!                     |\_____________________________/^   |
//!                     |  (used once, never shared)        '-- restore --> KEPT, stale
//!                     '-- free (the kernel has refused it) --> FREE
//! ```
//!
//! A region without a user is *unused*: *idle* if a registration can take it, *spent* if none can. A
//! thread *claims* an unused region (ENDING), and deregisters it or queues it as *evicted*.
//!
//! A registration can take only a KEPT slot that is not stale. Only a slot without users can be
//! claimed, and of two threads that try to claim it one succeeds. A region in use is therefore never
//! deregistered, and a region that is being deregistered is never handed out.
//!
//! The bits of the state:
//!
//! ```text
//!    63         32  31  30   28  27 26  25  24  23       0
//!   +-------------+---+-------+------+---+---+-----------+
//!   | generation  | M | phase |      | S | O |   users   |
//!   +-------------+---+-------+------+---+---+-----------+
//!    M      MONITORED: memory that is watched for `src/monitor/`, without a region. It has no
//!           user, and no thread takes or claims it: the statements here on regions exclude it
//!    phase  FREE, UNKEPT, KEPT, ENDING, or HANDLE: a further handle of another slot's region
//!    S      STALE: invalidated; set once, and never cleared while the region lives
//!    O      OWN: a user has the slot's own handle
//!    users  the number of registrations that use the region
//! ```
//!
//! | thread | may change | when |
//! | --- | --- | --- |
//! | the thread that makes the region, under the lock | FREE to UNKEPT, UNKEPT to KEPT | it makes and keeps it |
//! | any thread, as a rule under the lock | sets S | it applies a change, or cannot keep the region |
//! | any thread | users and O, in KEPT; in UNKEPT only down | a hit, a release |
//! | any thread | KEPT or UNKEPT without users to ENDING | under the lock: it claims the region |
//! | the thread that makes the region, under the lock | UNKEPT to FREE | the kernel has refused it |
//! | the thread that ends the region, under the lock | ENDING to FREE, or to KEPT with S | the kernel has answered |
//! | the memory monitor, under the lock | FREE to UNKEPT with M, to KEPT, to FREE; sets S | it watches a monitored range |
//! | the thread that took the slot off the free list | FREE to HANDLE | a hit needs a further handle |
//! | the releasing thread | HANDLE to FREE | a release |
//!
//! The upper half of the state is a generation, which changes each time the slot becomes a region or a
//! monitored range. A thread that reads the slot's other fields and then changes the state by
//! compare-and-swap knows, if the swap succeeds, that the fields it read were this region's.

use rdmamr_sys::atomics::{AtomicU64, Ordering::*, fence};

/// How many registrations use the region.
const USERS: u64 = (1 << 24) - 1;
/// The program holds the slot's own handle.
const OWN: u64 = 1 << 24;
/// The region must not be reused.
const STALE: u64 = 1 << 25;

const PHASE: u64 = 7 << 28;
const FREE: u64 = 0;
const UNKEPT: u64 = 1 << 28;
const KEPT: u64 = 2 << 28;
const ENDING: u64 = 3 << 28;
/// The slot is a further handle of another slot's region.
const HANDLE: u64 = 4 << 28;

/// The slot is a monitored range: watched memory without a region.
const MONITORED: u64 = 1 << 31;

const GENERATION: u32 = 32;

/// The state of a slot. Zeroed memory is a free slot.
#[repr(transparent)]
pub struct State(AtomicU64);

/// The value of the state at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen(u64);

/// The handle that a registration gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// The slot's own handle.
    Own,
    /// A further handle, because the slot's own is in use.
    Another,
}

/// What a release leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterRelease {
    /// The region still has a user.
    InUse,
    /// The region has no user and may be reused.
    Idle,
    /// The region has no user and will get none: it must be deregistered. The number is the
    /// generation of the slot, which distinguishes the region from a later one in the slot.
    MustEnd(u32),
}

impl Seen {
    pub fn generation(self) -> u32 {
        (self.0 >> GENERATION) as u32
    }

    /// Whether a registration may take the region.
    #[inline(always)]
    pub fn can_be_taken(self) -> bool {
        self.0 & (MONITORED | PHASE | STALE) == KEPT && self.users() < USERS
    }

    /// Whether the slot is a monitored range.
    pub fn is_monitored(self) -> bool {
        self.0 & MONITORED != 0
    }

    /// How many registrations use the region.
    pub fn users(self) -> u64 {
        self.0 & USERS
    }

    /// Whether the region has no user and is not being ended.
    pub fn is_unused(self) -> bool {
        self.is_live() && self.users() == 0
    }

    /// Whether the region must not be reused.
    pub fn is_stale(self) -> bool {
        self.0 & STALE != 0
    }

    /// Whether the slot is a region that is not being ended. From `make` on, before the kernel knows it.
    pub fn is_live(self) -> bool {
        matches!(self.0 & (MONITORED | PHASE), UNKEPT | KEPT)
    }

    /// Whether the slot is kept: other registrations may use it, or could if it were not stale.
    pub fn is_kept(self) -> bool {
        self.0 & PHASE == KEPT
    }

    /// Whether the region has no user and will get none.
    pub fn is_spent(self) -> bool {
        self.is_unused() && self.0 & (PHASE | STALE) != KEPT
    }

    /// Whether the region is being deregistered.
    pub fn is_ending(self) -> bool {
        self.0 & PHASE == ENDING
    }

    /// Whether the slot is a further handle.
    #[inline(always)]
    pub fn is_handle(self) -> bool {
        self.0 & PHASE == HANDLE
    }
}

impl State {
    #[cfg(test)]
    pub fn new() -> State {
        State(AtomicU64::new(FREE))
    }

    #[inline(always)]
    pub fn load(&self) -> Seen {
        Seen(self.0.load(Acquire))
    }

    fn change(&self, from: u64, to: u64) -> Result<(), u64> {
        // SeqCst, as are the loads that follow elsewhere: a release and the cleaner that goes to
        // sleep must not miss each other. On x86 SeqCst costs nothing here.
        self.0.compare_exchange(from, to, SeqCst, Acquire).map(drop)
    }

    /// Changes the state to what `to` says of it, by one compare-and-swap. Returns the state before;
    /// `None`, with the state unchanged, if `to` does.
    fn update(&self, to: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        // SeqCst, as in `change`.
        self.0.fetch_update(SeqCst, Acquire, to).ok()
    }

    /// Makes the slot a region with one user, which has the slot's own handle. The slot must be
    /// free and owned by the caller.
    pub fn make(&self) {
        self.set(1, UNKEPT | OWN | 1);
    }

    fn set(&self, further_generations: u64, state: u64) {
        let generation = (self.0.load(Relaxed) >> GENERATION) + further_generations;
        self.0.store(generation << GENERATION | state, Release);
    }

    /// Makes the slot a monitored range. The slot must be free and owned by the caller.
    pub fn make_monitored(&self) {
        self.set(1, MONITORED | UNKEPT);
    }

    /// Makes the slot a further handle. The slot must be free and owned by the caller.
    pub fn make_handle(&self) {
        self.set(0, HANDLE);
    }

    /// Keeps the region or the monitored range, so that other registrations can take the region. False
    /// if it became stale while it was made.
    pub fn keep(&self) -> bool {
        let kept = |state| (state & (PHASE | STALE) == UNKEPT).then_some(state & !PHASE | KEPT);
        self.update(kept).is_some()
    }

    /// Takes the region for one more user, if `serves` accepts the region that the state belongs
    /// to. `serves` may read the slot's other fields. The compare-and-swap succeeds only if the
    /// state is still the one that preceded these reads. Then the reads were this region's: a
    /// thread that gives the slot to another region writes the fields after it has acquired the
    /// state that this swap wrote.
    #[inline(always)]
    pub fn take_if(&self, serves: impl Fn(Seen) -> bool) -> Option<Grant> {
        loop {
            let seen = self.load();
            if !seen.can_be_taken() || !serves(seen) {
                return None;
            }
            if let Some(grant) = self.take(seen) {
                return Some(grant);
            }
        }
    }

    /// Whether the slot is a monitored range that `is_it` accepts, and whose memory has not changed,
    /// as far as the ring is applied. `is_it` may read the slot's other fields. Unlike
    /// [`State::take_if`] this writes nothing, so two fences order the reads: this one, and the one in
    /// [`State::before_fields`].
    #[inline(always)]
    pub fn is_monitored_that(&self, is_it: impl Fn(Seen) -> bool) -> bool {
        let seen = self.load();
        let is_unchanged = seen.0 & (MONITORED | PHASE | STALE) == MONITORED | KEPT;
        if !is_unchanged || !is_it(seen) {
            return false;
        }
        fence(Acquire);
        self.0.load(Relaxed) == seen.0
    }

    /// Called before a thread that makes a region writes to the slot's other fields. A thread that
    /// reads one of these writes sees that the state is no longer the earlier region's.
    pub fn before_fields(&self) {
        fence(Release);
    }

    #[inline(always)]
    fn take(&self, seen: Seen) -> Option<Grant> {
        let taken = (seen.0 + 1) | OWN;
        self.change(seen.0, taken).ok()?;
        Some(if seen.0 & OWN == 0 {
            Grant::Own
        } else {
            Grant::Another
        })
    }

    /// Ends one use. `None` if the region has no use of this kind: the program does not hold the
    /// handle.
    pub fn release(&self, grant: Grant) -> Option<AfterRelease> {
        let handle = if grant == Grant::Own { OWN } else { 0 };
        let release = |state| {
            let is_used = Seen(state).is_live() && state & USERS != 0 && state & handle == handle;
            is_used.then(|| (state - 1) & !handle)
        };
        let released = release(self.update(release)?)?;
        Some(if released & (PHASE | STALE | USERS) == KEPT {
            AfterRelease::Idle
        } else if released & USERS != 0 {
            AfterRelease::InUse
        } else {
            AfterRelease::MustEnd(Seen(released).generation())
        })
    }

    /// Ends the region's only use, if that is by its own handle and its end leaves the region idle.
    /// The effect is that of [`State::release`]. Runs `before` first. False, with the state
    /// unchanged, if there is no such use or if another thread changes the state at this moment.
    #[inline(always)]
    pub fn release_last(&self, before: impl FnOnce()) -> bool {
        let state = self.0.load(Relaxed);
        if state & (MONITORED | PHASE | STALE | OWN | USERS) != KEPT | OWN | 1 {
            return false;
        }
        before();
        self.change(state, state & !(OWN | USERS)).is_ok()
    }

    /// Ends a further handle. False if the slot is not a further handle, or if it was released
    /// already.
    pub fn release_handle(&self) -> bool {
        let state = self.0.load(Relaxed);
        let ended = state & !PHASE;
        state & PHASE == HANDLE && self.change(state, ended).is_ok()
    }

    /// Invalidates the region. True if the region was not invalidated before.
    pub fn invalidate(&self) -> bool {
        self.0.fetch_or(STALE, SeqCst) & STALE == 0
    }

    /// Claims the region, to deregister it. False if it has a user, or if another thread claimed it
    /// first.
    pub fn claim(&self) -> bool {
        let claimed = |state| Seen(state).is_unused().then_some(state & !PHASE | ENDING);
        self.update(claimed).is_some()
    }

    /// Takes back a claim on a region that could not be deregistered. The region is stale from then
    /// on.
    pub fn restore(&self) {
        let state = self.0.load(Relaxed);
        self.0.store(state & !PHASE | KEPT | STALE, Release);
    }

    /// Frees the slot: its region is deregistered, or was never registered.
    pub fn free(&self) {
        self.set(0, FREE);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn kept() -> State {
        let state = State::new();
        state.make();
        assert!(!state.load().can_be_taken() && state.keep());
        state
    }

    #[test]
    fn a_region_goes_round() {
        let state = State::new();
        assert!(!state.claim() && !state.load().is_live());
        state.make();
        let making = state.load();
        assert!(making.is_live() && !making.can_be_taken() && !making.is_unused());
        assert!(!state.claim(), "it has a user");
        assert!(state.keep());
        assert_eq!(state.take(state.load()), Some(Grant::Another));
        assert_eq!(state.release(Grant::Own), Some(AfterRelease::InUse));
        assert_eq!(state.release(Grant::Own), None, "released already");
        assert_eq!(state.take(state.load()), Some(Grant::Own));
        assert_eq!(state.release(Grant::Another), Some(AfterRelease::InUse));
        assert_eq!(state.release(Grant::Own), Some(AfterRelease::Idle));
        assert_eq!(state.release(Grant::Another), None);
        assert!(state.claim() && !state.claim() && state.load().is_ending());
        assert!(!state.load().can_be_taken());
        state.free();
        state.make();
        assert_eq!(state.load().generation(), making.generation() + 1);
    }

    #[test]
    fn the_last_use_ends_as_any_other() {
        let state = State::new();
        assert!(!state.release_last(|| ()));
        state.make();
        assert!(!state.release_last(|| ()), "not kept");
        assert!(state.keep() && state.release_last(|| ()));
        assert!(state.load().is_unused());
        assert!(!state.release_last(|| ()), "released already");
        assert_eq!(state.take(state.load()), Some(Grant::Own));
        assert_eq!(state.take(state.load()), Some(Grant::Another));
        assert!(!state.release_last(|| ()), "there is another use");
        assert_eq!(state.release(Grant::Own), Some(AfterRelease::InUse));
        assert!(!state.release_last(|| ()), "it is not by the own handle");
        assert_eq!(state.release(Grant::Another), Some(AfterRelease::Idle));
        assert_eq!(state.take(state.load()), Some(Grant::Own));
        assert!(state.invalidate() && !state.release_last(|| ()));
        assert_eq!(state.release(Grant::Own), Some(AfterRelease::MustEnd(1)));
        state.make_handle();
        assert!(!state.release_last(|| ()));
    }

    #[test]
    fn what_is_stale_or_not_kept_ends_with_its_last_user() {
        let state = kept();
        assert!(state.invalidate() && !state.invalidate());
        assert!(!state.load().can_be_taken());
        assert_eq!(state.release(Grant::Own), Some(AfterRelease::MustEnd(1)));

        let state = State::new();
        state.make();
        assert!(!state.load().can_be_taken(), "the maker's own");
        assert_eq!(state.release(Grant::Own), Some(AfterRelease::MustEnd(1)));
        assert!(!state.load().can_be_taken() && state.load().is_spent());

        let state = State::new();
        state.make();
        state.invalidate();
        assert!(!state.keep(), "it went stale while it was made");
        assert_eq!(state.release(Grant::Own), Some(AfterRelease::MustEnd(1)));
        assert!(state.claim());
        state.restore();
        assert!(state.load().is_unused() && !state.load().can_be_taken());
    }

    #[test]
    fn an_old_look_takes_nothing() {
        let state = kept();
        let seen = state.load();
        assert_eq!(state.release(Grant::Own), Some(AfterRelease::Idle));
        assert_eq!(state.take(seen), None);
        let seen = state.load();
        assert!(state.claim());
        assert_eq!(state.take(seen), None);
    }

    #[test]
    fn no_thread_takes_or_claims_a_monitored() {
        let state = State::new();
        state.make_monitored();
        let is_nothing_else = || {
            let seen = state.load();
            assert!(seen.is_monitored());
            assert!(!seen.is_live() && !seen.is_unused() && !seen.is_spent());
            assert!(!seen.can_be_taken() && !seen.is_handle() && !seen.is_ending());
            assert_eq!(state.release(Grant::Own), None);
            assert!(!state.claim());
        };
        let is_it = || state.is_monitored_that(|_| true);
        is_nothing_else();
        assert!(!is_it() && state.keep());
        is_nothing_else();
        assert!(is_it());
        assert!(state.invalidate() && !is_it());
        is_nothing_else();
        state.free();
        assert!(!state.load().is_monitored() && !kept().is_monitored_that(|_| true));
    }

    #[test]
    fn a_further_handle_is_released_once() {
        let state = State::new();
        state.make_handle();
        assert!(state.load().is_handle() && state.release_handle() && !state.release_handle());
        assert!(kept().load().is_live() && !kept().release_handle());
    }
}
