// SPDX-License-Identifier: MIT OR Apache-2.0
//! What watches the memory of the pool's regions: userfaultfd and its monitor, the fence, the stamp.
//!
//! **Why nothing that changes memory passes unseen.** A region's memory is registered with userfaultfd before
//! it is pinned; where that is refused, the region ends with its last user. From then on whoever unmaps,
//! moves or empties it, by whatever way (a bare system call, the C library inside itself, a kernel worker of
//! io_uring), raises `mmap_changing` while it holds the address space for writing, before the mapping goes,
//! and waits until the monitor has read its event. The monitor, and nobody else, reads: it announces in the
//! log that something is under way, reads, writes down what it read, and says that it is over; so between
//! the first moment at which the memory could come back as another's and the last at which the log does not
//! yet say so, either the fence answers EAGAIN or the log has something under way. The fence is asked at
//! each hit, after the region has been taken and before the log is looked at again; a process that never had
//! a second thread needs none, since its own change has returned, which it does after its event was read. The
//! monitor waits for nobody: it takes no lock, allocates nothing, touches no memory that is watched, has all
//! signals blocked, and is not a thread of the C library. When its file is lost (the program has closed
//! the number) it withdraws every region by the log, and the file is closed before it ends, so that nobody
//! waits for it; after that nothing is watched, and nothing idle used again. What userfaultfd does not
//! report, the interposed calls do (`hooks.rs`): a detached segment, a cut file, guard pages, protection.
//! What neither sees, because another process does it, is not kept: shared mappings (`shared_memory.rs`). One
//! change is reported before it happens: the dropping of pages by a bare madvise. A region that is pinned
//! between report and drop would be stale unseen; so what is registered where pages were just dropped is not kept
//! (`dropping.rs`). That is a bound in time and not a proof, and README says so.

mod monitor;
mod stamp;
mod userfaultfd;

use super::filter;
use super::hull::Range;
use super::pool::Pool;
use crate::config::config;
use crate::log::{self, Level};
use crate::proc;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU8, Ordering::*};
use stamp::Stamp;
pub use userfaultfd::Fence;
use userfaultfd::{NO_WRITE_PROTECTION, Userfaultfd};

/// What watches.
pub struct Watch {
    file: Option<Userfaultfd>,
    /// Whether it takes any mapping; then none of it can be unregistered (see [`Userfaultfd::open`]).
    any_mapping: bool,
    lost: AtomicBool,
    /// Every hit is fenced as soon as the process has had two threads.
    fenced: bool,
    /// The C library's word for whether it has had: not 0 as long as it has not.
    single_threaded: Option<&'static AtomicU8>,
    stamp: Option<Stamp>,
    /// How many more mappings may be split.
    room: AtomicI64,
    /// What it was when the mappings were last counted.
    room_at_most: AtomicI64,
    /// Whether pages within watched memory have been unwatched.
    has_holes: AtomicBool,
}

/// What is watched for a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watched {
    /// The whole 2 MiB around it.
    Chunks,
    /// Its pages, and perhaps what is around them for another.
    Pages,
}

/// Why memory is not watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unwatched {
    /// userfaultfd is refused to this process.
    Refused,
    /// userfaultfd does not take that memory, or it is another's.
    Memory,
    /// The process is short of mappings.
    Limit,
}

/// A register call may split the first and the last mapping of its range.
const SPLITS: i64 = 2;

/// Misses that are not watched before mappings are counted again.
const PATIENCE: i64 = 1000;

/// The file, for children: they must not hold it, or the parent waits for them.
static FILE: AtomicI32 = AtomicI32::new(-1);

unsafe extern "C" fn close_in_child() {
    let fd = FILE.swap(-1, Relaxed);
    if fd >= 0 {
        // SAFETY: the child's copy of our file; the child never uses it.
        unsafe { libc::close(fd) };
    }
}

impl Watch {
    /// Begins to watch for the pool.
    pub fn start(pool: &'static Pool) -> Watch {
        let file = Userfaultfd::open(config().relaxed.strict).and_then(|(file, any_mapping)| {
            if monitor::start(file, pool) {
                Ok((file, any_mapping))
            } else {
                file.close();
                Err(errno::Errno(libc::EAGAIN))
            }
        });
        match file {
            Ok((file, any_mapping)) => {
                FILE.store(file.fd(), Relaxed);
                // SAFETY: the handler is a function of this library, which is never unloaded.
                unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
                let what = if any_mapping {
                    "any memory"
                } else {
                    "anonymous memory"
                };
                log::line(
                    Level::Info,
                    format_args!("relaxed regions: userfaultfd watches {what}"),
                );
            }
            Err(NO_WRITE_PROTECTION) => log::always(format_args!(
                "regions are not reused once they are released: userfaultfd(2) of this kernel has no write \
                 protection, which x86-64 has from Linux 5.7 on, arm64 from 6.10 on"
            )),
            Err(errno) => log::always(format_args!(
                "regions are not reused once they are released: userfaultfd(2) is refused ({errno}). \
                 Allow the system call with UFFD_USER_MODE_ONLY, which needs no privilege from Linux 5.11 on; \
                 in a container, in its seccomp profile"
            )),
        }
        let stamp = config().relaxed.strict.then(Stamp::open).flatten();
        if config().relaxed.strict && stamp.is_none() {
            log::always(format_args!(
                "RDMAMR_RELAXED_STRICT=1: this kernel has no PAGEMAP_SCAN (Linux 6.7), so nothing more is checked"
            ));
        }
        Watch {
            any_mapping: file.is_ok_and(|(_, any_mapping)| any_mapping),
            file: file.ok().map(|(file, _)| file),
            lost: AtomicBool::new(false),
            fenced: config().relaxed.fence,
            single_threaded: single_threaded(),
            stamp,
            room: AtomicI64::new(0),
            room_at_most: AtomicI64::new(0),
            has_holes: AtomicBool::new(false),
        }
    }

