// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that the C library does not know.
//!
//! A thread made by pthread_create would change the program. If main ended by pthread_exit and the
//! last other thread ended too, the process would not end. malloc and the program would take the
//! locks of multi-threaded programs from then on. `__libc_single_threaded`, by which the library
//! knows that no fence is needed, would be false forever. Helper threads are therefore made by
//! clone(2), on memory of their own. Of their thread-local storage only errno is valid, so the code
//! that they run must use no other: no malloc, no thread_local, no panic and nothing of std. It
//! must also call no function that another library may replace, such as read or ioctl. Atomics and
//! syscall(2) remain.
//!
//! Helper threads block all signals. Like any thread that glibc does not know, they keep the
//! credentials that the process had at their start if the process changes its user later (see
//! docs/limits.md).

use super::pages::{FAR_AWAY, LARGEST_PAGE};
use super::{proc, signals, thread, valgrind};
use crate::descriptor::{Descriptor, identity};
use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};
use errno::{Errno, errno, set_errno};

const STACK: usize = 64 << 10;
const GUARD: usize = LARGEST_PAGE;

/// The number of bytes above the stack, in its first page: they hold a word.
const TOP: usize = 64;

/// More than the size of glibc's data about a thread, on either side of the thread pointer.
const ABOUT: usize = 16 << 10;

/// The function that clone(2) runs in the new task.
pub type Task = unsafe extern "C" fn(*mut c_void) -> c_int;

unsafe extern "C" {
    /// The C library's other name for clone(2). A call by the plain name is bound to a function of the
    /// program, if that has one of this name, or else to this library's (`capi/tasks.rs`).
    pub fn __clone(
        run: Option<Task>,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        ...
    ) -> c_int;
}

/// The thread pointers of the threads that run forever.
static POINTERS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

/// Whether the calling thread is one that runs forever, and so has no thread-local variables.
pub fn is_current() -> bool {
    let pointer = thread::pointer();
    POINTERS.iter().any(|one| one.load(Relaxed) == pointer)
}

/// The calling thread, one of [`start`], returns at once: another may have its place.
pub fn leave() {
    let pointer = thread::pointer();
    for one in &POINTERS {
        let _ = one.compare_exchange(pointer, 0, Relaxed, Relaxed);
    }
}

/// Starts a thread that runs `run` with `argument` forever, and that shares the table of descriptors
/// with the calling thread. Returns the thread's number, `None` if no thread could be made.
///
/// # Safety
/// `run` keeps the module's rules, and the target of `argument` is never freed.
pub unsafe fn start(
    run: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> Option<i32> {
    // SAFETY: `run` keeps the module's rules, the target of `argument` is never freed, and the place is
    // new.
    unsafe { Place::map()?.start(run, argument) }
}

/// Whether a thread of [`start`] may end: [`end_together`].
pub fn may_end() -> bool {
    ALL_RUN.load(Relaxed) == 0
}

/// Gives the calling thread, one of the library's, a table of descriptors of its own, which has the
/// program's file `fd`. Returns the file's number there.
///
/// For the time of one system call the table has copies of the program's first 64 numbers, which the
/// kernel makes in any case. Where the file cannot be fetched afterwards, it has all numbers up to
/// `fd`, until the caller closes them: filters of containers refuse pidfd_getfd(2), and the process's
/// first thread may have another table, or have ended.
pub fn leave_table(fd: i32) -> Result<i32, Errno> {
    const CLOSE_RANGE_UNSHARE: u32 = 2;
    let close_from = |first: i32| {
        // SAFETY: the call takes no pointers, and changes this thread's own table alone.
        unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOSE_RANGE_UNSHARE) == 0 }
    };
    let which = identity(fd)?;
    if can_fetch() && close_from(0) {
        let fetched = fetch(fd)?;
        // A raw system call may have given the number to another file.
        let is_it = identity(fetched) == Ok(which);
        return is_it.then_some(fetched).ok_or(Errno(libc::EBADF));
    }
    // Where close_range(2) is refused, unshare(2) copies every number.
    // SAFETY: as above.
    let left =
        close_from(fd + 1) || unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_FILES) } == 0;
    if left { Ok(fd) } else { Err(errno()) }
}

