// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watch as the cache uses it.

use crate::find::filter::CHUNK;
use crate::watch::event_reader::{self, Receivers};
use crate::watch::failure::{Failure, say_uncounted};
use crate::watch::userfaultfd::{Fence, HUGE_PAGES, Memory, Userfaultfd, keeps_apart};
use crate::watch::watch_fd::{WATCH_FD, WatchFd};
use crate::watch::{calls, in_flight};
use core::num::NonZeroUsize;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicUsize, Ordering::*};
use errno::Errno;
use rdmamr_stats::log::{Level, always, line, soon};
use rdmamr_stats::{Counter, counter};
use rdmamr_sys::budget::{Attempts, Budget};
use rdmamr_sys::descriptor::identity;
use rdmamr_sys::memory::is_readable;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::seccomp::is_filtered;
use rdmamr_sys::symbols::{self, Scope};
use rdmamr_sys::{aside, clock, loaded_files, proc, thread};

/// The watch of a process.
#[repr(C)]
pub struct Watch {
    /// The process has had two threads. From then on a hit need not look at `one_thread`, whose
    /// words lie in the C library, in other cache lines.
    threads: AtomicBool,
    starts: Attempts,
    /// No memory is watched any more: the reader reads no events, or the cache has ended.
    ended: AtomicBool,
    receivers: Receivers,
    /// Shows whether the process has one thread. Once it has had two, every hit asks the fence.
    one_thread: Option<OneThread>,
    /// How many mappings the watch may take.
    pub mappings: Mappings,
}

impl Watch {
    /// How many of its first bytes each hit reads.
    pub const READ_BY_HITS: usize = size_of::<AtomicBool>();

    /// Opens userfaultfd and starts the reader for the cache. If a resource is short, a later miss
    /// tries again.
    pub fn start(receivers: Receivers) -> Watch {
        let watch = Watch {
            threads: AtomicBool::new(false),
            starts: Attempts::default(),
            ended: AtomicBool::new(false),
            receivers,
            one_thread: OneThread::find(),
            mappings: Mappings::new(),
        };
        watch.try_to_start(true);
        watch
    }

    /// Tries to start the watch, if it is time for an attempt.
    #[cold]
    fn try_to_start(&self, is_first: bool) {
        if is_filtered() || self.ended.load(Relaxed) || !self.starts.begin() {
            return;
        }
        let passed_by = || (!calls::are_in_place()).then_some(Failure::PassedBy);
        let opened = || Userfaultfd::open().map_err(Failure::File);
        let started = passed_by().map_or_else(opened, Err).and_then(|file| {
            let closed = |failure| {
                file.close();
                failure
            };
            let which = identity(file.fd()).map_err(|errno| closed(Failure::Unseen(errno)))?;
            if !in_flight::are_counted(file) {
                return Err(closed(Failure::NotCounted));
            }
            if !file.tells_shared_memory() {
                return Err(closed(Failure::NotTold));
            }
            let is_apart = event_reader::start(file, self.receivers)
                .map_err(|errno| closed(Failure::Thread(errno)))?;
            let other = is_apart
                .then(|| file.another_number(file.high_number()))
                .flatten();
            Ok((
                other.map_or(file, |other| {
                    file.close();
                    other
                }),
                which,
            ))
        });
        match started {
            Ok((file, which)) => {
                WATCH_FD.set(file, which);
                if is_filtered() {
                    WATCH_FD.close();
                    return;
                }
                line(
                    Level::Info,
                    format_args!("relaxed regions: userfaultfd watches anonymous memory"),
                );
                if !is_first {
                    always(format_args!("regions are reused from now on"));
                }
            }
            Err(failure) => {
                if is_first && !is_filtered() {
                    failure.say();
                }
                if failure.is_passing() {
                    self.starts.failed_for_now();
                }
            }
        }
    }

    /// Whether userfaultfd watches memory for the cache. Waits for a reader that has just been
    /// started, because the start does not wait for it.
    pub fn is_on(&self) -> bool {
        if !event_reader::is_ready() && WATCH_FD.exists() {
            event_reader::wait_until_ready();
        }
        self.watch_fd().is_some()
    }

