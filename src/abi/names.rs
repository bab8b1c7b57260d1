// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of numbers, for people: of the errors that a registration may return, and of access
//! flags. The library and the program `rdmamr` share the tables.

use crate::libfabric::*;
use crate::rdma_core::*;

/// Linux's errnos, and above 255 libfabric's codes.
pub const ERRNOS: &[(i32, &str)] = &[
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::EINTR, "EINTR"),
    (libc::EIO, "EIO"),
    (libc::EBADF, "EBADF"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EFAULT, "EFAULT"),
    (libc::EBUSY, "EBUSY"),
    (libc::ENODEV, "ENODEV"),
    (libc::EINVAL, "EINVAL"),
    (libc::EMFILE, "EMFILE"),
    (libc::ENOTTY, "ENOTTY"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::ERANGE, "ERANGE"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::ENODATA, "ENODATA"),
    (libc::EPROTO, "EPROTO"),
    (libc::EOVERFLOW, "EOVERFLOW"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::ETIMEDOUT, "ETIMEDOUT"),
    (libc::ECANCELED, "ECANCELED"),
    (libc::EKEYREJECTED, "EKEYREJECTED"),
    (FI_EOTHER, "FI_EOTHER"),
    (FI_ETOOSMALL, "FI_ETOOSMALL"),
    (FI_EOPBADSTATE, "FI_EOPBADSTATE"),
    (FI_EAVAIL, "FI_EAVAIL"),
    (FI_EBADFLAGS, "FI_EBADFLAGS"),
    (FI_ENOKEY, "FI_ENOKEY"),
];

/// The access flags of verbs.
pub const ACCESS: &[(u32, &str)] = &[
    (IBV_ACCESS_LOCAL_WRITE, "local_write"),
    (IBV_ACCESS_REMOTE_WRITE, "remote_write"),
    (IBV_ACCESS_REMOTE_READ, "remote_read"),
    (IBV_ACCESS_REMOTE_ATOMIC, "remote_atomic"),
    (IBV_ACCESS_MW_BIND, "mw_bind"),
    (IBV_ACCESS_ZERO_BASED, "zero_based"),
    (IBV_ACCESS_ON_DEMAND, "on_demand"),
    (IBV_ACCESS_HUGETLB, "hugetlb"),
    (IBV_ACCESS_FLUSH_GLOBAL, "flush_global"),
    (IBV_ACCESS_FLUSH_PERSISTENT, "flush_persistent"),
    (IBV_ACCESS_RELAXED_ORDERING, "relaxed_ordering"),
];

/// The access flags of libfabric's registrations. A trace keeps their lower 32 bits.
pub const FABRIC_ACCESS: &[(u32, &str)] = &[
    (FI_READ as u32, "FI_READ"),
    (FI_WRITE as u32, "FI_WRITE"),
    (FI_RECV as u32, "FI_RECV"),
    (FI_SEND as u32, "FI_SEND"),
    (FI_REMOTE_READ as u32, "FI_REMOTE_READ"),
    (FI_REMOTE_WRITE as u32, "FI_REMOTE_WRITE"),
];
