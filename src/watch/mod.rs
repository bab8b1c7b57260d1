// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watch of the memory of the cache's regions. `docs/proof.md` has the argument that no change
//! passes unseen; the lemmas in brackets are its.
//!
//! - `log.rs`: the log of changes, and which changes are under way (L1, L2).
//! - `userfaultfd.rs`: the kernel's interface. `event_reader.rs`: the thread that reads the events
//!   (W1).
//! - `number.rs`: the program's number of the file, by which the fence asks (W2, W4).
//! - this file: the watch as the cache uses it, and whether a hit needs the fence (W3).
//! - `in_place.rs`: whether the program's memory calls come here (W6). The calls themselves are the
//!   cache's, since they end its regions (`cache/life/change.rs`, W5).
//! - `gate.rs`: before Linux 6.16 one file can unregister what another has registered.
//! - `extent.rs`: how far the watch of a region reaches. `dropping.rs`: the one exception.

pub mod dropping;
mod event_reader;
pub mod extent;
mod gate;
pub mod in_place;
pub mod log;
#[cfg(all(test, not(loom)))]
mod log_tests;
pub mod userfaultfd;
pub mod watch_fd;

use crate::report::log::{Level, always, later, line};
use crate::sys::budget::Budget;
use crate::sys::clock;
use crate::sys::descriptor::identity;
use crate::sys::pages::PageRange;
use crate::sys::proc;
use crate::sys::symbols::{self, Scope};
use core::ffi::{CStr, c_char};
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::*,
};
use errno::Errno;
pub use event_reader::Reader;
use log::Log;
pub use userfaultfd::{Fence, Watched};
use userfaultfd::{NO_WRITE_PROTECTION, Userfaultfd};
use watch_fd::{WATCH_FD, WatchFd};

/// The watch of a process.
#[repr(C)]
pub struct Watch {
    /// The process has had two threads. From then on a hit need not look at `one_thread`, whose
    /// words are the C library's, in other lines of the processor's cache.
    threads: AtomicBool,
    /// When an attempt to start the watch may be made, in ns of the monotonic clock.
    attempt: AtomicU64,
    lost: AtomicBool,
    reader: Reader,
    /// What says whether the process has one thread. As soon as it has had two, every hit passes
    /// the fence.
    one_thread: Option<OneThread>,
    /// How many more splits of mappings the process can afford.
    room: AtomicI64,
    /// The value of `room` when the mappings were last counted.
    room_at_most: AtomicI64,
    /// How far the mappings are counted: [`COUNTED`] and its kin.
    count: AtomicU32,
    /// Whether memory may be watched that belongs to no region.
    left_some: AtomicBool,
    /// For counting the mappings, which takes 15 ms if there are 50 000.
    counting: Budget<0>,
}

/// Whether the cache has ended, or never starts.
static RETIRED: AtomicBool = AtomicBool::new(false);

/// From now on no watch starts, and no thread asks the kernel for the cache. False if that was said
/// before.
pub fn retire() -> bool {
    !RETIRED.swap(true, SeqCst)
}

/// Whether [`retire`] was called.
#[inline(always)]
pub fn is_retired() -> bool {
    RETIRED.load(Relaxed)
}

/// The outcome of an attempt to stop watching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unwatching {
    Done,
    /// The kernel refuses to stop, for good.
    Refused,
    /// A change of the address space is under way. Until the log has been applied, the cache does
    /// not know which memory is its own.
    Unsettled,
}

/// Why memory is not watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unwatched {
    /// userfaultfd is refused to this process.
    Refused,
    /// userfaultfd does not take that memory, or another userfaultfd watches it.
    Memory,
    /// The process is short of mappings.
    Limit,
    /// Another thread is changing the address space.
    Busy,
}

/// A register call may split the first and the last mapping of its range.
const SPLITS: i64 = 2;

/// How many splits are made before the mappings are counted for the first time, where they can be.
const UNCOUNTED: i64 = 4 * SPLITS;

/// The mappings are counted.
const COUNTED: u32 = 0;
/// Much of the room is used up: the mappings are to be counted again.
const DUE: u32 = 1;
/// The limits reader has been asked to count them.
const ASKED: u32 = 2;

