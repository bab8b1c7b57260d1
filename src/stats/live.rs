// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file of the live page (`page/lib.rs`): made at the process's first count, removed at its
//! exit.
//!
//! The file serves observers only. If it cannot be made (no directory of the user's own, no tmpfs,
//! no space, no descriptor), the counters lie in the process's own memory. The memory of the whole
//! file is allocated before the file is mapped, since a store to a full tmpfs would kill the
//! program. Children do not inherit the mapping: a child that registers memory makes a file of its
//! own. A program that replaces itself (execve) leaves its file, which the next image replaces. A
//! reader recognizes a stale file, since a page states the address at which its process has mapped
//! it.

use core::ffi::{CStr, c_int};
use libc::syscall;
use once_cell::race::OnceBox;
use rdmamr_live_page::{
    DIRECTORY, Head, MAGIC, NAMES, NO_RANK, PARENTS, PLACE, Page, TMPFS, VERSION, name, parse_name,
    start_of,
};
use rdmamr_sys::descriptor::{self, Descriptor, about};
use rdmamr_sys::pages::FAR_AWAY;
use rdmamr_sys::text::Text;
use rdmamr_sys::{clock, proc, thread};
use std::ffi::CString;

const _: () = assert!(PLACE == FAR_AWAY + (1 << 23));

/// A path on the stack.
type Path = Text<512>;

/// XDG_RUNTIME_DIR of the start, or an empty string, and the process's rank. Empty if no page is wanted.
static START: OnceBox<(CString, u64)> = OnceBox::new();

/// Has the process make a page. `runtime` is XDG_RUNTIME_DIR. A program that runs with another's
/// rights (set-uid) makes none.
pub fn turn_on(runtime: Option<&CStr>, rank: Option<u32>) {
    let runtime = runtime.unwrap_or_default().to_owned();
    let _ = START.set(Box::new((runtime, rank.map_or(NO_RANK, u64::from))));
}

/// A page that other processes do not find yet.
pub struct Made {
    pub page: &'static Page,
    directory: Descriptor,
    /// The path of the directory.
    path: CString,
}

fn open_at(directory: c_int, path: &CStr, flags: c_int) -> Option<Descriptor> {
    Descriptor::open(directory, path, flags, 0o600).ok()
}

fn unlink_at(directory: c_int, path: &CStr) {
    // SAFETY: the path ends with a NUL.
    unsafe { syscall(libc::SYS_unlinkat, directory, path.as_ptr(), 0) };
}

/// Makes a page with these names of counters. `None` if none is wanted, or if none can be made.
pub fn make(names: &Text<NAMES>) -> Option<Made> {
    let (runtime, _) = START.get()?;
    // SAFETY: the call takes no arguments.
    let user = unsafe { syscall(libc::SYS_geteuid) } as libc::uid_t;
    // SAFETY: the call takes no arguments.
    if user != unsafe { syscall(libc::SYS_getuid) } as libc::uid_t
        // A file beyond RLIMIT_FSIZE raises SIGXFSZ.
        || proc::limit(libc::RLIMIT_FSIZE).is_none_or(|most| most < size_of::<Page>() as u64)
    {
        return None;
    }
    let mut own = Path::new();
    let own = own.set(format_args!("{DIRECTORY}-{user}"))?.to_str().ok()?;
    let runtime = runtime.to_str().ok();
    let runtime = runtime.filter(|path| path.starts_with('/') && !is_of_another(path, user));
    let runtime = runtime.map(|path| (path, DIRECTORY));
    let others = PARENTS.into_iter().map(|parent| (parent, own));
    runtime.into_iter().chain(others).find_map(|(parent, own)| {
        let (directory, path) = directory(parent, own, user)?;
        make_in(directory, path, names)
    })
}

/// Whether a path is that of another user's XDG_RUNTIME_DIR, which sudo(8) and su(1) can leave set. That
/// user could keep whoever looks there waiting.
fn is_of_another(path: &str, user: libc::uid_t) -> bool {
    // Also by way of /var/run.
    let below = path.split("/run/user/").nth(1);
    let theirs = below.and_then(|path| path.split('/').next());
    theirs.is_some_and(|theirs| theirs.parse() != Ok(user))
}

/// Opens the user's own directory, and makes it if it is not there.
#[inline(never)]
fn directory(parent: &str, own: &str, user: libc::uid_t) -> Option<(Descriptor, CString)> {
    let mut text = Path::new();
    let flags = libc::O_DIRECTORY | libc::O_PATH;
    let above = open_at(libc::AT_FDCWD, text.set(format_args!("{parent}"))?, flags)?;
    let name = text.set(format_args!("{own}"))?;
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_RDONLY;
    let open = || open_at(above.number(), name, flags);
    let found = open().or_else(|| {
        // Not before it is known to be absent: any user can keep the lock of /tmp that this call takes.
        // SAFETY: the path ends with a NUL.
        unsafe { syscall(libc::SYS_mkdirat, above.number(), name.as_ptr(), 0o700) };
        open()
    })?;
    let status = about(found.number()).ok()?;
    let is_private = status.st_uid == user && status.st_mode & 0o7777 == 0o700;
    if !is_private || descriptor::file_system(found.number()) != Some(TMPFS) {
        return None;
    }
    Some((found, text.set(format_args!("{parent}/{own}"))?.to_owned()))
}

