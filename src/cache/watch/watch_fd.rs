// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptor by which threads of the program use the library's userfaultfd: to register
//! memory, to unregister it, and to ask the fence.
//!
//! The number is in the program's table of descriptors, and the library *keeps* it. The C library's
//! calls that close a number find none there, as they would without the library, and a call that
//! puts another file at the number moves ours first (`capi/descriptors.rs`). In another table the
//! number means another file ([`TABLE`]).
//!
//! A raw system call can still take the number. (The reader has a table of its own, and receives
//! every event whatever happens to the number.) A closed number, a pipe, a socket, a file and a
//! terminal give none of the fence's answers, so the next fence shows it. An epoll file and another
//! userfaultfd give the same answers, EINVAL or EAGAIN. Therefore fstat(2) shows the device and the
//! inode of our file each time memory has been registered: each userfaultfd has an inode of its own
//! since Linux 5.12, and the reader keeps the file open, so no other file gets that inode. Once the
//! number is found to be another's, the fence asks the kernel no more, and no hit passes.
//!
//! Two cases remain (docs/limits.md). In the first, a raw dup2 replaces our number directly by a
//! file that answers EINVAL, and no miss comes between that and a hit. In the second, a thread that
//! has already asked leaves the table by a raw system call. (No ioctl distinguishes our file from
//! another userfaultfd at the fence's price: those that answer without the mmap lock do not check
//! which file watches the memory.)

use crate::watch::userfaultfd::{Fence, HUGE_PAGES, Memory, Userfaultfd, keeps_apart};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use errno::{Errno, errno, set_errno};
use rdmamr_stats::log;
use rdmamr_sys::descriptor::identity;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::seccomp::is_filtered;
use rdmamr_sys::words::InWords;
use rdmamr_sys::{helper_thread, process, thread};

/// The descriptor number of the process's one watch.
#[unsafe(link_section = ".data.rdmamr_hits")]
pub static WATCH_FD: WatchFd = WatchFd::none();

/// A descriptor number of the file, and the file's identity. Each hit reads some of it, in its first
/// cache line.
#[repr(C, align(64))]
pub struct WatchFd {
    /// The number, [`NONE`] or [`LOST`].
    fd: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
    process: AtomicU32,
    said: AtomicBool,
}
const _: () = assert!(core::mem::offset_of!(WatchFd, device) <= 64);

/// There is no watch.
const NONE: i32 = -1;
/// There is one, and another file took its number: the fence cannot ask any more.
const LOST: i32 = -2;

/// The number means another file, or none.
const NOT_OURS: Errno = Errno(libc::EBADF);

impl WatchFd {
    const fn none() -> WatchFd {
        WatchFd {
            fd: AtomicI32::new(NONE),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            process: AtomicU32::new(0),
            said: AtomicBool::new(false),
        }
    }

    /// Takes the number of a file that this thread has just opened, and the file's `identity`.
    pub fn set(&self, file: Userfaultfd, (device, inode): (u64, u64)) {
        self.device.store(device, Relaxed);
        self.inode.store(inode, Relaxed);
        self.process.store(process::id(), Relaxed);
        self.fd.store(file.fd(), Release);
    }

    /// The file. `None` if there is no watch, or if it is lost.
    #[inline(always)]
    fn file(&self) -> Option<Userfaultfd> {
        let fd = self.fd.load(Acquire);
        (fd >= 0).then(|| Userfaultfd::of_fd(fd))
    }

    /// Whether this is the number.
    #[inline(always)]
    pub fn is(&self, fd: i32) -> bool {
        fd >= 0 && fd == self.fd.load(SeqCst)
    }

    /// Whether there is a watch.
    pub fn exists(&self) -> bool {
        self.fd.load(Relaxed) != NONE
    }

