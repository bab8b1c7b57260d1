// SPDX-License-Identifier: MIT OR Apache-2.0
//! The error codes of this family, `<rdma/fi_errno.h>`, and their relation to the kernel's errnos.

use core::ffi::CStr;
use rdmamr_abi::libfabric::*;
use rdmamr_mr::Error;
use rdmamr_mr::explain::Subject;
use rdmamr_sys::allocator::has_memory;

/// The reason why a call of the libfabric family failed, and the object that it concerned.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    pub error: Error,
    pub subject: Subject,
}

/// The result of a call of the libfabric family.
pub type Result<T, E = Failure> = core::result::Result<T, E>;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let subject = Subject::Other;
        Failure { error, subject }
    }
}

impl Failure {
    /// Notes that the same call had pinned `bytes` bytes before it failed.
    pub fn beside(self, bytes: u64) -> Failure {
        let subject = match self.subject {
            Subject::Memory(refused, before) => Subject::Memory(refused, before + bytes),
            other => other,
        };
        Failure { subject, ..self }
    }
}

/// Fails with FI_ENOMEM if the call may not allocate. Called before the call changes anything.
pub fn may_allocate() -> Result<()> {
    ensure(has_memory(), Error::Memory)
}

/// Fails unless a condition holds.
#[inline(always)]
pub fn ensure(holds: bool, failure: impl Into<Failure>) -> Result<()> {
    if holds { Ok(()) } else { Err(failure.into()) }
}

/// An errno, its code, and its meaning for memory regions. An errno outside this table becomes
/// FI_EOTHER. The codes below FI_EOTHER are errnos; those that only the kernel returns have no name
/// of this library's.
#[rustfmt::skip]
const TABLE: &[(i32, i32, &CStr)] = &[
    (libc::EPERM, FI_EPERM, c"Pinning memory is forbidden"),
    (libc::ENOENT, FI_ENOENT, c"The kernel does not know the object"),
    (libc::EINTR, libc::EINTR, c"A signal interrupted the call"),
    (libc::EIO, FI_EIO, c"The device is gone"),
    (libc::E2BIG, libc::E2BIG, c"More than the device can describe"),
    (libc::EBADF, FI_EBADF, c"The device's file is closed"),
    (libc::EAGAIN, FI_EAGAIN, c"Try again; or nothing is there"),
    (libc::ENOMEM, FI_ENOMEM, c"Not enough memory, or RLIMIT_MEMLOCK is reached"),
    (libc::EACCES, FI_EACCES, c"The process changed its credentials after it opened the device"),
    (libc::EFAULT, FI_EFAULT, c"Memory that is not mapped, or not writable"),
    (libc::EBUSY, FI_EBUSY, c"Something still depends on it"),
    (libc::ENODEV, FI_ENODEV, c"No such device"),
    (libc::EINVAL, FI_EINVAL, c"Invalid argument"),
    (libc::ENFILE, FI_EMFILE, c"Too many open files in the system"),
    (libc::EMFILE, FI_EMFILE, c"Too many open files"),
    (libc::ENOSPC, libc::ENOSPC, c"The device has no resource left"),
    (libc::ENOSYS, FI_ENOSYS, c"Not implemented"),
    (libc::ENODATA, FI_ENODATA, c"Nothing that matches"),
    (libc::EOVERFLOW, libc::EOVERFLOW, c"The range runs past the end of the addresses"),
    (libc::EOPNOTSUPP, FI_EOPNOTSUPP, c"The device, its driver or the kernel does not support it"),
    (libc::ENOBUFS, libc::ENOBUFS, c"The device has no room left"),
    (libc::ESHUTDOWN, libc::ESHUTDOWN, c"The device is shut down"),
    (libc::ETIMEDOUT, libc::ETIMEDOUT, c"The device did not answer in time"),
    (libc::ENOTTY, FI_ENOSYS, c"The kernel has no such call"),
    (libc::ECANCELED, FI_ECANCELED, c"The operation was cancelled"),
    (libc::EKEYREJECTED, FI_EKEYREJECTED, c"The requested key is out of range"),
    (FI_ETOOSMALL, FI_ETOOSMALL, c"The buffer is too small"),
    (FI_EOPBADSTATE, FI_EOPBADSTATE, c"Not possible in the object's present state"),
    (FI_EAVAIL, FI_EAVAIL, c"An error waits to be read"),
    (FI_EBADFLAGS, FI_EBADFLAGS, c"Flags that are not supported"),
    (FI_ENOKEY, FI_ENOKEY, c"The key is in use, or there is no such key"),
];

fn row(number: i32) -> Option<&'static (i32, i32, &'static CStr)> {
    TABLE.iter().find(|row| row.0 == number)
}

/// The code for C, positive.
pub fn code(error: Error) -> i32 {
    match error {
        Error::Refused(code, _) => code,
        _ => row(error.errno()).map_or(FI_EOTHER, |row| row.1),
    }
}

/// The meaning of an errno or a code, fi_eq_strerror(3).
pub fn words(number: i32) -> &'static CStr {
    row(number).map_or(c"Unspecified error", |row| row.2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use errno::Errno;

    #[test]
    fn each_errno_has_a_code() {
        for (errno, want) in [
            (libc::EFAULT, 14),
            (libc::ENOTTY, 38),
            (libc::EXDEV, 256),
            (libc::EINTR, 4),
            (libc::E2BIG, 7),
            (libc::ENOSPC, 28),
            (libc::EOVERFLOW, 75),
            (libc::ENOBUFS, 105),
            (libc::ESHUTDOWN, 108),
            (libc::ETIMEDOUT, 110),
            (libc::ENOMEM, 12),
            (libc::EMFILE, 24),
        ] {
            assert_eq!(code(Error::Kernel(Errno(errno))), want);
        }
        assert_eq!(code(Error::Refused(FI_ENOKEY, "")), 266);
        assert_eq!(code(Error::Argument("")), 22);
        assert_eq!(words(-1), c"Unspecified error");
    }

    #[test]
    fn no_errno_is_there_twice() {
        for (n, row) in TABLE.iter().enumerate() {
            assert!(TABLE[..n].iter().all(|other| other.0 != row.0));
        }
    }
}
