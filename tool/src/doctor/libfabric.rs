// SPDX-License-Identifier: MIT OR Apache-2.0
//! The libfabric that programs use, if it is installed.

use super::check::Check;
use crate::verbs::Loaded;

/// Checks the version of libfabric.
pub fn check() -> Check {
    const SUBJECT: &str = "libfabric";
    let Ok(library) = Loaded::open(c"libfabric.so.1") else {
        let found = "not installed; only programs written for it need it";
        return Check::ok(SUBJECT, found);
    };
    // SAFETY: <rdma/fabric.h> gives this type.
    let version = unsafe { library.function::<unsafe extern "C" fn() -> u32>(c"fi_version") };
    let path = library.path_of(c"fi_version");
    let Ok(version) = version else {
        return Check::warning(SUBJECT, format!("{path} has no fi_version"));
    };
    // SAFETY: the function may be called at any time.
    let version = unsafe { version() };
    let (major, minor) = (version >> 16, version & 0xffff);
    Check::ok(SUBJECT, format!("{major}.{minor} ({path})"))
}
