// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the process runs under valgrind, which ends a program that makes a thread by a clone(2)
//! other than the C library's.

/// Asks as valgrind.h does (RUNNING_ON_VALGRIND): by instructions that change nothing on a processor,
/// and that valgrind answers.
#[inline(never)]
pub fn is_running() -> bool {
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    ask(&request) != 0
}

#[cfg(target_arch = "x86_64")]
fn ask(request: &[usize; 6]) -> usize {
    let mut answer = 0;
    // SAFETY: the rotations add up to 128 bits, and the exchange is with the register itself: no
    // register changes, unless valgrind puts its answer into rdx.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request,
            inlateout("rdx") answer,
            options(nostack),
        );
    }
    answer
}

#[cfg(target_arch = "aarch64")]
fn ask(request: &[usize; 6]) -> usize {
    let mut answer = 0;
    // SAFETY: the rotations add up to 128 bits: no register changes, unless valgrind puts its answer
    // into x3.
    unsafe {
        core::arch::asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            inlateout("x3") answer,
            in("x4") request,
            options(nostack),
        );
    }
    answer
}

/// No valgrind of these processors is in a distribution yet.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn ask(_: &[usize; 6]) -> usize {
    0
}
