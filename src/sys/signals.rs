// SPDX-License-Identifier: MIT OR Apache-2.0
//! The signals that the calling thread blocks, by the system call: the C library's functions leave
//! out two signals that it uses itself.

use core::ffi::c_int;

/// A set of signals as the kernel defines it.
pub type Signals = u64;

fn change_mask(how: c_int, new: Signals) -> Signals {
    let mut old: Signals = 0;
    let (from, to, size) = (&raw const new, &raw mut old, size_of::<Signals>());
    // SAFETY: the kernel reads and writes sets of that size, and both sets are local variables.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, from, to, size) };
    old
}

/// Blocks all signals. Returns the signals that the thread blocked before.
pub fn block() -> Signals {
    change_mask(libc::SIG_SETMASK, !0)
}

/// Blocks signals until the value is dropped, also by a panic.
pub struct Blocked(Signals);

impl Blocked {
    pub fn new() -> Blocked {
        Blocked(block())
    }

    /// Blocks [`ALL_BUT_FAULTS`]. `None` if the thread does already.
    pub fn but_faults() -> Option<Blocked> {
        let before = block_also(ALL_BUT_FAULTS);
        (before & ALL_BUT_FAULTS != ALL_BUT_FAULTS).then_some(Blocked(before))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        restore(self.0);
    }
}

/// The signals that a thread can block without harm: all but those by which the kernel tells of a
/// fault of the thread itself, which would end the process. (It ignores the last two.)
const ALL_BUT_FAULTS: Signals = !(only(libc::SIGSEGV)
    | only(libc::SIGBUS)
    | only(libc::SIGILL)
    | only(libc::SIGFPE)
    | only(libc::SIGTRAP)
    | only(libc::SIGSYS)
    | only(libc::SIGKILL)
    | only(libc::SIGSTOP));

/// The set of one signal.
pub const fn only(signal: c_int) -> Signals {
    1 << (signal - 1)
}

/// Blocks these signals too. Returns the signals that the thread blocked before.
pub fn block_also(signals: Signals) -> Signals {
    change_mask(libc::SIG_BLOCK, signals)
}

/// The signals that wait for the thread or for the process.
pub fn pending() -> Signals {
    let mut pending: Signals = 0;
    let size = size_of::<Signals>();
    // SAFETY: the kernel writes a set of that size, a local variable.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, size) };
    pending
}

/// Consumes a pending signal of this set, so that it has no effect. The thread must block the set.
pub fn take(set: Signals) {
    let size = size_of::<Signals>();
    // SAFETY: zeros are a time of 0.
    let now: libc::timespec = unsafe { core::mem::zeroed() };
    let (set, now) = (&raw const set, &raw const now);
    let information = core::ptr::null_mut::<libc::siginfo_t>();
    // SAFETY: the kernel reads a set of that size and a time, both local, and writes nothing.
    unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, set, information, now, size) };
}

/// Blocks the signals that [`block`] or [`block_also`] returned, and no other.
pub fn restore(old: Signals) {
    change_mask(libc::SIG_SETMASK, old);
}