/// How long to wait after a failed attempt to start the watch, in ns.
const ATTEMPTS_APART: u64 = 1_000_000_000;
/// In place of a time: no attempt is to be made.
const NEVER: u64 = u64::MAX;

/// A forked child closes its copy of the file, since the parent would wait for a child that holds
/// the file.
unsafe extern "C" fn close_in_child() {
    WATCH_FD.close_in_child();
}

/// Why the watch has not started.
enum Failure {
    /// userfaultfd(2) failed.
    File(Errno),
    /// fstat(2) of the file failed.
    Unseen(Errno),
    /// The kernel gave the reader no thread.
    Thread(Errno),
    /// The program's memory calls do not come to the library.
    PassedBy,
}

impl Failure {
    /// Whether another attempt may succeed: something is short.
    fn is_passing(&self) -> bool {
        let (Failure::File(errno) | Failure::Thread(errno)) = self else {
            return false;
        };
        matches!(
            errno.0,
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN
        )
    }

    fn say(&self) {
        match self {
            Failure::PassedBy => always(format_args!(
                "regions are not reused once they are released: dlopen loaded the library, so the program's memory \
                 calls pass it by. Preload the library (LD_PRELOAD), or link the program to it"
            )),
            Failure::File(NO_WRITE_PROTECTION) => always(format_args!(
                "regions are not reused once they are released: userfaultfd(2) of this kernel has no write \
                 protection, which x86-64 has from Linux 5.7 on, arm64 from 6.10 on"
            )),
            Failure::File(errno) if self.is_passing() => always(format_args!(
                "regions are not reused for now: userfaultfd(2) failed ({errno}). The library tries again later"
            )),
            Failure::File(errno) => always(format_args!(
                "regions are not reused once they are released: userfaultfd(2) is refused ({errno}). Before \
                 Linux 5.11: sysctl vm.unprivileged_userfaultfd=1. In a container: allow it in the seccomp profile, \
                 or (Linux 6.1) pass the device /dev/userfaultfd, readable for the process"
            )),
            Failure::Unseen(errno) => always(format_args!(
                "regions are not reused once they are released: fstat(2) of the library's userfaultfd fails ({errno})"
            )),
            Failure::Thread(errno) if self.is_passing() => always(format_args!(
                "regions are not reused for now: the kernel gives the library no thread ({errno}): see RLIMIT_NPROC, \
                 and pids.max of the cgroup. The library tries again later"
            )),
            Failure::Thread(errno) => always(format_args!(
                "regions are not reused once they are released: the kernel gives the library no thread ({errno})"
            )),
        }
    }
}

impl Watch {
    /// How many of its first bytes each hit reads.
    pub const READ_BY_HITS: usize = size_of::<AtomicBool>();

    /// Opens userfaultfd and starts the reader for the cache. If something is short, a later miss
    /// tries again.
    pub fn start(reader: Reader) -> Watch {
        let watch = Watch {
            threads: AtomicBool::new(false),
            attempt: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            reader,
            one_thread: OneThread::find(),
            room: AtomicI64::new(if proc::has_maps() { UNCOUNTED } else { 0 }),
            room_at_most: AtomicI64::new(UNCOUNTED),
            count: AtomicU32::new(DUE),
            left_some: AtomicBool::new(false),
            counting: Budget::default(),
        };
        watch.try_to_start(true);
        watch
    }

