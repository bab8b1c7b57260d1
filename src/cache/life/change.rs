// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work that the hook of an interposed memory call does for the cache. Before the real call the
//! hook announces the change, with its range, writes the range to the log, ends the idle regions
//! that the change touches, and stops watching their memory: the kernel then has no event for the
//! change, and the call need not wait for the reader. If a region was linked meanwhile, the hook
//! writes the range once more after the real call. If the cache has neither a region nor watched
//! memory there, the hook does nothing.
//!
//! These functions run wherever the program or one of its libraries changes memory: in malloc, in
//! signal handlers, in forked children. They allocate nothing and look up no symbol. The one lock
//! that they take is the cache's, for which they wait 20 ms at most. They block all signals while
//! they hold it, so that no signal handler can jump out of a call that holds the lock.

use crate::instance::{Cache, cache_gave_up, existing};
use crate::life::ending::{self, in_call};
use crate::released::memory_changes;
use crate::watch::event_reader;
use crate::watch::in_place;
use crate::watch::listeners::{CACHE, RANGES, listens};
use crate::watch::log::{Announced, Change, Kind, Log, Long};
use core::sync::atomic::{AtomicBool, Ordering::*, fence};
use rdmamr_stats::log;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::process::{CallsUnderWay, CountedCall};
use rdmamr_sys::signals::{self, Signals};
use rdmamr_sys::{clock, memory, thread};

/// A change that is about to be made. The change is over when this value is dropped.
pub enum Changing {
    /// The cache need not be told of it.
    Nothing,
    UnderWay(UnderWay),
    /// The change is counted in [`UNANNOUNCED`]. If the cache has something in this range once the
    /// call has returned, the range is recorded.
    Counted(PageRange, CountedCall),
}

/// A change that the cache is told of.
pub struct UnderWay {
    cache: &'static Cache,
    /// The memory that the call has changed once it has returned.
    range: PageRange,
    /// With the signals that the thread blocked before.
    announced: Option<(Announced, Option<Signals>)>,
    /// If the range was recorded before the real call: how many regions had been linked then.
    linked: Option<u64>,
    /// Set if the call covers at least [`LONG`] bytes.
    long: Option<Long>,
}

const NOTHING: PageRange = PageRange { start: 0, end: 0 };

/// A call on this many bytes may hold the kernel's mmap lock for milliseconds.
const LONG: u64 = 16 << 20;

/// The page range around a range. An empty range, or one that runs past the end of the address
/// space, gives [`NOTHING`].
///
/// The kernel ignores the tag in an address where the processor has them (arm64's top byte, x86's
/// LAM), and no address of memory has such high bits.
fn pages(addr: usize, length: usize) -> PageRange {
    const TAG: u64 = 0xff << 56;
    PageRange::around(addr as u64 & !TAG, length as u64).unwrap_or(NOTHING)
}

/// This process's cache, if it must be told of changes: unless it has given up.
#[inline(always)]
fn heeding() -> Option<&'static Cache> {
    existing().filter(|_| !cache_gave_up())
}

/// Tells the table of released ranges of a change. Returns whether the cache listens too. As long as
/// neither listens, this costs a load.
#[inline(always)]
fn told(addr: usize, length: usize) -> bool {
    if !listens(CACHE | RANGES) {
        return false;
    }
    if listens(RANGES) {
        memory_changes(addr, length);
    }
    listens(CACHE)
}

/// A call is about to change memory.
#[inline(always)]
pub fn changing(addr: usize, length: usize) -> Changing {
    if !told(addr, length) {
        return Changing::Nothing;
    }
    let Some(cache) = heeding() else {
        // The cache may be about to start, and to ask whether memory calls reach this library.
        in_place::call_came(addr);
        return Changing::Nothing;
    };
    let range = pages(addr, length);
    Changing::UnderWay(begin(cache, range, Neighbours::Stay))
}

/// A call is about to map memory in place of other memory.
///
/// The kernel merges the new mapping with the old one around it, if that is not watched, and
/// mremap(2) accepts a single mapping only. So the cache also ends the watch that directly adjoins
/// watched memory in the range.
#[inline(always)]
pub fn replacing(addr: usize, length: usize) -> Changing {
    if !told(addr, length) {
        return Changing::Nothing;
    }
    let Some(cache) = heeding() else {
        return Changing::Nothing;
    };
    let range = pages(addr, length);
    Changing::UnderWay(begin(cache, range, Neighbours::End))
}