fn make_in(directory: Descriptor, path: CString, names: &Text<NAMES>) -> Option<Made> {
    let (pid, pid_namespace, start) = identity()?;
    remove_ended(&directory, pid_namespace);
    let mut text = Path::new();
    let unfinished = unfinished(&mut text, pid)?;
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let file = open_at(directory.number(), unfinished, flags).or_else(|| {
        // An earlier thread of that number was killed while it made a page.
        unlink_at(directory.number(), unfinished);
        open_at(directory.number(), unfinished, flags)
    })?;
    let Some(address) = map(&file) else {
        unlink_at(directory.number(), unfinished);
        return None;
    };
    let page = core::ptr::with_exposed_provenance_mut::<Page>(address);
    let names = names.as_bytes();
    // SAFETY: `map` mapped a whole page for this thread alone, and zeros are a page.
    let contents = unsafe { &mut *page };
    contents.names[..names.len()].copy_from_slice(names);
    contents.head = Head {
        magic: MAGIC,
        version: VERSION,
        size: size_of::<Page>() as u32,
        pid,
        counters: names.iter().filter(|&&byte| byte == b'\n').count() as u32,
        pid_namespace,
        start,
        address: address as u64,
        began: clock::monotonic(),
        rank: START.get().map_or(NO_RANK, |start| start.1),
    };
    // SAFETY: from here on all threads only read the head and the names.
    let page = unsafe { &*page };
    Some(Made {
        page,
        directory,
        path,
    })
}

fn unfinished(text: &mut Path, pid: u32) -> Option<&CStr> {
    text.set(format_args!(".{pid}.{}", thread::id_by_kernel()))
}

/// Allocates the file's memory, and maps the file. Returns the address.
fn map(file: &Descriptor) -> Option<usize> {
    let (size, fd) = (size_of::<Page>(), file.number());
    // SAFETY: the call takes no pointers. The mode must not depend on the umask.
    unsafe { syscall(libc::SYS_fchmod, fd, 0o600) };
    // SAFETY: the call takes no pointers.
    if unsafe { syscall(libc::SYS_fallocate, fd, 0, 0usize, size) } != 0 {
        return None;
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address that the kernel accepts touches no other memory: the
    // flags lack MAP_FIXED.
    let address = unsafe { syscall(libc::SYS_mmap, PLACE, size, protection, flags, fd, 0usize) };
    if address == -1 {
        return None;
    }
    let address = address as usize;
    // SAFETY: the mapping is this thread's own, and no child uses it.
    if unsafe { syscall(libc::SYS_madvise, address, size, libc::MADV_DONTFORK) } != 0 {
        unmap(address);
        return None;
    }
    Some(address)
}

fn unmap(address: usize) {
    // SAFETY: the caller alone knows the mapping, and gives it up.
    unsafe { syscall(libc::SYS_munmap, address, size_of::<Page>()) };
}

impl Made {
    /// Makes the page visible to other processes. Returns its path, to be removed at the exit.
    pub fn publish(&self) -> Option<CString> {
        let head = &self.page.head;
        let (mut from, mut to) = (Path::new(), Path::new());
        let from = unfinished(&mut from, head.pid)?;
        let name = name(head.pid_namespace, head.pid, head.start);
        let here = self.directory.number();
        let to = to.set(format_args!("{name}"))?.as_ptr();
        // SAFETY: both paths end with a NUL.
        if unsafe { syscall(libc::SYS_renameat, here, from.as_ptr(), here, to) } != 0 {
            return None;
        }
        let (mut path, directory) = (Path::new(), self.path.to_str().ok()?);
        let path = path.set(format_args!("{directory}/{name}"));
        path.map(CStr::to_owned)
    }

    /// Discards the page: another thread was faster.
    pub fn discard(self) {
        let mut text = Path::new();
        if let Some(unfinished) = unfinished(&mut text, self.page.head.pid) {
            unlink_at(self.directory.number(), unfinished);
        }
        unmap(self.page.head.address as usize);
    }
}

/// Removes the file of a page.
pub fn remove(path: &CStr) {
    unlink_at(libc::AT_FDCWD, path);
}

/// The process's number, its PID namespace, and its start.
fn identity() -> Option<(u32, u64, u64)> {
    // /proc/self/stat is about the process, and stays readable after its first thread has ended.
    let file = open_at(libc::AT_FDCWD, c"/proc/self/stat", libc::O_RDONLY)?;
    let mut bytes = [0u8; 1024];
    let count = file.read(&mut bytes)?;
    let start = start_of(bytes.get(..count)?)?;
    let namespace = open_at(libc::AT_FDCWD, c"/proc/self/ns/pid", libc::O_PATH)?;
    let namespace = about(namespace.number()).ok()?.st_ino;
    Some((std::process::id(), namespace, start))
}

/// Removes pages of processes that were killed, so that they do not accumulate. Looks at the first
/// few files only. From here a process of another PID namespace cannot be checked.
fn remove_ended(directory: &Descriptor, pid_namespace: u64) -> Option<()> {
    #[repr(align(8))]
    struct Entries([u8; 2048]);
    let mut entries = Entries([0; 2048]);
    let bytes = &mut entries.0;
    let (to, size) = (bytes.as_mut_ptr(), bytes.len());
    // SAFETY: the bytes are writable, and aligned for the kernel's records.
    let count = unsafe { syscall(libc::SYS_getdents64, directory.number(), to, size) };
    /// The offsets of a record's length and of its name, getdents64(2).
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let mut rest = bytes.get(..usize::try_from(count).ok()?)?;
    loop {
        let length = u16::from_ne_bytes(*rest.get(LENGTH..)?.first_chunk()?);
        let length = usize::from(length);
        let name = CStr::from_bytes_until_nul(rest.get(NAME..length)?).ok()?;
        if let Some((namespace, pid, _)) = parse_name(name.to_bytes()) {
            if namespace == pid_namespace && !thread::exists(pid) {
                unlink_at(directory.number(), name);
            }
        }
        rest = &rest[length..];
    }
}
