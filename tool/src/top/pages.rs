// SPDX-License-Identifier: MIT OR Apache-2.0
//! The live pages that this user may see: which there are, and whether the process of each is alive
//! and still counts in it.
//!
//! The writer of such a file can write anything, and a user can mount a file system of his own in a
//! mount namespace of his own, where each look at a file waits for that user. So a file counts only
//! if it is on a tmpfs, belongs to one user alone, and names a process of that user. A page in another
//! mount namespace is found by the mapping of its process, and no path there is followed.

use crate::files::named::me;
use crate::files::{by_number, first_names, of_system, open_at, processes, reopen, status};
use rdmamr_live_page::{
    DIRECTORY, MAGIC, PARENTS, PLACE, Page, VERSION, name, parse_name, start_of,
};
use rustix::fs::{AtFlags, CWD, OFlags, Statx, StatxFlags, statx};
use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How many files of a folder are looked at.
const MOST_FILES: usize = 1 << 14;
/// How many bytes of a list of mounts are read.
const MOST_MOUNTS: u64 = 1 << 20;

/// A page of a process that is alive.
pub struct Found {
    /// The process's number as this program sees it.
    pub pid: u32,
    /// The owner of the page.
    pub user: u32,
    pub page: Box<Page>,
    /// The file, if this user may write it.
    pub file: Option<File>,
}

/// The pages of this user's processes; of all if the user is root.
pub fn find() -> Vec<Found> {
    let mut pages = Vec::new();
    let mut seen = HashSet::new();
    let here = numbers_of("self");
    let inside = LazyCell::new(|| inside(here));
    let elsewhere = elsewhere();
    for (parent, folder, user) in folders(&elsewhere) {
        let Ok(folder) = open_folder(&parent, &folder, user) else {
            continue;
        };
        let path = by_number(&folder);
        for file in first_names(&path, MOST_FILES) {
            let Some(named) = parse_name(file.as_bytes()) else {
                continue;
            };
            let (namespace, number, began) = named;
            let is_here = namespace == here;
            let pid = match is_here {
                true => Some(number),
                false => inside.get(&(namespace, number)).copied(),
            };
            let Some(pid) = pid else { continue };
            if start(pid) == Some(began) {
                let found = in_folder(&folder, &file, named, user, pid);
                pages.extend(found.filter(|found| seen.insert(found.pid)));
            } else if is_here {
                // What is gone in another namespace cannot be told from here.
                let _ = fs::remove_file(path.join(file));
            }
        }
    }
    if me() == 0 {
        let others = elsewhere.into_iter().map(|(_, pid)| pid);
        pages.extend(others.filter(|pid| !seen.contains(pid)).filter_map(mapped));
    }
    pages.sort_by_key(|found| found.pid);
    pages
}

/// The page of a process, if it has one that this user may see.
pub fn of(pid: u32) -> Option<Found> {
    find().into_iter().find(|found| found.pid == pid)
}

/// Whether the process is still the one of the page, and has not executed another program.
pub fn is_still(found: &Found) -> bool {
    start(found.pid) == Some(found.page.head.start) && counts_in(found.pid, &found.page)
}

/// The mount namespace of a process.
pub fn mounts_of(process: impl Display) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{process}/ns/mnt")).ok()?.ino())
}

/// The processes of other mount namespaces, as far as this user may know, each with its namespace.
fn elsewhere() -> Vec<(u64, u32)> {
    let here = mounts_of("self");
    let there = processes().filter_map(|pid| Some((mounts_of(pid)?, pid)));
    there.filter(|(mounts, _)| Some(*mounts) != here).collect()
}

/// The folders that may hold pages: the parent, the name, and the user. Only a user who is not root
/// looks into other mount namespaces, which are that user's own.
fn folders(elsewhere: &[(u64, u32)]) -> Vec<(PathBuf, String, u32)> {
    let mut folders = Vec::new();
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR") {
        folders.push((PathBuf::from(runtime), DIRECTORY.to_owned(), me()));
    }
    // A user without a process has no page, so a crowd of folders costs nothing.
    let users: BTreeSet<u32> = match me() {
        0 => processes().filter_map(user_of).chain([0]).collect(),
        user => [user].into(),
    };
    let one_of_each: HashMap<u64, u32> = match me() {
        0 => HashMap::new(),
        _ => elsewhere.iter().copied().collect(),
    };
    let roots = one_of_each.values().map(|pid| format!("/proc/{pid}/root"));
    for root in std::iter::once(String::new()).chain(roots) {
        for user in &users {
            let runtime = format!("{root}/run/user/{user}");
            folders.push((runtime.into(), DIRECTORY.to_owned(), *user));
            for parent in PARENTS {
                let own = format!("{DIRECTORY}-{user}");
                folders.push((format!("{root}{parent}").into(), own, *user));
            }
        }
    }
    folders
}

