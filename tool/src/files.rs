// SPDX-License-Identifier: MIT OR Apache-2.0
//! All files that this program opens: those that system calls open, small files of proc(5) and
//! sysfs(5), the kernel's release, which is in one of them, and files that others name (`named.rs`), on the file
//! systems of this machine (`mounts.rs`).

pub mod mounts;
pub mod named;

use rustix::fs::{CWD, OFlags, openat};
use rustix::path::Arg;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The result of a system call.
pub fn result(value: impl Into<i64>) -> io::Result<i64> {
    match value.into() {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// The file that a system call has just opened, by the call's result.
pub fn owned(opened: impl Into<i64>) -> io::Result<OwnedFd> {
    let file = result(opened)?;
    // SAFETY: the call gave this file to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(file as i32) })
}

/// openat(2), with O_CLOEXEC.
pub fn open_at(folder: impl AsFd, path: impl Arg, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
    Ok(openat(folder, path, flags | OFlags::CLOEXEC, mode.into())?)
}

/// The path of an open file, by its descriptor.
pub fn by_number(file: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Opens anew a file that is open, such as by O_PATH.
pub fn reopen(file: &impl AsRawFd, flags: OFlags) -> io::Result<File> {
    match open_at(CWD, by_number(file), flags | OFlags::NOCTTY, 0) {
        // The file itself is there.
        Err(_) if !has_proc() => Err(io::Error::other("/proc is not mounted")),
        opened => Ok(opened?.into()),
    }
}

/// Whether proc(5) is mounted, which a small root file system may lack.
pub fn has_proc() -> bool {
    Path::new("/proc/self").exists()
}

/// Opens a device, or a file of proc(5) or sysfs(5): only root can put another file there.
pub fn of_system(path: impl AsRef<Path>, write: bool) -> io::Result<File> {
    File::options().read(true).write(write).open(path)
}

/// The content of a file, without white space around it.
pub fn read(path: impl AsRef<Path>) -> Option<String> {
    Some(text(path)?.trim().to_owned())
}

/// The text of a file. The name of a program in it may have any bytes.
fn text(path: impl AsRef<Path>) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(path).ok()?).into_owned())
}

/// The value of a line `NAME: VALUE` of a file.
pub fn field(path: impl AsRef<Path>, name: &str) -> Option<String> {
    value_in(&text(path)?, name).map(str::to_owned)
}

/// The value of a line `NAME: VALUE` of a text.
pub fn value_in<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(str::trim)
}

/// A line of `/proc/PID/status`.
pub fn status(pid: u32, name: &str) -> Option<String> {
    field(format!("/proc/{pid}/status"), name)
}

/// The effective user, by a `/proc/PID/status`.
pub fn user_in(status: &str) -> Option<u32> {
    value_in(status, "Uid")?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// The names in a folder, in their order; none if it cannot be read.
pub fn names(folder: impl AsRef<Path>) -> Vec<String> {
    first_names(folder, usize::MAX)
}

/// The same, at most so many: of a folder that another user can fill.
pub fn first_names(folder: impl AsRef<Path>, most: usize) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = entries.take(most).map(name).collect();
    names.sort();
    names
}

/// The numbers of all processes.
pub fn processes() -> impl Iterator<Item = u32> {
    let names = names("/proc").into_iter();
    names.filter_map(|name| name.parse().ok())
}

/// The release of the running kernel, such as "6.12.9-amd64".
pub fn kernel_release() -> String {
    read("/proc/sys/kernel/osrelease").unwrap_or_default()
}

/// The version of the running kernel, such as (6, 12).
pub fn kernel_version() -> (u32, u32) {
    version(&kernel_release())
}

/// The first two numbers of a release.
pub fn version(release: &str) -> (u32, u32) {
    let mut words = release.split(|it: char| !it.is_ascii_digit());
    let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    (number(), number())
}
