// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs work on a stack of its own if it needs more stack than the calling thread may have left.
//!
//! A signal handler may run on 8 KiB, and the kernel's frame takes half of that; a coroutine may
//! have no more. Work that a process does once (asking the device for its driver, starting the
//! cache) or rarely (reading files of /proc) needs more. So this work runs on memory that is mapped
//! for it ([`run`]), unless the thread is known to have enough: a signal handler that interrupts it
//! needs stack too, and a garbage collector looks for the stack pointer in the thread's own stack.
//! The part of a call beyond a hit needs 3 KiB, which any thread has; on a signal stack that part
//! runs aside too ([`run_if_little`]). If the program filters its system calls (`seccomp.rs`), nothing
//! asks for the stack, and all work runs on the thread's.
//!
//! If the thread is on its signal stack, all signals are blocked meanwhile. The kernel takes a
//! thread that is on another stack for one that has left its signal stack: a further signal would
//! begin at that stack's top, over the frames of the handler that waits here. Other threads'
//! signals are not blocked: the work may wait for a lock of the C library, whose holder a signal
//! handler may have stopped until this thread's handler answers too. Thread-local variables are
//! those of the thread.

use super::seccomp::is_filtered;
use super::signals::Blocked;
use super::{helper_thread, thread};
use core::ffi::c_void;
use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The stack's size. The work formats messages, and reads files line by line.
const STACK: usize = 64 << 10;

/// An unused stack. It stays mapped: unmapping it would interrupt the processors of all threads,
/// which costs 20 us, and a new one takes a page fault for each page.
static SPARE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

fn take() -> Option<*mut c_void> {
    let spare = SPARE.swap(null_mut(), Acquire);
    if spare.is_null() {
        helper_thread::map(STACK)
    } else {
        Some(spare)
    }
}

fn put(memory: *mut c_void) {
    let is_kept = SPARE.compare_exchange(null_mut(), memory, Release, Relaxed);
    if is_kept.is_err() {
        // SAFETY: `take` returned the memory, and the call on it has returned.
        unsafe { helper_thread::unmap(memory, STACK) };
    }
}

/// Whether the thread is on its signal stack, as far as that may be asked.
fn is_on_signal_stack() -> bool {
    if is_filtered() {
        return false;
    }
    // SAFETY: zeros are a `stack_t`.
    let mut about: libc::stack_t = unsafe { core::mem::zeroed() };
    let (none, to) = (core::ptr::null::<libc::stack_t>(), &raw mut about);
    // SAFETY: the kernel writes to the local structure only.
    unsafe { libc::syscall(libc::SYS_sigaltstack, none, to) };
    about.ss_flags & libc::SS_ONSTACK != 0
}

/// Whether much is left of the stack that the thread began with, if it is on that. Also true if that
/// may not be asked.
fn has_much_left() -> bool {
    const MUCH: usize = 128 << 10;
    let here = 0u8;
    let here = (&raw const here).addr();
    let has_much = |own: Range<usize>| own.contains(&here) && here - own.start >= MUCH;
    is_filtered() || thread::own_stack().is_some_and(has_much)
}

/// Runs `work`: on a stack of its own if the thread is on its signal stack. `None` as for [`run`].
#[inline(always)]
pub fn run_if_little<R>(work: impl FnOnce() -> R) -> Option<R> {
    if is_on_signal_stack() {
        run(work)
    } else {
        Some(work())
    }
}

/// Runs `work` on a stack of its own, unless much is left of the thread's, and without
/// cancellation. `None` if no memory could be mapped. Leaves errno as it was. A panic of the work
/// goes on in the caller, so that it reaches the boundary of the exported function.
#[inline(always)]
pub fn run<R>(work: impl FnOnce() -> R) -> Option<R> {
    let (mut work, mut result) = (Some(work), None);
    run_any(&mut || result = work.take().map(|work| work()));
    result
}

/// As [`run`], which the library then has once, not once for each kind of work.
#[inline(never)]
fn run_any(work: &mut dyn FnMut()) {
    let errno = errno::errno();
    let mut job = Job {
        work,
        result: Ok(()),
    };
    // Asked once: the program may begin to filter its system calls meanwhile.
    let on_signal_stack = is_on_signal_stack();
    if !on_signal_stack && has_much_left() {
        let _uncancelled = thread::uncancelled();
        (job.work)();
    } else if let Some(memory) = take() {
        let blocked = on_signal_stack.then(Blocked::new);
        let uncancelled = thread::uncancelled();
        let (argument, stack) = ((&raw mut job).cast(), memory.wrapping_byte_add(STACK));
        // SAFETY: the stack is mapped and no other code uses it. `Job::run` does not unwind, and the
        // job outlives the call.
        unsafe { on_stack(argument, Job::run, stack) };
        drop(uncancelled);
        drop(blocked);
        put(memory);
    }
    errno::set_errno(errno);
    if let Err(panic) = job.result {
        resume_unwind(panic);
    }
}