    /// The userfaultfd, if the watch works.
    fn watch_fd(&self) -> Option<&'static WatchFd> {
        let works = WATCH_FD.exists() && event_reader::is_ready() && !self.ended.load(Relaxed);
        works.then_some(&WATCH_FD)
    }

    /// Watches what is mapped in a region's chunks. Watches only the region's own pages if the kernel
    /// refuses more because of other memory there. Some of it may be watched after an error too. An
    /// error is the counter of the reason: the process may not use userfaultfd; the process is short
    /// of mappings; or userfaultfd cannot watch that memory, another userfaultfd watches it, or it is
    /// scarce (hugetlb).
    pub fn watch(&self, page_range: PageRange) -> Result<(), Counter> {
        // The kernel, and pthread_getattr_np(3), take a split mapping's lower part for the whole stack's
        // neighbour: the stack would end, or seem to end, at the split.
        if thread::is_on_main_stack(page_range) {
            return Err(counter!(bypassed_memory));
        }
        if !self.is_on() {
            self.try_to_start(false);
        }
        let file = self.watch_fd().ok_or(counter!(bypassed_watch))?;
        if !self.mappings.take_room() {
            return Err(counter!(bypassed_limit));
        }
        let chunks = page_range.extended(CHUNK);
        let mut registered = file.register(chunks);
        if !matches!(registered, Ok(()) | Err(HUGE_PAGES)) && chunks != page_range {
            registered = file.register(page_range);
        }
        // The watch may have been given up meanwhile, without a look at this memory.
        core::sync::atomic::fence(SeqCst);
        if registered.is_ok() && self.ended.load(SeqCst) {
            file.unregister(chunks);
            registered = Err(Errno(libc::EBADF));
        }
        registered.map_err(|errno| match errno.0 {
            libc::ENOMEM => {
                self.mappings.ran_out();
                counter!(bypassed_limit)
            }
            libc::EBADF => counter!(bypassed_watch),
            _ => counter!(bypassed_memory),
        })
    }

    /// Whether these pages, which are watched and pinned, are private memory: other processes change
    /// shared memory without an event, and so does a GPU's runtime with a GPU's memory. The kernel describes the mapping that
    /// was pinned, or its change has been reported since. Also fails if some of it is watched no more: a
    /// mapping that was made there since has no watch. An error is the counter of the reason.
    pub fn is_private(&self, page_range: PageRange) -> Result<(), Counter> {
        let file = self.watch_fd().ok_or(counter!(bypassed_watch))?;
        match file.memory(page_range) {
            // The module of a GPU's vendor has registered it (`nvidia_peermem`): a GPU's addresses are
            // reserved as private memory that cannot be read, and its runtime gives them other memory
            // without an event.
            Ok(Memory::Private) if !is_readable(page_range.start as usize) => {
                Err(counter!(bypassed_memory))
            }
            Ok(Memory::Private) => Ok(()),
            Ok(Memory::Shared) => Err(counter!(bypassed_memory)),
            Ok(Memory::Unknown) => Err(counter!(bypassed_busy)),
            Err(_) => Err(counter!(bypassed_watch)),
        }
    }

    /// Stops watching memory of the cache's. False if the kernel refuses: userfaultfd cannot watch some
    /// of it, or nothing is mapped there.
    pub fn unwatch(&self, range: PageRange) -> bool {
        self.watch_fd().is_none_or(|file| file.unregister(range))
    }

    /// Stops watching a part of the chunks of a region, or of the region's pages alone: memory that
    /// userfaultfd cannot watch may have been mapped beside them since, or before Linux 6.16 memory of
    /// another userfaultfd.
    pub fn unwatch_for(&self, page_range: PageRange, part: PageRange) {
        if !self.unwatch(part) {
            let _ = page_range
                .common(part)
                .is_some_and(|part| self.unwatch(part));
        }
    }

    /// Stops watching a range of the program's memory that a call under way moves, whether or not
    /// regions are there: a raw system call may have left a part of a region's memory watched, and
    /// no region knows of that part. The call has invalidated every region in the range, and those
    /// that are made meanwhile are not kept. Returns whether some of it may have been watched.
    pub fn unwatch_moving(&self, range: PageRange) -> bool {
        let Some(file) = self.watch_fd() else {
            return false;
        };
        // Before Linux 6.16 the kernel joins a mapping that no page was ever made in with another only
        // when it changes that one itself. mremap takes a single mapping.
        if !keeps_apart() && file.register(range).is_ok() {
            let _ = proc::each_mapping_in(range, |mapping, _| {
                let part = range.common(mapping).filter(|&part| file.unregister(part));
                part.map(|part| file.register(part));
            });
        }
        if file.unregister(range) {
            return true;
        }
        // The kernel refuses the range if userfaultfd cannot watch one of its mappings.
        let mut any = false;
        let _ = proc::each_mapping_in(range, |mapping, _| {
            any |= range
                .common(mapping)
                .is_some_and(|part| file.unregister(part));
        });
        any
    }

    /// Whether a hit needs the fence, because another thread may be changing the address space. Without a
    /// watch there is nothing to ask: no region is kept, or the ring is distrusted.
    #[inline(always)]
    pub fn must_fence(&self) -> bool {
        (self.threads.load(Relaxed) || !self.has_one_thread()) && WATCH_FD.exists()
    }

    #[inline(always)]
    fn has_one_thread(&self) -> bool {
        let one = self.one_thread.is_some_and(OneThread::holds);
        if !one {
            self.threads.store(true, Relaxed);
        }
        one
    }

    /// Asks the kernel whether a change of memory is in flight.
    #[inline(always)]
    pub fn fence(&self) -> Fence {
        let fence = WATCH_FD.fence();
        // The caller's later loads must not move before the kernel's answer. (x86 keeps loads in
        // order.)
        core::sync::atomic::fence(Acquire);
        fence
    }

    /// The reader reads no events any more. From now on no memory is watched. The thread that applied
    /// the event has invalidated every region.
    pub fn reader_failed(&self) {
        if !self.ended.swap(true, Relaxed) {
            soon(format_args!(
                "regions are not reused from now on: the kernel does not let the library read events of userfaultfd"
            ));
        }
    }

    /// From now on no memory is watched, so that no task waits for the reader: not even once this
    /// process has ended and another task goes on with its memory. The caller has made every hit fail
    /// ([`crate::watch::ring::Ring::distrust`]).
    ///
    /// A raw system call may have left a part of a region's memory watched, and no region knows of
    /// that part. So this looks at all mappings.
    pub fn give_up(&self) {
        let file = self.watch_fd();
        self.ended.store(true, SeqCst);
        core::sync::atomic::fence(SeqCst);
        let Some(file) = file else { return };
        let _ = proc::each_mapping(|mapping| {
            file.unregister(mapping.range);
            true
        });
    }
}