    /// Whether anything is watched.
    pub fn is_on(&self) -> bool {
        self.file().is_some()
    }

    fn file(&self) -> Option<Userfaultfd> {
        self.file.filter(|_| !self.lost.load(Relaxed))
    }

    /// Watches whole 2 MiB, so that huge pages stay whole and neighbours need no mapping more; only the
    /// pages themselves where that has been done for many neighbours, or is refused since other memory is near.
    pub fn watch(&self, range: Range, has_many_neighbours: bool) -> Result<Watched, Unwatched> {
        let file = self.file().ok_or(Unwatched::Refused)?;
        if !self.has_room() {
            return Err(Unwatched::Limit);
        }
        // Each mapping in the range costs, where there are many, much more than the one that is meant.
        let chunks = if has_many_neighbours {
            Err(errno::Errno(0))
        } else {
            file.register(range.extended(filter::CHUNK))
        };
        let watched = chunks.map(|()| Watched::Chunks);
        let or_pages = watched.or_else(|_| file.register(range).map(|()| Watched::Pages));
        or_pages.map_err(|errno| match errno.0 {
            libc::ENOMEM => Unwatched::Limit,
            _ => Unwatched::Memory,
        })
    }

    /// Whether the process may have more mappings. Three quarters of what the kernel allows are the
    /// program's own; they are counted when by the worst account they may be used up.
    fn has_room(&self) -> bool {
        // Mappings are short. They are not counted again at once: that takes time where there are many.
        if self.room.load(Relaxed) < -PATIENCE {
            self.room.fetch_add(SPLITS, Relaxed);
            return false;
        }
        if self.room.fetch_sub(SPLITS, Relaxed) > SPLITS {
            return true;
        }
        let (count, most) = proc::mappings();
        let room = (most / 4 * 3) as i64 - count as i64;
        self.room_at_most.store(room.max(0), Relaxed);
        let enough = room > SPLITS * 16;
        // As far below the mark above as it takes that many misses to climb.
        let short = -PATIENCE - PATIENCE * SPLITS;
        self.room.store(if enough { room } else { short }, Relaxed);
        enough
    }

    /// Has the mappings counted anew: there may be fewer.
    pub fn count_anew(&self) {
        if self.room.load(Relaxed) < 0 {
            self.room.store(0, Relaxed);
        }
    }

    /// Whether memory of regions that have ended should be watched no longer: mappings are short.
    pub fn is_crowded(&self) -> bool {
        self.room.load(Relaxed) * 4 < self.room_at_most.load(Relaxed) * 3
    }

    /// Stops watching memory that no region needs; false if some of it cannot be watched at all, or is another's.
    pub fn unwatch(&self, range: Range) -> bool {
        // On Linux 6.1 and 6.12 (fs/userfaultfd.c, `userfaultfd_unregister`) a file ends what another has registered: so
        // first all is made ours, which is refused where another has some of it.
        let end = |file: Userfaultfd| file.register(range).is_ok() && file.unregister(range);
        !self.any_mapping && self.file().is_some_and(end)
    }

    /// Stops watching pages whose neighbours are still watched, which makes mappings of their own of them.
    pub fn unwatch_pages(&self, range: Range) {
        if self.unwatch(range) {
            self.has_holes.store(true, Relaxed);
        }
    }

    /// Whether watched memory may be in pieces. They are one again when none of its 2 MiB is watched any longer.
    pub fn has_holes(&self) -> bool {
        self.has_holes.load(Relaxed)
    }

    /// Whether a hit needs the fence: another thread may just be changing the address space.
    #[inline(always)]
    pub fn must_fence(&self) -> bool {
        let alone = || {
            self.single_threaded
                .is_some_and(|alone| alone.load(Relaxed) != 0)
        };
        self.fenced && !alone() && self.file.is_some()
    }

    /// Asks the kernel whether a change is in flight.
    #[inline(always)]
    pub fn fence(&self) -> Fence {
        let fence = self.file().map_or(Fence::Lost, Userfaultfd::fence);
        // What is read after the answer must not have been read before it. (x86 keeps loads in order.)
        core::sync::atomic::fence(Acquire);
        fence
    }

    /// The file is not ours any more. True the first time.
    pub fn lose(&self) -> bool {
        let lost = self.file.is_some() && !self.lost.swap(true, Relaxed);
        if lost {
            log::always(format_args!(
                "regions are not reused from now on: the program has closed the descriptor of userfaultfd"
            ));
        }
        lost
    }

    /// Whether the look at pages is wanted, and says that they are all there.
    #[inline(always)]
    pub fn stamp_holds(&self, range: Range) -> bool {
        self.stamp.is_none_or(|stamp| stamp.holds(range))
    }

    /// Whether pages are looked at.
    pub fn has_stamp(&self) -> bool {
        self.stamp.is_some()
    }
}

/// `__libc_single_threaded`, glibc 2.32.
fn single_threaded() -> Option<&'static AtomicU8> {
    const NAME: &CStr = c"__libc_single_threaded";
    // SAFETY: the name ends with a NUL.
    let variable = unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr()) };
    // SAFETY: null, or a `char` of the C library, which only it writes.
    unsafe { variable.cast::<AtomicU8>().as_ref() }
}
