// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptor by which threads of the program use the library's userfaultfd: to register
//! memory, to unregister it, and to ask the fence.
//!
//! The number is in the program's table of descriptors. The program can close it and put another
//! file there, and a thread can leave the table (unshare(2), CLONE_FILES). So the number proves
//! nothing by itself. (The reader has a table of its own, and receives every event whatever happens
//! to the number.) An answer counts only if the number is *ours*:
//!
//! * Each thread checks for itself before it first asks, because a proof holds in one table.
//!   kcmp(2) tells whether the thread has the cache's table, which is the cleaner's. A thread in
//!   another table neither hits nor watches, and deregisters no region of the cache: its numbers
//!   mean other files.
//! * fstat(2) shows the device and the inode of our file. Each userfaultfd has an inode of its own
//!   since Linux 5.12, and the reader keeps the file open, so no other file gets that inode.
//!   Before Linux 5.12 another userfaultfd of the process looks alike.
//! * Few other files give the fence's answers, EINVAL or EAGAIN. A closed number, a pipe, a socket,
//!   a file and a terminal answer otherwise; an epoll file and another userfaultfd give the same
//!   answers. Only another userfaultfd can register memory.
//! * The C library's calls that close or replace a number are interposed (`capi/descriptors.rs`).
//!   While one of them is under way at our number, in any table, and until a thread has seen our
//!   file again by fstat, each fence and each request for memory of that thread is followed by an
//!   fstat. The same holds once fstat has shown another file. `unshare` and `close_range` are
//!   interposed too: a thread that may have left the table checks anew.
//! * Before the first reuse of a region, fstat must show our file once more.
//!
//! Two cases remain (docs/limits.md). In the first, a thread replaces our number by a raw system
//! call dup2, directly by a file that answers EINVAL, and no first reuse of a region comes between
//! that and a hit. In the second, a thread that has already asked leaves the table by a raw system
//! call. (No ioctl distinguishes our file from another userfaultfd at the fence's price: those that
//! answer without the mmap lock do not check which file watches the memory.)

use crate::watch::counts::Counts;
use crate::watch::listeners::is_retired;
use crate::watch::userfaultfd::{Fence, Userfaultfd, Watched};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::*};
use errno::{Errno, errno, set_errno};
use rdmamr_stats::{counter, log};
use rdmamr_sys::descriptor::identity;
use rdmamr_sys::helper_thread;
use rdmamr_sys::pages::{PageRange, page_size};
use rdmamr_sys::thread;
use rdmamr_sys::words::InWords;

/// The descriptor number of the process's one watch.
#[unsafe(link_section = ".data.rdmamr_hits")]
pub static WATCH_FD: WatchFd = WatchFd::none();

/// A descriptor number of the file, and the knowledge about it. Each hit reads some of it, in its
/// first cache line.
#[repr(C, align(64))]
pub struct WatchFd {
    fd: AtomicI32,
    /// How many calls that close or replace the number have begun.
    begun: AtomicU64,
    /// By these a hit need not ask.
    pub counts: Counts,
    device: AtomicU64,
    inode: AtomicU64,
    /// How many of the calls have returned.
    ended: AtomicU64,
    said: AtomicBool,
}
const _: () = assert!(core::mem::offset_of!(WatchFd, device) <= 64);

/// In place of a value of `begun`: the thread has not seen that the number is ours.
const NOTHING: u64 = u64::MAX;

thread_local! {
    /// The value of `begun` when this thread last saw that the number is ours, and no call was
    /// under way. Other threads may have other tables, so each thread checks for itself.
    static PROVEN: Cell<u64> = const { Cell::new(NOTHING) };
    /// This thread's knowledge about its table.
    static KNOWN: Cell<Known> = const { Cell::new(Known::Nothing) };
}

/// `PROVEN` for the library's own threads, which have no thread-local variables. The threads that
/// ask share a table.
static OF_HELPER: AtomicU64 = AtomicU64::new(NOTHING);

/// Not inlined: otherwise the compiler may look up the address of a thread-local variable before
/// the caller's check for a helper thread, and a helper thread dies of that. The same holds for the
/// other functions with such a comment.
#[inline(never)]
fn of_program() -> u64 {
    PROVEN.get()
}

fn set_proof(proof: u64) {
    /// Not inlined, as [`of_program`].
    #[inline(never)]
    fn of_program(proof: u64) {
        PROVEN.set(proof);
    }
    if helper_thread::is_current() {
        OF_HELPER.store(proof, SeqCst);
    } else {
        of_program(proof);
    }
}