/// The unreported changes under way of memory in which the cache had nothing. (If a signal handler
/// leaves such a call by siglongjmp(3), the count stays, and the cache keeps no region.)
static UNANNOUNCED: CallsUnderWay = CallsUnderWay::new();

/// This process is a forked child, which must not wait for the end of a call of its parent's other
/// threads: that end never comes here.
pub fn forget_unannounced() {
    UNANNOUNCED.forget();
}

/// Whether a change is under way that could not be announced. Asked after a region is pinned and
/// before it is kept: a change that takes effect after the pin is counted here, or has found the
/// cache.
pub fn is_unannounced() -> bool {
    fence(SeqCst);
    !UNANNOUNCED.is_none()
}

/// A call is about to change memory in a way that userfaultfd does not report: protection, guard
/// pages.
///
/// A region may be linked in this memory after the check of the filter and before the call takes
/// effect, and could be reused before the call returns. So if the cache has nothing there, or does
/// not exist yet, the change is counted, and no region is kept until it is over.
pub fn unreported(addr: usize, length: usize) -> Changing {
    begin_unreported(addr, length, Neighbours::Stay)
}

/// As [`unreported`], for a call that maps memory in place of other memory ([`replacing`]).
pub fn replacing_unreported(addr: usize, length: usize) -> Changing {
    begin_unreported(addr, length, Neighbours::End)
}

fn begin_unreported(addr: usize, length: usize, neighbours: Neighbours) -> Changing {
    let range = pages(addr, length);
    announced_or_counted(range, |cache| begin(cache, range, neighbours))
}

/// Begins a change that userfaultfd does not report: by `begun`, or by a count if the cache has
/// nothing there.
fn announced_or_counted(
    range: PageRange,
    begun: impl FnOnce(&'static Cache) -> UnderWay,
) -> Changing {
    let counted = UNANNOUNCED.begin();
    // Either this thread finds the region, or the thread that keeps it finds the count.
    fence(SeqCst);
    match heeding().filter(|cache| cache.regions.filter.may_hold(range)) {
        Some(cache) => {
            let mut under_way = begun(cache);
            under_way.announce(range);
            UNANNOUNCED.end(&counted);
            Changing::UnderWay(under_way)
        }
        None => Changing::Counted(range, counted),
    }
}

/// A counted change has returned.
#[cold]
fn end_counted(range: PageRange, counted: &CountedCall) {
    if let Some(cache) = heeding() {
        begin(cache, range, Neighbours::Stay).end();
    }
    // The count goes down only after the change is recorded.
    UNANNOUNCED.end(counted);
}

/// A call may change memory. The caller tells by [`Changing::changed`] whether it did, and which
/// memory.
#[inline(always)]
pub fn may_change(addr: usize, length: usize) -> Changing {
    may_have_changed(addr, length)
}

#[inline(always)]
fn may_have_changed(addr: usize, length: usize) -> Changing {
    heeding().map_or(Changing::Nothing, |cache| {
        Changing::UnderWay(perhaps(cache, pages(addr, length)))
    })
}

#[inline(always)]
fn perhaps(cache: &'static Cache, range: PageRange) -> UnderWay {
    let mut under_way = UnderWay::new(cache, NOTHING);
    if cache.regions.filter.may_touch(range) {
        // The log has no change yet. The announcement alone keeps every hit in this memory from
        // succeeding.
        under_way.announce(range);
    }
    under_way
}

/// A call may change any memory, in a way that userfaultfd may not report. The caller tells by
/// [`Changing::changed`] whether it did.
pub fn may_change_any() -> Changing {
    let all = pages(0, usize::MAX / 2);
    announced_or_counted(all, |cache| perhaps(cache, all))
}

fn called(range: PageRange) -> Change {
    Change {
        range,
        kind: Kind::Called,
    }
}

/// Whether the regions and the watch that adjoin the changed memory end as well.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Neighbours {
    Stay,
    End,
}

