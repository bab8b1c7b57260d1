// SPDX-License-Identifier: MIT OR Apache-2.0
//! Appending to a file that the user has named, without harm to the program, which does not know of
//! the file, and without help to another user who can write in the file's directory: no link is
//! followed, and a later block goes into the file of the first. A file that is no trace gets no
//! trace: whoever chooses the name could have the library write into any file of the user. All
//! system calls go through syscall(), which the cache's own threads may use too.

use super::descriptor::{self, Descriptor};
use super::proc;
use super::words::InWords;
use core::ffi::{CStr, c_int};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use errno::Errno;
use libc::syscall;

/// How to append to a file.
#[derive(Default)]
pub struct Manner<'a> {
    /// The permissions of a new file.
    pub mode: u32,
    /// The file may not become longer than that; EFBIG says that it would.
    pub limit: Option<u64>,
    /// For a file that is secret and is opened several times: it must be the user's own, and the
    /// same each time.
    pub first: Option<&'a First>,
    /// What a regular file that is there must begin with, if it is not empty.
    pub magic: Option<[u8; 8]>,
    /// The file must be there, and be a regular one: another process has chosen the name.
    pub only_existing: bool,
}

/// The file to which a name led the first time; zeros before that.
#[derive(Default)]
pub struct First {
    device: AtomicU64,
    inode: AtomicU64,
}

impl First {
    fn is_known(&self) -> bool {
        self.inode.load(Relaxed) != 0
    }

    /// Whether this is the first file, which the first question sets. If two threads ask their
    /// first questions about two files, both answers may be no.
    fn is(&self, (device, inode): (u64, u64)) -> bool {
        let same = |known: &AtomicU64, asked| {
            let before = known.compare_exchange(0, asked, Relaxed, Relaxed);
            before.is_ok() || before == Err(asked)
        };
        same(&self.device, device) && same(&self.inode, inode)
    }
}

/// Why nothing was written.
#[derive(PartialEq, Eq, Debug)]
pub enum Refused {
    Kernel(Errno),
    /// The name leads to another file than at the first time.
    Replaced,
    /// The file belongs to another user, who could read the output.
    Foreign,
    /// The file has a second name.
    Linked,
    /// The file is neither empty nor begins as a file of that kind.
    NoTrace,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Kernel(Errno(libc::ELOOP)) => f.write_str("a symbolic link is not followed"),
            Refused::Kernel(errno) => InWords(*errno).fmt(f),
            Refused::Replaced => f.write_str("another file has taken the name"),
            Refused::Foreign => f.write_str("the file is another user's"),
            Refused::Linked => f.write_str("the file has a second name (a hard link)"),
            Refused::NoTrace => f.write_str("the file is not a trace"),
        }
    }
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Refused {
        Refused::Kernel(errno)
    }
}

/// The links that the kernel and root make to descriptors of the process, such as /dev/stdout.
const DESCRIPTORS: [&[u8]; 4] = [
    b"/dev/std",
    b"/dev/fd/",
    b"/proc/self/fd/",
    b"/proc/thread-self/fd/",
];

fn is_descriptor(path: &CStr) -> bool {
    let name = |start| path.to_bytes().strip_prefix(start);
    let name = DESCRIPTORS.into_iter().find_map(name);
    name.is_some_and(|name| !name.contains(&b'/'))
}

/// Appends all bytes by one write(), so that the output of several processes does not mix. If the
/// file system has no room for all bytes, a part of them may be in the file.
pub fn append(path: &CStr, bytes: &[u8], manner: &Manner<'_>) -> Result<(), Refused> {
    let file = open(path, manner)?;
    write(file.number(), bytes, manner)
}

/// How often another process may remove the file between two steps.
const ATTEMPTS: u32 = 100;

/// Opens the file, and makes it if it is not there and may be made. A file that is there must be
/// acceptable.
fn open(path: &CStr, manner: &Manner<'_>) -> Result<Descriptor, Refused> {
    // O_NONBLOCK: a pipe without a reader must not block the program. O_NOCTTY: a terminal must not
    // become the program's controlling terminal.
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOCTTY;
    let open = |more| Descriptor::open(libc::AT_FDCWD, path, flags | more, manner.mode);
    if is_descriptor(path) && !manner.only_existing {
        return Ok(open(0)?);
    }
    if manner.first.is_some_and(First::is_known) {
        return Ok(open(libc::O_NOFOLLOW)?);
    }
    // Two steps tell another user's file from a file that this process makes, which is its own on
    // any file system.
    for _ in 0..ATTEMPTS {
        if !manner.only_existing {
            match open(libc::O_NOFOLLOW | libc::O_CREAT | libc::O_EXCL) {
                Err(Errno(libc::EEXIST)) => {}
                made => return Ok(made?),
            }
        }
        match open(libc::O_NOFOLLOW) {
            // Another process has removed it meanwhile.
            Err(Errno(libc::ENOENT)) if !manner.only_existing => {}
            found => {
                let file = found?;
                return accept(path, file.number(), manner).map(|()| file);
            }
        }
    }
    Err(Errno(libc::ENOENT).into())
}

