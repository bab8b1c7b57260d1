// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the file for a program's name as execvp(3) does.

use crate::report::units::reason;
use std::env;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Why no file can be run by that name.
pub struct Refused {
    pub why: String,
    /// A file of that name exists.
    pub exists: bool,
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
            Err(why) if why.exists => refused = refused.or(Some(why)),
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| Refused {
        why: "there is no program of that name in PATH".into(),
        exists: false,
    }))
}

fn check(file: &Path) -> Result<(), Refused> {
    let refuse = |why: String, exists| Err(Refused { why, exists });
    match file.metadata() {
        Err(error) => {
            let exists = !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            );
            return refuse(reason(&error.into()), exists);
        }
        Ok(metadata) if metadata.is_dir() => return refuse("it is a directory".into(), true),
        Ok(_) => {}
    }
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else {
        return refuse("its name holds a NUL".into(), false);
    };
    // SAFETY: the path ends with a NUL.
    match unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) } {
        0 => Ok(()),
        _ => refuse(
            format!("it may not be executed (chmod +x {})", file.display()),
            true,
        ),
    }
}
