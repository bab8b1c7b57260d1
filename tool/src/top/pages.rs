// SPDX-License-Identifier: MIT OR Apache-2.0
//! The live pages that this user may see: which there are, and whether the process of each is alive
//! and still counts in it.
//!
//! The writer of such a file can write anything. A user can mount a file system of his own, in a mount
//! namespace of his own and also in this one (fusermount3(1)), over a folder or a file of his, and each
//! look at a file there waits for that user. So a file counts only if it is on a tmpfs, belongs to one
//! user alone, and names a process of that user. The list of mounts tells which device is a tmpfs, so no
//! file system is asked before that is known. A page in another mount namespace is found by the mapping
//! of its process, and no path there is followed. All of this runs in a child (`ask.rs`).

use super::ask::{About, OF_ALL_USERS, Patience, left_behind};
use crate::files::mounts::Mount;
use crate::files::named::me;
use crate::files::{
    self, by_number, first_names, of_system, open_at, processes, reopen, status, user_in,
};
use crate::report::units::shown;
use anyhow::{Result, ensure};
use rdmamr_live_page::{
    DIRECTORY, MAGIC, PARENTS, PLACE, Page, VERSION, name, parse_name, start_of,
};
use rustix::fs::{AtFlags, CWD, OFlags, Statx, StatxFlags, statx};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

/// How many files of a folder are looked at.
const MOST_FILES: usize = 1 << 14;
/// How many bytes of a list of mounts are read.
const MOST_MOUNTS: u64 = 1 << 20;
/// How many bytes of this process's own list of mounts are read.
const MOST_OWN_MOUNTS: u64 = 1 << 26;

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

/// The places in which pages may lie, as far as proc(5) tells without a wait.
pub struct Places {
    /// The folders of each user.
    folders: BTreeMap<u32, Vec<Folder>>,
    /// The processes of other mount namespaces, as far as this user may know, each with its namespace; all
    /// if a folder of all users does not answer.
    elsewhere: Vec<(u64, u32)>,
    /// This PID namespace.
    here: u64,
    /// What the children ask about that root's runs have left behind. Those of another user wait for
    /// that user's own processes only.
    pub left: Vec<About>,
}

/// A folder that may hold a user's pages.
struct Folder {
    parent: PathBuf,
    name: String,
    mounts: Rc<Mounts>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// By XDG_RUNTIME_DIR of this process.
    Given,
    /// `/run/user/UID`, which is that of most processes.
    Runtime,
    /// Of all users.
    Common,
    /// In another mount namespace.
    Elsewhere,
}

/// The type of the file system by the device, "MAJOR:MINOR".
type Mounts = HashMap<String, String>;

/// A file that may be a page: the user, the number of the folder, and the name.
pub type Place = (u32, usize, String);

/// What a user's folders have.
#[derive(Serialize, Deserialize, Default)]
struct Contents {
    /// The files that may be pages, with the process that each names.
    pages: Vec<(u32, Place)>,
    /// Why the library finds no folder for a page of this user, if another user has seen to that.
    note: Option<String>,
}

/// Why there is no folder that holds pages.
enum Missing {
    /// The library can make it.
    CanBeMade,
    /// There is no such tmpfs.
    NoTmpfs,
    /// Something else is there.
    Taken(String),
}

/// The files that may be pages, by the process that each names, and what there is to say about folders.
/// Removes files of processes that have ended.
pub fn find(
    places: &mut Places,
    patience: &mut Patience,
) -> (BTreeMap<u32, Vec<Place>>, Vec<String>) {
    let mut notes = places.leave_out_locked(patience, &sought());
    let inside = LazyCell::new(|| inside(places.here));
    let users: Vec<u32> = places.folders.keys().copied().collect();
    let contents = patience.ask(
        &users,
        |&user| (user, 0),
        |&user| places.contents(user, &inside),
    );
    let mut pages = BTreeMap::<u32, Vec<Place>>::new();
    for (user, contents) in users.into_iter().zip(contents) {
        match contents {
            Some(contents) => {
                for (pid, place) in contents.pages {
                    pages.entry(pid).or_default().push(place);
                }
                notes.extend(contents.note);
            }
            None if patience.is_late(&(user, 0)) => {
                notes.push(format!("the folders of user {user} do not answer"));
            }
            None => {}
        }
    }
    (pages, notes)
}

