// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mounts of this process: whether a file that another user names lies on this machine. A file
//! system of FUSE asks a process, which may never answer; one of a network asks another machine; and a
//! look-up in an automounter's folder mounts what the name says.
//!
//! No file system is asked here: proc(5) has the mount of an open file.

use super::{by_number, field, open_at, read};
use anyhow::Result;
use rustix::fs::{AtFlags, CWD, OFlags, StatxAttributes, StatxFlags, statx};
use std::collections::HashMap;
use std::error::Error;
use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// The file systems that the kernel serves, from the machine's own disks and memory.
const LOCAL: &[&str] = &[
    "aufs",
    "bcachefs",
    "btrfs",
    "cramfs",
    "devtmpfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "hfsplus",
    "hugetlbfs",
    "iso9660",
    "jfs",
    "nilfs2",
    "ntfs3",
    "overlay",
    "ramfs",
    "reiserfs",
    "rootfs",
    "romfs",
    "squashfs",
    "tmpfs",
    "udf",
    "vfat",
    "xfs",
    "zfs",
];
/// In this one the name of a folder may be that of any machine, which is then asked.
const OF_MACHINES: &str = "afs";
/// In this one the look-up of a name mounts what the name says.
const AUTOMOUNTER: &str = "autofs";

/// A file lies where this program does not look.
#[derive(Debug)]
pub struct Elsewhere;

impl Display for Elsewhere {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        f.write_str("it is not on a file system of this machine")
    }
}

impl Error for Elsewhere {}

/// A line of the list of mounts, in which no field has a space.
pub struct Mount<'a> {
    number: &'a str,
    /// "MAJOR:MINOR".
    pub device: &'a str,
    /// The folder, in which four characters are written in octal digits.
    folder: &'a str,
    pub system: &'a str,
}

impl Mount<'_> {
    pub fn parse(line: &str) -> Option<Mount<'_>> {
        let (mount, of_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ');
        Some(Mount {
            number: mount.next()?,
            device: mount.nth(1)?,
            folder: mount.nth(1)?,
            system: of_system.split(' ').next()?,
        })
    }
}

/// The mounts of this process.
pub struct Mounts {
    /// By their numbers: the type, and the folder as proc(5) has it.
    all: HashMap<String, (String, String)>,
    /// The number of the root folder's mount. In a changed root (chroot(2)) the list lacks it.
    root: Option<String>,
}

impl Mounts {
    pub fn of_this_process() -> Mounts {
        let text = read("/proc/self/mountinfo").unwrap_or_default();
        let mounts = text.lines().filter_map(|line| {
            let mount = Mount::parse(line)?;
            let kept = [
                ("\\040", " "),
                ("\\011", "\t"),
                ("\\012", "\n"),
                ("\\134", "\\"),
            ];
            let unescape = |folder: String, (octal, it)| folder.replace(octal, it);
            let folder = kept.into_iter().fold(mount.folder.to_owned(), unescape);
            Some((mount.number.to_owned(), (mount.system.to_owned(), folder)))
        });
        let root = open_at(CWD, "/", OFlags::PATH, 0).ok();
        Mounts {
            all: mounts.collect(),
            root: root.and_then(|root| number(&root)),
        }
    }

    /// Refuses a file that is not on this machine. Users have programs on file systems of a network and
    /// of FUSE, so a user who is not root is refused only what would be mounted by the look-up.
    pub fn ensure_local(&self, file: &OwnedFd, is_root: bool) -> Result<()> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let about = statx(file, "", flags, StatxFlags::empty());
        let mounts = about.is_ok_and(|it| it.stx_attributes.contains(StatxAttributes::AUTOMOUNT));
        let is_there = match self.of(file) {
            _ if mounts => false,
            // The program itself comes from the root folder.
            _ if self.root.is_some() && number(file) == self.root => true,
            Some((kind, _)) if is_root => LOCAL.contains(&&**kind),
            Some((kind, _)) => kind != OF_MACHINES,
            None => false,
        };
        is_there.then_some(()).ok_or(Elsewhere.into())
    }

    /// Refuses to look up a name in a folder if that would mount something.
    pub fn ensure_mounted(&self, folder: &OwnedFd, name: &OsStr) -> Result<()> {
        if self.of(folder).is_none_or(|(kind, _)| kind != AUTOMOUNTER) {
            return Ok(());
        }
        let path = fs::read_link(by_number(folder))?.join(name);
        let mut below = self.all.values().filter(|(kind, _)| kind != AUTOMOUNTER);
        let is_mounted = below.any(|(_, folder)| Path::new(folder).starts_with(&path));
        is_mounted.then_some(()).ok_or(Elsewhere.into())
    }

    /// The mount on which an open file is.
    fn of(&self, file: &OwnedFd) -> Option<&(String, String)> {
        self.all.get(&number(file)?)
    }
}

/// The number of the mount on which an open file is.
fn number(file: &OwnedFd) -> Option<String> {
    field(format!("/proc/self/fdinfo/{}", file.as_raw_fd()), "mnt_id")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> OwnedFd {
        open_at(CWD, path, OFlags::PATH, 0).unwrap()
    }

    #[test]
    fn a_local_file_is_told_from_others() {
        let mounts = Mounts::of_this_process();
        let of_kernel = open(Path::new("/proc/self/status"));
        let error = mounts.ensure_local(&of_kernel, true).unwrap_err();
        assert!(error.is::<Elsewhere>());
        mounts.ensure_local(&of_kernel, false).unwrap();
        mounts.ensure_local(&open(Path::new("/")), true).unwrap();
        let unknown = Mounts {
            all: HashMap::new(),
            root: None,
        };
        assert!(unknown.ensure_local(&of_kernel, false).is_err());
    }

    #[test]
    fn a_name_in_the_folder_of_an_automounter_is_looked_up_if_it_is_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let file = open(folder.path());
        let mut mounts = Mounts::of_this_process();
        let is_looked_up =
            |mounts: &Mounts| mounts.ensure_mounted(&file, OsStr::new("host")).is_ok();
        assert!(is_looked_up(&mounts));
        let number = number(&file).unwrap();
        let here = folder.path().display().to_string();
        mounts
            .all
            .insert(number, (AUTOMOUNTER.into(), here.clone()));
        assert!(!is_looked_up(&mounts));
        for (name, is_there) in [("hos", false), ("other", false), ("host/export", true)] {
            let mount = ("nfs4".into(), format!("{here}/{name}"));
            mounts.all.insert(name.into(), mount);
            assert_eq!(is_looked_up(&mounts), is_there, "{name}");
        }
    }
}
