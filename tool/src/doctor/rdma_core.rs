// SPDX-License-Identifier: MIT OR Apache-2.0
//! The libibverbs that programs use.

use super::check::Check;
use crate::verbs::Verbs;
use anyhow::Result;
use std::ffi::{CStr, c_void};

/// Functions of libibverbs and the release of rdma-core that added each, the latest first.
const SINCE: &[(&CStr, u32)] = &[
    (c"ibv_reg_buf_mr", 64),
    (c"ibv_reg_mr_ex", 59),
    (c"ibv_is_fork_initialized", 35),
    (c"ibv_reg_dmabuf_mr", 34),
    (c"ibv_import_mr", 31),
    (c"ibv_reg_mr_iova2", 28),
    (c"ibv_reg_mr_iova", 25),
];
/// The first release with the function to which the library forwards registrations.
const NEEDED: u32 = 28;

/// Checks the release, told by the file's name or else by its functions.
pub fn check(verbs: &Result<Verbs>) -> Check {
    const SUBJECT: &str = "rdma-core";
    let verbs = match verbs {
        Ok(verbs) => verbs,
        Err(error) => {
            let found = format!("libibverbs.so.1 cannot be loaded: {error}");
            return Check::failure(SUBJECT, found)
                .meaning("No program can use RDMA without it.")
                .fix("apt-get install libibverbs1 ibverbs-providers");
        }
    };
    let (found, number) = found(verbs);
    let found = format!("release {found}");
    if number < NEEDED {
        return Check::warning(SUBJECT, found).meaning(format!(
            "The library is tested with {NEEDED} and later. With an earlier one it forwards registrations by \
             other calls."
        ));
    }
    Check::ok(SUBJECT, found)
}

/// The release with the path of the file, and its number, such as 44: by the file's name, or the
/// earliest that the functions allow.
pub fn found(verbs: &Verbs) -> (String, u32) {
    let has = |name: &CStr| {
        // SAFETY: the pointer is not dereferenced.
        unsafe { verbs.library.function::<*const c_void>(name) }.is_ok()
    };
    let at_least = SINCE.iter().find(|row| has(row.0)).map_or(0, |row| row.1);
    let path = verbs.library.path_of(c"ibv_get_device_list");
    let release = release(&path);
    let number = release.and_then(|release| release.split('.').next()?.parse().ok());
    let found = match (release, at_least) {
        (Some(release), _) => format!("{release} ({path})"),
        (None, 0) => format!("24 or earlier ({path})"),
        (None, at_least) => format!("{at_least} or later ({path})"),
    };
    (found, number.unwrap_or(at_least))
}

/// "44.0" of ".../libibverbs.so.1.14.44.0", where 1.14 is the latest version node.
fn release(path: &str) -> Option<&str> {
    let version = path.rsplit_once("libibverbs.so.")?.1;
    Some(version.splitn(3, '.').nth(2)?).filter(|release| !release.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_in_the_name() {
        assert_eq!(release("/usr/lib/libibverbs.so.1.14.44.0"), Some("44.0"));
        assert_eq!(release("/usr/lib/libibverbs.so.1"), None);
    }
}