/// Whether [`fetch`] would succeed: the kernel knows its calls, no filter refuses them, and the
/// process's first thread has this thread's table.
fn can_fetch() -> bool {
    const KCMP_FILES: i32 = 2;
    let (process, this) = (thread::process_id(), thread::id_by_kernel());
    // SAFETY: the call takes no pointers.
    let same = unsafe { libc::syscall(libc::SYS_kcmp, process, this, KCMP_FILES, 0, 0) };
    let is_known = |call, wrong: i32| {
        // SAFETY: the call takes no pointers, and nothing has the number -1.
        let result = unsafe { libc::syscall(call, -1, 0, 0) };
        result < 0 && errno().0 == wrong
    };
    same == 0
        && is_known(libc::SYS_pidfd_open, libc::EINVAL)
        && is_known(libc::SYS_pidfd_getfd, libc::EBADF)
}

/// A file of the table of the process's first thread. Returns its number in the calling thread's.
fn fetch(fd: i32) -> Result<i32, Errno> {
    // SAFETY: the call takes no pointers.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, thread::process_id(), 0) };
    let process = Descriptor::made(opened)?;
    // SAFETY: as above.
    let fetched = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.number(), fd, 0) };
    (fetched >= 0).then_some(fetched as i32).ok_or_else(errno)
}

/// The memory of a thread: a guard, its stack, [a word](Place::running) and its thread-local storage. It
/// stays mapped if a thread has it when it is dropped.
pub struct Place {
    memory: *mut c_void,
    size: usize,
    /// The thread pointer.
    tls: *mut c_void,
}

/// A thread that ends. If it is not joined, its memory stays mapped.
pub struct Ending(Place);