    /// Asks the kernel whether a change of memory is in flight. Only threads of the program may call
    /// this.
    #[inline(always)]
    pub fn fence(&self) -> Fence {
        if !TABLE.is_here_of_program() {
            return Fence::Lost(NOT_OURS);
        }
        let Some(file) = self.file() else {
            return Fence::Lost(NOT_OURS);
        };
        match file.fence() {
            // The file was ours at the question if the number has not moved since.
            Fence::Passed if self.is(file.fd()) => Fence::Passed,
            Fence::Lost(errno) => self.look_for_reason(errno),
            Fence::Passed | Fence::Pending => Fence::Pending,
        }
    }

    #[cold]
    #[inline(never)]
    fn look_for_reason(&self, errno: Errno) -> Fence {
        if self.prove().is_ok() && !self.said.swap(true, Relaxed) {
            log::soon(format_args!(
                "the kernel does not let the library ask userfaultfd whether memory is changing ({}): threads \
                 that find it so do not reuse regions. Allow ioctl(2) with UFFDIO_WRITEPROTECT, in a container in \
                 its seccomp profile",
                InWords(errno)
            ));
        }
        Fence::Lost(errno)
    }

    /// Has the kernel report changes of these pages from now on. The range may have holes. Whether they
    /// are registered with our file, [`WatchFd::memory`] proves.
    pub fn register(&self, range: PageRange) -> Result<(), Errno> {
        let file = self.file().filter(|_| TABLE.is_here()).ok_or(NOT_OURS)?;
        let registered = file.register(range);
        // The number may have moved, and the file that took it has the memory.
        if !self.is(file.fd()) {
            return Err(NOT_OURS);
        }
        registered.or_else(|errno| self.prove().and(Err(errno)))
    }

    /// The kind of these pages, which are registered and pinned.
    pub fn memory(&self, pages: PageRange) -> Result<Memory, Errno> {
        let file = self.file().filter(|_| TABLE.is_here()).ok_or(NOT_OURS)?;
        let memory = file.memory(pages);
        // A raw system call may have put another userfaultfd there, which has taken the memory.
        self.prove()?;
        if self.is(file.fd()) {
            Ok(memory)
        } else {
            Err(NOT_OURS)
        }
    }

    /// Ends the registration of memory that is registered with our file. Returns false if part of
    /// the range cannot be registered at all.
    ///
    /// No fstat is needed: if the number is another userfaultfd's, that one does not have this memory,
    /// and from Linux 6.16 on refuses. Before, one file can unregister memory that another has registered
    /// (fs/userfaultfd.c, `userfaultfd_unregister`), and the program may have given the memory to another
    /// since. So the memory is first registered again, which only the file that has it can.
    pub fn unregister(&self, range: PageRange) -> bool {
        let is_ours = |file: &Userfaultfd| {
            keeps_apart() || matches!(file.register(range), Ok(()) | Err(HUGE_PAGES))
        };
        let file = self.file().filter(|_| TABLE.is_here()).filter(is_ours);
        file.is_some_and(|file| file.unregister(range))
    }

    /// Checks by fstat(2) whether the number is ours. If not, no further region is kept, in words. If
    /// that cannot be told now, the number stays: by it memory is unwatched.
    fn prove(&self) -> Result<(), Errno> {
        let before = errno();
        let (fd, found) = loop {
            let fd = self.fd.load(SeqCst);
            let found = identity(fd);
            if self.fd.load(SeqCst) == fd {
                break (fd, found);
            }
        };
        set_errno(before);
        match found {
            Ok(found) if found == self.identity() => return Ok(()),
            Ok(_) => self.lose(fd, "is another file now"),
            Err(NOT_OURS) => self.lose(fd, "was closed"),
            Err(errno) => {
                if !self.said.swap(true, Relaxed) {
                    log::soon(format_args!(
                        "descriptor {fd}, by which the library asks userfaultfd, cannot be looked at ({}): no \
                         region is kept while that is so",
                        InWords(errno)
                    ));
                }
            }
        }
        Err(NOT_OURS)
    }

    fn identity(&self) -> (u64, u64) {
        (self.device.load(Relaxed), self.inode.load(Relaxed))
    }

