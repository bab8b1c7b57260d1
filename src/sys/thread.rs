// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the calling thread: its number, and whether it is inside the library, where it may
//! hold a lock.
//!
//! All of it is constant-initialised and has no destructor, so it works at any time: in a
//! constructor of another library, in a signal handler, after the thread's own destructors have
//! run.

use super::descriptor::{Descriptor, about};
use super::pages::PageRange;
use super::proc;
use core::cell::Cell;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*, compiler_fence};

struct Thread {
    inside: AtomicBool,
    number: Cell<u32>,
    /// The process that asked the kernel for the thread's number, and that number.
    id: Cell<(usize, u32)>,
}

const NO_NUMBER: u32 = u32::MAX;

thread_local! {
    static THREAD: Thread = const {
        Thread {
            inside: AtomicBool::new(false),
            number: Cell::new(NO_NUMBER),
            id: Cell::new((0, 0)),
        }
    };
}

/// Does the work, and leaves errno as it was.
#[inline(always)]
pub fn keep_errno<R>(work: impl FnOnce() -> R) -> R {
    let before = errno::errno();
    let result = work();
    errno::set_errno(before);
    result
}

/// Held while this thread holds a lock of the library. A signal handler that interrupts the thread
/// and calls the library would wait forever for the thread's own lock; it finds [`is_inside`] true
/// and forwards the call.
pub struct Inside {
    /// Whether the thread was inside before.
    was_inside: bool,
}

/// Marks this thread as inside until the value is dropped. A thread that is inside already stays
/// inside when the inner value is dropped.
#[inline]
pub fn enter() -> Inside {
    let was_inside = THREAD.with(|thread| {
        let was_inside = thread.inside.load(Relaxed);
        thread.inside.store(true, Relaxed);
        was_inside
    });
    // The handler runs on this very thread, so only the compiler could reorder what it sees.
    compiler_fence(SeqCst);
    Inside { was_inside }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        THREAD.with(|thread| thread.inside.store(self.was_inside, Relaxed));
    }
}

/// Whether this thread is inside: the caller is a signal handler that interrupted it there, or a call
/// that the library made itself.
#[inline]
pub fn is_inside() -> bool {
    THREAD.with(|thread| thread.inside.load(Relaxed))
}

unsafe extern "C" {
    /// pthread_setcancelstate(3), which works in a signal handler.
    fn pthread_setcancelstate(new: c_int, old: *mut c_int) -> c_int;
}

/// While this value exists, the thread is not cancelled. A function of the C library that is a
/// cancellation point (open, close, read, write) would unwind the library's frames, and the boundary
/// that stops panics would end the process. libibverbs and its providers call such functions: to
/// close a device, to ask the kernel by netlink, to read the size of huge pages from a file, and to
/// make a command by write. So this value exists during each call of libibverbs that can do so. The
/// cancellation acts at the thread's next cancellation point.
pub struct Uncancelled(c_int);

/// Puts off the cancellation of this thread, which must be one that the C library knows.
pub fn uncancelled() -> Uncancelled {
    const DISABLE: c_int = 1;
    let mut before = 0;
    // SAFETY: the integer is writable.
    unsafe { pthread_setcancelstate(DISABLE, &mut before) };
    Uncancelled(before)
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: a null pointer asks for no answer.
        unsafe { pthread_setcancelstate(self.0, core::ptr::null_mut()) };
    }
}

/// This thread's number in the kernel. Each process asks for it once: `process` is a number unique
/// to this process.
pub fn id(process: usize) -> u32 {
    THREAD.with(|thread| {
        if thread.id.get().0 != process {
            thread.id.set((process, id_by_kernel()));
        }
        thread.id.get().1
    })
}

/// The calling task's number in the kernel. It needs no thread-local variable.
pub fn id_by_kernel() -> u32 {
    // SAFETY: gettid takes no arguments.
    (unsafe { libc::syscall(libc::SYS_gettid) }) as u32
}

/// The process's number, by the system call itself.
pub fn process_id() -> u32 {
    // SAFETY: getpid takes no arguments.
    (unsafe { libc::syscall(libc::SYS_getpid) }) as u32
}

