// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watch as the cache uses it.

use crate::find::filter::CHUNK;
use crate::watch::event_reader::{self, Reader};
use crate::watch::failure::Failure;
use crate::watch::in_flight;
use crate::watch::in_place;
use crate::watch::listeners::is_filtered;
use crate::watch::mappings::Mappings;
use crate::watch::one_thread::OneThread;
use crate::watch::userfaultfd::{Fence, HUGE_PAGES, Memory, Userfaultfd};
use crate::watch::watch_fd::{WATCH_FD, WatchFd};
use core::sync::atomic::{AtomicBool, Ordering::*};
use errno::Errno;
use rdmamr_stats::log::{Level, always, line, soon};
use rdmamr_sys::budget::Attempts;
use rdmamr_sys::descriptor::identity;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::proc;

/// The watch of a process.
#[repr(C)]
pub struct Watch {
    /// The process has had two threads. From then on a hit need not look at `one_thread`, whose
    /// words lie in the C library, in other cache lines.
    threads: AtomicBool,
    starts: Attempts,
    /// No memory is watched any more: the reader reads no events, or the cache has ended.
    ended: AtomicBool,
    reader: Reader,
    /// Shows whether the process has one thread. Once it has had two, every hit asks the fence.
    one_thread: Option<OneThread>,
    /// How many mappings the watch may take.
    pub mappings: Mappings,
}

/// Why memory is not watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unwatched {
    /// This process may not use userfaultfd.
    Refused,
    /// userfaultfd cannot watch that memory, or another userfaultfd watches it, or other processes can
    /// change it, or it is scarce (hugetlb).
    Memory,
    /// The process is short of mappings.
    Limit,
    /// Another thread is changing the address space, or the kernel does not answer.
    Busy,
}

impl Watch {
    /// How many of its first bytes each hit reads.
    pub const READ_BY_HITS: usize = size_of::<AtomicBool>();

    /// Opens userfaultfd and starts the reader for the cache. If a resource is short, a later miss
    /// tries again.
    pub fn start(reader: Reader) -> Watch {
        let watch = Watch {
            threads: AtomicBool::new(false),
            starts: Attempts::default(),
            ended: AtomicBool::new(false),
            reader,
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
        let passed_by = || (!in_place::are_in_place()).then_some(Failure::PassedBy);
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
            let is_apart = event_reader::start(file, self.reader)
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

    /// The program's descriptor number of the file, if the watch works.
    fn watch_fd(&self) -> Option<&'static WatchFd> {
        let works = WATCH_FD.exists() && event_reader::is_ready() && !self.ended.load(Relaxed);
        works.then_some(&WATCH_FD)
    }

    /// Watches what is mapped in a region's chunks. Watches only the region's own pages if the kernel
    /// refuses more because of other memory there. Some of it may be watched after an error too.
    pub fn watch(&self, page_range: PageRange) -> Result<(), Unwatched> {
        if !self.is_on() {
            self.try_to_start(false);
        }
        let number = self.watch_fd().ok_or(Unwatched::Refused)?;
        if !self.mappings.has_room() {
            return Err(Unwatched::Limit);
        }
        let chunks = page_range.extended(CHUNK);
        let mut registered = number.register(chunks);
        if !matches!(registered, Ok(()) | Err(HUGE_PAGES)) && chunks != page_range {
            registered = number.register(page_range);
        }
        // The watch may have been given up meanwhile, without a look at this memory.
        core::sync::atomic::fence(SeqCst);
        if registered.is_ok() && self.ended.load(SeqCst) {
            number.unregister(chunks);
            registered = Err(Errno(libc::EBADF));
        }
        registered.map_err(|errno| match errno.0 {
            libc::ENOMEM => {
                self.mappings.ran_out();
                Unwatched::Limit
            }
            libc::EBADF => Unwatched::Refused,
            _ => Unwatched::Memory,
        })
    }

    /// Whether these pages, which are watched and pinned, are private memory: other processes change
    /// shared memory without an event. The kernel describes the mapping that was pinned, or its change
    /// has been reported since.
    pub fn is_private(&self, page_range: PageRange) -> Result<(), Unwatched> {
        let number = self.watch_fd().ok_or(Unwatched::Refused)?;
        match number.memory(page_range) {
            Ok(Memory::Private) => Ok(()),
            Ok(Memory::Shared) => Err(Unwatched::Memory),
            Ok(Memory::Unknown) => Err(Unwatched::Busy),
            Err(_) => Err(Unwatched::Refused),
        }
    }

    /// Stops watching memory of the cache's. False if the kernel refuses: userfaultfd cannot watch some
    /// of it, or nothing is mapped there.
    pub fn unwatch(&self, range: PageRange) -> bool {
        self.watch_fd()
            .is_none_or(|number| number.unregister(range))
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
        let Some(number) = self.watch_fd() else {
            return false;
        };
        if number.unregister(range) {
            return true;
        }
        // The kernel refuses the range if userfaultfd cannot watch one of its mappings.
        let mut any = false;
        let _ = proc::each_mapping_in(range, |mapping, _| {
            any |= range
                .common(mapping)
                .is_some_and(|part| number.unregister(part));
        });
        any
    }

    /// Whether a hit needs the fence, because another thread may be changing the address space.
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

    /// The reader reads no events any more. From now on no memory is watched. The reader has
    /// invalidated every region.
    pub fn reader_failed(&self) {
        if !self.ended.swap(true, Relaxed) {
            soon(format_args!(
                "regions are not reused from now on: the kernel does not let the library read events of userfaultfd"
            ));
        }
    }

    /// From now on no memory is watched, so that no task waits for the reader: not even once this
    /// process has ended and another task goes on with its memory. No hit succeeds any more.
    ///
    /// A raw system call may have left a part of a region's memory watched, and no region knows of
    /// that part. So this looks at all mappings.
    pub fn give_up(&self) {
        let number = self.watch_fd();
        self.ended.store(true, SeqCst);
        core::sync::atomic::fence(SeqCst);
        let Some(number) = number else { return };
        let _ = proc::each_mapping(|mapping| {
            number.unregister(mapping.range);
            true
        });
    }
}
