// SPDX-License-Identifier: MIT OR Apache-2.0
//! The watch of the memory of the pool's regions: userfaultfd and its monitor, the fence.
//!
//! **Why no change of memory passes unseen.**
//!
//! * *The watch comes first.* The pool registers a region's memory with userfaultfd before it pins
//!   the memory. If the kernel refuses that, the region ends with its last user.
//! * *The kernel makes the changing thread wait.* From then on a thread may unmap, move or empty
//!   the memory in any way: by a bare system call, by the C library inside itself, on a kernel
//!   worker of io_uring. The thread raises `mmap_changing` while it holds the address space for
//!   writing, before the mapping goes. Then it waits until the monitor has read its event.
//! * *The monitor announces before it reads.* Only the monitor reads events. It announces in the
//!   log that a change is under way, reads the event, writes the event to the log, and says that
//!   the change is over. The memory could come back as another mapping's from some first moment on,
//!   and the log lacks the change until some last moment. In between, either the fence answers
//!   EAGAIN or the log has a change under way.
//! * *Each hit asks the fence*, after it has taken the region and before it reads the log again. A
//!   process that never had a second thread needs no fence: its own change has returned, and
//!   returns only after the monitor has read the event.
//! * *The monitor waits for no thread* but at the gate (`gate.rs`). It takes no lock, allocates
//!   nothing, touches no watched memory, has all signals blocked, and is not a thread of the C
//!   library.
//! * *A lost file ends all reuse.* If the monitor loses its file (the program has closed the
//!   number), it withdraws every region by the log. The file is closed before the monitor ends, so
//!   no thread waits for the monitor. After that nothing is watched, and no idle region is used
//!   again.
//! * *The interposed calls report what userfaultfd does not* (`hooks.rs`): guard pages, protection.
//! * *Only private memory without a file is used again* (`admission.rs`): shared memory and files
//!   change in other ways, and from other processes.
//!
//! The kernel reports one change before it happens: a bare madvise that drops pages. A region that
//! is pinned between the report and the drop would be stale unseen. So the pool does not keep a
//! region whose pages were lately reported as dropped (`dropping.rs`). That is a bound in time and
//! not a proof, and docs/limits.md says so.

mod extent;
mod gate;
mod monitor;
pub(super) mod userfaultfd;

use super::changes::Changes;
use super::pool::Pool;
use crate::report::log::{self, Level};
use crate::sys::pages::PageRange;
use crate::sys::proc;
use crate::sys::symbols::{self, Scope};
use core::ffi::CStr;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU8, Ordering::*};
pub use userfaultfd::Fence;
use userfaultfd::{NO_WRITE_PROTECTION, Userfaultfd};

/// The watch of a process.
pub struct Watch {
    file: Option<Userfaultfd>,
    /// Whether the kernel keeps one file of userfaultfd from unregistering memory that another file
    /// has registered.
    keeps_apart: bool,
    lost: AtomicBool,
    /// The C library's flag that the process has never had a second thread: not 0 while that holds.
    /// As soon as the process has had two threads, every hit passes the fence.
    single_threaded: Option<&'static AtomicU8>,
    /// How many more splits of mappings the process can afford.
    room: AtomicI64,
    /// The value of `room` when the mappings were last counted.
    room_at_most: AtomicI64,
}

/// The outcome of an attempt to stop watching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unwatching {
    Done,
    /// The kernel refuses to stop, for good.
    Refused,
    /// A change of the address space is under way. Until the log has been applied, the pool does
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

/// The number of misses without a watch before the mappings are counted again.
const PATIENCE: i64 = 1000;

/// The file of userfaultfd. A forked child closes its copy, since the parent would wait for a child
/// that holds the file.
static FILE: AtomicI32 = AtomicI32::new(-1);

unsafe extern "C" fn close_in_child() {
    let fd = FILE.swap(-1, Relaxed);
    if fd >= 0 {
        // SAFETY: `FILE` has the child's copy of the file that `start` opened, and the child never
        // uses it.
        unsafe { libc::close(fd) };
    }
}

