// SPDX-License-Identifier: MIT OR Apache-2.0
//! userfaultfd(2), as far as it reports changes of memory (include/uapi/linux/userfaultfd.h).
//!
//! The cache registers memory for write protection and never protects it. That raises no fault, and
//! the kernel reports when the memory is unmapped, moved or emptied.
//!
//! The cache never registers memory for missing pages: the kernel's own access to an absent page
//! would fail, and so would the pinning for a registration. It never asks for fork events: they
//! need a privilege, and the parent would wait for the reader of the child's events.
//!
//! # Safety
//! **Local argument:** the pointer of an ioctl points to a local structure that begins with the
//! layout of that ioctl in the kernel's header.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use errno::{Errno, errno};
use rdmamr_sys::descriptor::Descriptor;
use rdmamr_sys::pages::{PageRange, page_size};
use rdmamr_sys::{helper_thread, proc};

const UFFD_API: u64 = 0xaa;
const UFFD_USER_MODE_ONLY: i32 = 1;

const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_EVENT_REMAP: u64 = 1 << 2;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
/// Without this the kernel refuses to watch a chunk in which other memory lies beside a region's.
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const EVENTS: u64 = FEATURE_EVENT_REMAP | FEATURE_EVENT_REMOVE | FEATURE_EVENT_UNMAP;

const REGISTER_MODE_WP: u64 = 1 << 1;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;

/// `struct uffdio_register` and `uffdio_continue`. `uffdio_writeprotect` and `uffdio_range` are its
/// first three and two words.
#[repr(C)]
struct OnRange {
    start: u64,
    len: u64,
    mode: u64,
    /// The ioctls that work on all of the range; of `uffdio_continue` the number of bytes that the
    /// kernel has mapped, or its negative errno.
    answer: i64,
}
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
const UFFDIO_CONTINUE: libc::c_ulong = 0xc020_aa07;

impl OnRange {
    #[inline(always)]
    fn new(range: PageRange, mode: u64) -> OnRange {
        OnRange {
            start: range.start,
            len: range.bytes(),
            mode,
            answer: 0,
        }
    }
}

/// The range is registered, and has huge pages of hugetlb.
pub const HUGE_PAGES: Errno = Errno(libc::ENODEV);

/// In the answer to a registration: UFFDIO_ZEROPAGE.
const CAN_ZERO: i64 = 1 << 0x04;

/// The kernel reports changes, but not for memory that is registered for write protection. x86-64
/// supports that from Linux 5.7 on, arm64 from 6.10 on.
pub const NO_WRITE_PROTECTION: Errno = Errno(libc::EOPNOTSUPP);

const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// An event, as the kernel writes it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Message {
    event: u64,
    arguments: [u64; 3],
}

/// What has changed.
pub enum Report {
    /// Memory was unmapped.
    Unmapped(PageRange),
    /// Memory moved, and the memory that was at its new place is gone.
    Moved(PageRange, PageRange),
    /// The pages are about to be dropped. The drop may happen after the reader has read the
    /// report.
    Dropping(PageRange),
    Other,
}

impl Message {
    /// The meaning of the event.
    pub fn report(&self) -> Report {
        let [first, second, third] = self.arguments;
        let range = PageRange::new(first, second);
        match self.event as u8 {
            EVENT_REMAP => {
                let moved = |start| PageRange::new(start, start + third);
                Report::Moved(moved(first), moved(second))
            }
            EVENT_REMOVE => Report::Dropping(range),
            EVENT_UNMAP => Report::Unmapped(range),
            _ => Report::Other,
        }
    }
}

/// The kind of watched memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// Private, and of no file: only this process can change it.
    Private,
    /// Some of it is shared memory, or of a file of shared memory; or it is in too many mappings.
    Shared,
    /// The kernel does not answer now.
    Unknown,
}

/// Whether the kernel keeps one file from unregistering memory that another file has registered, as
/// Linux does from 6.16 on. False if the kernel gives no answer.
static KEEPS_APART: AtomicBool = AtomicBool::new(false);