#[cold]
fn begin(cache: &'static Cache, range: PageRange, neighbours: Neighbours) -> UnderWay {
    let mut under_way = UnderWay::new(cache, range);
    let changes = &cache.regions.changes;
    if range.bytes() >= LONG {
        under_way.long = changes.begin_long(now());
    }
    if cache.regions.filter.may_touch(range) {
        under_way.announce(range);
        under_way.linked = Some(changes.linked());
        changes.write(called(range));
        end_touched(cache, range, neighbours);
    }
    under_way
}

fn now() -> u64 {
    let errno = errno::errno();
    let now = clock::monotonic_by_kernel() / 1_000_000;
    errno::set_errno(errno);
    now
}

/// Ends the idle regions that the changes in the log touch, and stops watching a range. Returns
/// whether some of it was watched.
#[cold]
fn end_touched(cache: &Cache, range: PageRange, neighbours: Neighbours) -> bool {
    inside(|| ending::touched(cache, range, neighbours == Neighbours::End)).unwrap_or_else(|| {
        // A signal handler has interrupted this thread inside the cache, or the cache itself frees
        // memory. The cleaner ends the regions that the log has invalidated.
        cache.cleaner.wake();
        false
    })
}

/// Runs `body`, which takes the cache's lock, with all signals blocked. Preserves errno. `None` if
/// this thread is inside the cache already, or has too little stack.
fn inside<T>(body: impl FnOnce() -> T) -> Option<T> {
    if thread::is_inside() {
        return None;
    }
    in_call(body)
}

impl Changing {
    /// Whether the cache may have a region in the memory of this change.
    pub fn is_announced(&self) -> bool {
        matches!(
            self,
            Changing::UnderWay(UnderWay {
                announced: Some(_),
                ..
            })
        )
    }

    /// Announces the change of this memory, even if the filter has no region there: the watch of a
    /// region that another thread links there in between ends before the call.
    pub fn announce(&mut self, addr: usize, length: usize) {
        if let Changing::UnderWay(under_way) = self {
            under_way.announce(pages(addr, length));
        }
    }

    /// Adds this memory to the memory that the call has changed.
    pub fn changed(&mut self, addr: usize, length: usize) {
        if let Changing::UnderWay(under_way) = self {
            under_way.write(pages(addr, length), None);
        }
    }
}

impl UnderWay {
    #[inline(always)]
    fn new(cache: &'static Cache, range: PageRange) -> UnderWay {
        UnderWay {
            cache,
            range,
            announced: None,
            linked: None,
            long: None,
        }
    }

    /// Announces the change of this memory, unless it is announced. From now on until the end of the
    /// change the thread blocks its signals, so that no handler leaves the call by siglongjmp(3), and
    /// none waits for its own thread. The kernel's calls on memory end by no signal but a fatal one,
    /// so a handler runs no later than without this. Faults are not blocked.
    fn announce(&mut self, range: PageRange) {
        self.announced.get_or_insert_with(|| {
            let before = signals::block_also(signals::ALL_BUT_FAULTS);
            // An mremap announces two changes.
            let is_first = before & signals::ALL_BUT_FAULTS != signals::ALL_BUT_FAULTS;
            let announced = self.cache.regions.changes.begin_at(range);
            (announced, is_first.then_some(before))
        });
    }

    /// Records the memory that the real call has changed. `linked` is set if the range was recorded
    /// before the call too.
    fn write(&mut self, range: PageRange, linked: Option<u64>) {
        let regions = self.cache.regions;
        // Another thread may have registered a region there since the check before the call. If the
        // filter has none, every region that was pinned there before the change has ended since.
        if !regions.filter.may_touch(range) {
            return;
        }
        self.announce(range);
        match linked {
            Some(linked) => regions.changes.write_again(called(range), linked),
            None => regions.changes.write(called(range)),
        }
    }

    #[cold]
    fn end(&mut self) {
        self.write(self.range, self.linked);
        let changes = &self.cache.regions.changes;
        if let Some(long) = self.long.take() {
            changes.end_long(long);
        }
        if let Some((announced, signals)) = self.announced.take() {
            changes.end_at(announced);
            if changes.is_behind() {
                end_touched(self.cache, NOTHING, Neighbours::Stay);
            }
            if let Some(signals) = signals {
                signals::restore(signals);
            }
        }
    }
}

impl Drop for Changing {
    #[inline(always)]
    fn drop(&mut self) {
        match self {
            Changing::Nothing => {}
            Changing::UnderWay(under_way) => under_way.end(),
            Changing::Counted(range, counted) => end_counted(*range, counted),
        }
    }
}