impl Watch {
    /// Opens userfaultfd and starts the monitor for the pool.
    pub fn start(pool: &'static Pool) -> Watch {
        let file = Userfaultfd::open().and_then(|file| {
            if monitor::start(file, pool) {
                Ok(file)
            } else {
                file.close();
                Err(errno::Errno(libc::EAGAIN))
            }
        });
        match file {
            Ok(file) => {
                FILE.store(file.fd(), Relaxed);
                // SAFETY: the handler is a function of this library, which is never unloaded.
                unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
                log::line(
                    Level::Info,
                    format_args!("relaxed regions: userfaultfd watches anonymous memory"),
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
        Watch {
            keeps_apart: file.is_ok() && Userfaultfd::are_kept_apart(),
            file: file.ok(),
            lost: AtomicBool::new(false),
            single_threaded: single_threaded(),
            room: AtomicI64::new(0),
            room_at_most: AtomicI64::new(0),
        }
    }

    /// Whether userfaultfd watches memory for the pool.
    pub fn is_on(&self) -> bool {
        self.file().is_some()
    }

    fn file(&self) -> Option<Userfaultfd> {
        self.file.filter(|_| !self.lost.load(Relaxed))
    }

    /// Watches a region's memory, and the memory around it. So huge pages stay whole, and
    /// neighbours need no further mapping. Watches only the region's own pages if many neighbours
    /// have been watched so, or if the kernel refuses the larger range because of other memory near
    /// it.
    ///
    /// `claim` learns which memory is the pool's from now on. The call of `claim` precedes the
    /// registration with the kernel: a report of a change that comes right after the registration
    /// must find the claim.
    pub fn watch(
        &self,
        hull: PageRange,
        has_many_neighbours: bool,
        claim: impl Fn(Option<PageRange>),
    ) -> Result<(), Unwatched> {
        let file = self.file().ok_or(Unwatched::Refused)?;
        if !self.has_room() {
            return Err(Unwatched::Limit);
        }
        let register = |range: PageRange| {
            claim(Some(range));
            file.register(range)
        };
        // Each mapping in the range costs time. If there are many, they cost much more than the one
        // mapping of the region.
        let around = if has_many_neighbours {
            hull
        } else {
            extent::around(hull)
        };
        let mut registered = register(around);
        if registered.is_err() && around != hull {
            registered = register(hull);
        }
        registered.map_err(|errno| {
            claim(None);
            match errno.0 {
                libc::ENOMEM => Unwatched::Limit,
                _ => Unwatched::Memory,
            }
        })
    }

    /// Whether the process can afford more mappings. Three quarters of the mappings that the kernel
    /// allows are the program's own. The mappings are counted when, by a worst-case estimate, the
    /// rest may be used up.
    fn has_room(&self) -> bool {
        // Mappings are short. To count them takes time if there are many, so they are not counted
        // again at once.
        if self.room.load(Relaxed) < -PATIENCE {
            self.room.fetch_add(SPLITS, Relaxed);
            return false;
        }
        if self.room.fetch_sub(SPLITS, Relaxed) > SPLITS {
            return true;
        }
        // If the kernel does not say how many there are, there is no room.
        let (count, most) = proc::mappings().unwrap_or_default();
        let room = (most / 4 * 3) as i64 - count as i64;
        self.room_at_most.store(room.max(0), Relaxed);
        let enough = room > SPLITS * 16;
        // The count starts so far below `-PATIENCE` that it takes `PATIENCE` misses to climb back.
        let short = -PATIENCE - PATIENCE * SPLITS;
        self.room.store(if enough { room } else { short }, Relaxed);
        enough
    }

    /// Has the next miss count the mappings anew: the process may have fewer now.
    pub fn count_anew(&self) {
        if self.room.load(Relaxed) < 0 {
            self.room.store(0, Relaxed);
        }
    }

    /// Whether mappings are short, so that the memory of ended regions should not stay watched.
    pub fn is_crowded(&self) -> bool {
        self.room.load(Relaxed) * 4 < self.room_at_most.load(Relaxed) * 3
    }

    /// Stops watching memory that the pool has registered and no region needs. The caller holds the
    /// pool's lock, and has applied every change of this memory that is in `changes`.
    pub fn unwatch(&self, range: PageRange, changes: &Changes) -> Unwatching {
        let Some(file) = self.file() else {
            return Unwatching::Refused;
        };
        // On Linux 6.1 and 6.12 (fs/userfaultfd.c, `userfaultfd_unregister`) one file can
        // unregister what another file has registered. Memory that was the pool's becomes another
        // file's only after a thread has unmapped it. That thread waits for the monitor, and the
        // monitor waits at the gate. The fence and the log show that no thread was between the two
        // before.
        let closed = (!self.keeps_apart).then(|| gate::GATE.close());
        let is_settled = || changes.has_heard_all();
        if closed.is_some() && !(is_settled() && file.fence() == Fence::Passed && is_settled()) {
            return Unwatching::Unsettled;
        }
        if file.unregister(range) {
            Unwatching::Done
        } else {
            Unwatching::Refused
        }
    }

    /// Whether a hit needs the fence, because another thread may be changing the address space.
    #[inline(always)]
    pub fn must_fence(&self) -> bool {
        let alone = || {
            self.single_threaded
                .is_some_and(|alone| alone.load(Relaxed) != 0)
        };
        !alone() && self.file.is_some()
    }

    /// Asks the kernel whether a change of memory is in flight.
    #[inline(always)]
    pub fn fence(&self) -> Fence {
        let fence = self.file().map_or(Fence::Lost, Userfaultfd::fence);
        // The caller's later loads must not move before the kernel's answer. (x86 keeps loads in
        // order.)
        core::sync::atomic::fence(Acquire);
        fence
    }

    /// The program has closed the file. Returns true the first time.
    pub fn lose(&self) -> bool {
        let lost = self.file.is_some() && !self.lost.swap(true, Relaxed);
        if lost {
            log::always(format_args!(
                "regions are not reused from now on: the program has closed the descriptor of userfaultfd"
            ));
        }
        lost
    }
}

/// `__libc_single_threaded`, glibc 2.32.
fn single_threaded() -> Option<&'static AtomicU8> {
    const NAME: &CStr = c"__libc_single_threaded";
    let variable = symbols::find(Scope::Program, NAME, None)?;
    // SAFETY: the symbol is a `char` of the C library, which lives as long as the process. Only the
    // C library writes it.
    unsafe { with_exposed_provenance::<AtomicU8>(variable.get()).as_ref() }
}
