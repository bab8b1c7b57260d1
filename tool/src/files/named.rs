// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files whose path another user may have chosen or can change: on the command line, in a trace. This
//! program runs as root too, so such a path must not lead where only root may go.
//!
//! Each file is looked at (O_PATH) before it is opened, and is opened without a second look-up. Root
//! follows no symbolic link of another user, in any part of a path, and nobody follows one of proc(5)
//! into another process. A new file gets its name when it is complete. It takes over neither the owner
//! nor the content of the file that it replaces, and of its mode only what narrows it.

use super::mounts::Mounts;
use super::{by_number, has_proc, open_at, reopen};
use crate::report::units::shown;
use anyhow::{Context, Result, ensure};
use rdmamr_live_page::OF_KERNEL;
use rustix::fs::{AtFlags, CWD, OFlags, fstatfs, linkat, mkdirat, readlinkat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// The kernel follows as many links in a path.
const MOST_LINKS: usize = 40;

/// The effective user.
pub fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A file that is found and not open yet.
pub struct Found {
    file: File,
    pub about: Metadata,
}

impl Found {
    fn new(file: OwnedFd) -> io::Result<Found> {
        let file = File::from(file);
        let about = file.metadata()?;
        Ok(Found { file, about })
    }

    /// Opens this very file.
    pub fn open(&self, mut flags: OFlags) -> io::Result<File> {
        // The owner of a regular file may hold a lease, for whose end an open would wait.
        flags.set(OFlags::NONBLOCK, self.about.is_file());
        reopen(&self.file, flags)
    }

    /// Refuses what is not a regular file. A file of the kernel's may do something when it is opened.
    pub fn ensure_file(&self) -> Result<()> {
        let system = fstatfs(&self.file)?.f_type;
        let is_file = self.about.is_file() && !OF_KERNEL.contains(&system);
        ensure!(is_file, "it is not a regular file");
        Ok(())
    }

    /// Opens a regular file for reading.
    pub fn read(&self) -> Result<File> {
        self.ensure_file()?;
        Ok(self.open(OFlags::RDONLY)?)
    }

    /// The names in a folder.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = fs::read_dir(by_number(&self.file))?;
        let names = entries.map(|entry| Ok(entry?.file_name()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    /// Refuses a file to which another user has access by another way: by its owner's rights, or by a
    /// second name.
    pub fn ensure_mine(&self) -> Result<()> {
        let user = self.about.uid();
        ensure!(user == me(), "it belongs to user {user}");
        let names = self.about.nlink();
        ensure!(names == 1, "it has a second name (a hard link)");
        Ok(())
    }
}

/// Finds the file to which a path leads.
pub fn find(path: &Path) -> Result<Found> {
    walk(path, parts(path)?, None, None)
}

/// The same, only on file systems of this machine; nothing is mounted, and no other file system asked.
pub fn find_local(path: &Path, mounts: &Mounts) -> Result<Found> {
    walk(path, parts(path)?, None, Some(mounts))
}

/// Opens a regular file by any links: a program that is run, whose path is as the kernel takes it.
pub fn read_any(path: &Path) -> Result<File> {
    let open = |flags| open_at(CWD, path, flags, 0);
    let found = Found::new(open(OFlags::PATH)?)?;
    if has_proc() {
        return found.read();
    }
    found.ensure_file()?;
    Ok(open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?.into())
}

/// Whether folders that a path lacks are made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    Refused,
    Made,
}

/// A name in an open folder, whatever becomes of the folder's path. The file may be missing.
pub struct Place {
    folder: OwnedFd,
    name: OsString,
}

impl Place {
    /// The place that a path names. A link of that name is not followed.
    pub fn of(path: &Path, missing: Missing) -> Result<Place> {
        let mut parts = parts(path)?;
        let name = parts.pop_back().context("it names no file")?;
        let folder = walk(path, parts, Some(missing), None)?.file.into();
        Ok(Place { folder, name })
    }

    /// The folder's path, by its descriptor.
    pub fn folder(&self) -> PathBuf {
        by_number(&self.folder)
    }

    fn path(&self) -> PathBuf {
        self.folder().join(&self.name)
    }

    /// Looks at the file of that name, or at the link.
    pub fn look(&self) -> io::Result<Found> {
        Found::new(look_at(&self.folder, &self.name)?)
    }

    /// Makes a new file of that name.
    pub fn make(&self, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL;
        Ok(open_at(&self.folder, &self.name, flags, mode)?.into())
    }

    pub fn remove(&self) -> io::Result<()> {
        fs::remove_file(self.path())
    }
}

/// Writes a file that is whole or absent, with no more rights than `mode` and the umask leave. A
/// device, and a pipe of this user, is written to. A link is replaced, not followed.
pub fn replace(
    path: &Path,
    mode: u32,
    content: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let place = Place::of(path, Missing::Refused)?;
    let mut mode = mode;
    match place.look() {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        found => {
            let found = found?;
            let (about, kind) = (&found.about, found.about.file_type());
            let user = about.uid();
            ensure!(!kind.is_dir(), "it is a directory");
            if kind.is_symlink() {
                let leads_to_a_file =
                    !trusts(user) || find(path).map_or(true, |there| there.about.is_file());
                let is_of_system = fs::read_link(place.path())?.starts_with("/proc");
                ensure!(
                    leads_to_a_file && !is_of_system,
                    "it is a link to something that is no file (for standard output: -o -)"
                );
            } else if kind.is_char_device() || kind.is_fifo() {
                let is_trusted = user == me() || (user == 0 && kind.is_char_device());
                ensure!(is_trusted, "it belongs to user {user}");
                return buffered(found.open(OFlags::WRONLY)?, content);
            } else if found.ensure_mine().is_ok() {
                // The file may be for its owner alone.
                mode &= about.mode();
            }
        }
    }
    let mut named = tempfile::Builder::new();
    named.prefix(".rdmamr-");
    // Nothing stays of a file without a name, however this process ends. NFS and FUSE have none.
    let flags = OFlags::TMPFILE | OFlags::WRONLY;
    let persisted = match open_at(CWD, place.folder(), flags, mode) {
        Ok(file) => {
            let file = File::from(file);
            buffered(&file, content)?;
            let link = |path: &Path| {
                let follow = AtFlags::SYMLINK_FOLLOW;
                Ok(linkat(CWD, by_number(&file), CWD, path, follow)?)
            };
            let named = named.make_in(place.folder(), link)?;
            named.persist(place.path()).map_err(|error| error.error)
        }
        Err(_) => {
            named.permissions(Permissions::from_mode(mode));
            let file = named.tempfile_in(place.folder())?;
            buffered(file.as_file(), content)?;
            let file = file.persist(place.path());
            file.map(drop).map_err(|error| error.error)
        }
    };
    Ok(persisted?)
}

/// Writes by way of a buffer.
pub fn buffered(
    file: impl Write,
    content: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let mut file = io::BufWriter::new(file);
    content(&mut file)?;
    Ok(file.flush()?)
}

/// Walks along the parts of a path, folder by folder, by any links. The last part is a folder too if it
/// is told what becomes of missing ones. All parts are local if it is told the mounts.
fn walk(
    path: &Path,
    mut rest: VecDeque<OsString>,
    folders: Option<Missing>,
    local: Option<&Mounts>,
) -> Result<Found> {
    let mut folder = start_of(path)?;
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        let is_last = rest.is_empty() && folders.is_none();
        if let Some(mounts) = local {
            mounts.ensure_mounted(&folder, &name)?;
        } else if !is_last {
            // O_DIRECTORY has an automount happen.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            match open_at(&folder, &name, flags, 0) {
                Ok(next) => {
                    folder = next;
                    continue;
                }
                Err(error)
                    if error.kind() == ErrorKind::NotFound && folders == Some(Missing::Made) =>
                {
                    match mkdirat(&folder, &name, 0o777.into()) {
                        Err(Errno::EXIST) => {}
                        made => made?,
                    }
                    rest.push_front(name);
                    continue;
                }
                Err(error) if error.kind() != ErrorKind::NotADirectory => return Err(error.into()),
                Err(_) => {}
            }
        }
        let file = look_at(&folder, &name)?;
        if let Some(mounts) = local {
            mounts.ensure_local(&file, me() == 0)?;
        }
        let found = Found::new(file)?;
        if found.about.is_symlink() {
            let user = found.about.uid();
            let shown = shown(&name);
            ensure!(
                trusts(user),
                "{shown} is a link of user {user}, which root does not follow"
            );
            links += 1;
            let too_many = io::Error::from_raw_os_error(libc::ELOOP);
            ensure!(links <= MOST_LINKS, too_many);
            if is_own_descriptors(&folder) {
                // What is open there may have no path, such as a pipe.
                ensure!(is_last, "a descriptor is no folder of a path");
                let found = open_at(&folder, &name, OFlags::PATH, 0)?;
                return Ok(Found::new(found)?);
            }
            let target = readlinkat(&found.file, "", Vec::new())?;
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            if target.is_absolute() {
                folder = start_of(&target)?;
            }
            for part in parts(&target)?.into_iter().rev() {
                rest.push_front(part);
            }
        } else if is_last {
            return Ok(found);
        } else {
            let no_folder = io::Error::from_raw_os_error(libc::ENOTDIR);
            ensure!(found.about.is_dir(), no_folder);
            folder = found.file.into();
        }
    }
    // A folder, which may have no name here: "/", "." or a link to one.
    Ok(Found::new(folder)?)
}