/// The page of a process, if it has one that this user may see.
pub fn of(pid: u32) -> Result<Option<Found>> {
    // A process of root may have given up its rights since.
    let users = match me() {
        0 => user_of(pid).into_iter().chain([0]).collect(),
        user => [user].into(),
    };
    let mut places = Places::of_users(users);
    let mut patience = Patience::default();
    places.leave_out_locked(&mut patience, &sought());
    // The answer itself has an open file. A process that answers a child answers this one too.
    let user = user_of(pid).unwrap_or_default();
    let seen = |&pid: &u32| {
        let found = places.of_process(pid);
        found.is_some() || super::sample::library_mapped(pid).is_some()
    };
    let answer = patience.ask(&[pid], |&pid| (user, pid), seen);
    ensure!(
        answer[0].is_some(),
        "process {pid} does not answer: something keeps its memory map, or its user's folder, locked"
    );
    Ok(places.of_process(pid))
}

/// Whether the process is still the one of the page, and has not executed another program.
pub fn is_still(found: &Found) -> bool {
    start(found.pid) == Some(found.page.head.start) && counts_in(found.pid, &found.page)
}

/// The mount namespace of a process.
pub fn mounts_of(process: impl Display) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{process}/ns/mnt")).ok()?.ino())
}

/// The name of this user's folder in one of all users. The kernel finds it in a locked one too, once it has
/// been looked up.
fn own_name() -> String {
    format!("{DIRECTORY}-{}", me())
}

/// A name to be looked up in a folder of all users: root looks for those of many users.
fn sought() -> String {
    match me() {
        0 => format!("{DIRECTORY}-none"),
        _ => own_name(),
    }
}

/// Why the library finds no folder for the page of a process like this one; `None` if it finds one.
pub fn obstacle() -> Option<String> {
    let mut places = Places::of_users([me()].into());
    let locked = places.leave_out_locked(&mut Patience::default(), &own_name());
    let folders = &places.folders[&me()];
    let used = |folder: &&Folder| matches!(folder.kind, Kind::Given | Kind::Common);
    Some(match why_none(me(), folders.iter().filter(used))? {
        Missing::Taken(why) => why,
        _ if !locked.is_empty() => locked.join("; "),
        _ => "there is no tmpfs for it".into(),
    })
}

/// Nothing if one of the folders is there, or can be made, and else why not.
fn why_none<'a>(user: u32, folders: impl Iterator<Item = &'a Folder>) -> Option<Missing> {
    let mut why = Missing::NoTmpfs;
    for folder in folders {
        match folder.open(user) {
            Ok(_) | Err(Missing::CanBeMade) => return None,
            // The first one that is taken is the one that most programs would have.
            Err(taken) if matches!(why, Missing::NoTmpfs) => why = taken,
            Err(_) => {}
        }
    }
    Some(why)
}

impl Places {
    /// All that this user may see. A user without a process has no page, so a crowd of folders costs
    /// nothing.
    pub fn of_all() -> Places {
        let (mut users, mut left) = (BTreeSet::from([me()]), Vec::new());
        for pid in processes().filter(|_| me() == 0) {
            let status = files::read(format!("/proc/{pid}/status")).unwrap_or_default();
            users.extend(user_in(&status));
            left.extend(left_behind(&status));
        }
        Places {
            left,
            ..Places::of_users(users)
        }
    }

    /// Leaves out the folders in those of all users in which the look-up of this name does not end, and says
    /// which: any user can keep the kernel's lock of such a folder.
    pub fn leave_out_locked(&mut self, patience: &mut Patience, name: &str) -> Vec<String> {
        let numbers: Vec<u32> = (0..).take(PARENTS.len()).collect();
        let about = |&n: &u32| (0, OF_ALL_USERS + n);
        let looks_up = |&n: &u32| {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let parent = open_at(CWD, PARENTS[n as usize], flags, 0);
            parent.is_ok_and(|it| open_at(&it, name, OFlags::PATH, 0).is_ok())
        };
        let answers = patience.ask(&numbers, about, looks_up);
        let mut notes = Vec::new();
        for n in numbers {
            if answers[n as usize].is_none() && patience.is_late(&about(&n)) {
                let locked = Path::new(PARENTS[n as usize]);
                for folders in self.folders.values_mut() {
                    folders.retain(|it| it.kind != Kind::Common || it.parent != locked);
                }
                let why = "a user keeps the kernel's lock of it";
                notes.push(format!("{} does not answer: {why}", shown(locked)));
            }
        }
        if !notes.is_empty() {
            // The mapping of a page leads to it as well.
            self.elsewhere = processes().map(|pid| (0, pid)).collect();
        }
        notes
    }

