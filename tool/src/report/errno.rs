// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of the errors that a registration may return: Linux's errno, and above 255 libfabric's.

const NAMES: &[(u16, &str)] = &[
    (1, "EPERM"),
    (2, "ENOENT"),
    (4, "EINTR"),
    (5, "EIO"),
    (9, "EBADF"),
    (11, "EAGAIN"),
    (12, "ENOMEM"),
    (13, "EACCES"),
    (14, "EFAULT"),
    (16, "EBUSY"),
    (19, "ENODEV"),
    (22, "EINVAL"),
    (25, "ENOTTY"),
    (28, "ENOSPC"),
    (34, "ERANGE"),
    (38, "ENOSYS"),
    (61, "ENODATA"),
    (71, "EPROTO"),
    (75, "EOVERFLOW"),
    (95, "EOPNOTSUPP"),
    (110, "ETIMEDOUT"),
    (125, "ECANCELED"),
    (129, "EKEYREJECTED"),
    (256, "FI_EOTHER"),
    (257, "FI_ETOOSMALL"),
    (258, "FI_EOPBADSTATE"),
    (259, "FI_EAVAIL"),
    (260, "FI_EBADFLAGS"),
    (266, "FI_ENOKEY"),
];

pub fn name(errno: u16) -> String {
    match NAMES.iter().find(|row| row.0 == errno) {
        Some(row) => row.1.to_string(),
        None => format!("errno {errno}"),
    }
}
