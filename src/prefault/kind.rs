// SPDX-License-Identifier: MIT OR Apache-2.0
//! For each kind of memory, the way to make exactly the pages that its registration would make.
//! docs/large.md has the table, with the reasons.

use rdmamr_sys::descriptor::{Descriptor, identity};
use rdmamr_sys::pagemap::Entry;
use rdmamr_sys::proc::{self, Mapping};
use rdmamr_sys::text::Text;

/// How memory is populated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// As if it were written: private memory, for which the pin needs anonymous pages.
    Private,
    /// As if it were written: shared memory that is pinned for writing.
    Written,
    /// As if it were read: shared memory that is pinned for reading, and files.
    Read,
}

impl Kind {
    /// The kind of a mapping. `flags` are those of smaps. `writing` says whether the mapping is
    /// pinned for writing or only for reading, and `missing` how many bytes may be missing. `None`
    /// if populating might make other pages than the pin, or might be noticed, or if that is not
    /// certain.
    pub fn of(mapping: &Mapping, flags: &[u8], writing: bool, missing: u64) -> Option<Kind> {
        let has = |flag: &[u8]| flags.split(|&byte| byte == b' ').any(|it| it == flag);
        // Flags of userfaultfd (missing pages, minor faults, write protection) and of devices.
        let others: [&[u8]; 6] = [b"um", b"ui", b"uw", b"io", b"pf", b"mm"];
        let refused = !mapping.allows(writing) || mapping.of_device;
        if refused || others.iter().any(|flag| has(flag)) {
            return None;
        }
        match (mapping.shared, mapping.writable) {
            (false, true) => Some(Kind::Private),
            // No advice makes anonymous pages in such a mapping.
            (false, false) if mapping.is_own() => None,
            (false, false) => Some(Kind::Read),
            (true, _) if has(b"ht") || is_memory(mapping.file_system, missing) => {
                Some(if writing { Kind::Written } else { Kind::Read })
            }
            // A file system on a block device: the program does not notice the reading of its
            // pages.
            (true, _) if !writing && mapping.file_system.0 != 0 => Some(Kind::Read),
            (true, _) => None,
        }
    }

    pub fn advice(self) -> libc::c_int {
        match self {
            Kind::Private | Kind::Written => libc::MADV_POPULATE_WRITE,
            Kind::Read => libc::MADV_POPULATE_READ,
        }
    }

    /// Whether the pin finds the page as it needs it.
    pub fn is_there(self, page: Entry) -> bool {
        match self {
            Kind::Private => page.is_own(),
            Kind::Written | Kind::Read => page.is_present(),
        }
    }
}

/// Whether the file system has its files in memory only: the one that the kernel has for
/// memfd_create(2), shmget(2) and shared anonymous memory, or a tmpfs that has room.
fn is_memory(file_system: (u32, u32), missing: u64) -> bool {
    if is_shared_memory(file_system) {
        return true;
    }
    let mut is_memory = false;
    proc::file_system(file_system, &mut |kind, place| {
        is_memory = kind == b"hugetlbfs" || kind == b"tmpfs" && has_room(place, missing);
    });
    is_memory
}

/// Whether these are the numbers of the file system that the kernel mounts for shared memory, at no
/// path. memfd_create(2) makes a file there, and fstat(2) tells its numbers. The answer is no if they
/// cannot be learnt. A file's name proves nothing: a program can make another file system that is
/// mounted at no path.
fn is_shared_memory((major, minor): (u32, u32)) -> bool {
    // SAFETY: the name ends with a NUL.
    let made = unsafe { libc::syscall(libc::SYS_memfd_create, c"".as_ptr(), libc::MFD_CLOEXEC) };
    let device = Descriptor::made(made).and_then(|file| identity(file.number()));
    device.is_ok_and(|(device, _inode)| device == libc::makedev(major, minor))
}

/// Whether a tmpfs has room for this many bytes and some more. Two threads that make the same page
/// at once take two pages for a moment. If these were the last ones, the registration would fail,
/// although it would succeed without helper threads.
fn has_room(place: &[u8], bytes: u64) -> bool {
    const MORE: u64 = 64 << 20;
    let mut path = Text::<256>::new();
    // mountinfo escapes odd characters by a backslash.
    let is_whole = !place.contains(&b'\\') && path.push(place);
    let Some(path) = path.as_c_str().filter(|_| is_whole) else {
        return false;
    };
    // SAFETY: a structure of numbers.
    let mut room: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the path ends with a NUL, and the structure is writable.
    let failed = unsafe { libc::syscall(libc::SYS_statfs, path.as_ptr(), &raw mut room) } != 0;
    let left = (room.f_bavail as u64).saturating_mul(room.f_bsize as u64);
    // Without a limit there are 0 blocks.
    !failed && (room.f_blocks == 0 || left >= bytes + MORE)
}
