// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of numbers, for people: of the errors that a registration may return, and of access
//! flags. The library and the program `rdmamr` share the tables.

use crate::libfabric::*;
use crate::rdma_core::*;

/// Pairs of a number and its C name: of constants here, and of those of a module.
macro_rules! named {
    ($type:ty: $($name:ident),* $(; $module:ident: $($inside:ident),*)?) => {
        &[
            $(($name as $type, stringify!($name)),)*
            $($(($module::$inside as $type, stringify!($inside)),)*)?
        ]
    };
}

/// Linux's errnos, and above 255 libfabric's codes.
pub const ERRNOS: &[(i32, &str)] = named! {
    i32: FI_EOTHER, FI_ETOOSMALL, FI_EOPBADSTATE, FI_EAVAIL, FI_EBADFLAGS, FI_ENOKEY;
    libc: EPERM, ENOENT, EINTR, EIO, EBADF, EAGAIN, ENOMEM, EACCES, EFAULT, EBUSY, ENODEV, EINVAL,
        EMFILE, ENOTTY, ENOSPC, ERANGE, ENOSYS, ENODATA, EPROTO, EOVERFLOW, EOPNOTSUPP, ETIME, ETIMEDOUT,
        ECANCELED, EKEYREJECTED, EEXIST, EREMOTEIO, EPROTONOSUPPORT, ENXIO, ENFILE
};

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
pub const FABRIC_ACCESS: &[(u32, &str)] =
    named! { u32: FI_READ, FI_WRITE, FI_RECV, FI_SEND, FI_REMOTE_READ, FI_REMOTE_WRITE };
