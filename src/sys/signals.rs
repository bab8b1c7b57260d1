// SPDX-License-Identifier: MIT OR Apache-2.0
//! The signals that the calling thread blocks, by the system call: the C library's functions leave
//! out two signals of its own.

use core::ffi::c_int;

/// A set of signals as the kernel defines it.
pub type Signals = u64;

fn change_mask(how: c_int, new: Signals) -> Signals {
    let mut old: Signals = 0;
    let size = size_of::<Signals>();
    // SAFETY: the kernel reads and writes sets of that size, and both sets are local variables.
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

/// Blocks all signals. Returns the signals that the thread blocked before.
pub fn block() -> Signals {
    change_mask(libc::SIG_SETMASK, !0)
}

/// Blocks the signals that [`block`] returned, and no other.
pub fn restore(old: Signals) {
    change_mask(libc::SIG_SETMASK, old);
}