/// Opens a folder that is the user's own, and no mount of his.
fn open_folder(parent: &Path, name: &str, user: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let parent = open_at(CWD, parent, flags, 0)?;
    let folder = open_at(&parent, name, flags | OFlags::NOFOLLOW, 0)?;
    let (about, above) = (about(&folder)?, about(&parent)?);
    let is_own = about.stx_uid == user && about.stx_mode & 0o7777 == 0o700;
    match is_own && device(&about) == device(&above) {
        true => Ok(folder),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Attributes of a file. Asks the kernel, and no file system: the answer of one may not come.
fn about(file: &OwnedFd) -> io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(statx(file, "", flags, StatxFlags::BASIC_STATS)?)
}

/// The major and the minor number.
fn device(about: &Statx) -> (u32, u32) {
    (about.stx_dev_major, about.stx_dev_minor)
}

fn is_page(about: &Statx, user: u32) -> bool {
    let mode = u32::from(about.stx_mode);
    let is_file = mode & libc::S_IFMT == libc::S_IFREG;
    let is_own = about.stx_uid == user && mode & 0o777 == 0o600;
    is_file && is_own && about.stx_size == size_of::<Page>() as u64
}

/// The page of that name, which is of that process, in a user's folder.
fn in_folder(
    folder: &OwnedFd,
    file: &str,
    named: (u64, u32, u64),
    user: u32,
    pid: u32,
) -> Option<Found> {
    // A process of root may have given up its rights since.
    if user != 0 && user_of(pid) != Some(user) {
        return None;
    }
    let file = open_at(folder, file, OFlags::PATH | OFlags::NOFOLLOW, 0).ok()?;
    if !is_page(&about(&file).ok()?, user) {
        return None;
    }
    let found = read(&file, pid, user)?;
    (identity(&found.page) == named && counts_in(pid, &found.page)).then_some(found)
}

/// The page that a process of another mount namespace has mapped. This needs CAP_CHECKPOINT_RESTORE
/// or CAP_SYS_ADMIN.
fn mapped(pid: u32) -> Option<Found> {
    let file = open_at(CWD, mapping(pid, PLACE as u64), OFlags::PATH, 0).ok()?;
    let (user, about) = (user_of(pid)?, about(&file).ok()?);
    if !is_page(&about, user) || !is_tmpfs_of(pid, device(&about)) {
        return None;
    }
    let found = read(&file, pid, user)?;
    let (namespace, number, began) = identity(&found.page);
    let is_its = namespace == numbers_of(pid)
        && Some(number) == number_inside(pid)
        && Some(began) == start(pid);
    (is_its && counts_in(pid, &found.page)).then_some(found)
}

/// Whether a device is a tmpfs that the process has mounted. The question statfs(2) would go to the
/// file system.
fn is_tmpfs_of(pid: u32, (major, minor): (u32, u32)) -> bool {
    let Ok(mounts) = of_system(format!("/proc/{pid}/mountinfo"), false) else {
        return false;
    };
    let device = format!("{major}:{minor}");
    let lines = BufReader::new(mounts.take(MOST_MOUNTS)).split(b'\n');
    lines.map_while(Result::ok).any(|line| {
        let line = String::from_utf8_lossy(&line);
        let is_it = line.split(' ').nth(2) == Some(&device);
        is_it && line.contains(" - tmpfs ")
    })
}

/// Reads a page; the file is open for writing if this user may.
fn read(file: &OwnedFd, pid: u32, user: u32) -> Option<Found> {
    // The file's owner may hold a lease, for whose end an open would wait.
    let open = |flags| reopen(file, flags | OFlags::NONBLOCK);
    let writable = open(OFlags::RDWR);
    let may_write = writable.is_ok();
    let file = writable.or_else(|_| open(OFlags::RDONLY)).ok()?;
    // SAFETY: a page consists of numbers, so zeros are one.
    let mut page: Box<Page> = Box::new(unsafe { std::mem::zeroed() });
    let bytes: *mut Page = &mut *page;
    // SAFETY: any bytes are a page, and no other code uses this one.
    let bytes = unsafe { std::slice::from_raw_parts_mut(bytes.cast::<u8>(), size_of::<Page>()) };
    (&file).read_exact(bytes).ok()?;
    let head = &page.head;
    let is_known = head.magic == MAGIC && head.version == VERSION;
    (is_known && head.size as usize == size_of::<Page>()).then_some(Found {
        pid,
        user,
        page,
        file: may_write.then_some(file),
    })
}

/// The process that a page names: its namespace, its number there, and its start.
fn identity(page: &Page) -> (u64, u32, u64) {
    let head = &page.head;
    (head.pid_namespace, head.pid, head.start)
}

/// The PID namespace of a process.
fn numbers_of(process: impl Display) -> u64 {
    fs::metadata(format!("/proc/{process}/ns/pid")).map_or(0, |it| it.ino())
}

/// The processes of other PID namespaces than this one: their numbers here by their namespace and
/// number there.
fn inside(here: u64) -> HashMap<(u64, u32), u32> {
    let there = processes().filter_map(|pid| {
        let namespace = numbers_of(pid);
        let number = (namespace != here).then(|| number_inside(pid))??;
        Some(((namespace, number), pid))
    });
    there.collect()
}

/// When a process started.
fn start(pid: u32) -> Option<u64> {
    start_of(&fs::read(format!("/proc/{pid}/stat")).ok()?)
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

/// The link to the file of the page that a process has mapped at an address.
fn mapping(pid: u32, address: u64) -> String {
    let end = address.saturating_add((size_of::<Page>() as u64).next_multiple_of(4096));
    format!("/proc/{pid}/map_files/{address:x}-{end:x}")
}

/// Whether the process has its page mapped: a program that has replaced itself (execve) has not.
fn counts_in(pid: u32, page: &Page) -> bool {
    let (namespace, number, start) = identity(page);
    let name = name(namespace, number, start);
    match fs::read_link(mapping(pid, page.head.address)) {
        Ok(path) => path.to_string_lossy().ends_with(&format!("/{name}")),
        // This user may not see the mapping.
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}