    /// Tries to start the watch, if it is time for an attempt.
    #[cold]
    fn try_to_start(&self, is_first: bool) {
        let (due, now) = (self.attempt.load(Relaxed), clock::monotonic());
        let takes = |due| {
            self.attempt
                .compare_exchange(due, NEVER, Relaxed, Relaxed)
                .is_ok()
        };
        if is_retired() || now < due || self.lost.load(Relaxed) || !takes(due) {
            return;
        }
        let passed_by = || (!in_place::are_in_place()).then_some(Failure::PassedBy);
        let opened = || Userfaultfd::open().map_err(Failure::File);
        let started = passed_by().map_or_else(opened, Err).and_then(|file| {
            let closed = |failure| {
                file.close();
                failure
            };
            // By this every later answer of the number is proven to be the file's.
            let which = identity(file.fd()).map_err(|errno| closed(Failure::Unseen(errno)))?;
            event_reader::start(file, self.reader)
                .map_err(|errno| closed(Failure::Thread(errno)))?;
            Ok((file, which))
        });
        match started {
            Ok((file, which)) => {
                WATCH_FD.set(file, which);
                // SAFETY: the handler is a function of this library, which is never unloaded.
                unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
                line(
                    Level::Info,
                    format_args!("relaxed regions: userfaultfd watches anonymous memory"),
                );
                if !is_first {
                    always(format_args!("regions are reused from now on"));
                }
            }
            Err(failure) => {
                if is_first {
                    failure.say();
                }
                if failure.is_passing() {
                    self.attempt.store(now + ATTEMPTS_APART, Relaxed);
                }
            }
        }
    }

    /// Whether userfaultfd watches memory for the cache. Waits for a reader that has just been
    /// started, beside which the start goes on.
    pub fn is_on(&self) -> bool {
        if !event_reader::is_ready() && WATCH_FD.exists() {
            event_reader::wait_until_ready();
        }
        self.watch_fd().is_some()
    }