/// Whether the process has one thread, so that a hit needs no fence (W3): the words that show it.
#[derive(Clone, Copy)]
pub struct OneThread {
    /// `__libc_single_threaded` (glibc 2.32): not 0 while the C library has made no thread.
    single_threaded: &'static AtomicU8,
    /// [`loaded_files::namespaces`].
    version: &'static AtomicI32,
}

/// The address of the first word; 0 if the process cannot know that it has one thread.
static SINGLE_THREADED: AtomicUsize = AtomicUsize::new(0);

/// Looks for the word. Called when the library is loaded.
pub fn look_for_one_thread() {
    // The function came with glibc 2.35, as the second word's meaning did.
    if loaded_files::linker().is_none() {
        return;
    }
    let found = symbols::find(Scope::Program, c"__libc_single_threaded", None);
    SINGLE_THREADED.store(found.map_or(0, NonZeroUsize::get), Relaxed);
}

impl OneThread {
    /// `None` if the process cannot know that it has one thread: before glibc 2.35.
    pub fn find() -> Option<OneThread> {
        let single_threaded = SINGLE_THREADED.load(Relaxed);
        Some(OneThread {
            // SAFETY: the symbol is a `char` of the C library, which lives as long as the process.
            // Only the C library writes it.
            single_threaded: unsafe {
                with_exposed_provenance::<AtomicU8>(single_threaded).as_ref()?
            },
            version: loaded_files::namespaces()?,
        })
    }

    #[inline(always)]
    pub fn holds(self) -> bool {
        self.single_threaded.load(Relaxed) != 0 && self.version.load(Relaxed) == 1
    }
}

/// A register call may split the first and the last mapping of its range.
const SPLITS: i64 = 2;

/// How many splits are made before the mappings are counted for the first time, if they can be
/// counted: twice as many as the count comes after.
const UNCOUNTED: i64 = 16 * SPLITS;

/// How many more mappings the watch may take: watched memory splits mappings, and the kernel limits
/// their number (vm.max_map_count). The watch takes at most half of those that the program leaves.
pub struct Mappings {
    /// The number of further splits, by a worst-case estimate.
    room: AtomicI64,
    /// The value of `room` when the mappings were last counted.
    counted: AtomicI64,
    /// The mappings are short by the last count, or as the kernel said.
    short: AtomicBool,
    /// For counting the mappings, which takes 15 ms if there are 50 000, and more on busy processors.
    counting: Budget<100_000_000>,
}

impl Mappings {
    pub(super) fn new() -> Mappings {
        Mappings {
            room: AtomicI64::new(if proc::has_maps() { UNCOUNTED } else { 0 }),
            counted: AtomicI64::new(UNCOUNTED),
            short: AtomicBool::new(false),
            counting: Budget::default(),
        }
    }

    /// Takes the room of one more register call ([`SPLITS`]). False if there is none. Counts the
    /// mappings if half of the room of the last count is used up.
    pub(super) fn take_room(&self) -> bool {
        if self.room.load(Relaxed) * 2 <= self.counted.load(Relaxed) {
            let count = || aside::run(|| self.count());
            self.counting.within(clock::monotonic, count);
        }
        self.room.load(Relaxed) > SPLITS && self.room.fetch_sub(SPLITS, Relaxed) > SPLITS
    }

    fn count(&self) {
        // If the kernel does not tell the number of mappings, there is no room.
        let counted = proc::mappings();
        if counted.is_none() {
            say_uncounted();
        }
        let [count, split, most] = counted.unwrap_or_default().map(|n| n as i64);
        let free = most - count;
        let room = (free - split) / 2;
        let room = if room > SPLITS * 16 { room } else { 0 };
        self.counted.store(room, Relaxed);
        self.room.store(room, Relaxed);
        self.short.store(free < split / 2, Relaxed);
    }

    /// The kernel has refused a split.
    pub(super) fn ran_out(&self) {
        self.room.store(0, Relaxed);
        self.short.store(true, Relaxed);
    }

    /// Whether mappings have become short, so that idle regions should give theirs back. True once
    /// for each time.
    pub fn take_shortage(&self) -> bool {
        self.short.load(Relaxed) && self.short.swap(false, Relaxed)
    }
}
