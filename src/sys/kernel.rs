// SPDX-License-Identifier: MIT OR Apache-2.0
//! The running kernel, uname(2).

use super::proc::decimal;

/// Whether the kernel's version is smaller than this one. A version that cannot be read counts as
/// smaller.
#[inline(never)]
pub fn is_before(major: u64, minor: u64) -> bool {
    // Bytes, since a character is signed on some machines.
    version(&about().release.map(|character| character as u8)) < [major, minor]
}

/// The kernel's answer; zeros if there is none.
pub fn about() -> libc::utsname {
    // SAFETY: all zeros is a valid `utsname`.
    let mut system: libc::utsname = unsafe { core::mem::zeroed() };
    // SAFETY: the structure is writable.
    unsafe { libc::syscall(libc::SYS_uname, &raw mut system) };
    system
}

/// The first two numbers of a release, as of "6.1.0-32-amd64".
fn version(release: &[u8]) -> [u64; 2] {
    let mut numbers = release.split(|&byte| byte == b'.').map(decimal);
    [(); 2].map(|()| numbers.next().unwrap_or(0))
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_numbers() {
        for (release, numbers) in [
            (&b"6.1.0-32-amd64\0\0"[..], [6, 1]),
            (b"5.14.0-427.el9.x86_64\0", [5, 14]),
            (b"5.15-rc3", [5, 15]),
            (b"4", [4, 0]),
            (b"", [0, 0]),
        ] {
            assert_eq!(version(release), numbers);
        }
        assert!(is_before(u64::MAX, 0) && !is_before(1, 0));
    }
}
