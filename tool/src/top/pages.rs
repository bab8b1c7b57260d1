// SPDX-License-Identifier: MIT OR Apache-2.0
//! The live pages that this user may see: which files there are, and whether the process of each
//! is alive and still counts in it.
//!
//! The writer of such a file can write anything. So a file counts only if it lies in a folder that
//! is its user's own, belongs to that user alone, and names a process of that user. No link is
//! followed.

use crate::files::{names, owned, processes, status};
use rdmamr_live_page::{DIRECTORY, MAGIC, PARENTS, Page, VERSION, name, parse_name, start_of};
use std::collections::HashSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A page of a process that is alive.
pub struct Found {
    /// The process's number as this program sees it.
    pub pid: u32,
    pub page: Box<Page>,
    /// The file, if this user may write it.
    pub file: Option<File>,
}

/// The pages of this user's processes; of all if the user is root.
pub fn find() -> Vec<Found> {
    let mut pages = Vec::new();
    let mut seen = HashSet::new();
    for (root, folder, user) in folders() {
        let Ok(folder_file) = open_folder(&root, &folder, user) else {
            continue;
        };
        // The folder that was checked, whatever its path leads to by now.
        let folder = PathBuf::from(format!("/proc/self/fd/{}", folder_file.as_raw_fd()));
        for name in names(&folder) {
            let Some((namespace, pid, start)) = parse_name(name.as_bytes()) else {
                continue;
            };
            let path = folder.join(name);
            let Some((file, page)) = read(&path, user) else {
                continue;
            };
            let head = &page.head;
            if (head.pid_namespace, head.pid, head.start) != (namespace, pid, start) {
                continue;
            }
            match alive(&page, user) {
                Ok(pid) if seen.insert(pid) => pages.push(Found { pid, page, file }),
                Ok(_) | Err(Gone::Unknown) => {}
                Err(Gone::Ended) => drop(fs::remove_file(path)),
            }
        }
    }
    pages.sort_by_key(|found| found.pid);
    pages
}

/// The page of a process, if it has one that this user may see.
pub fn of(pid: u32) -> Option<Found> {
    find().into_iter().find(|found| found.pid == pid)
}

fn me() -> u32 {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() }
}

/// The folders that may hold pages: the root of the file system as a container has it, the path
/// there, and the user.
fn folders() -> Vec<(PathBuf, PathBuf, u32)> {
    let mut folders = Vec::new();
    let here = PathBuf::from("/");
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute());
    let mut add = |root: &Path, folder: PathBuf, user: u32| {
        let folder = (root.to_owned(), folder, user);
        // Only the folder of XDG_RUNTIME_DIR, which comes first, can occur twice.
        if folders.first() != Some(&folder) {
            folders.push(folder);
        }
    };
    if let Some(runtime) = runtime {
        add(&here, Path::new(&runtime).join(DIRECTORY), me());
    }
    for root in std::iter::once(here).chain(other_roots()) {
        for user in users(&root) {
            add(&root, format!("/run/user/{user}/{DIRECTORY}").into(), user);
            for parent in PARENTS {
                add(&root, format!("{parent}/{DIRECTORY}-{user}").into(), user);
            }
        }
    }
    folders
}

/// The users whose pages are shown there: this user, or for root all users that have a folder.
fn users(root: &Path) -> Vec<u32> {
    if me() != 0 {
        return vec![me()];
    }
    let mut users = vec![0];
    let mut look = |parent: &str, prefix: &str| {
        let names = names(root.join(parent.trim_start_matches('/')));
        let ends = names.iter().filter_map(|name| name.strip_prefix(prefix));
        users.extend(ends.filter_map(|user| user.parse::<u32>().ok()));
    };
    look("/run/user", "");
    for parent in PARENTS {
        look(parent, &format!("{DIRECTORY}-"));
    }
    users.sort_unstable();
    users.dedup();
    users
}

/// The roots of the processes that have mounts of their own, one for each such set of mounts.
fn other_roots() -> Vec<PathBuf> {
    let mounts = |process: &Path| fs::metadata(process.join("ns/mnt")).map(|it| it.ino());
    let mut seen: HashSet<u64> = mounts(Path::new("/proc/self")).into_iter().collect();
    let mut roots = Vec::new();
    for process in processes() {
        let process = PathBuf::from(format!("/proc/{process}"));
        if mounts(&process).is_ok_and(|mounts| seen.insert(mounts)) {
            roots.push(process.join("root"));
        }
    }
    roots
}