    /// The number is not ours any more.
    #[cold]
    fn lose(&self, fd: i32, what: &str) {
        // Another thread may have moved the number meanwhile.
        let lost = self.fd.compare_exchange(fd, LOST, SeqCst, SeqCst).is_ok();
        if lost && !self.said.swap(true, Relaxed) {
            log::soon(format_args!(
                "descriptor {fd}, by which the library asks userfaultfd, {what}: no further region is kept. A \
                 program should close by a raw system call no descriptor that it has not opened"
            ));
        }
    }

    /// Our number, if it lies in this range of the calling thread's table. A call of the C library is
    /// about to close these numbers, or to put another file there. (A child of vfork has the
    /// parent's memory, and a table of its own.)
    #[inline(always)]
    pub fn kept_in(&self, first: u32, last: u32) -> Option<i32> {
        let fd = self.fd.load(Relaxed);
        let is_there = fd >= 0 && first <= fd as u32 && fd as u32 <= last;
        is_there.then_some(fd).filter(|_| self.is_of_caller())
    }

    #[cold]
    #[inline(never)]
    fn is_of_caller(&self) -> bool {
        let is_here = self.process.load(Relaxed) == process::id() && TABLE.is_here();
        // A raw system call may have closed it, and the program's next file got it.
        is_here && self.prove().is_ok()
    }

    /// A call of the C library is about to put another file at our number. Moves our file to another
    /// number first. False if the process may have none: then no fence passes until
    /// [`WatchFd::stays`] or for ever.
    #[cold]
    pub fn make_way(&self, fd: i32) -> bool {
        let before = errno();
        let moved = Userfaultfd::of_fd(fd).another_number(fd as u64 + 1);
        let to = moved.map_or(LOST, Userfaultfd::fd);
        let is_first = self.fd.compare_exchange(fd, to, SeqCst, SeqCst).is_ok();
        if let Some(file) = moved.filter(|_| !is_first) {
            // Another thread has made way meanwhile.
            file.close();
        }
        set_errno(before);
        moved.is_some() || !is_first
    }

    /// The call for which there was no other number has failed.
    pub fn stays(&self, fd: i32) {
        let _ = self.fd.compare_exchange(LOST, fd, SeqCst, SeqCst);
    }

    /// Closes the number for good. In a forked child, closes the child's copy of the file: the
    /// parent would wait for a child that holds the file.
    pub fn close(&self) {
        let fd = self.fd.swap(NONE, SeqCst);
        if fd < 0 {
            return;
        }
        let before = errno();
        if identity(fd) == Ok(self.identity()) {
            Userfaultfd::of_fd(fd).close();
        }
        set_errno(before);
    }
}

thread_local! {
    static KNOWN: Cell<Known> = const { Cell::new(Known::Nothing) };
}

/// A thread's knowledge about its table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// The thread had the cache's table, and has another one, or may have.
    Another,
    Here,
    Elsewhere,
}

/// The table of descriptors in which the cache's numbers are valid: that of its userfaultfd, and those
/// of devices. The cleaner shares it with the thread that made the cleaner. A thread can have another
/// table: by unshare(2), by a raw clone(2) without CLONE_FILES, or because the thread that made it has
/// one. In another table the numbers mean other files, so such a thread neither hits nor watches, and
/// deregisters no region of the cache. (A process of one thread hits without the number of the watch,
/// and so without this question.)
pub static TABLE: DescriptorTable = DescriptorTable(AtomicI32::new(0));

/// The number of a thread that shares the table; 0 if there is none.
pub struct DescriptorTable(AtomicI32);

impl DescriptorTable {
    /// This thread of the library shares the table from now on, for ever.
    pub fn set(&self, thread: i32) {
        self.0.store(thread, Release);
    }

    /// Whether the calling thread of the program has this table. If kcmp(2) is refused, the answer
    /// is yes for a thread that has not left a table by a call of the C library.
    #[inline(always)]
    pub fn is_here_of_program(&self) -> bool {
        KNOWN.get() == Known::Here || self.look()
    }