/// Root trusts the links of root alone.
fn trusts(user: u32) -> bool {
    user == 0 || me() != 0
}

fn start_of(path: &Path) -> io::Result<OwnedFd> {
    let start = if path.is_absolute() { "/" } else { "." };
    open_at(CWD, start, OFlags::PATH | OFlags::DIRECTORY, 0)
}

fn parts(path: &Path) -> Result<VecDeque<OsString>> {
    ensure!(path != Path::new(""), "the path is empty");
    let is_named = |part: &Component| matches!(part, Component::Normal(_) | Component::ParentDir);
    let named = path.components().filter(is_named);
    Ok(named.map(|part| part.as_os_str().to_owned()).collect())
}

/// Finds a name in a folder: the file, or the link.
fn look_at(folder: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    open_at(folder, name, OFlags::PATH | OFlags::NOFOLLOW, 0)
}

/// Whether a folder is that of this process's own descriptors in proc(5).
fn is_own_descriptors(folder: &OwnedFd) -> bool {
    let about = |path: &Path| fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
    let this = about(&by_number(folder));
    this.is_some() && this == about(Path::new("/proc/self/fd/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    fn put(path: &Path, words: &str) -> Result<()> {
        replace(path, 0o644, |out| Ok(out.write_all(words.as_bytes())?))
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("victim"), "as before").unwrap();
        symlink(at("victim"), at("page")).unwrap();
        put(&at("page"), "new").unwrap();
        assert_eq!(fs::read_to_string(at("victim")).unwrap(), "as before");
        assert_eq!(fs::read_to_string(at("page")).unwrap(), "new");
        assert!(!at("page").is_symlink());
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 2, "no temporary file is left");
    }

    #[test]
    fn a_page_that_is_replaced_can_only_narrow_the_mode() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page");
        for (had, has) in [(0o600, 0o600), (0o4777, 0o644), (0o666, 0o644)] {
            fs::write(&page, "old").unwrap();
            fs::set_permissions(&page, Permissions::from_mode(had)).unwrap();
            put(&page, "new").unwrap();
            assert_eq!(mode(&page), has, "{had:o}");
        }
        fs::set_permissions(&page, Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&page, folder.path().join("second")).unwrap();
        put(&page, "new").unwrap();
        assert_eq!(mode(&page), 0o644, "a file with a second name says nothing");
    }

    #[test]
    fn a_device_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("/dev/null", &link).unwrap();
        assert!(put(&link, "x").is_err());
        assert!(put(Path::new("/dev/stdout"), "x").is_err());
        put(Path::new("/dev/null"), "x").unwrap();
        let kind = Path::new("/dev/null").metadata().unwrap().file_type();
        assert!(kind.is_char_device());
    }

    #[test]
    fn a_path_leads_where_the_kernel_says() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("deep")).unwrap();
        fs::write(at("deep/file"), "x").unwrap();
        symlink("deep/../deep", at("relative")).unwrap();
        symlink(at("relative/file"), at("absolute")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let file = fs::File::open(at("deep/file")).unwrap();
        let by_number = format!("/dev/fd/{}", file.as_raw_fd());
        let paths = ["deep/file", "./relative/file", "absolute", "deep/"].map(at);
        for path in paths
            .into_iter()
            .chain([by_number.into(), "/".into(), ".".into()])
        {
            let found = find(&path).unwrap().about;
            let there = path.metadata().unwrap();
            assert_eq!((found.dev(), found.ino()), (there.dev(), there.ino()));
        }
        for path in ["loop", "none", "deep/file/x", "loop/x"] {
            assert!(find(&at(path)).is_err(), "{path}");
        }
        assert!(find(Path::new("")).is_err());
        Place::of(&at("new/folders/file"), Missing::Made).unwrap();
        assert!(at("new/folders").is_dir());
    }

    #[test]
    fn root_follows_no_link_of_another_user() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("own")).unwrap();
        fs::write(at("own/file"), "x").unwrap();
        symlink("own", at("link")).unwrap();
        symlink("own/file", at("page")).unwrap();
        find(&at("link/file")).unwrap();
        // Only root can give a link away.
        if std::os::unix::fs::lchown(at("link"), Some(65534), None).is_ok() {
            let why = find(&at("link/file")).err().unwrap().to_string();
            assert!(why.contains("a link of user 65534"), "{why}");
            assert!(find(&at("link")).is_err());
            assert!(put(&at("link/page"), "x").is_err());
            std::os::unix::fs::lchown(at("page"), Some(65534), None).unwrap();
            assert!(find(&at("page")).is_err());
            put(&at("page"), "new").unwrap();
            assert_eq!(fs::read_to_string(at("own/file")).unwrap(), "x");
        }
    }

    #[test]
    fn nothing_but_a_regular_file_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let path = CString::new(pipe.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends with a NUL.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        let of_kernel = Path::new("/proc/self/status");
        for path in [&pipe, Path::new("/dev/zero"), of_kernel, folder.path()] {
            assert!(read_any(path).is_err(), "{}", path.to_string_lossy());
            assert!(find(path).unwrap().read().is_err());
        }
    }
}