/// Asks the kernel. For the reader, which asks before any memory is watched.
pub fn look_whether_files_are_apart() {
    let page = page_size() as usize;
    let Some(memory) = helper_thread::map(page) else {
        return;
    };
    let start = memory.addr() as u64;
    let range = PageRange::new(start, start + page_size());
    let open = Userfaultfd::open_without_events;
    let (one, another) = (open(), open());
    if let (Some(one), Some(another)) = (one, another) {
        let are_apart = one.register(range).is_ok() && !another.unregister(range);
        KEEPS_APART.store(are_apart, Relaxed);
    }
    one.into_iter().chain(another).for_each(Userfaultfd::close);
    // SAFETY: this function mapped the page, and nothing else uses it.
    unsafe { helper_thread::unmap(memory, page) };
}

pub fn keeps_apart() -> bool {
    KEEPS_APART.load(Relaxed)
}

/// A file of userfaultfd.
#[derive(Clone, Copy)]
pub struct Userfaultfd(i32);

/// The answer of the fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fence {
    /// No event is in flight.
    Passed,
    /// An event is in flight: the kernel has changed the address space, or is about to, and the
    /// reader has not read the event.
    Pending,
    /// The errno of an answer that does not come from our file: the number no longer means our
    /// file, or the process may not ask.
    Lost(Errno),
}

impl Userfaultfd {
    /// Opens a file.
    ///
    /// The file does not ask for FEATURE_WP_ASYNC (bit 15), which would let it watch mappings of
    /// files too: to unregister such a mapping is not safe. Linux 6.12 (seen with 6.12.117) runs
    /// into a BUG in `userfaultfd_unregister`, with the mmap lock held, if the mapping merges with
    /// its neighbour during the call.
    pub fn open() -> Result<Userfaultfd, Errno> {
        match Self::open_with(EVENTS | FEATURE_WP_HUGETLBFS_SHMEM) {
            // The kernel does not know the feature.
            Err(Errno(libc::EINVAL)) => Self::open_with(EVENTS),
            result => result,
        }
    }

    /// Opens a file for which no thread waits for a reader.
    pub fn open_without_events() -> Option<Userfaultfd> {
        Self::open_with(0).ok()
    }

    /// These are raw system calls: the caller may be the reader, a thread that the C library does not
    /// know.
    fn open_with(features: u64) -> Result<Userfaultfd, Errno> {
        let file = Userfaultfd(Self::open_file()?);
        let mut api = Api {
            api: UFFD_API,
            features,
            ioctls: 0,
        };
        // SAFETY: local argument.
        let answer = unsafe { libc::syscall(libc::SYS_ioctl, file.0, UFFDIO_API, &raw mut api) };
        let refused = match answer {
            0 if api.features & FEATURE_PAGEFAULT_FLAG_WP != 0 => return Ok(file),
            0 => NO_WRITE_PROTECTION,
            _ => errno(),
        };
        file.close();
        Err(refused)
    }