/// Whether a file that was there may be written: another user may have put it there.
fn accept(path: &CStr, fd: c_int, manner: &Manner<'_>) -> Result<(), Refused> {
    let about = descriptor::about(fd)?;
    let kind = about.st_mode & libc::S_IFMT;
    let is_regular = kind == libc::S_IFREG;
    if is_regular && about.st_nlink > 1 {
        return Err(Refused::Linked);
    }
    // SAFETY: the call takes no arguments.
    let user = unsafe { syscall(libc::SYS_geteuid) } as libc::uid_t;
    let keeps = is_regular || kind == libc::S_IFIFO;
    if manner.first.is_some() && keeps && about.st_uid != user {
        return Err(Refused::Foreign);
    }
    if is_regular && manner.magic.is_some() && is_of_kernel(fd) {
        return Err(Refused::NoTrace);
    }
    let begins = match manner.magic {
        Some(magic) if is_regular && about.st_size > 0 => begins_with(path, fd, magic)?,
        _ => is_regular || !manner.only_existing,
    };
    begins.then_some(()).ok_or(Refused::NoTrace)
}

/// Whether the file is the kernel's, such as /proc/self/comm, which looks empty.
fn is_of_kernel(fd: c_int) -> bool {
    descriptor::file_system(fd).is_none_or(|it| rdmamr_live_page::OF_KERNEL.contains(&it))
}

/// Whether the open file of that name begins with these bytes. Its descriptor cannot read, since a
/// pipe that is open to be read too would never report that it has no reader.
fn begins_with(path: &CStr, fd: c_int, magic: [u8; 8]) -> Result<bool, Refused> {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = Descriptor::open(libc::AT_FDCWD, path, flags, 0)?;
    if descriptor::identity(file.number())? != descriptor::identity(fd)? {
        return Err(Refused::Replaced);
    }
    let mut start = [0; 8];
    Ok(file.read(&mut start) == Some(magic.len()) && start == magic)
}

fn write(fd: c_int, bytes: &[u8], manner: &Manner<'_>) -> Result<(), Refused> {
    if let Some(first) = manner.first {
        if !first.is(descriptor::identity(fd)?) {
            return Err(Refused::Replaced);
        }
    }
    if !is_within_limit(fd, bytes.len(), manner.limit) {
        return Err(Errno(libc::EFBIG).into());
    }
    if descriptor::write(fd, bytes)? < bytes.len() {
        return Err(Errno(libc::ENOSPC).into());
    }
    Ok(())
}