/// A thread's knowledge about its table of descriptors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// The thread had the cache's table, and has left it, or may have left it.
    Left,
    Here,
    Elsewhere,
}

/// The table of descriptors in which the cache's numbers are valid: that of our file, and those of
/// devices. It is the table of the thread that made the cleaner, which shares it.
pub static TABLE: Table = Table(AtomicI32::new(0));

/// The number of a thread that shares the table; 0 if there is none.
pub struct Table(AtomicI32);

impl Table {
    /// This thread of the library shares the table from now on, for ever.
    pub fn set(&self, thread: i32) {
        self.0.store(thread, Release);
    }

    /// Whether the calling thread has this table. If kcmp(2) is refused, the answer is yes for a
    /// thread that has not left a table by a call of the C library.
    pub fn is_here(&self) -> bool {
        /// Not inlined, as [`of_program`].
        #[inline(never)]
        fn of_program(table: &Table) -> bool {
            match KNOWN.get() {
                Known::Here => true,
                Known::Elsewhere => false,
                known => table.look(known),
            }
        }
        helper_thread::is_current() || of_program(self)
    }

    #[cold]
    fn look(&self, known: Known) -> bool {
        const KCMP_FILES: i32 = 2;
        let thread = self.0.load(Acquire);
        if thread == 0 || is_retired() {
            return known == Known::Nothing;
        }
        let before = errno();
        // SAFETY: the call takes no arguments.
        let this = unsafe { libc::syscall(libc::SYS_gettid) };
        // SAFETY: the call takes no pointers.
        let same = unsafe { libc::syscall(libc::SYS_kcmp, thread, this, KCMP_FILES, 0, 0) };
        let refused = same < 0 && matches!(errno().0, libc::EPERM | libc::EACCES | libc::ENOSYS);
        set_errno(before);
        let here = same == 0 || (refused && known == Known::Nothing);
        KNOWN.set(if here { Known::Here } else { Known::Elsewhere });
        here
    }

    /// Whether this thread has left the table of descriptors of the program. (The first thread's
    /// table is the process's.)
    pub fn is_left(&self) -> bool {
        !self.is_here() && thread::id_by_kernel() != std::process::id()
    }

    /// The calling thread may have another table from now on.
    pub fn left(&self) {
        KNOWN.set(Known::Left);
        PROVEN.set(NOTHING);
    }
}

/// The number means another file, or none.
const NOT_OURS: Errno = Errno(libc::EBADF);

impl WatchFd {
    const fn none() -> WatchFd {
        WatchFd {
            fd: AtomicI32::new(-1),
            begun: AtomicU64::new(0),
            counts: Counts::none(),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            said: AtomicBool::new(false),
        }
    }

    /// Takes the number of a file that this thread has just opened, and the file's `identity`.
    pub fn set(&self, file: Userfaultfd, (device, inode): (u64, u64)) {
        self.device.store(device, Relaxed);
        self.inode.store(inode, Relaxed);
        self.fd.store(file.fd(), Release);
    }

    /// The file, provided that the number is ours. `None` if there is no watch.
    #[inline(always)]
    fn file(&self) -> Option<Userfaultfd> {
        let fd = self.fd.load(Acquire);
        (fd >= 0).then(|| Userfaultfd::of_fd(fd))
    }

    /// Whether this is the number.
    #[inline(always)]
    pub fn is(&self, fd: i32) -> bool {
        fd >= 0 && fd == self.fd.load(Relaxed)
    }

    /// Whether there is a watch.
    pub fn exists(&self) -> bool {
        self.file().is_some()
    }

    /// Whether nothing is known to have happened to the number since the calling thread saw that it
    /// is ours.
    #[inline(never)]
    fn is_trusted(&self) -> bool {
        let proven = if helper_thread::is_current() {
            OF_HELPER.load(SeqCst)
        } else {
            of_program()
        };
        proven == self.begun.load(SeqCst)
    }

    /// Whether a change of memory is in flight: by the counters, or by the kernel's answer. Only
    /// threads of the program may call this.
    #[inline(always)]
    pub fn fence(&self) -> Fence {
        let is_trusted = || PROVEN.get() == self.begun.load(SeqCst);
        match self.counts.stand() {
            None => self.fence_if(is_trusted),
            // The counters say nothing about the thread's table of descriptors.
            Some(true) if is_trusted() => Fence::Passed,
            Some(_) => self.fence_and_keep(),
        }
    }

    #[cold]
    #[inline(never)]
    fn fence_and_keep(&self) -> Fence {
        rdmamr_stats::counters().count(counter!(fence_asked));
        let fence = || self.fence_if(|| self.is_trusted());
        self.counts.ask(hold_mmap_lock, fence)
    }

