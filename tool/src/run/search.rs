// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the file for a program's name as execvp(3) does.

use crate::report::units::{reason, shown};
use std::env;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Exit statuses of timeout(1), env(1) and nohup(1) for a program.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Why no file can be run by that name, and the exit status: [`CANNOT_RUN`] if such a file exists.
pub type Refused = (String, u8);

/// Why a program cannot be run, by the error. A script's first line may name an interpreter that does
/// not exist.
pub fn refused(error: io::Error) -> Refused {
    let status = match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => CANNOT_RUN,
    };
    (reason(&error.into()), status)
}

/// Finds the file. The returned path contains a slash, so that exec does not search again.
pub fn find(name: &OsStr) -> Result<PathBuf, Refused> {
    if name.as_bytes().contains(&b'/') {
        return check(Path::new(name)).map(|()| name.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut refused = None;
    // A file counts as a folder that is missing.
    let dirs = env::split_paths(&path).filter(|dir| !name.is_empty() && !dir.is_file());
    for dir in dirs {
        // An empty entry means the working directory.
        let file = match dir.as_os_str().is_empty() {
            true => Path::new(".").join(name),
            false => dir.join(name),
        };
        match check(&file) {
            Ok(()) => return Ok(file),
            Err(why) if why.1 == CANNOT_RUN => refused = refused.or(Some(why)),
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or(("there is no program of that name in PATH".into(), NOT_FOUND)))
}

fn check(file: &Path) -> Result<(), Refused> {
    let about = file.metadata().map_err(refused)?;
    if about.is_dir() {
        return Err(("it is a directory".into(), CANNOT_RUN));
    }
    // A name with a NUL has no metadata.
    let path = CString::new(file.as_os_str().as_bytes()).unwrap_or_default();
    // SAFETY: the path ends with a NUL.
    if unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) } != 0
    {
        let why = format!("it may not be executed (chmod +x {})", shown(file));
        return Err((why, CANNOT_RUN));
    }
    Ok(())
}