    /// Only a user who is not root looks into the folders of other mount namespaces, which are that
    /// user's own.
    fn of_users(users: BTreeSet<u32>) -> Places {
        let here = mounts_of("self");
        let there = processes().filter_map(|pid| Some((mounts_of(pid)?, pid)));
        let elsewhere: Vec<_> = there.filter(|(it, _)| Some(*it) != here).collect();
        let own = Rc::new(mounts("self", MOST_OWN_MOUNTS));
        let mut roots = vec![(String::new(), own)];
        if me() != 0 {
            let one_of_each: HashMap<u64, u32> = elsewhere.iter().copied().collect();
            roots.extend(one_of_each.values().map(|pid| {
                let mounts = Rc::new(mounts(pid, MOST_MOUNTS));
                (format!("/proc/{pid}/root"), mounts)
            }));
        }
        let mut folders: BTreeMap<u32, Vec<Folder>> = BTreeMap::new();
        let mut add = |user: u32, parent: PathBuf, name, mounts: &Rc<Mounts>, kind| {
            folders.entry(user).or_default().push(Folder {
                parent,
                name,
                mounts: mounts.clone(),
                kind,
            });
        };
        for (root, mounts) in &roots {
            let is_here = root.is_empty();
            let kind = |kind| if is_here { kind } else { Kind::Elsewhere };
            if let Some(given) = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| is_here) {
                add(me(), given.into(), DIRECTORY.into(), mounts, Kind::Given);
            }
            for &user in &users {
                let runtime = format!("{root}/run/user/{user}").into();
                add(user, runtime, DIRECTORY.into(), mounts, kind(Kind::Runtime));
                for parent in PARENTS {
                    let (parent, own) = (format!("{root}{parent}"), format!("{DIRECTORY}-{user}"));
                    add(user, parent.into(), own, mounts, kind(Kind::Common));
                }
            }
        }
        Places {
            folders,
            elsewhere,
            here: numbers_of("self"),
            left: Vec::new(),
        }
    }

    /// The processes whose page is where their mapping leads: root looks into no other mount namespace.
    pub fn mapped(&self) -> impl Iterator<Item = u32> {
        let all = self.elsewhere.iter().filter(|_| me() == 0);
        all.map(|(_, pid)| *pid)
    }

    /// The files in a user's folders that may be pages.
    fn contents(&self, user: u32, inside: &HashMap<(u64, u32), u32>) -> Contents {
        let mut pages = Vec::new();
        let folders = &self.folders[&user];
        for (n, folder) in folders.iter().enumerate() {
            let Ok(open) = folder.open(user) else {
                continue;
            };
            let path = by_number(&open);
            for file in first_names(&path, MOST_FILES) {
                let Some((namespace, number, began)) = parse_name(file.as_bytes()) else {
                    continue;
                };
                let is_here = namespace == self.here;
                let pid = match is_here {
                    true => Some(number),
                    false => inside.get(&(namespace, number)).copied(),
                };
                let Some(pid) = pid else { continue };
                if start(pid) == Some(began) {
                    if is_of(pid, user) {
                        pages.push((pid, (user, n, file)));
                    }
                } else if is_here {
                    // What is gone in another namespace cannot be told from here.
                    let _ = fs::remove_file(path.join(file));
                }
            }
        }
        let of_kind = |kind| move |folder: &&Folder| folder.kind == kind;
        let note = match why_none(user, folders.iter().filter(of_kind(Kind::Common))) {
            Some(Missing::Taken(why)) => {
                let whose = match why_none(user, folders.iter().filter(of_kind(Kind::Runtime))) {
                    None => " without XDG_RUNTIME_DIR",
                    Some(_) => "",
                };
                let then = format!("processes of user {user}{whose} have no live page");
                Some(format!("{why}: {then}; root can remove it"))
            }
            _ => None,
        };
        Contents { pages, note }
    }

    /// The page of a process, if it is at one of these places.
    pub fn at(&self, pid: u32, places: &[Place]) -> Option<Found> {
        let mut found = places.iter().filter_map(|(user, n, file)| {
            let folder = self.folders.get(user)?.get(*n)?;
            in_folder(folder, file, *user, pid)
        });
        found.next()
    }

    /// The page of a process, by its name in each folder, or by its mapping.
    fn of_process(&self, pid: u32) -> Option<Found> {
        let namespace = match numbers_of(pid) {
            // This user may not know, as of a process that is not dumpable.
            0 => self.here,
            namespace => namespace,
        };
        let file = name(namespace, number_inside(pid)?, start(pid)?);
        let folders = self.folders.iter();
        let mut folders = folders.flat_map(|(user, all)| all.iter().map(|it| (*user, it)));
        let found = folders.find_map(|(user, folder)| in_folder(folder, &file, user, pid));
        let is_elsewhere = || self.mapped().any(|it| it == pid);
        found.or_else(|| is_elsewhere().then(|| mapped(pid))?)
    }
}

