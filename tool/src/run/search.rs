// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the file for a program's name as execvp(3) does.

use crate::report::units::reason;
use crate::report::units::shown;
use std::env;
use std::ffi::{CString, OsStr};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Exit statuses of timeout(1), env(1) and nohup(1) for a program.
pub const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Why no file can be run by that name.
pub struct Refused {
    pub why: String,
    /// The exit status: [`CANNOT_RUN`] if a file of that name exists.
    pub status: u8,
}

/// Finds the file. The returned path contains a slash, so that exec does not search again.
pub fn find(name: &OsStr) -> Result<PathBuf, Refused> {
    if name.as_bytes().contains(&b'/') {
        return check(Path::new(name)).map(|()| name.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut refused = None;
    for dir in env::split_paths(&path).filter(|_| !name.is_empty()) {
        // An empty entry means the working directory.
        let file = if dir.as_os_str().is_empty() {
            Path::new(".").join(name)
        } else {
            dir.join(name)
        };
        match check(&file) {
            Ok(()) => return Ok(file),
            Err(why) if why.status == CANNOT_RUN => refused = refused.or(Some(why)),
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| Refused {
        why: "there is no program of that name in PATH".into(),
        status: NOT_FOUND,
    }))
}

fn check(file: &Path) -> Result<(), Refused> {
    let refuse = |why: String, status| Err(Refused { why, status });
    match file.metadata() {
        Err(error) => {
            let status = match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory => NOT_FOUND,
                _ => CANNOT_RUN,
            };
            return refuse(reason(&error.into()), status);
        }
        Ok(metadata) if metadata.is_dir() => return refuse("it is a directory".into(), CANNOT_RUN),
        Ok(_) => {}
    }
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else {
        return refuse("its name holds a NUL".into(), NOT_FOUND);
    };
    // SAFETY: the path ends with a NUL.
    match unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) } {
        0 => Ok(()),
        _ => refuse(
            format!("it may not be executed (chmod +x {})", shown(file)),
            CANNOT_RUN,
        ),
    }
}