struct Job<'a> {
    work: &'a mut dyn FnMut(),
    result: std::thread::Result<()>,
}

impl Job<'_> {
    extern "C" fn run(job: *mut c_void) {
        // SAFETY: the argument is the job of `run_any`, which waits for this function.
        let job = unsafe { &mut *job.cast::<Self>() };
        // An unwinder cannot continue below this frame: `run_any` resumes a panic on the thread's
        // own stack.
        job.result = catch_unwind(AssertUnwindSafe(&mut *job.work));
    }
}

unsafe extern "C" {
    /// Calls `run` with `argument` on the stack whose end is `stack`, a multiple of 16. A debugger
    /// finds the caller by the frame pointer.
    ///
    /// # Safety
    /// The memory below `stack` suffices for `run`, which must not unwind.
    #[link_name = "rdmamr_on_stack"]
    fn on_stack(argument: *mut c_void, run: extern "C" fn(*mut c_void), stack: *mut c_void);
}

/// Defines `on_stack` by the instructions between its label and its end.
macro_rules! on_stack {
    ($($line:literal,)+) => {
        core::arch::global_asm!(
            ".pushsection .text.rdmamr_on_stack,\"ax\",@progbits",
            ".p2align 4",
            ".globl rdmamr_on_stack",
            ".hidden rdmamr_on_stack",
            ".type rdmamr_on_stack,@function",
            "rdmamr_on_stack:",
            ".cfi_startproc",
            $($line,)+
            ".cfi_endproc",
            ".size rdmamr_on_stack, . - rdmamr_on_stack",
            ".popsection",
        );
    };
}
#[cfg(target_arch = "x86_64")]
on_stack! {
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rsp, rdx",
    "call rsi",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "ret",
}
#[cfg(target_arch = "aarch64")]
on_stack! {
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "mov x29, sp",
    ".cfi_def_cfa_register x29",
    "mov sp, x2",
    "blr x1",
    "mov sp, x29",
    ".cfi_def_cfa_register sp",
    "ldp x29, x30, [sp], #16",
    ".cfi_restore x29",
    ".cfi_restore x30",
    ".cfi_def_cfa_offset 0",
    "ret",
}
#[cfg(target_arch = "riscv64")]
on_stack! {
    "addi sp, sp, -16",
    ".cfi_def_cfa_offset 16",
    "sd ra, 8(sp)",
    "sd s0, 0(sp)",
    ".cfi_offset ra, -8",
    ".cfi_offset s0, -16",
    "addi s0, sp, 16",
    ".cfi_def_cfa s0, 0",
    "mv sp, a2",
    "jalr a1",
    "addi sp, s0, -16",
    "ld ra, 8(sp)",
    "ld s0, 0(sp)",
    ".cfi_restore ra",
    ".cfi_restore s0",
    "addi sp, sp, 16",
    ".cfi_def_cfa sp, 0",
    "ret",
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    /// A thread with less stack than `has_much_left` asks for.
    fn on_little_stack(test: impl FnOnce() + Send + 'static) {
        let thread = std::thread::Builder::new().stack_size(STACK);
        thread.spawn(test).unwrap().join().unwrap();
    }

    fn distance() -> usize {
        let here = 0u8;
        let address = run(|| {
            let there = 0u8;
            (&raw const there).addr()
        });
        address.unwrap().abs_diff((&raw const here).addr())
    }

    #[test]
    fn the_work_has_a_stack_of_its_own_and_the_threads_variables() {
        on_little_stack(|| {
            let number = thread::number().index();
            assert_eq!(run(|| thread::number().index()), Some(number));
            assert!(distance() > STACK);
        });
    }

    #[test]
    fn where_much_is_left_the_work_stays() {
        let thread = std::thread::Builder::new().stack_size(64 * STACK);
        assert!(thread.spawn(distance).unwrap().join().unwrap() < STACK);
    }

    #[test]
    fn a_panic_goes_on_in_the_caller() {
        let panics = || {
            let panic = catch_unwind(|| run(|| -> () { resume_unwind(Box::new(7)) })).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&7));
            assert_eq!(run(|| "goes on"), Some("goes on"));
        };
        on_little_stack(panics);
        panics();
    }
}