/// Starts a thread that runs `run` with `argument`, to be joined. `None` if no thread could be
/// made.
///
/// # Safety
/// `run` keeps the module's rules, and the target of `argument` lives until `run` returns.
pub unsafe fn start_ending(
    run: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> Option<Ending> {
    let place = Place::map()?;
    // SAFETY: the same contract, and the place is new.
    unsafe { place.run(run, argument, false) }?;
    Some(Ending(place))
}

impl Place {
    /// Memory for a thread. `None` if there can be none, with errno.
    pub fn map() -> Option<Place> {
        // It would end the process.
        if valgrind::is_running() {
            set_errno(Errno(libc::ENOSYS));
            return None;
        }
        // SAFETY: __errno_location has no preconditions.
        let errno = unsafe { libc::__errno_location() }.addr();
        let pointer = thread::pointer();
        let below = (pointer.saturating_sub(errno) + ABOUT).next_multiple_of(4096);
        let above = (errno.saturating_sub(pointer) + ABOUT).next_multiple_of(4096);
        let size = GUARD + STACK + below + above;
        let memory = map(size)?;
        // SAFETY: the page is the start of the new mapping, below the stack.
        unsafe { libc::syscall(libc::SYS_mprotect, memory, GUARD, libc::PROT_NONE) };
        let tls = memory.wrapping_byte_add(GUARD + STACK + below);
        // x86-64 reads the thread pointer itself from its first and third word; other architectures
        // ignore these words.
        for word in [0, 2] {
            // SAFETY: `above` bytes follow the pointer.
            unsafe { tls.cast::<*mut c_void>().wrapping_add(word).write(tls) };
        }
        Some(Place { memory, size, tls })
    }

    /// As [`start`], here.
    ///
    /// # Safety
    /// As for [`start`], and no thread has the place.
    pub unsafe fn start(
        &self,
        run: extern "C" fn(*mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> Option<i32> {
        // SAFETY: the same contract.
        unsafe { self.run(run, argument, true) }
    }

    /// # Safety
    /// No thread has the place. `run` keeps the module's rules, and the target of `argument` lives until
    /// `run` returns.
    unsafe fn run(
        &self,
        run: extern "C" fn(*mut c_void) -> c_int,
        argument: *mut c_void,
        forever: bool,
    ) -> Option<i32> {
        let (stack, tls) = (self.memory.wrapping_byte_add(GUARD + STACK - TOP), self.tls);
        let mine = |one: &&AtomicUsize| {
            let free = one.compare_exchange(0, tls.addr(), Relaxed, Relaxed);
            free.is_ok()
        };
        let noted = forever.then(|| POINTERS.iter().find(mine)).flatten();
        if forever && noted.is_none() {
            // It would take itself for a thread of the program.
            set_errno(Errno(libc::EAGAIN));
            return None;
        }
        let running = self.running().as_ptr().cast::<c_int>();
        // The end of a thread that runs forever is a kill, unless another takes its work.
        let cleared = match forever && ALL_RUN.load(Relaxed) != 0 {
            true => ALL_RUN.as_ptr().cast(),
            false => running,
        };
        let blocked = signals::block();
        // Without CLONE_FS: setns(2) of a mount namespace refuses a thread that shares its directories.
        // Without CLONE_SYSVSEM: a thread that leaves the list of semaphore adjustments, by unshare(2),
        // undoes them only if it was the last.
        let flags = libc::CLONE_VM
            | libc::CLONE_FILES
            | libc::CLONE_SIGHAND
            | libc::CLONE_THREAD
            | libc::CLONE_SETTLS
            | libc::CLONE_PARENT_SETTID
            | libc::CLONE_CHILD_CLEARTID;
        // SAFETY: the stack belongs to the new thread alone, and `run` keeps the module's rules.
        let number = unsafe { __clone(Some(run), stack, flags, argument, running, tls, cleared) };
        signals::restore(blocked);
        if let Some(noted) = noted.filter(|_| number < 0) {
            noted.store(0, Relaxed);
        }
        (number >= 0).then_some(number)
    }

    /// The thread's number while it runs. When the thread has left its stack for good, the kernel
    /// sets the word to 0 and wakes the waiters. The word lies right above the stack, whose first
    /// page is in use anyway.
    fn running(&self) -> &AtomicU32 {
        // SAFETY: the word is inside the mapping, aligned, and only ever used as an atomic.
        unsafe { &*self.memory.wrapping_byte_add(GUARD + STACK - TOP).cast() }
    }

    /// Whether no thread has the place, or the one that had it has left its stack for good.
    pub fn is_free(&self) -> bool {
        self.running().load(Acquire) == 0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_free() {
            // SAFETY: `map` mapped the memory, and no thread has it.
            unsafe { unmap(self.memory, self.size) };
        }
    }
}

impl Ending {
    /// Whether the thread has left its stack for good.
    pub fn has_ended(&self) -> bool {
        self.0.is_free()
    }

    /// Waits for the thread's end.
    pub fn join(self) {
        wait_until_cleared(self.0.running());
    }
}

/// Waits until the kernel has cleared the word at a thread's end.
fn wait_until_cleared(word: &AtomicU32) {
    loop {
        let number = word.load(Acquire);
        if number == 0 {
            return;
        }
        // Not FUTEX_PRIVATE: the kernel's wake at a thread's end is not private.
        let (wait, for_ever) = (libc::FUTEX_WAIT, null_mut::<c_void>());
        // SAFETY: the word is readable, and the call writes nothing.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), wait, number, for_ever) };
    }
}

/// 1 in a process of [`end_together`], until the kernel clears it.
static ALL_RUN: AtomicU32 = AtomicU32::new(0);

/// From now on this process, which has one thread, ends with status 1 when that thread ends, or one of
/// [`start`]. A seccomp filter may kill a thread alone (SECCOMP_RET_KILL_THREAD): the others would wait
/// for it forever.
pub fn end_together() {
    extern "C" fn end(_: *mut c_void) -> c_int {
        wait_until_cleared(&ALL_RUN);
        // SAFETY: the call takes no pointer.
        unsafe { libc::syscall(libc::SYS_exit_group, 1) };
        1
    }
    // If the filter kills at the call by which the new thread waits, it kills here, while there is one
    // thread: the word is still 0, so this call returns.
    let (wait, another, for_ever) = (libc::FUTEX_WAIT, 1, null_mut::<c_void>());
    // SAFETY: the word is readable, and the call writes nothing.
    unsafe { libc::syscall(libc::SYS_futex, ALL_RUN.as_ptr(), wait, another, for_ever) };
    // SAFETY: the word is never freed.
    unsafe { libc::syscall(libc::SYS_set_tid_address, ALL_RUN.as_ptr()) };
    ALL_RUN.store(1, Release);
    // SAFETY: `end` keeps the module's rules, and has no argument. A kernel that refuses this thread
    // refuses the next one too.
    let _ = unsafe { start_ending(end, null_mut()) };
}

/// Maps memory for the library itself, far from the program's. This function and `unmap` make raw
/// system calls: this library's own mmap and munmap must not see them, since they may be the
/// callers.
pub fn map(size: usize) -> Option<*mut c_void> {
    /// The next place: each mapping gets a place of its own while the kernel has room there.
    static PLACE: AtomicU32 = AtomicU32::new(0);
    const PLACES: u32 = 4096;
    const APART: usize = 1 << 20;
    let place = (PLACE.fetch_add(1, Relaxed) % PLACES) as usize;
    let at = FAR_AWAY - (place + 1) * APART;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let (no_file, offset) = (-1isize, 0usize);
    // SAFETY: the call makes a new mapping and touches no other.
    let memory = unsafe { libc::syscall(libc::SYS_mmap, at, size, rights, flags, no_file, offset) };
    (memory != -1).then(|| with_exposed_provenance_mut(memory as usize))
}

/// Unmaps memory of [`map`].
///
/// # Safety
/// [`map`] returned `memory` for that size, and the memory is not used again.
pub unsafe fn unmap(memory: *mut c_void, size: usize) {
    // SAFETY: `map` returned this memory, and it is not used again (this function's contract).
    unsafe { libc::syscall(libc::SYS_munmap, memory, size) };
}

/// The default of fs.nr_open: an unprivileged process has no greater number.
const DEFAULT_NR_OPEN: u32 = 1 << 20;

/// Closes every number from `first` on of the calling thread's table, which is the thread's own.
pub fn close_from(first: u32) {
    // SAFETY: the calling thread is this library's own, and has a table for itself: no other code
    // uses its numbers.
    if unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) } == 0 {
        return;
    }
    // Before Linux 5.9, or refused: one by one. A limit of 2^30 would take minutes, and a limit that
    // was lowered says nothing about the numbers above it.
    for fd in first..proc::descriptor_table_size().unwrap_or(DEFAULT_NR_OPEN) {
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }
}

/// Names the calling thread, for tools that show the process's threads. The thread leaves the
/// program's working directory, whose file system the program may want to unmount.
pub fn set_name(name: &core::ffi::CStr) {
    // SAFETY: the path ends with a NUL. The thread shares its directories with no other.
    unsafe { libc::syscall(libc::SYS_chdir, c"/".as_ptr()) };
    // SAFETY: the name ends with a NUL.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_NAME, name.as_ptr()) };
}

/// Resets the scheduling attributes that the calling thread has inherited from the thread that
/// started it, since the program's threads wait for this thread: a processor that the starter is
/// bound to, and perhaps polls on, a class for work that can wait, a nice value. An attribute that
/// the kernel refuses to change stays as it was.
///
/// A real-time class stays, and so does a nice value below 0: a thread of such a class may wait for
/// this one, which would otherwise run after all others.
pub fn run_anywhere() {
    /// A bit for each processor. The kernel ignores the processors that do not exist, and those
    /// outside the process's cpuset.
    const PROCESSORS: [u64; 128] = [u64::MAX; 128];
    /// With this slice, in ns, the kernel (Linux 6.12) runs the thread before others that have run
    /// for long. The thread needs less than the slice at once. Older kernels ignore it.
    const SLICE: u64 = 100_000;
    let this_thread = 0;
    let (size, all) = (size_of_val(&PROCESSORS), PROCESSORS.as_ptr());
    // SAFETY: the kernel reads `size` bytes of the mask.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, this_thread, size, all) };
    // SAFETY: zeros are a `sched_attr`, which consists of numbers.
    let none: libc::sched_attr = unsafe { core::mem::zeroed() };
    let mut now = none;
    let (size, flags, to) = (size_of_val(&now), 0, &raw mut now);
    // SAFETY: the kernel writes at most `size` bytes.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, this_thread, to, size, flags) };
    let is = |policy: c_int| now.sched_policy == policy as u32;
    if got != 0 || !(is(libc::SCHED_OTHER) || is(libc::SCHED_BATCH) || is(libc::SCHED_IDLE)) {
        return;
    }
    let set = |nice: i32| {
        let wanted = libc::sched_attr {
            size: size as u32,
            sched_policy: libc::SCHED_OTHER as u32,
            sched_flags: now.sched_flags,
            sched_nice: nice,
            sched_runtime: SLICE,
            ..none
        };
        let from = &raw const wanted;
        // SAFETY: the kernel reads `size` bytes.
        unsafe { libc::syscall(libc::SYS_sched_setattr, this_thread, from, flags) == 0 }
    };
    // A lower nice value may need a privilege.
    if !set(now.sched_nice.min(0)) {
        set(now.sched_nice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn add(argument: *mut c_void) -> c_int {
        // SAFETY: the argument is the test's counter, and the test waits for this thread.
        unsafe { &*argument.cast::<AtomicU32>() }.fetch_add(1, Relaxed);
        0
    }

    #[test]
    fn what_a_thread_has_done_is_seen_after_its_end() {
        let count = AtomicU32::new(0);
        for _ in 0..50 {
            let argument = count.as_ptr().cast();
            // SAFETY: `add` only counts, and the counter outlives the thread.
            let threads = [(); 2].map(|()| unsafe { start_ending(add, argument) });
            for thread in threads {
                thread.unwrap().join();
            }
        }
        assert_eq!(count.into_inner(), 100);
    }
}
