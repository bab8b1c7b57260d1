// SPDX-License-Identifier: MIT OR Apache-2.0
//! An errno in words, in a message that any thread may write.

use core::fmt;
use errno::Errno;

/// An errno in words. `Errno` itself asks the C library, which looks up the thread's locale: a
/// helper thread, which has no thread-local storage, would crash there.
pub struct InWords(pub Errno);

impl fmt::Display for InWords {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self.0.0 {
            libc::EPERM => "Operation not permitted",
            libc::ENOENT => "No such file or directory",
            libc::EIO => "Input/output error",
            libc::ENXIO => "No such device or address",
            libc::EBADF => "Bad file descriptor",
            libc::EAGAIN => "Resource temporarily unavailable",
            libc::ENOMEM => "Cannot allocate memory",
            libc::EACCES => "Permission denied",
            libc::ENOTDIR => "Not a directory",
            libc::EISDIR => "Is a directory",
            libc::EINVAL => "Invalid argument",
            libc::ENFILE => "Too many open files in system",
            libc::EMFILE => "Too many open files",
            libc::EFBIG => "File too large",
            libc::ENOSPC => "No space left on device",
            libc::EROFS => "Read-only file system",
            libc::EPIPE => "Broken pipe",
            libc::ENAMETOOLONG => "File name too long",
            libc::ESTALE => "Stale file handle",
            libc::EDQUOT => "Disk quota exceeded",
            number => return write!(to, "errno {number}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::InWords;
    use errno::Errno;

    #[test]
    fn an_errno_has_the_words_of_the_c_library() {
        let words = |number| {
            (
                InWords(Errno(number)).to_string(),
                Errno(number).to_string(),
            )
        };
        let known = (1..200)
            .map(words)
            .filter(|(ours, _)| !ours.starts_with("errno "));
        assert_eq!(
            known
                .inspect(|(ours, theirs)| assert_eq!(ours, theirs))
                .count(),
            20
        );
        assert_eq!(words(libc::EXDEV).0, "errno 18");
    }
}