    /// As [`WatchFd::fence`], by the kernel's answer and for a thread that may be the library's own.
    pub fn fence_of_any(&self) -> Fence {
        self.fence_if(|| self.is_trusted())
    }

    #[inline(always)]
    fn fence_if(&self, is_trusted: impl FnOnce() -> bool) -> Fence {
        let Some(file) = self.file() else {
            return Fence::Lost(NOT_OURS);
        };
        match file.fence() {
            // If the number is replaced after this look at `begun`, it was ours at the fence.
            Fence::Passed if is_trusted() => Fence::Passed,
            Fence::UnderWay => Fence::UnderWay,
            answer => self.fence_in_doubt(answer),
        }
    }

    #[cold]
    #[inline(never)]
    fn fence_in_doubt(&self, answer: Fence) -> Fence {
        let Fence::Lost(errno) = answer else {
            return match self.prove() {
                Ok(()) => answer,
                Err(errno) => Fence::Lost(errno),
            };
        };
        // From now on a proof counts only if it is later than this.
        drop(self.beginning());
        if self.prove().is_ok() && !self.said.swap(true, Relaxed) {
            log::soon(format_args!(
                "the kernel does not let the library ask userfaultfd whether memory is changing ({}): threads \
                 that find it so do not reuse regions. Allow ioctl(2) with UFFDIO_WRITEPROTECT, in a container in \
                 its seccomp profile",
                InWords(errno)
            ));
        }
        answer
    }

    /// Has the kernel report changes of these pages from now on. The range may have holes.
    ///
    /// If a raw system call has put another userfaultfd at the number, the memory is registered
    /// with that one. So the answer counts once [`WatchFd::prove`] has shown our file after this
    /// call.
    pub fn register(&self, range: PageRange) -> Result<Watched, Errno> {
        let file = self.file().ok_or(NOT_OURS)?;
        if !self.is_trusted() {
            self.prove()?;
        }
        let registered = file.register(range);
        if registered.is_err() || !self.is_trusted() {
            self.prove()?;
        }
        registered
    }

    /// Ends the registration of memory that is registered with our file. Returns false if part of
    /// the range cannot be registered at all.
    ///
    /// No fstat is needed afterwards: no other file has this memory, so another userfaultfd
    /// refuses, or (before Linux 6.16) ends our registration.
    pub fn unregister(&self, range: PageRange) -> bool {
        let is_ours = |_: &Userfaultfd| self.is_trusted() || self.prove().is_ok();
        let file = self.file().filter(is_ours);
        file.is_some_and(|file| file.unregister(range))
    }

    /// Checks whether the number is ours in the calling thread's table, and whether that table is
    /// the cache's. If the number is not ours, logs that once, and from then on no answer counts
    /// without an fstat.
    pub fn prove(&self) -> Result<(), Errno> {
        if !TABLE.is_here() {
            return Err(NOT_OURS);
        }
        let before = errno();
        let (begun, ended) = (self.begun.load(SeqCst), self.ended.load(SeqCst));
        let fd = self.fd.load(Relaxed);
        let found = identity(fd);
        set_errno(before);
        if found == Ok((self.device.load(Relaxed), self.inode.load(Relaxed))) {
            if begun == ended {
                set_proof(begun);
            }
            return Ok(());
        }
        set_proof(NOTHING);
        drop(self.beginning());
        if !self.said.swap(true, Relaxed) {
            let say = |what| {
                log::soon(format_args!(
                    "descriptor {fd}, by which the library asks userfaultfd, {what}: threads that find it so do not \
                     reuse regions. A program should close descriptors that it has not opened before its first \
                     registration"
                ));
            };
            match found {
                Err(NOT_OURS) => say(format_args!("was closed")),
                Err(errno) => say(format_args!("cannot be looked at ({})", InWords(errno))),
                Ok(_) => say(format_args!("is another file now")),
            }
        }
        Err(NOT_OURS)
    }

    #[cold]
    fn beginning(&self) -> Touching<'_> {
        self.begun.fetch_add(1, SeqCst);
        Touching(self)
    }

    /// A call of the C library is about to close or to replace the numbers from `first` to `last`.
    #[inline(always)]
    pub fn touching(&self, first: u32, last: u32) -> Option<Touching<'_>> {
        let fd = self.fd.load(Relaxed);
        let is_there = fd >= 0 && first <= fd as u32 && fd as u32 <= last;
        is_there.then(|| self.beginning())
    }

    /// Closes the number for good, if it is ours in the calling thread's table.
    pub fn close(&self) {
        // The message would blame the program for this close.
        self.said.store(true, Relaxed);
        let touching = self.beginning();
        self.close_in_child();
        drop(touching);
    }

    /// Closes a forked child's copy of the file, if the number still means our file: the parent
    /// would wait for a child that holds the file.
    pub fn close_in_child(&self) {
        self.counts.forget();
        let before = errno();
        let file = Userfaultfd::of_fd(self.fd.load(Relaxed));
        let ours = Ok((self.device.load(Relaxed), self.inode.load(Relaxed)));
        if self.fd.swap(-1, Relaxed) >= 0 && identity(file.fd()) == ours {
            file.close();
        }
        set_errno(before);
    }
}

