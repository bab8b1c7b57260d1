// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a process runs: its host, and its rank in a job. The name of a trace may hold both, and
//! the process number, so that each process has a file of its own. Also the file system of a trace.

use core::ffi::CStr;
use rdmamr_sys::kernel;
use std::ffi::CString;

/// The host's name.
pub fn host() -> String {
    let system = kernel::about();
    // SAFETY: the kernel ends the name with a NUL, and zeros are an empty one.
    let name = unsafe { CStr::from_ptr(system.nodename.as_ptr()) };
    name.to_string_lossy().into_owned()
}

/// The file of this process: `%p` is the process number, `%h` the host's name, `%r` the rank
/// (`none` without one), and `%%` a percent sign.
pub fn expand(pattern: &CStr, pid: u32, rank: Option<u32>) -> CString {
    let mut path = Vec::with_capacity(pattern.count_bytes());
    let mut bytes = pattern.to_bytes().iter();
    while let Some(&byte) = bytes.next() {
        let letter = (byte == b'%').then(|| bytes.as_slice().first());
        match letter.flatten() {
            Some(b'p') => path.extend(pid.to_string().into_bytes()),
            Some(b'h') => path.extend(host().replace('/', "_").into_bytes()),
            Some(b'r') => {
                let rank = rank.map_or("none".to_string(), |rank| rank.to_string());
                path.extend(rank.into_bytes());
            }
            Some(b'%') => path.push(b'%'),
            _ => {
                path.push(byte);
                continue;
            }
        }
        bytes.next();
    }
    CString::new(path).unwrap_or_else(|_| pattern.to_owned())
}

/// The name of a file's file system, if each write goes to another machine or another program.
pub fn slow_file_system(path: &CStr) -> Option<&'static str> {
    // SAFETY: all zeros is a valid `statfs`.
    let mut system: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the path ends with a NUL, and the structure is writable.
    let known = unsafe { libc::syscall(libc::SYS_statfs, path.as_ptr(), &raw mut system) } == 0;
    known.then(|| slow(system.f_type as u64))?
}

/// By the number that statfs(2) has for it.
fn slow(number: u64) -> Option<&'static str> {
    const SLOW: [(u64, &str); 12] = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB"),
        (0x0102_1997, "9p"),
        (0x6573_5546, "FUSE"),
        (0x0bd0_0bd0, "Lustre"),
        (0x00c3_6400, "Ceph"),
        (0x4750_4653, "GPFS"),
        (0x1983_0326, "BeeGFS"),
        (0x5346_414f, "AFS"),
        (0x0116_1970, "GFS2"),
    ];
    let found = SLOW.iter().find(|(slow, _)| *slow == number & 0xffff_ffff);
    found.map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_process_host_and_rank() {
        let expanded = |pattern: &CStr, rank| expand(pattern, 7, rank).into_string().unwrap();
        assert_eq!(
            expanded(c"/d/%h-%r.%p", Some(3)),
            format!("/d/{}-3.7", host())
        );
        assert_eq!(expanded(c"/d/%r", None), "/d/none");
        assert_eq!(expanded(c"/100%%p%", None), "/100%p%");
        assert_eq!(expanded(c"/%x%/%", None), "/%x%/%");
        assert!(!host().is_empty());
    }

    #[test]
    fn slow_file_systems_have_names() {
        assert_eq!(slow(libc::NFS_SUPER_MAGIC as u64), Some("NFS"));
        assert_eq!(slow(libc::FUSE_SUPER_MAGIC as u64), Some("FUSE"));
        assert_eq!(slow(libc::TMPFS_MAGIC as u64), None);
        assert_eq!(slow_file_system(c"/proc/version"), None);
        assert_eq!(slow_file_system(c"/nowhere"), None);
    }
}