/// Opens a folder that is the user's own. In another root no link is followed at all, because a
/// link would lead out of that root.
fn open_folder(root: &Path, folder: &Path, user: u32) -> io::Result<File> {
    const RESOLVE_NO_SYMLINKS: u64 = 4;
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let file = if root == Path::new("/") {
        let mut options = File::options();
        options.read(true).custom_flags(flags).open(folder)?
    } else {
        let top = File::open(root)?;
        let below = folder.strip_prefix("/").unwrap_or(folder);
        let path = CString::new(below.as_os_str().as_bytes())?;
        let how = [(flags | libc::O_CLOEXEC) as u64, 0, RESOLVE_NO_SYMLINKS];
        // SAFETY: the path ends with a NUL, and the structure of openat2(2) is three such numbers.
        let opened = unsafe {
            libc::syscall(
                libc::SYS_openat2,
                top.as_raw_fd(),
                path.as_ptr(),
                how.as_ptr(),
                size_of_val(&how),
            )
        };
        owned(opened)?.into()
    };
    let about = file.metadata()?;
    if about.uid() == user && about.mode() & 0o7777 == 0o700 {
        Ok(file)
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

/// The file, if this user may write it, and its page.
fn read(path: &Path, user: u32) -> Option<(Option<File>, Box<Page>)> {
    let mut options = File::options();
    options
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let writable = options.clone().write(true).open(path);
    let may_write = writable.is_ok();
    let file = writable.or_else(|_| options.open(path)).ok()?;
    let about = file.metadata().ok()?;
    let is_own = about.is_file() && about.uid() == user && about.mode() & 0o777 == 0o600;
    if !is_own || about.len() != size_of::<Page>() as u64 {
        return None;
    }
    // SAFETY: a page consists of numbers, so zeros are one.
    let mut page = unsafe { Box::<Page>::new_zeroed().assume_init() };
    let bytes: *mut Page = &mut *page;
    // SAFETY: any bytes are a page, and no other code uses this one.
    let bytes = unsafe { std::slice::from_raw_parts_mut(bytes.cast::<u8>(), size_of::<Page>()) };
    (&file).read_exact(bytes).ok()?;
    let head = &page.head;
    let is_known = head.magic == MAGIC && head.version == VERSION;
    (is_known && head.size as usize == size_of::<Page>())
        .then_some((may_write.then_some(file), page))
}

/// Why a page is not shown.
enum Gone {
    /// Its process has ended: the file can be removed.
    Ended,
    /// Its process is another program by now, or cannot be seen from here.
    Unknown,
}

/// The number of the process that counts in the page.
fn alive(page: &Page, user: u32) -> Result<u32, Gone> {
    let head = &page.head;
    let here = fs::metadata("/proc/self/ns/pid").map_or(0, |it| it.ino());
    let is_it = |pid: u32| {
        fs::read(format!("/proc/{pid}/stat"))
            .ok()
            .and_then(|stat| start_of(&stat))
            == Some(head.start)
    };
    let pid = if head.pid_namespace == here {
        if !is_it(head.pid) {
            return Err(Gone::Ended);
        }
        head.pid
    } else {
        let of_it = |pid: &u32| number_inside(*pid) == Some(head.pid) && is_it(*pid);
        let in_it = |pid: &u32| {
            fs::metadata(format!("/proc/{pid}/ns/pid"))
                .is_ok_and(|it| it.ino() == head.pid_namespace)
        };
        processes()
            .find(|pid| in_it(pid) && of_it(pid))
            .ok_or(Gone::Unknown)?
    };
    // A process of root may have given up its rights since.
    let is_of_user = user == 0 || user_of(pid) == Some(user);
    if is_of_user
        && counts_in(
            pid,
            head.address,
            &name(head.pid_namespace, head.pid, head.start),
        )
    {
        Ok(pid)
    } else {
        Err(Gone::Unknown)
    }
}

/// The effective user of a process.
pub fn user_of(pid: u32) -> Option<u32> {
    status(pid, "Uid")?.split_whitespace().nth(1)?.parse().ok()
}

/// The number that a process has in its innermost namespace.
fn number_inside(pid: u32) -> Option<u32> {
    let numbers = status(pid, "NSpid")?;
    numbers.split_whitespace().last()?.parse().ok()
}

/// Whether the process has its page mapped: a program that has replaced itself (execve) has not.
fn counts_in(pid: u32, address: u64, name: &impl std::fmt::Display) -> bool {
    let end = address + (size_of::<Page>() as u64).next_multiple_of(4096);
    match fs::read_link(format!("/proc/{pid}/map_files/{address:x}-{end:x}")) {
        Ok(path) => path.to_string_lossy().ends_with(&format!("/{name}")),
        // This user may not see the mapping.
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}