/// The memory of the stack that the calling thread began with: the kernel's for the first thread,
/// the C library's for others. `None` if it is not known.
pub fn own_stack() -> Option<Range<usize>> {
    if id_by_kernel() == process_id() {
        const MOST: u64 = 8 << 20;
        let top = main_stack_top() as usize;
        let size = proc::limit(libc::RLIMIT_STACK).unwrap_or(MOST).min(MOST) as usize;
        return Some(top.checked_sub(size)?..top);
    }
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut start, mut size) = (null_mut(), 0);
    // SAFETY: pthread_self has no preconditions.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the C library made this thread, or the one whose thread-local storage this one
    // shares.
    if unsafe { libc::pthread_getattr_np(this, attributes.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the attributes were made above.
    let failed = unsafe { libc::pthread_attr_getstack(attributes.as_ptr(), &mut start, &mut size) };
    // SAFETY: the attributes are not used again.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    (failed == 0).then(|| start.addr()..start.addr() + size)
}

/// The top of the main thread's stack, where the kernel put these bytes.
fn main_stack_top() -> u64 {
    /// Known from the first call on: a miss asks twice, and getauxval(3) searches a list.
    static TOP: AtomicU64 = AtomicU64::new(0);
    if TOP.load(Relaxed) == 0 {
        // SAFETY: getauxval has no preconditions.
        TOP.store(unsafe { libc::getauxval(libc::AT_RANDOM) }, Relaxed);
    }
    TOP.load(Relaxed)
}

/// Whether some of the range is the main thread's stack: of the addresses that the kernel keeps for that
/// stack alone, at least 128 MiB below its top (`mmap_base`).
pub fn is_on_main_stack(range: PageRange) -> bool {
    const KEPT: u64 = 128 << 20;
    let top = main_stack_top();
    range.end > top.saturating_sub(KEPT) && range.start <= top
}

/// Whether the calling thread is the newest of the process: the last one that a tracer stops, since tracers
/// take the threads in the order of /proc/self/task, that of their start. `None` if it is not known. The
/// files have numbers of the calling thread's table.
pub fn is_newest() -> Option<bool> {
    #[repr(align(8))]
    struct Entry([u8; 64]);
    /// The offset of a record's name, getdents64(2).
    const NAME: usize = 19;
    /// The links of the folder, and its entries, before those of the threads.
    const OTHERS: usize = 2;
    let mut own = [0u8; 64];
    let (path, to, size) = (c"/proc/thread-self", own.as_mut_ptr(), own.len() - 1);
    // SAFETY: the path ends with a NUL, and the bytes are writable.
    let length = unsafe { libc::syscall(libc::SYS_readlink, path.as_ptr(), to, size) };
    let own = own.get(..usize::try_from(length).ok()?)?;
    let slash = own.iter().rposition(|&byte| byte == b'/')?;
    let all = c"/proc/self/task";
    let all = Descriptor::open(libc::AT_FDCWD, all, libc::O_DIRECTORY, 0).ok()?;
    let links = usize::try_from(about(all.number()).ok()?.st_nlink).ok()?;
    let place = links.checked_sub(1).filter(|&last| last >= OTHERS)?;
    // SAFETY: the call takes no pointers.
    unsafe { libc::syscall(libc::SYS_lseek, all.number(), place, libc::SEEK_SET) };
    let mut last = Entry([0; 64]);
    let (to, size) = (last.0.as_mut_ptr(), last.0.len());
    // SAFETY: the bytes are writable, and aligned for the kernel's records.
    let read = unsafe { libc::syscall(libc::SYS_getdents64, all.number(), to, size) };
    let name = last.0.get(NAME..usize::try_from(read).ok()?)?;
    let name = name.split(|&byte| byte == 0).next()?;
    Some(name == &own[slash + 1..])
}

/// Whether there is a task with this number, of this process or of another. Leaves errno.
pub fn exists(id: u32) -> bool {
    keep_errno(|| {
        // SAFETY: signal 0 is not sent: the kernel only looks for the task.
        let found = unsafe { libc::syscall(libc::SYS_tkill, id, 0) } == 0;
        found || errno::errno().0 != libc::ESRCH
    })
}

/// The thread pointer, which identifies this thread as long as it runs. A later thread may have the
/// same value. Reading it takes one instruction; a thread-local variable of a library that may be
/// loaded late takes a call.
#[inline(always)]
pub fn pointer() -> usize {
    let pointer: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the ABI keeps the thread pointer at its own address, segment fs.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, pure, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction reads a register that user space may read.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, pure, nomem, preserves_flags));
    }
    #[cfg(target_arch = "riscv64")]
    // SAFETY: the ABI keeps the thread pointer in register `tp`.
    unsafe {
        core::arch::asm!("mv {}, tp", out(reg) pointer, options(nostack, pure, nomem, preserves_flags));
    }
    pointer
}

/// A thread's number: threads are numbered in the order of their first call.
#[derive(Clone, Copy)]
pub struct Number(u32);

impl Number {
    /// The number of the cache's helper threads, which have no thread-local variables to keep a
    /// number in. It shares its counters with threads that came late.
    pub const HELPER: Number = Number(NO_NUMBER >> 1);

    /// The number as an index.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// This thread's number.
#[inline]
pub fn number() -> Number {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    THREAD.with(|thread| {
        if thread.number.get() == NO_NUMBER {
            let next = NEXT.fetch_add(1, Relaxed) & (NO_NUMBER >> 1);
            thread.number.set(next);
        }
        Number(thread.number.get())
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{enter, is_inside};

    #[test]
    fn the_outer_mark_outlasts_the_inner_one() {
        let outer = enter();
        drop(enter());
        assert!(is_inside());
        drop(outer);
        assert!(!is_inside());
    }
}