    /// The program's number of the file, if the watch works.
    fn watch_fd(&self) -> Option<&'static WatchFd> {
        let works = WATCH_FD.exists() && event_reader::is_ready() && !self.lost.load(Relaxed);
        works.then_some(&WATCH_FD)
    }

    /// Watches a region's memory, and the memory around it. So huge pages stay whole, and
    /// neighbours need no further mapping. Watches only the region's own pages if many neighbours
    /// have been watched so, or if the kernel refuses the larger range because of other memory near
    /// it.
    ///
    /// `claim` learns which memory is the cache's from now on. The call of `claim` precedes the
    /// registration with the kernel: a report of a change that comes right after the registration
    /// must find the claim.
    pub fn watch(
        &self,
        page_range: PageRange,
        has_many_neighbours: bool,
        claim: impl Fn(Option<PageRange>),
    ) -> Result<(), Unwatched> {
        self.watch_unproven(page_range, has_many_neighbours, claim)?;
        self.is_ours().then_some(()).ok_or(Unwatched::Refused)
    }

    /// As [`Watch::watch`]. Before anybody relies on the watch of this memory,
    /// [`Watch::is_ours`] must have said yes.
    pub fn watch_unproven(
        &self,
        page_range: PageRange,
        has_many_neighbours: bool,
        claim: impl Fn(Option<PageRange>),
    ) -> Result<Watched, Unwatched> {
        if !self.is_on() {
            self.try_to_start(false);
        }
        let number = self.watch_fd().ok_or(Unwatched::Refused)?;
        if !self.has_room() {
            return Err(Unwatched::Limit);
        }
        let register = |range: PageRange| {
            claim(Some(range));
            number.register(range)
        };
        // Each mapping in the range costs time. If there are many, they cost much more than the one
        // mapping of the region.
        let around = if has_many_neighbours {
            page_range
        } else {
            extent::around(page_range)
        };
        let mut registered = register(around);
        if registered.is_err() && around != page_range {
            registered = register(page_range);
        }
        // The watch may have been given up meanwhile, and this memory passed over.
        core::sync::atomic::fence(SeqCst);
        if registered.is_ok() && self.lost.load(SeqCst) {
            number.unregister(around);
            registered = Err(Errno(libc::EBADF));
        }
        registered.map_err(|errno| {
            claim(None);
            match errno.0 {
                libc::ENOMEM => Unwatched::Limit,
                libc::EBADF => Unwatched::Refused,
                _ => Unwatched::Memory,
            }
        })
    }

    /// Whether what this process watches so far, it watches by its own file.
    pub fn is_ours(&self) -> bool {
        self.watch_fd().is_some_and(|number| number.prove().is_ok())
    }

    /// Whether the process can afford more mappings. Three quarters of the mappings that the kernel
    /// allows are the program's own. The mappings are to be counted when, by a worst-case estimate,
    /// half of the rest is used up.
    fn has_room(&self) -> bool {
        !self.is_full() && self.room.fetch_sub(SPLITS, Relaxed) > SPLITS
    }

    /// Whether by a worst-case estimate the process can afford no more mappings.
    pub fn is_full(&self) -> bool {
        self.room.load(Relaxed) <= SPLITS
    }

    /// Whether it is time to have the limits reader count the mappings. The caller asks the limits
    /// reader.
    pub fn should_count(&self) -> bool {
        let is_due = match self.count.load(Relaxed) {
            COUNTED => self.room.load(Relaxed) < self.room_at_most.load(Relaxed) / 2,
            due => due == DUE,
        };
        is_due
            && self.counting.allows(clock::monotonic())
            && self.count.swap(ASKED, Relaxed) != ASKED
    }

    /// Counts the mappings if that was asked. The caller has a table of descriptors of its own.
    pub fn count_mappings(&self) {
        if self.count.load(Relaxed) != ASKED {
            return;
        }
        self.counting.within(clock::monotonic_by_kernel, || {
            // If the kernel does not say how many there are, there is no room.
            let (count, most) = proc::mappings().unwrap_or_default();
            let room = (most / 4 * 3) as i64 - count as i64;
            let enough = room > SPLITS * 16;
            self.room_at_most.store(room.max(0), Relaxed);
            self.room.store(if enough { room } else { -1 }, Relaxed);
            self.count
                .store(if enough { COUNTED } else { DUE }, Relaxed);
        });
    }

    /// Whether mappings are short, so that the memory of ended regions should not stay watched.
    pub fn is_crowded(&self) -> bool {
        self.room.load(Relaxed) * 4 < self.room_at_most.load(Relaxed) * 3
    }

    /// Stops watching memory that the cache has registered and no region needs. The caller holds
    /// the cache's lock, and has applied every change of this memory that is in `changes`.
    pub fn unwatch(&self, range: PageRange, changes: &Log) -> Unwatching {
        let Some(number) = self.watch_fd() else {
            return Unwatching::Refused;
        };
        // On Linux 6.1 and 6.12 (fs/userfaultfd.c, `userfaultfd_unregister`) one file can
        // unregister what another file has registered. Memory that was the cache's becomes another
        // file's only after a thread has unmapped it. That thread waits for the reader, and the
        // monitor waits at the gate. The fence and the log show that no thread was between the two
        // before.
        let closed = (!event_reader::keeps_apart()).then(|| gate::GATE.close());
        let is_settled = || changes.has_heard_all();
        if closed.is_some()
            && !(is_settled() && number.fence_of_any() == Fence::Passed && is_settled())
        {
            return Unwatching::Unsettled;
        }
        if number.unregister(range) {
            Unwatching::Done
        } else {
            Unwatching::Refused
        }
    }

    /// Stops watching a range of the program's memory that a call under way moves, whether or not
    /// regions are there: what a raw system call has left of a region's memory is watched, and no
    /// region knows. The log has invalidated every region in the range, and the caller writes the
    /// range to the log once more, for the regions that were made meanwhile. Returns whether some
    /// of it may have been watched.
    pub fn unwatch_moving(&self, range: PageRange) -> bool {
        let Some(number) = self.watch_fd() else {
            return false;
        };
        if !event_reader::keeps_apart() {
            // Only the file that watches memory can register it again. These kernels move one
            // mapping at a time, so userfaultfd takes all of the range or none of it.
            return number.register(range).is_ok() && number.unregister(range);
        }
        // What is there may be another userfaultfd's.
        if number.prove().is_err() {
            return false;
        }
        if number.unregister(range) {
            return true;
        }
        // A mapping that userfaultfd does not take has the kernel refuse the range.
        let mut any = false;
        let _ = proc::each_mapping_in(range, |mapping, _| {
            any |= range
                .common(mapping)
                .is_some_and(|part| number.unregister(part));
        });
        any
    }

    /// Some memory stays watched that no region needs.
    pub fn leave_some(&self) {
        self.left_some.store(true, Relaxed);
    }

    /// Whether memory may be watched that belongs to no region.
    pub fn has_left_some(&self) -> bool {
        self.left_some.load(Relaxed)
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

    /// The cache has ended: gives the program its number back. The reader goes on: memory that no
    /// region knows may still be watched.
    pub fn close(&self) {
        WATCH_FD.close();
    }

    /// Whether the kernel keeps one userfaultfd from unregistering what another has registered.
    pub fn keeps_apart(&self) -> bool {
        event_reader::keeps_apart()
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
    pub fn lose(&self) {
        if !self.lost.swap(true, Relaxed) {
            later(format_args!(
                "regions are not reused from now on: the kernel does not let the library read events of userfaultfd"
            ));
        }
    }
}

impl Watch {
    /// From now on no memory is watched, so that nobody waits for the reader: not even once this
    /// process has ended and another task goes on with its memory. No hit succeeds any more.
    ///
    /// What a raw system call has left of a region's memory is watched, and no region knows. So
    /// all mappings are looked at.
    pub fn give_up(&self) {
        let number = self.watch_fd();
        self.lost.store(true, SeqCst);
        core::sync::atomic::fence(SeqCst);
        let Some(number) = number else { return };
        if event_reader::keeps_apart() {
            // The kernel passes over what our file does not watch.
            let _ = proc::each_mapping(|mapping| {
                number.unregister(mapping.range);
                true
            });
            return;
        }
        // The memory may be another file's. Only the file that watches memory can register it
        // again.
        let let_go = |range| number.register(range).is_ok() && number.unregister(range);
        let mut flagged = false;
        let read = proc::each_mapping_with_flags(|mapping, flags| {
            flagged = true;
            if flags.split(|&byte| byte == b' ').any(|flag| flag == b"uw") {
                let_go(mapping.range);
            }
            true
        });
        if !(read && flagged) {
            let _ = proc::each_mapping(|mapping| {
                let_go(mapping.range);
                true
            });
        }
    }
}

/// What says whether the process has one thread.
#[derive(Clone, Copy)]
struct OneThread {
    /// `__libc_single_threaded` (glibc 2.32): not 0 while the C library has made no thread.
    single_threaded: &'static AtomicU8,
    /// `_r_debug.r_version` (glibc 2.35): 1 while the linker has one namespace, and so the process
    /// one C library. The linker raises it before a new namespace's code runs, and never lowers it.
    version: &'static AtomicI32,
}

impl OneThread {
    /// `None` if the process cannot know that it has one thread: before glibc 2.35.
    fn find() -> Option<OneThread> {
        const FIRST: (u32, u32) = (2, 35);
        if glibc_version()? < FIRST {
            return None;
        }
        let single_threaded = symbols::find(Scope::Program, c"__libc_single_threaded", None)?.get();
        // The linker writes its own `_r_debug` only. A program that names it has a copy of it,
        // which stays as it was at the start. So the symbol is not looked for in the program.
        let version = symbols::find(Scope::Next, c"_r_debug", None)?.get();
        Some(OneThread {
            // SAFETY: the symbol is a `char` of the C library, which lives as long as the process.
            // Only the C library writes it.
            single_threaded: unsafe {
                with_exposed_provenance::<AtomicU8>(single_threaded).as_ref()?
            },
            // SAFETY: the symbol is the linker's `struct r_debug`, whose first field is an `int`.
            // It lives as long as the process, and only the linker writes it.
            version: unsafe { with_exposed_provenance::<AtomicI32>(version).as_ref()? },
        })
    }

    #[inline(always)]
    fn holds(self) -> bool {
        self.single_threaded.load(Relaxed) != 0 && self.version.load(Relaxed) == 1
    }
}

/// The version of the C library that runs; `None` if it is not glibc.
fn glibc_version() -> Option<(u32, u32)> {
    let function = symbols::find(Scope::Program, c"gnu_get_libc_version", None)?;
    let pointer = with_exposed_provenance::<()>(function.get());
    // SAFETY: the symbol is glibc's function of that type.
    let function: extern "C" fn() -> *const c_char = unsafe { core::mem::transmute(pointer) };
    // SAFETY: the function returns a string that lives as long as the process.
    let text = unsafe { CStr::from_ptr(function()) };
    let (major, rest) = text.to_str().ok()?.split_once('.')?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, digits.parse().ok()?))
}