/// Takes the mmap lock for reading, and releases it: mincore(2) holds it while it looks at a page
/// (`do_mincore`, mm/mincore.c). False if the kernel refuses the call.
fn hold_mmap_lock() -> bool {
    let mut there = 0u8;
    let page = (&raw const WATCH_FD).addr() & !(page_size() as usize - 1);
    let before = errno();
    // SAFETY: the kernel reads no memory, and writes one byte.
    let answer = unsafe { libc::syscall(libc::SYS_mincore, page, 1, &raw mut there) };
    set_errno(before);
    answer == 0
}

/// A call under way that closes or replaces our number. The value is dropped when the call has
/// returned. (If the call never returns, each fence from then on is followed by an fstat.)
#[must_use]
pub struct Touching<'a>(&'a WatchFd);

impl Drop for Touching<'_> {
    #[cold]
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    /// The tests close numbers that another test's file could get.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn open() -> Option<(WatchFd, i32)> {
        let file = Userfaultfd::open().ok()?;
        let number = WatchFd::none();
        number.set(file, identity(file.fd()).ok()?);
        Some((number, file.fd()))
    }

    fn put(fd: i32, by: i32) {
        // SAFETY: `fd` is the test's own.
        let put = unsafe { libc::syscall(libc::SYS_dup3, by, fd, 0) };
        assert_eq!(put, fd.into());
    }

    fn replace(number: &WatchFd, fd: i32, by: i32) {
        let touching = number.touching(fd as u32, fd as u32);
        put(fd, by);
        drop(touching);
    }

    #[test]
    fn only_our_file_passes_the_fence() {
        let _one = ONE_AT_A_TIME.lock();
        let Some((number, fd)) = open() else {
            return;
        };
        assert_eq!(number.fence(), Fence::Passed);
        assert!(number.is_trusted());
        // SAFETY: the call takes no pointers.
        let (ours, epoll) = (unsafe { libc::dup(fd) }, unsafe { libc::epoll_create1(0) });
        let another = Userfaultfd::open().map_or(-1, Userfaultfd::fd);
        for file in [epoll, another] {
            replace(&number, fd, file);
            assert!(matches!(number.fence(), Fence::Lost(_)));
            assert!(!number.unregister(PageRange::new(0, 4096)));
            replace(&number, fd, ours);
            assert!(!number.is_trusted());
            assert_eq!(number.fence(), Fence::Passed);
        }
        // A raw system call is noticed at the next look of any thread, and then by all.
        put(fd, another);
        assert!(number.is_trusted());
        let proved = std::thread::scope(|scope| scope.spawn(|| number.prove()).join().unwrap());
        assert_eq!(proved, Err(NOT_OURS));
        assert!(!number.is_trusted());
        assert!(matches!(number.fence(), Fence::Lost(_)));
        put(fd, ours);
        assert_eq!(number.fence(), Fence::Passed);
        // One that leaves a closed number is noticed at once.
        Userfaultfd::of_fd(fd).close();
        assert!(matches!(number.fence(), Fence::Lost(_)));
        assert!(!number.is_trusted());
        put(fd, epoll);
        assert!(matches!(number.fence(), Fence::Lost(_)));
        number.close_in_child();
        assert!(identity(fd).is_ok(), "it is not ours");
        for file in [fd, ours, another, epoll] {
            Userfaultfd::of_fd(file).close();
        }
    }

    #[test]
    fn a_call_under_way_has_each_fence_look() {
        let _one = ONE_AT_A_TIME.lock();
        let Some((number, fd)) = open() else {
            return;
        };
        let touching = number.touching(0, u32::MAX).unwrap();
        assert_eq!(number.fence(), Fence::Passed);
        assert!(!number.is_trusted());
        drop(touching);
        assert_eq!(number.fence(), Fence::Passed);
        assert!(number.is_trusted() && number.touching(0, fd as u32 - 1).is_none());
        number.close_in_child();
        assert!(!number.exists() && number.touching(0, u32::MAX).is_none());
    }
}