    /// As [`DescriptorTable::is_here_of_program`], for any thread. Those of the library that ask share the
    /// table.
    pub fn is_here(&self) -> bool {
        /// Not inlined: otherwise the compiler may look up the address of a thread-local variable
        /// before the check for a helper thread, and a helper thread dies of that.
        #[inline(never)]
        fn of_program(table: &DescriptorTable) -> bool {
            table.is_here_of_program()
        }
        helper_thread::is_current() || of_program(self)
    }

    #[cold]
    #[inline(never)]
    fn look(&self) -> bool {
        const KCMP_FILES: i32 = 2;
        let known = KNOWN.get();
        if known == Known::Elsewhere {
            return false;
        }
        let thread = self.0.load(Acquire);
        if thread == 0 || is_filtered() {
            return known == Known::Nothing;
        }
        let before = errno();
        let this = thread::id_by_kernel();
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
    pub fn this_thread_left(&self) -> bool {
        !self.is_here() && thread::id_by_kernel() != process::id()
    }

    /// The calling thread may have another table from now on.
    pub fn ask_again(&self) {
        KNOWN.set(Known::Another);
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;
    use rdmamr_sys::helper_thread;
    use rdmamr_sys::pages::page_size;

    /// The tests close numbers that another test's file could get.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn open() -> Option<(WatchFd, i32)> {
        let file = Userfaultfd::open().ok()?;
        let number = WatchFd::none();
        number.set(file, identity(file.fd()).ok()?);
        Some((number, file.fd()))
    }

    #[test]
    fn a_number_taken_by_a_raw_call_is_lost() {
        let _one = ONE_AT_A_TIME.lock();
        // SAFETY: the call takes no pointers.
        let epoll = unsafe { libc::epoll_create1(0) };
        for closed in [true, false] {
            let Some((number, fd)) = open() else {
                return;
            };
            assert_eq!(number.fence(), Fence::Passed);
            if closed {
                Userfaultfd::of_fd(fd).close();
                assert!(matches!(number.fence(), Fence::Lost(_)));
            } else {
                // SAFETY: `fd` is the test's own.
                let put = unsafe { libc::syscall(libc::SYS_dup3, epoll, fd, 0) };
                assert_eq!(put, fd.into());
                assert_eq!(number.register(PageRange::new(0, 4096)), Err(NOT_OURS));
                number.close();
                assert!(identity(fd).is_ok(), "it is not ours");
                Userfaultfd::of_fd(fd).close();
            }
            assert!(matches!(number.fence(), Fence::Lost(_)));
        }
        Userfaultfd::of_fd(epoll).close();
    }

    #[test]
    fn memory_of_another_userfaultfd_is_not_ours() {
        let _one = ONE_AT_A_TIME.lock();
        let (Some((number, fd)), Ok(another)) = (open(), Userfaultfd::open()) else {
            return;
        };
        let page = helper_thread::map(page_size() as usize).unwrap().addr() as u64;
        let page = PageRange::new(page, page + page_size());
        // SAFETY: `fd` is the test's own.
        let put = unsafe { libc::syscall(libc::SYS_dup3, another.fd(), fd, 0) };
        assert_eq!(put, fd.into());
        assert_eq!(number.register(page), Ok(()), "the other file has it");
        assert_eq!(number.memory(page), Err(NOT_OURS));
        another.close();
        Userfaultfd::of_fd(fd).close();
    }

    #[test]
    fn it_makes_way() {
        let _one = ONE_AT_A_TIME.lock();
        let Some((number, fd)) = open() else {
            return;
        };
        assert!(number.make_way(fd));
        assert!(number.exists() && !number.is(fd));
        Userfaultfd::of_fd(fd).close();
        assert_eq!(number.fence(), Fence::Passed);
        number.close();
        assert!(!number.exists());
    }
}