/// Whether the limit and RLIMIT_FSIZE allow the whole write. Beyond them the kernel would write a
/// part.
fn is_within_limit(fd: c_int, more: usize, own: Option<u64>) -> bool {
    let limits = [proc::limit(libc::RLIMIT_FSIZE), own];
    let most = limits.into_iter().flatten().min();
    let most = most.unwrap_or(libc::RLIM64_INFINITY);
    if most == libc::RLIM64_INFINITY {
        return true;
    }
    // SAFETY: lseek takes no pointers.
    let size = unsafe { syscall(libc::SYS_lseek, fd, 0, libc::SEEK_END) };
    // A file without an end, such as a pipe, has no limit either.
    u64::try_from(size).is_ok_and(|size| size.saturating_add(more as u64) <= most) || size < 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::path::{Path, PathBuf};

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("rdmamr.{name}.{}", std::process::id()));
            std::fs::create_dir(&folder).unwrap();
            Folder(folder)
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn add(path: &Path, first: Option<&First>) -> Result<(), Refused> {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        append(&path, b"x", &Manner { first, ..manner() })
    }

    fn manner<'a>() -> Manner<'a> {
        Manner {
            mode: 0o600,
            ..Manner::default()
        }
    }

    fn length(path: &Path) -> u64 {
        path.metadata().unwrap().len()
    }

    #[test]
    fn a_later_block_goes_into_the_file_of_the_first() {
        let folder = Folder::new("first");
        let (name, aside) = (folder.at("name"), folder.at("aside"));
        let first = First::default();
        assert_eq!(add(&name, Some(&first)), Ok(()));
        assert_eq!(add(&name, Some(&first)), Ok(()));
        std::fs::rename(&name, &aside).unwrap();
        // No new file appears under the name.
        assert_eq!(add(&name, Some(&first)), Err(Errno(libc::ENOENT).into()));
        assert!(!name.exists());
        std::fs::write(&name, "").unwrap();
        assert_eq!(add(&name, Some(&first)), Err(Refused::Replaced));
        assert_eq!((length(&name), length(&aside)), (0, 2));
        // If the first file does not matter, a new file will do.
        assert_eq!(add(&name, None), Ok(()));
    }

    #[test]
    fn no_link_is_followed() {
        let folder = Folder::new("link");
        let (name, target) = (folder.at("name"), folder.at("target"));
        let link = Refused::Kernel(Errno(libc::ELOOP));
        std::os::unix::fs::symlink(&target, &name).unwrap();
        // At first the link is dangling, later it leads to a file.
        for first in [None, Some(&First::default())] {
            assert_eq!(add(&name, first).as_ref(), Err(&link));
        }
        assert!(!target.exists());
        std::fs::write(&target, "").unwrap();
        for first in [None, Some(&First::default())] {
            assert_eq!(add(&name, first).as_ref(), Err(&link));
        }
        std::fs::remove_file(&name).unwrap();
        std::fs::hard_link(&target, &name).unwrap();
        for first in [None, Some(&First::default())] {
            assert_eq!(add(&name, first), Err(Refused::Linked));
        }
        assert_eq!(length(&target), 0);
    }

    #[test]
    fn another_users_file_gets_nothing_secret() {
        let folder = Folder::new("owner");
        let name = folder.at("name");
        std::fs::write(&name, "").unwrap();
        // Only root can give a file away.
        if std::os::unix::fs::chown(&name, Some(65534), None).is_ok() {
            assert_eq!(add(&name, Some(&First::default())), Err(Refused::Foreign));
            assert_eq!(length(&name), 0);
            assert_eq!(add(&name, None), Ok(()));
        }
    }

    #[test]
    fn only_an_empty_file_or_a_trace_gets_a_trace() {
        let folder = Folder::new("magic");
        let name = folder.at("name");
        let path = CString::new(name.as_os_str().as_bytes()).unwrap();
        let add = |only_existing| {
            let (magic, first) = (Some(*b"RDMAMRTR"), First::default());
            let manner = Manner {
                first: Some(&first),
                magic,
                only_existing,
                ..manner()
            };
            append(&path, b"x", &manner)
        };
        assert_eq!(add(true), Err(Errno(libc::ENOENT).into()));
        assert!(!name.exists());
        let requested = Manner {
            magic: Some(*b"RDMAMRTR"),
            only_existing: true,
            ..manner()
        };
        let of_kernel = append(c"/proc/thread-self/comm", b"x", &requested);
        assert_eq!(of_kernel, Err(Refused::NoTrace));
        assert_eq!(add(false), Ok(()));
        for (before, result) in [
            ("alias ls='ls -l'\n", Err(Refused::NoTrace)),
            ("RDMAMR", Err(Refused::NoTrace)),
            ("RDMAMRTR", Ok(())),
            ("RDMAMRTR and more", Ok(())),
            ("", Ok(())),
        ] {
            for only_existing in [false, true] {
                std::fs::write(&name, before).unwrap();
                assert_eq!(add(only_existing), result, "{before:?}");
                let more = u64::from(result.is_ok());
                assert_eq!(length(&name), before.len() as u64 + more, "{before:?}");
            }
        }
        std::fs::remove_file(&name).unwrap();
        std::os::unix::net::UnixListener::bind(&name).unwrap();
        assert_eq!(add(true), Err(Errno(libc::ENXIO).into()));
        let null = Manner {
            only_existing: true,
            ..manner()
        };
        assert_eq!(append(c"/dev/null", b"x", &null), Err(Refused::NoTrace));
        assert_eq!(append(c"/dev/null", b"x", &manner()), Ok(()));
    }

    #[test]
    fn a_name_of_a_descriptor_is_a_link_of_the_system() {
        for name in [c"/dev/stdout", c"/dev/fd/1", c"/proc/self/fd/1"] {
            assert!(is_descriptor(name), "{name:?}");
        }
        for name in [c"/dev/shm/stdout", c"/dev/fd/../shm/x", c"/proc/self/cwd/x"] {
            assert!(!is_descriptor(name), "{name:?}");
        }
    }
}