/// Whether memory of the process may have a protection key.
static KEYED: AtomicBool = AtomicBool::new(false);

/// A call has given memory a protection key. The access that a registration gets depends on the
/// calling thread's rights to the key, which a thread changes without a system call. So the cache
/// keeps no region from now on.
pub fn keyed() {
    if !KEYED.swap(true, SeqCst) {
        if let Some(cache) = heeding() {
            keep_nothing(&cache.regions.changes);
        }
    }
}

/// If memory may have a protection key, makes the cache keep no region from now on.
pub fn mind_keys(changes: &Log) {
    if KEYED.load(SeqCst) {
        keep_nothing(changes);
    }
}

#[cold]
fn keep_nothing(changes: &Log) {
    changes.distrust();
    log::always(format_args!(
        "regions are not reused from now on: the program has given memory a protection key \
         (pkey_mprotect), whose rights a thread changes without a system call"
    ));
}

/// Stops watching memory that a change under way moves. The change has just invalidated the regions
/// there. Returns true if some of the memory may have been watched.
#[cold]
pub fn unwatch(addr: usize, length: usize) -> bool {
    let range = pages(addr, length);
    let Some(cache) = heeding().filter(|_| range.start < range.end) else {
        return false;
    };
    let known = end_touched(cache, range, Neighbours::Stay);
    let unknown = unwatch_moving(cache, range);
    known || unknown
}

/// As [`crate::watch::watcher::Watch::unwatch_moving`]. Preserves errno.
fn unwatch_moving(cache: &Cache, range: PageRange) -> bool {
    let errno = errno::errno();
    let watched = cache.watch.unwatch_moving(range);
    errno::set_errno(errno);
    watched
}

/// The C library is about to enlarge a mapping by an internal mremap(2), which accepts a single
/// mapping only. If the watch of a part has split the mapping, this function lets the kernel merge
/// the VMAs. The kernel reports every later change of a mapping that is watched as a whole, and of
/// one that is watched anew.
#[cold]
pub fn growing(addr: usize, length: usize) {
    let range = pages(addr, length);
    let Some(cache) = heeding().filter(|_| range.start < range.end) else {
        return;
    };
    let near = cache.regions.filter.may_hold(range);
    if near && inside(|| ending::is_whole(cache, range)).unwrap_or(true) {
        // The mapping stays watched where it moves to, and no region knows of that memory.
        return cache.regions.leave_some();
    }
    // If the kernel does not keep userfaultfds apart, this looks at each page. Linux 6.1 joins no
    // VMAs where the memory that stops being watched begins inside one, so there it is needed
    // beside a region of another block.
    let all_of_it = if event_reader::keeps_apart() {
        cache.regions.has_left_some()
    } else {
        near
    };
    if !near && !all_of_it {
        return;
    }
    let mut under_way = UnderWay::new(cache, range);
    under_way.announce(range);
    if near {
        cache.regions.changes.write(called(range));
        end_touched(cache, range, Neighbours::Stay);
    }
    if all_of_it {
        unwatch_moving(cache, range);
    }
    // As in `unwatched`: a region that another thread has linked there meanwhile may have lost its
    // watch.
    under_way.end();
}

/// Whether the kernel moves several mappings by one mremap(2).
pub fn several_can_move() -> bool {
    // The kernel does since Linux 6.17, and keeps userfaultfds apart since 6.16.
    heeding().is_some() && event_reader::keeps_apart()
}

/// Whether the cache must be told of changes.
#[inline(always)]
pub fn are_wanted() -> bool {
    heeding().is_some()
}

/// A call is about to unregister memory from a userfaultfd. The call's argument, a range, lies at
/// `argument`. Before Linux 6.16 the kernel then also ends another userfaultfd's watch of the
/// memory.
pub fn unregistering(argument: usize) -> Option<Changing> {
    heeding().filter(|_| !event_reader::keeps_apart())?;
    // If the address is wrong, the kernel tells the caller.
    let [start, length] = memory::read(argument as u64).unwrap_or([0, u64::MAX / 2]);
    Some(begin_unreported(
        start as usize,
        length as usize,
        Neighbours::Stay,
    ))
}