    fn open_file() -> Result<i32, Errno> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let open = |flags: i32| {
            // SAFETY: the call takes no pointers.
            let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
            if fd >= 0 { Ok(fd as i32) } else { Err(errno()) }
        };
        let opened = match open(flags | UFFD_USER_MODE_ONLY) {
            // Before Linux 5.11.
            Err(Errno(libc::EINVAL)) => open(flags),
            result => result,
        };
        match opened {
            Err(refused @ Errno(libc::EPERM | libc::EACCES | libc::ENOSYS)) => {
                Self::by_device(flags | UFFD_USER_MODE_ONLY).map_err(|errno| match errno.0 {
                    libc::EMFILE | libc::ENFILE | libc::ENOMEM => errno,
                    _ => refused,
                })
            }
            result => result,
        }
    }

    /// Opens a file by the device of Linux 6.1, which seccomp filters do not know. The same
    /// function of the kernel makes it as for the system call (`new_userfaultfd`,
    /// fs/userfaultfd.c), with an inode of its own. The mode of the device decides which processes
    /// may open it.
    fn by_device(flags: i32) -> Result<i32, Errno> {
        const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xaa00;
        let device = Descriptor::open(libc::AT_FDCWD, c"/dev/userfaultfd", libc::O_RDONLY, 0)?;
        // SAFETY: the argument of this ioctl is a number.
        let fd =
            unsafe { libc::syscall(libc::SYS_ioctl, device.number(), USERFAULTFD_IOC_NEW, flags) };
        if fd >= 0 { Ok(fd as i32) } else { Err(errno()) }
    }

    /// The reader's own: [`Userfaultfd::as_only_one`].
    pub const ONLY: Userfaultfd = Userfaultfd(0);

    pub fn of_fd(fd: i32) -> Userfaultfd {
        Userfaultfd(fd)
    }

    pub fn fd(self) -> i32 {
        self.0
    }

    /// Has the kernel report changes of these pages from now on. The range may have holes. The
    /// explicit huge pages of hugetlb are watched too, and told from other memory ([`HUGE_PAGES`]): a
    /// machine has few, and an idle region would hold them.
    ///
    /// The kernel's answer has the ioctls that work on all of the range. Huge pages are recognised
    /// by the lack of UFFDIO_ZEROPAGE: there is no huge page of zeros.
    pub fn register(self, range: PageRange) -> Result<(), Errno> {
        let mut register = OnRange::new(range, REGISTER_MODE_WP);
        match self.call(UFFDIO_REGISTER, &mut register) {
            0 if register.answer & CAN_ZERO != 0 => Ok(()),
            0 => Err(HUGE_PAGES),
            errno => Err(Errno(errno)),
        }
    }

    /// An ioctl on a range. Returns the errno, or 0.
    fn call(self, request: libc::c_ulong, argument: &mut OnRange) -> i32 {
        // SAFETY: local argument. The kernel writes to no other memory.
        match unsafe { libc::syscall(libc::SYS_ioctl, self.0, request, &raw mut *argument) } {
            0 => 0,
            _ => errno().0,
        }
    }

    /// Ends the registration. Returns false if part of the range cannot be registered at all.
    pub fn unregister(self, range: PageRange) -> bool {
        self.call(UFFDIO_UNREGISTER, &mut OnRange::new(range, 0)) == 0
    }

    /// The kind of these pages, which this file watches, and which are pinned.
    ///
    /// For private memory of no file the kernel always refuses UFFDIO_CONTINUE with EINVAL
    /// (`mfill_atomic`, mm/userfaultfd.c). For shared memory it gives EEXIST, since the first page is
    /// there. (If it were not, the call would map it, even in the place of a guard page.) A question
    /// about several mappings gives ENOENT, so it is asked again about less.
    pub fn memory(self, range: PageRange) -> Memory {
        const QUESTIONS: u32 = 64;
        let mut part = range;
        for _ in 0..QUESTIONS {
            let mut question = OnRange::new(part, 0);
            match self.call(UFFDIO_CONTINUE, &mut question) {
                libc::EINVAL if part.end == range.end => return Memory::Private,
                libc::EINVAL => part = PageRange::new(part.end, range.end),
                libc::ENOENT if part.bytes() > page_size() => {
                    let half = (part.bytes() / 2).next_multiple_of(page_size());
                    part.end = part.start + half;
                }
                libc::ENOENT => return Memory::Unknown,
                libc::EAGAIN if question.answer <= 0 => return Memory::Unknown,
                _ => return Memory::Shared,
            }
        }
        Memory::Shared
    }

    /// Whether no shared memory passes for private: [`Userfaultfd::memory`] tells them apart (from Linux
    /// 5.14 on), or userfaultfd cannot watch shared memory (before 5.19).
    pub fn tells_shared_memory(self) -> bool {
        let (size, flags) = (page_size(), libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let page = unsafe {
            let read = libc::PROT_READ;
            libc::syscall(
                libc::SYS_mmap,
                null_mut::<u8>(),
                size,
                read,
                flags,
                -1,
                0usize,
            )
        };
        if page == -1 {
            return false;
        }
        let range = PageRange::new(page as u64, page as u64 + size);
        let registered = self.register(range);
        let is_refused = registered == Err(Errno(libc::EINVAL));
        let tells = is_refused || registered.is_ok() && self.memory(range) == Memory::Shared;
        // Nobody reads the event of an unmapping: a page that is still watched stays.
        if !self.unregister(range) && !is_refused {
            return false;
        }
        // SAFETY: this function mapped the page, and nothing else uses it.
        unsafe { libc::syscall(libc::SYS_munmap, page, size) };
        tells
    }

    /// Asks whether an event is in flight. The kernel always refuses to protect a range of length
    /// 0, with EAGAIN if an event is in flight (`userfaultfd_writeprotect`, fs/userfaultfd.c:
    /// `mmap_changing`).
    ///
    /// An argument at an address of the kernel would give EFAULT, which an epoll file does not. But
    /// Linux 6.18 takes a fault for that: the call takes 1700 ns in place of 360.
    #[inline(always)]
    pub fn fence(self) -> Fence {
        let mut nothing = OnRange::new(PageRange::new(0, 0), 0);
        match ask(self.0, UFFDIO_WRITEPROTECT, &mut nothing) {
            libc::EINVAL => Fence::Passed,
            libc::EAGAIN => Fence::Pending,
            errno => Fence::Lost(Errno(errno)),
        }
    }

    /// Reads the events that are there, at most as many as fit, without waiting.
    pub fn read(self, messages: &mut [Message]) -> Result<usize, Errno> {
        let size = size_of_val(messages);
        // SAFETY: `messages` is a writable slice of `size` bytes, and any bits are a valid
        // `Message`.
        let read = unsafe { libc::syscall(libc::SYS_read, self.0, messages.as_mut_ptr(), size) };
        match read {
            1.. => Ok(read as usize / size_of::<Message>()),
            0 => Err(Errno(libc::EBADF)),
            _ if errno().0 == libc::EAGAIN => Ok(0),
            _ => Err(errno()),
        }
    }

    /// Gives the file the number 0, and closes every other number of the calling thread's table,
    /// which is the thread's own. `None` if the kernel refuses the number.
    pub fn as_only_one(self) -> Option<Userfaultfd> {
        // SAFETY: the calling thread is this library's own, and has a table for itself: no other
        // thread uses its numbers.
        if self.0 != 0 && unsafe { libc::syscall(libc::SYS_dup3, self.0, 0, 0) } < 0 {
            return None;
        }
        helper_thread::close_from(1);
        Some(Userfaultfd::ONLY)
    }

    /// A number near the end of the table that the program has (64 entries at first, then powers of
    /// 2): some programs close or reuse the lowest numbers. For a larger number the kernel would make
    /// the table larger, and in a process with threads wait for an RCU grace period: some 10 ms.
    pub fn high_number(self) -> u64 {
        const ENTRIES: u32 = 64;
        const FROM_END: u64 = 4;
        const APART: u32 = 16;
        let entries = (self.0 as u32 + APART).next_power_of_two().max(ENTRIES);
        let most = proc::limit(libc::RLIMIT_NOFILE).unwrap_or(u64::MAX);
        u64::from(entries).min(most).saturating_sub(FROM_END)
    }

    /// A further number for the file, from `least` on or else any. The file stays at this number too.
    /// `None` if the process may have no further one.
    pub fn another_number(self, least: u64) -> Option<Userfaultfd> {
        [least, 3].into_iter().find_map(|least| {
            // SAFETY: the call takes no pointers.
            let number =
                unsafe { libc::syscall(libc::SYS_fcntl, self.0, libc::F_DUPFD_CLOEXEC, least) };
            (number >= 0).then_some(Userfaultfd(number as i32))
        })
    }

    pub fn close(self) {
        // SAFETY: `self` is a file that this library opened. Its callers make sure that the number
        // is still its own.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Waits until a file, whose number is below 64, can be read, or for a signal. False if the kernel
/// refuses to wait.
///
/// poll(2) would fail as soon as the program lowers RLIMIT_NOFILE to 0, as a sandbox does.
pub fn wait_for(file: Userfaultfd) -> bool {
    let mut files = 1u64 << file.fd();
    let none = core::ptr::null::<u64>();
    // SAFETY: `files` is one local word, and the kernel reads and writes no bits from the first
    // argument on, rounded up to a word. The null pointers mean no other files, no limit and no mask.
    let ready = unsafe {
        libc::syscall(
            libc::SYS_pselect6,
            file.fd() + 1,
            &raw mut files,
            none,
            none,
            none,
            none,
        )
    };
    ready >= 0 || errno().0 == libc::EINTR
}

/// The ioctl of the fence, which is most of the cost of a fenced hit. It bypasses errno and the C
/// library's wrapper. Returns the errno.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn ask(fd: i32, request: libc::c_ulong, argument: &mut OnRange) -> i32 {
    let result: i64;
    // SAFETY: the registers follow the system call's convention, and the clobbers are declared.
    // Local argument. The kernel writes to no other memory.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_ioctl => result,
            in("rdi") i64::from(fd),
            in("rsi") request,
            in("rdx") &raw mut *argument,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    -result as i32
}

#[cfg(not(target_arch = "x86_64"))]
fn ask(fd: i32, request: libc::c_ulong, argument: &mut OnRange) -> i32 {
    rdmamr_sys::thread::keep_errno(|| Userfaultfd(fd).call(request, argument))
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    /// Maps eight pages with a read of each: of no file, or of this one.
    fn mapped(sharing: i32, fd: i32) -> PageRange {
        let page = page_size() as usize;
        let (size, rights) = (8 * page, libc::PROT_READ | libc::PROT_WRITE);
        let anonymous = if fd < 0 { libc::MAP_ANONYMOUS } else { 0 };
        let flags = sharing | anonymous | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let memory = unsafe { libc::mmap(null_mut(), size, rights, flags, fd, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        let start = memory.addr() as u64;
        PageRange::new(start, start + size as u64)
    }

    #[test]
    fn the_kernel_tells_kinds_of_memory() {
        let Ok(file) = Userfaultfd::open() else {
            return;
        };
        assert!(file.tells_shared_memory());
        // SAFETY: the name ends with a NUL.
        let memfd = unsafe { libc::memfd_create(c"kind".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: the call takes no pointers.
        assert_eq!(unsafe { libc::ftruncate(memfd, 1 << 20) }, 0);
        let ask = |range: PageRange| file.register(range).map(|()| file.memory(range));
        for (sharing, fd, kind) in [
            (libc::MAP_PRIVATE, -1, Memory::Private),
            (libc::MAP_SHARED, -1, Memory::Shared),
            (libc::MAP_PRIVATE, memfd, Memory::Shared),
            (libc::MAP_SHARED, memfd, Memory::Shared),
        ] {
            let range = mapped(sharing, fd);
            // Before Linux 5.19 shared memory cannot be watched.
            let told = ask(range).unwrap_or(Memory::Shared);
            assert_eq!(told, kind, "{sharing} {fd}");
            // In several mappings.
            let page = page_size();
            let second = PageRange::new(range.start + page, range.start + 2 * page);
            let address = core::ptr::with_exposed_provenance_mut(second.start as usize);
            // SAFETY: the page is this test's own.
            unsafe { libc::mprotect(address, page as usize, libc::PROT_READ) };
            assert_eq!(ask(range).unwrap_or(Memory::Shared), kind, "{sharing} {fd}");
            file.unregister(PageRange::new(range.end - page, range.end));
            assert_ne!(
                file.memory(range),
                Memory::Private,
                "not all of it is watched"
            );
            file.unregister(range);
        }
        file.close();
        Userfaultfd(memfd).close();
    }

    /// The properties that the library relies on hold for a file of the device as for one of the
    /// system call.
    #[test]
    fn the_device_makes_the_same_file() {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | UFFD_USER_MODE_ONLY;
        let (Ok(one), Ok(another), Ok(called)) = (
            Userfaultfd::by_device(flags),
            Userfaultfd::by_device(flags),
            Userfaultfd::open_file(),
        ) else {
            return;
        };
        let about = |fd: i32| {
            let mut about = core::mem::MaybeUninit::<libc::stat>::uninit();
            // SAFETY: `about` is a local structure that the call may write.
            assert_eq!(unsafe { libc::fstat(fd, about.as_mut_ptr()) }, 0);
            // SAFETY: the call succeeded.
            let about = unsafe { about.assume_init() };
            let name = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
            // SAFETY: the call takes no pointers.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
            let mut api = Api {
                api: UFFD_API,
                features: EVENTS,
                ioctls: 0,
            };
            // SAFETY: local argument.
            assert_eq!(unsafe { libc::ioctl(fd, UFFDIO_API, &raw mut api) }, 0);
            (
                about.st_ino,
                (about.st_dev, name, flags, api.features, api.ioctls),
            )
        };
        let (one, another, called) = (about(one), about(another), about(called));
        assert!(
            one.0 != another.0 && one.0 != called.0,
            "an inode of its own"
        );
        assert_eq!(one.1, called.1);
        assert_eq!(another.1, called.1);
    }
}