impl Folder {
    /// Opens the folder, if it is the user's own, on a tmpfs, and no mount.
    fn open(&self, user: u32) -> Result<OwnedFd, Missing> {
        let taken = |why: String| {
            let path = shown(self.parent.join(&self.name));
            Missing::Taken(format!("{path} {why}"))
        };
        let parent = self.open_parent().map_err(|_| Missing::NoTmpfs)?;
        let above = about(&parent).map_err(|_| Missing::NoTmpfs)?;
        if !is_tmpfs(&self.mounts, &above) {
            return Err(Missing::NoTmpfs);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let folder =
            open_at(&parent, &*self.name, flags, 0).map_err(|error| match Errno::from_io_error(
                &error,
            ) {
                Some(Errno::NOENT) => Missing::CanBeMade,
                _ => Missing::NoTmpfs,
            })?;
        let about = about(&folder).map_err(|_| Missing::NoTmpfs)?;
        let (mode, owner) = (u32::from(about.stx_mode), about.stx_uid);
        if device(&about) != device(&above) {
            return Err(taken("is a mount".into()));
        } else if owner != user {
            return Err(taken(format!("belongs to user {owner}")));
        } else if mode & libc::S_IFMT != libc::S_IFDIR {
            return Err(taken("is no folder".into()));
        } else if mode & 0o7777 != 0o700 {
            return Err(taken(format!("has mode {:04o}, not 0700", mode & 0o7777)));
        }
        Ok(folder)
    }

    /// Opens the folder around it. Another user can have chosen XDG_RUNTIME_DIR of root, and mounted
    /// something on the way there.
    fn open_parent(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        if me() != 0 || self.kind != Kind::Given {
            return open_at(CWD, &self.parent, flags, 0);
        }
        let mut folder = open_at(CWD, "/", flags, 0)?;
        for part in self.parent.components() {
            let Component::Normal(part) = part else {
                continue;
            };
            // btrfs has other devices than the list.
            if system(&self.mounts, &about(&folder)?).is_some_and(|it| it.starts_with("fuse")) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            folder = open_at(&folder, part, flags | OFlags::NOFOLLOW, 0)?;
        }
        Ok(folder)
    }
}

/// Whether a user's page can be that of this process. A process of root may have given up its rights
/// since.
fn is_of(pid: u32, user: u32) -> bool {
    user == 0 || user_of(pid) == Some(user)
}

/// The types of the file systems that a process has mounted, by their devices. The question statfs(2)
/// would go to the file system.
fn mounts(process: impl Display, most: u64) -> Mounts {
    let Ok(mounts) = of_system(format!("/proc/{process}/mountinfo"), false) else {
        return Mounts::new();
    };
    let lines = BufReader::new(mounts.take(most)).split(b'\n');
    let mounts = lines.map_while(Result::ok).filter_map(|line| {
        let line = String::from_utf8_lossy(&line);
        let mount = Mount::parse(&line)?;
        Some((mount.device.to_owned(), mount.system.to_owned()))
    });
    mounts.collect()
}

/// The type of the file system of a file.
fn system<'a>(mounts: &'a Mounts, about: &Statx) -> Option<&'a str> {
    let (major, minor) = device(about);
    Some(mounts.get(&format!("{major}:{minor}"))?)
}

fn is_tmpfs(mounts: &Mounts, about: &Statx) -> bool {
    system(mounts, about) == Some("tmpfs")
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
fn in_folder(folder: &Folder, file: &str, user: u32, pid: u32) -> Option<Found> {
    let named = parse_name(file.as_bytes())?;
    if !is_of(pid, user) {
        return None;
    }
    let folder = folder.open(user).ok()?;
    let file = open_at(&folder, file, OFlags::PATH | OFlags::NOFOLLOW, 0).ok()?;
    let (in_it, above) = (about(&file).ok()?, about(&folder).ok()?);
    // A file can be a mount too.
    if device(&in_it) != device(&above) || !is_page(&in_it, user) {
        return None;
    }
    let found = read(&file, pid, user)?;
    (identity(&found.page) == named && counts_in(pid, &found.page)).then_some(found)
}

/// The page that a process of another mount namespace has mapped. This needs CAP_CHECKPOINT_RESTORE
/// or CAP_SYS_ADMIN.
pub fn mapped(pid: u32) -> Option<Found> {
    let file = open_at(CWD, mapping(pid, PLACE as u64), OFlags::PATH, 0).ok()?;
    let (user, about) = (user_of(pid)?, about(&file).ok()?);
    if !is_page(&about, user) || !is_tmpfs(&mounts(pid, MOST_MOUNTS), &about) {
        return None;
    }
    let found = read(&file, pid, user)?;
    let (namespace, number, began) = identity(&found.page);
    let is_its = namespace == numbers_of(pid)
        && Some(number) == number_inside(pid)
        && Some(began) == start(pid);
    (is_its && counts_in(pid, &found.page)).then_some(found)
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
    user_in(&files::read(format!("/proc/{pid}/status"))?)
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
