// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread that the C library does not know.
//!
//! A thread by pthread_create would change the program that it is to serve: when main ends by pthread_exit
//! and the last other thread ends too, the process would not end; malloc and the program would take the
//! locks of multi-threaded programs from then on, and `__libc_single_threaded`, which tells us that no fence
//! is needed, would be false for ever. So these are made by clone(2), on memory of their own. They
//! have thread-local storage of which only errno is valid: what they run must use no other, so no malloc,
//! no thread_local, no panic, nothing of std, and no function that another library may stand in for, such as
//! read or ioctl: atomics and syscall(2) are what is left.
//!
//! They block all signals. Like any thread that glibc does not know they keep the credentials that the
//! process had when they started, if it changes its user later (see README, limits).

use crate::process::FAR_AWAY;
use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU32, Ordering::*};

const STACK: usize = 64 << 10;
const GUARD: usize = 64 << 10;

/// More than glibc keeps about a thread, on either side of the thread pointer.
const ABOUT: usize = 16 << 10;

/// The thread pointer: what thread-local variables are found from.
fn thread_pointer() -> usize {
    let pointer;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the ABI has the pointer's own address there.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags));
    }
    #[cfg(target_arch = "riscv64")]
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mv {}, tp", out(reg) pointer, options(nostack, nomem, preserves_flags));
    }
    pointer
}

/// Starts a thread that runs `run` with `argument`, for ever. False if there can be none.
///
/// # Safety
/// `run` keeps to the rules above, and what `argument` points to is never freed.
pub unsafe fn start(run: extern "C" fn(*mut c_void) -> c_int, argument: *mut c_void) -> bool {
    // SAFETY: as for this function.
    unsafe { start_ending(run, argument) }.is_some()
}

/// A thread that ends. Where it is not waited for, its memory stays.
pub struct Ending {
    memory: *mut c_void,
    size: usize,
}

/// Starts a thread that runs `run` with `argument`, and is to be waited for. `None` if there can be none.
///
/// # Safety
/// `run` keeps to the rules above, and what `argument` points to is there until it returns.
pub unsafe fn start_ending(
    run: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
) -> Option<Ending> {
    // SAFETY: no conditions.
    let errno = unsafe { libc::__errno_location() }.addr();
    let pointer = thread_pointer();
    let below = (pointer.saturating_sub(errno) + ABOUT).next_multiple_of(4096);
    let above = (errno.saturating_sub(pointer) + ABOUT).next_multiple_of(4096);
    let size = GUARD + STACK + below + above;
    let memory = map(size)?;
    // SAFETY: the start of the new mapping, below the stack.
    unsafe { libc::syscall(libc::SYS_mprotect, memory, GUARD, libc::PROT_NONE) };
    let stack = memory.wrapping_byte_add(GUARD + STACK);
    let tls = stack.wrapping_byte_add(below);
    // x86-64 finds the pointer by itself in its first and third word; elsewhere they are not looked at.
    for word in [0, 2] {
        // SAFETY: `above` bytes follow.
        unsafe { tls.cast::<*mut c_void>().wrapping_add(word).write(tls) };
    }
    let thread = Ending { memory, size };
    let running = thread.running().as_ptr().cast::<c_int>();
    let blocked = block_signals();
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    // SAFETY: the stack is the thread's own, and by the caller's word so is what it runs.
    let number = unsafe { libc::clone(run, stack, flags, argument, running, tls, running) };
    restore_signals(blocked);
    if number < 0 {
        thread.unmap();
        return None;
    }
    Some(thread)
}

impl Ending {
    /// The thread's number as long as it runs: the kernel sets it to 0, and wakes who waits, when the thread
    /// has left its stack for good. In the last bytes of the memory, where nothing of the thread's is.
    fn running(&self) -> &AtomicU32 {
        let last = self.size - size_of::<AtomicU32>();
        // SAFETY: within the mapping, aligned, and only ever used as an atomic.
        unsafe { &*self.memory.wrapping_byte_add(last).cast() }
    }

    /// Waits for its end.
    pub fn join(self) {
        let running = self.running();
        loop {
            let number = running.load(Acquire);
            if number == 0 {
                break;
            }
            // Not FUTEX_PRIVATE: the kernel wakes any process.
            // SAFETY: the word is readable, and the call writes nothing.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    running.as_ptr(),
                    libc::FUTEX_WAIT,
                    number,
                    null_mut::<c_void>(),
                )
            };
        }
        self.unmap();
    }

    fn unmap(self) {
        // SAFETY: mapped by `start_ending`; the thread has not begun, or has ended.
        unsafe { unmap(self.memory, self.size) };
    }
}

/// Maps memory of our own, far from the program's. By number, here and below: our own stand-ins for these
/// functions must not hear of it, since they may be what called.
pub fn map(size: usize) -> Option<*mut c_void> {
    /// Each has a place of its own, as long as the kernel has room there.
    static PLACE: AtomicU32 = AtomicU32::new(0);
    const PLACES: u32 = 4096;
    const APART: usize = 1 << 20;
    let place = (PLACE.fetch_add(1, Relaxed) % PLACES) as usize;
    let (no_file, offset) = (-1isize, 0usize);
    // SAFETY: a new mapping.
    let memory = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            FAR_AWAY - (place + 1) * APART,
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            no_file,
            offset,
        )
    };
    (memory != -1).then(|| with_exposed_provenance_mut(memory as usize))
}

/// Unmaps it.
///
/// # Safety
/// It was mapped by [`map`] with that size, and nobody uses it any more.
pub unsafe fn unmap(memory: *mut c_void, size: usize) {
    // SAFETY: the caller's word.
    unsafe { libc::syscall(libc::SYS_munmap, memory, size) };
}

/// The kernel's own set of signals: glibc's functions leave out two.
type Signals = u64;

fn signal_mask(how: c_int, new: Signals) -> Signals {
    let mut old: Signals = 0;
    let size = size_of::<Signals>();
    // SAFETY: both sets are of that size.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const new,
            &raw mut old,
            size,
        )
    };
    old
}

fn block_signals() -> Signals {
    signal_mask(libc::SIG_SETMASK, !0)
}

fn restore_signals(old: Signals) {
    signal_mask(libc::SIG_SETMASK, old);
}

/// Gives the calling thread a name, for those who look at the process.
pub fn set_name(name: &core::ffi::CStr) {
    // SAFETY: the name ends with a NUL.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn add(argument: *mut c_void) -> c_int {
        // SAFETY: the counter of the test, which waits for this thread.
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
