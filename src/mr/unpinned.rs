// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why the kernel could not pin memory, as far as it can be asked afterwards (mm/gup.c). The kernel
//! takes the pages in ascending order, and the first bad one decides: one in a mapping that it
//! refuses, or one that it could not make present. The pages below stay present, so the page table
//! shows which page that was.
//!
//! Nothing is concluded from a path. This file allocates nothing, and runs on the smallest stack: a
//! function with a buffer is compiled by itself, so that no two buffers are there at once in vain.

use super::request::Request;
use core::ffi::CStr;
use core::fmt::{self, Write};
use rdmamr_stats::text::Text;
use rdmamr_sys::descriptor::{self, Descriptor};
use rdmamr_sys::pagemap::{Entry, first};
use rdmamr_sys::pages::page_size;
use rdmamr_sys::proc::{self, Mapping};
use rdmamr_sys::{cgroup, kernel};

/// The reason, in words. If it is not known, they begin by saying so.
pub type Words = Text<512>;
const LIKELY: &str = "likely: ";
const NOT_KNOWN: &str = "not known: ";

fn is_known(words: &Words) -> bool {
    let not = [LIKELY, NOT_KNOWN].map(str::as_bytes);
    !not.iter().any(|not| words.as_bytes().starts_with(not))
}

/// The flags of smaps that say something here. A flag's bit is its place.
const FLAGS: [&[u8]; 7] = [b"io", b"pf", b"ss", b"mm", b"ht", b"um", b"ui"];
const DEVICE: u32 = 0b11;
const SHADOW_STACK: u32 = 1 << 2;
const MIXED: u32 = 1 << 3;
const HUGE: u32 = 1 << 4;
const USERFAULTFD: u32 = 0b11 << 5;

/// A mapping with its flags, of which there are none if smaps cannot be read.
#[derive(Clone, Copy)]
struct Vma {
    mapping: Mapping,
    flags: u32,
}

/// Memory that was to be pinned.
struct Asked {
    start: u64,
    end: u64,
    writing: bool,
    errno: i32,
}

/// A kind of mapping that the kernel refuses without looking at a page (`check_vma_flags`).
struct Rule(fn(&Vma, &Asked) -> bool, &'static str);

#[rustfmt::skip]
const RULES: &[Rule] = &[
    Rule(|vma, _| vma.flags & DEVICE != 0, OF_DEVICE),
    Rule(|vma, asked| !vma.is_accessible() && !vma.mapping.executable && asked.needs_rights(), "is not accessible (PROT_NONE)"),
    Rule(|vma, asked| !vma.is_accessible() && asked.needs_rights(), "is mapped for execution only (PROT_EXEC)"),
    Rule(|vma, asked| asked.writing && !vma.mapping.writable, "is mapped read-only, and the access flags need it writable"),
    Rule(|vma, asked| asked.writing && vma.flags & SHADOW_STACK != 0, "is a shadow stack"),
    Rule(|vma, asked| !vma.mapping.readable && asked.needs_rights() && !asked.writing,
        "is mapped without read access (PROT_WRITE alone), which kernels from 6.2 need"),
    Rule(|vma, asked| !vma.mapping.writable && (vma.mapping.shared || vma.flags & HUGE != 0) && !asked.needs_rights(),
        "is mapped read-only, and shared or in huge pages, which kernels before 6.2 cannot pin even for reading"),
    Rule(|vma, asked| is_closed(vma.mapping.key, asked.writing), "has a protection key that is closed to this thread (pkey_set)"),
];

const OF_DEVICE: &str = "is memory of a device, without page structures (VmFlags io or pf): if the device's driver \
                         exports a dma-buf, register that";
/// The same flags, of a mapping that the kernel names and no driver of a device made.
const OF_KERNEL: &str =
    "is memory of the kernel's own, without page structures (VmFlags io or pf): copy what it has";

/// A block device has no other file system.
const OF_BLOCKS: &str = "is a shared mapping of a block device, which kernels from 6.5 do not pin for writing: map it \
                         private, or register it without write access";

/// The rule for files on file systems that want to know of each write.
const NOT_WRITTEN: &str = "is a shared mapping of a file, which kernels from 6.5 do not pin for writing: map it private, \
                           use memfd or tmpfs, or register it without write access";

#[derive(Clone, Copy)]
enum Step {
    Unread,
    Whole,
    Hole(u64),
    /// The mapping at this address is refused, or it is of a file that must be asked.
    Stop(u64, Vma),
}

/// File systems that want to know of each write to a shared mapping.
const TRACKED: &str = "ext2 ext3 ext4 xfs btrfs f2fs nfs nfs4 fuse fuseblk virtiofs 9p ceph cifs smb3 vfat exfat ntfs3 \
                       ramfs gfs2 ocfs2";
fn is_tracked(kind: &[u8]) -> bool {
    TRACKED.split(' ').any(|it| it.as_bytes() == kind) || kind.starts_with(b"fuse.")
}

/// File systems in memory, which do not.
const IN_MEMORY: [&[u8]; 3] = [b"tmpfs", b"devtmpfs", b"hugetlbfs"];
/// SECRETMEM_MAGIC, TMPFS_MAGIC and HUGETLBFS_MAGIC (include/uapi/linux/magic.h).
const SECRET: i64 = 0x5345_434d;
const TMPFS: i64 = 0x0102_1994;
const HUGETLBFS: i64 = 0x9584_58f6;

/// Finds the reason of an errno that may be about the memory, and says whether it is known.
pub fn find(request: &Request, errno: i32, words: &mut Words) -> bool {
    Asked::of(request, errno).find(words);
    is_known(words)
}

/// Whether the mappings' rights show that the memory cannot be pinned. Reads one file.
pub fn is_refused(request: &Request) -> bool {
    let asked = Asked::of(request, libc::EFAULT);
    let step = asked.first(asked.start, false, false);
    matches!(step, Step::Hole(_) | Step::Stop(..))
}

/// The name of the mapping at an address, in parentheses.
struct Name(u64);
const NAME: usize = 125;

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = Ok(());
        proc::name_at(self.0, &mut |name| {
            let name = core::str::from_utf8(name).unwrap_or_default();
            // The end of a path tells the file.
            let long = name.len().saturating_sub(NAME);
            let cut = (long..).find(|&at| name.is_char_boundary(at)).unwrap_or(0);
            let mark = if cut > 0 { "..." } else { "" };
            if !name.is_empty() {
                written = write!(f, " ({mark}{})", &name[cut..]);
            }
        });
        written
    }
}

/// Calls `each` for the mappings, with their flags if `all` is set and they can be read.
fn each_mapping(all: bool, each: &mut dyn FnMut(Vma) -> bool) -> bool {
    let mut of = |mapping: &Mapping, flags: &[u8]| {
        let mut vma = Vma {
            mapping: *mapping,
            flags: 0,
        };
        for flag in flags.split(|&byte| byte == b' ') {
            let bit = FLAGS.iter().position(|&name| name == flag);
            vma.flags |= bit.map_or(0, |bit| 1 << bit);
        }
        each(vma)
    };
    all && proc::each_mapping_with_flags(&mut of) || proc::each_mapping(|mapping| of(mapping, b""))
}

#[inline(never)]
fn mapping_at(at: u64) -> Option<Vma> {
    let mut found = None;
    each_mapping(true, &mut |vma| {
        let range = vma.mapping.range;
        found = (range.start <= at && at < range.end).then_some(vma);
        range.end <= at
    });
    found
}

impl Vma {
    fn is_accessible(&self) -> bool {
        self.mapping.readable || self.mapping.writable
    }

    /// Asks the mapped file, if it can be reached: as the mapping itself (for which a process needs a
    /// capability), as an open file of the process, or by its path.
    #[inline(never)]
    fn file<T>(&self, ask: impl Fn(i32) -> Option<T>) -> Option<T> {
        let (range, (major, minor)) = (self.mapping.range, self.mapping.file_system);
        let mut path = Text::<256>::new();
        let open = |path: &CStr| Descriptor::open(libc::AT_FDCWD, path, libc::O_PATH, 0).ok();
        let (start, end) = (range.start, range.end);
        let exact = path.set(format_args!("/proc/self/map_files/{start:x}-{end:x}"));
        if let Some(file) = exact.and_then(open) {
            return ask(file.number());
        }
        let wanted = (libc::makedev(major, minor), self.mapping.inode);
        let is_it = |fd: i32| descriptor::identity(fd).is_ok_and(|identity| identity == wanted);
        let most = proc::descriptor_table_size().unwrap_or(0).min(4096) as i32;
        if let Some(fd) = (0..most).find(|&fd| is_it(fd)) {
            return ask(fd);
        }
        path.clear();
        proc::name_at(start, &mut |name| {
            path.push(name);
        });
        let file = path.as_c_str().filter(|path| !path.is_empty());
        let file = file.and_then(open).filter(|file| is_it(file.number()))?;
        ask(file.number())
    }

    fn is_of_blocks(&self) -> bool {
        let kind = self.file(|fd| Some(descriptor::about(fd).ok()?.st_mode & libc::S_IFMT));
        kind == Some(libc::S_IFBLK)
    }

    /// The length of the mapped file, if that is an ordinary one, the kind of its file system, and the
    /// size of that in KiB, if it is full.
    fn length(&self) -> Option<(Option<u64>, i64, Option<u64>)> {
        self.file(|fd| {
            let about = descriptor::about(fd).ok()?;
            let is_regular = about.st_mode & libc::S_IFMT == libc::S_IFREG;
            let length = is_regular.then_some(about.st_size as u64);
            let (kind, full) = descriptor::about_system(fd)?;
            Some((length, kind, full))
        })
    }
}

/// Whether a file is in DAX mode.
#[inline(never)]
fn is_dax(fd: i32) -> Option<bool> {
    const STATX_ATTR_DAX: u64 = 0x20_0000;
    // SAFETY: zeros are a `statx`, which consists of numbers.
    let mut about: libc::statx = unsafe { core::mem::zeroed() };
    let (path, flags, to) = (c"".as_ptr(), libc::AT_EMPTY_PATH, &raw mut about);
    // A filter may kill at a call that the library makes nowhere else.
    // SAFETY: the path ends with a NUL, and the structure is writable.
    let asked = !proc::is_filtered()
        && unsafe { libc::syscall(libc::SYS_statx, fd, path, flags, 0, to) } == 0;
    asked.then_some(about.stx_attributes & STATX_ATTR_DAX != 0)
}

/// Whether this thread's rights for a protection key forbid the access. The kernel asked for those of
/// the thread that registered, which is this one.
fn is_closed(key: u32, writing: bool) -> bool {
    #[cfg(target_arch = "x86_64")]
    if key != 0 && key < 16 {
        let rights: u32;
        // SAFETY: smaps shows a key, so that the kernel has enabled this instruction. It reads a
        // register of the thread.
        unsafe {
            core::arch::asm!("rdpkru", in("ecx") 0, out("eax") rights, out("edx") _, options(nomem, nostack));
        }
        return rights >> (2 * key) & (1 | u32::from(writing) << 1) != 0;
    }
    let _ = (key, writing);
    false
}

impl Asked {
    fn of(request: &Request, errno: i32) -> Asked {
        let start = request.addr.addr() as u64;
        // The kernel ignores an address's tag, of which the tables know nothing.
        #[cfg(target_arch = "aarch64")]
        let start = start & ((1 << 56) - 1);
        Asked {
            start,
            end: start.saturating_add(request.length as u64),
            writing: request.access.pins_for_writing(),
            errno,
        }
    }

    /// Kernels before 6.2 write to all memory that they pin, with more rights than the program's.
    fn needs_rights(&self) -> bool {
        self.writing || !kernel::is_before(6, 2)
    }

    fn rule(&self, vma: &Vma) -> Option<&'static str> {
        match self.errno {
            libc::EEXIST => (vma.flags & MIXED != 0).then_some(
                "has no page structures: a driver mixes such memory into the mapping (VmFlags mm)",
            ),
            libc::EOPNOTSUPP => None,
            _ => Some(RULES.iter().find(|Rule(is, _)| is(vma, self))?.1),
        }
    }

    /// The first mapping from an address on that may be refused: by its flags too, or by its file.
    fn first(&self, from: u64, flags: bool, files: bool) -> Step {
        let (mut at, mut stop) = (from, None);
        let read = each_mapping(flags, &mut |vma| {
            let range = vma.mapping.range;
            if range.end <= at || range.start > at {
                return range.end <= at;
            }
            let ask = vma.mapping.shared || self.errno == libc::EOPNOTSUPP;
            if self.rule(&vma).is_some() || files && vma.mapping.has_file && ask {
                stop = Some((at, vma));
                return false;
            }
            at = range.end;
            at < self.end
        });
        match stop {
            _ if !read => Step::Unread,
            Some((at, vma)) => Step::Stop(at, vma),
            None if at < self.end || self.start == self.end => Step::Hole(at),
            None => Step::Whole,
        }
    }

    /// Why the kernel refuses the mapping of a file, which is on a file system of this kind.
    fn of_file(&self, vma: &Vma, kind: &mut Text<24>) -> Option<&'static str> {
        if self.errno == libc::EOPNOTSUPP {
            let words = "is of a file in DAX mode (statx), which cannot be pinned for long: use device DAX or \
                         on-demand paging";
            return vma.file(is_dax)?.then_some(words);
        }
        kind.clear();
        proc::file_system(vma.mapping.file_system, &mut |name, _| {
            kind.push(name);
        });
        if kind.as_bytes().is_empty() {
            // A file system of the kernel's own.
            return (vma.length()?.1 == SECRET).then_some("is secret memory (memfd_secret)");
        }
        let written = self.writing && vma.mapping.writable && !kernel::is_before(6, 5);
        match written {
            true if vma.is_of_blocks() => Some(OF_BLOCKS),
            true if !IN_MEMORY.contains(&kind.as_bytes()) => Some(NOT_WRITTEN),
            _ => None,
        }
    }

    /// The first mapping that the kernel refuses, and why. `kind` becomes that of a file's file system.
    #[inline(never)]
    fn first_refused(&self, kind: &mut Text<24>) -> (Step, &'static str) {
        let mut from = self.start;
        /// So many files are asked.
        const FILES: u32 = 64;
        // Each mapping of a file is asked by itself, and the mappings are read anew.
        for asked in 0..=FILES {
            let step = self.first(from, true, asked < FILES);
            let Step::Stop(_, vma) = step else {
                return (step, "");
            };
            let why = self.rule(&vma).or_else(|| self.of_file(&vma, kind));
            from = vma.mapping.range.end;
            if why.is_some() || from >= self.end {
                return why.map_or((Step::Whole, ""), |why| (step, why));
            }
        }
        (Step::Unread, "")
    }

    /// Writes the reason. Text that does not fit is cut.
    fn find(&self, words: &mut Words) {
        let mut kind = Text::new();
        let (step, why) = self.first_refused(&mut kind);
        // The file system may be one whose files can be pinned.
        let is_likely = why == NOT_WRITTEN && !is_tracked(kind.as_bytes());
        let limit = match step {
            Step::Stop(at, _) | Step::Hole(at) if !is_likely => at,
            _ => self.end,
        };
        let is_fault = !matches!(self.errno, libc::EEXIST | libc::EOPNOTSUPP);
        let missing = is_fault.then(|| first::<256>(self.start, limit, |page| !page.is_present()));
        let missing = missing.flatten();
        if let Some(Some((at, entry))) = missing {
            self.page(at, entry, words);
            let is_cause = is_likely && words.as_bytes().starts_with(LIKELY.as_bytes());
            if is_known(words) || is_cause || matches!(step, Step::Whole | Step::Unread) {
                return;
            }
            words.clear();
        }
        if is_fault && self.writing && matches!((step, missing), (Step::Whole, Some(None))) {
            let protected = first::<256>(self.start, self.end, Entry::is_write_protected);
            if let Some(Some((at, entry))) = protected {
                return self.page(at, entry, words);
            }
            // The kernel copies what a fork has shared before it pins.
            let shared = first::<256>(self.start, self.end, |page| !page.is_own());
            if let Some(Some((at, _))) = shared {
                let vma = mapping_at(at).filter(|it| it.flags & HUGE != 0 && !it.mapping.shared);
                if let Some(vma) = vma {
                    huge(vma.mapping.page_size, words);
                    if is_known(words) {
                        return;
                    }
                    words.clear();
                }
            }
        }
        let why_not = match step {
            Step::Hole(at) if is_fault => {
                let _ = write!(words, "nothing is mapped at {at:#x}");
                return;
            }
            Step::Stop(at, vma) => return self.refused(at, &vma, why, kind.as_bytes(), words),
            Step::Unread if descriptor::none_is_left() => {
                "/proc cannot be read, since no descriptor is left (RLIMIT_NOFILE)"
            }
            Step::Unread => "the mappings cannot all be read (/proc)",
            _ if !is_fault => "no mapping of it shows the reason",
            _ if missing.is_none() => "the page table cannot be read (/proc, pagemap)",
            _ => {
                "all of it is mapped and present now, and no flag of its mappings (smaps) forbids to pin it"
            }
        };
        let _ = write!(words, "{NOT_KNOWN}{why_not}");
    }

    /// The reason why a mapping is refused.
    #[inline(never)]
    fn refused(&self, at: u64, vma: &Vma, why: &str, kind: &[u8], words: &mut Words) {
        let (mut why, name) = (why, Name(at));
        proc::name_at(at, &mut |name| {
            let is_of_kernel = name.starts_with(b"[") || name == b"anon_inode:[perf_event]";
            if why == OF_DEVICE && is_of_kernel {
                why = OF_KERNEL;
            }
        });
        if why != NOT_WRITTEN {
            let _ = write!(words, "memory at {at:#x}{name} {why}");
            return;
        }
        let likely = if is_tracked(kind) { "" } else { LIKELY };
        let kind = core::str::from_utf8(kind).unwrap_or_default();
        let _ = write!(words, "{likely}memory at {at:#x}{name} on {kind} {why}");
        if let Some((Some(length), ..)) = vma.length() {
            let last = self.end.min(vma.mapping.range.end) - 1;
            self.beyond_end(last, vma, length, "; and ", words);
        }
    }

    /// Whether an address is beyond the end of the mapped file. Then writes so.
    fn beyond_end(&self, at: u64, vma: &Vma, size: u64, before: &str, words: &mut Words) -> bool {
        let (start, offset) = (vma.mapping.range.start, vma.mapping.offset);
        let whole = size.next_multiple_of(vma.mapping.page_size.max(page_size()));
        let is_beyond = at - start + offset >= whole;
        if is_beyond {
            let end = (start + size).saturating_sub(offset + self.start);
            let (length, name) = (self.end - self.start, Name(at));
            let _ = write!(
                words,
                "{before}the file ends at byte {end} of the {length} that are registered{name}: it has {size} bytes. \
                 Lengthen it first (ftruncate)"
            );
        }
        is_beyond
    }

    /// Why the kernel could not make this page present.
    #[inline(never)]
    fn page(&self, at: u64, entry: Entry, words: &mut Words) {
        let found = mapping_at(at);
        let of_file = found.filter(|vma| vma.mapping.has_file);
        let file = of_file.map(|vma| vma.length());
        if let (Some(vma), Some(Some((Some(length), ..)))) = (&found, file) {
            if self.beyond_end(at, vma, length, "", words) {
                return;
            }
        }
        let (flags, size) = found.map_or((0, 0), |vma| (vma.flags, vma.mapping.page_size));
        let name = Name(at);
        let (known, why) = if entry.is_guard() {
            ("", "is a guard (MADV_GUARD_INSTALL)")
        } else if entry.is_present() {
            let why = "is write-protected by a userfaultfd (VmFlags uw), which does not get faults of the kernel if it was \
                       made with UFFD_USER_MODE_ONLY: end the protection (UFFDIO_WRITEPROTECT) before the registration";
            (LIKELY, why)
        } else if flags & USERFAULTFD != 0 {
            let why = "is missing, and the program's userfaultfd has its faults (VmFlags um or ui), but not those of \
                       the kernel (UFFD_USER_MODE_ONLY; UFFD_FEATURE_SIGBUS; any before Linux 6.3) or has poisoned it: \
                       touch the memory before its registration";
            (LIKELY, why)
        } else if entry.is_swap() && is_poisoned(at) {
            let why = "is poisoned: by a memory error (HardwareCorrupted in /proc/meminfo), or by UFFDIO_POISON";
            ("", why)
        } else if let Some(Some((_, kind, Some(kib)))) = file {
            let is_known = matches!(kind, TMPFS | HUGETLBFS);
            let likely = if is_known { "" } else { LIKELY };
            let _ = write!(
                words,
                "{likely}the file system of the file{name} is full: 0 of {kib} KiB are free"
            );
            return;
        } else if flags & HUGE != 0 {
            return huge(size, words);
        } else {
            let why = match file {
                // An anonymous file has no length.
                None | Some(Some((None, ..))) => {
                    "is the first that is not present, and no flag of its mapping (smaps) says why"
                }
                Some(None) => {
                    "is the first that is not present, and its file cannot be asked for its length"
                }
                Some(_) => {
                    "is the first that is not present, and lies within its file: likely reading that failed"
                }
            };
            (NOT_KNOWN, why)
        };
        let _ = write!(words, "{known}the page at {at:#x}{name} {why}");
    }
}

/// Whether a page is poisoned. Reading it again does what the kernel has tried just now.
fn is_poisoned(at: u64) -> bool {
    let (size, advice) = (page_size(), libc::MADV_POPULATE_READ);
    // SAFETY: the advice changes no memory.
    let failed = unsafe { libc::syscall(libc::SYS_madvise, at, size, advice) } != 0;
    failed && errno::errno().0 == libc::EHWPOISON
}

/// Why there was no huge page of this size.
#[inline(never)]
fn huge(size: u64, words: &mut Words) {
    let kib = size >> 10;
    let (count, unit) = match kib {
        0..1024 => (kib, "KiB"),
        _ => (kib >> 10, "MiB"),
    };
    if let Some((used, most)) = cgroup::huge_pages_reached(size) {
        let (used, most) = (used >> 10, most >> 10);
        let _ = write!(
            words,
            "no free huge page of {count} {unit}: a cgroup has {used} of {most} KiB of them (hugetlb.*.max)"
        );
        return;
    }
    let figures = ["nr", "free", "resv", "nr_overcommit", "surplus"].map(|name| {
        let mut path_of = Text::<96>::new();
        let path = path_of.set(format_args!(
            "/sys/kernel/mm/hugepages/hugepages-{kib}kB/{name}_hugepages"
        ));
        proc::of_first(path?, proc::number)
    });
    if figures.contains(&None) {
        let _ = write!(
            words,
            "{LIKELY}no free huge page of {count} {unit} (/sys/kernel/mm cannot be read)"
        );
        return;
    }
    let [all, free, reserved, more, surplus] = figures.map(Option::unwrap_or_default);
    let _ = words.write_str(match free <= reserved && more <= surplus {
        true => "no free",
        false => "not known: a memory policy or a cpuset may have kept it from a",
    });
    let _ = write!(
        words,
        " huge page of {count} {unit}: nr_hugepages {all}, free {free}, reserved {reserved}, overcommit {more}"
    );
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::super::access::Access;
    use super::*;
    use core::ptr::with_exposed_provenance_mut;
    use libc::{
        MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PROT_EXEC, PROT_NONE, PROT_READ, PROT_WRITE,
    };
    use std::os::fd::AsRawFd;

    const WRITE: u32 = 1;
    const REMOTE_READ: u32 = 4;

    fn map(length: usize, protection: i32, flags: i32, fd: i32) -> usize {
        map_near(0, length, protection, flags, fd)
    }

    /// At an address of one's own choice, if nothing is there.
    fn map_near(hint: usize, length: usize, protection: i32, flags: i32, fd: i32) -> usize {
        let hint = with_exposed_provenance_mut(hint);
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let map = unsafe { libc::mmap(hint, length, protection, flags, fd, 0) };
        assert_ne!(map, libc::MAP_FAILED);
        map.addr()
    }

    /// Private pages of no file.
    fn own(pages: usize, protection: i32) -> usize {
        let length = pages * page_size() as usize;
        map(length, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1)
    }

    fn reason(addr: usize, length: usize, access: u32, errno: i32) -> (bool, String) {
        let access = Access::from_bits_retain(access);
        let addr = core::ptr::without_provenance_mut(addr);
        let mut words = Words::new();
        let sure = find(
            &Request::at_address(addr, length, access),
            errno,
            &mut words,
        );
        (sure, String::from_utf8(words.as_bytes().to_vec()).unwrap())
    }

    #[track_caller]
    fn expect(found: (bool, String), sure: bool, words: &str) {
        assert!(found.0 == sure && found.1.contains(words), "{found:?}");
    }

    /// A file of two pages, mapped and touched as far as it goes, as the kernel leaves it.
    fn short_file(path: &str, flags: i32) -> usize {
        let name = format!("{path}/rdmamr-unpinned-{}", std::process::id());
        let page = page_size() as usize;
        let file = std::fs::File::options();
        let file = file
            .clone()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&name);
        let file = file.unwrap();
        file.set_len(2 * page as u64 - 100).unwrap();
        let memory = map(4 * page, PROT_READ | PROT_WRITE, flags, file.as_raw_fd());
        for page in [memory, memory + page] {
            // SAFETY: the page is in the file.
            unsafe { core::ptr::with_exposed_provenance::<u8>(page).read_volatile() };
        }
        // The open file, and then the mapping, keep it.
        std::mem::forget(file);
        std::fs::remove_file(&name).unwrap();
        memory
    }

    #[test]
    fn a_short_file_on_any_file_system_has_its_end_named() {
        let page = page_size() as usize;
        for path in ["/dev/shm", "/run", "/tmp", "/proc/self/cwd/target"] {
            if std::fs::metadata(path).is_err() {
                continue;
            }
            let memory = short_file(path, MAP_SHARED);
            let end = format!(
                "the file ends at byte {} of the {}",
                2 * page - 100,
                4 * page
            );
            expect(
                reason(memory, 4 * page, REMOTE_READ, libc::EFAULT),
                true,
                &end,
            );
            let end = format!("the file ends at byte {} of the {}", page - 100, 3 * page);
            let later = reason(memory + page, 3 * page, REMOTE_READ, libc::EFAULT);
            expect(later, true, &end);
            let private = short_file(path, MAP_PRIVATE);
            expect(
                reason(private + page, 3 * page, WRITE, libc::EFAULT),
                true,
                &end,
            );
            // Nothing refuses what the file has.
            let whole = reason(memory, 2 * page, REMOTE_READ, libc::EFAULT);
            expect(whole, false, "all of it is mapped and present now");
        }
    }

    #[test]
    fn a_file_system_decides_and_no_path() {
        let page = page_size() as usize;
        for (path, tracks) in [
            ("/dev/shm", false),
            ("/run", false),
            ("/proc/self/cwd/target", true),
        ] {
            let Ok(folder) = std::fs::File::open(path) else {
                continue;
            };
            let kind = descriptor::file_system(folder.as_raw_fd()).unwrap();
            if (kind == TMPFS) == tracks {
                continue;
            }
            let (_, words) = reason(short_file(path, MAP_SHARED), 2 * page, WRITE, libc::EFAULT);
            assert_eq!(
                words.contains("kernels from 6.5"),
                tracks,
                "{path}: {words}"
            );
        }
    }

    #[test]
    fn the_kinds_of_mapping() {
        let page = page_size() as usize;
        let of = |addr, access| reason(addr, page, access, libc::EFAULT);
        expect(of(own(1, PROT_NONE), WRITE), true, "PROT_NONE");
        expect(of(own(1, PROT_EXEC), WRITE), true, "execution only");
        expect(of(own(1, PROT_READ), WRITE), true, "read-only");
        expect(of(0x1000, WRITE), true, "nothing is mapped at 0x1000");
        let mut vvar = None;
        assert!(proc::each_named_mapping(&mut |mapping, name| {
            vvar = vvar.or((name == b"[vvar]").then_some(mapping.range.start));
            true
        }));
        if let Some(vvar) = vvar {
            expect(of(vvar as usize, REMOTE_READ), true, "the kernel's own");
        }
        if !kernel::is_before(6, 2) {
            expect(
                of(own(1, PROT_WRITE), REMOTE_READ),
                true,
                "without read access",
            );
        }
        // SAFETY: the call makes a file.
        let secret = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) } as i32;
        // SAFETY: the file is this test's.
        if secret >= 0 && unsafe { libc::ftruncate(secret, page as i64) } == 0 {
            let secret = map(page, PROT_READ | PROT_WRITE, MAP_SHARED, secret);
            expect(of(secret, WRITE), true, "secret memory");
        }
    }

    #[test]
    fn behind_many_files_mappings_the_page_is_looked_at() {
        const FILES: usize = 70;
        let page = page_size() as usize;
        // Far below all that the kernel chooses, so that no other test's memory fills the hole.
        let (hint, length) = (1 << 36, (FILES + 1) * page);
        let start = map_near(hint, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        for at in (start..).step_by(page).take(FILES) {
            let (rights, flags) = (PROT_READ | PROT_WRITE, MAP_SHARED | libc::MAP_FIXED);
            // SAFETY: the call makes a file.
            let file = unsafe { libc::memfd_create(c"part".as_ptr(), 0) };
            // SAFETY: the file is this test's.
            assert_eq!(unsafe { libc::ftruncate(file, page as i64) }, 0);
            let at = with_exposed_provenance_mut(at);
            // SAFETY: the mapping takes the place of this test's own memory.
            let part = unsafe { libc::mmap(at, page, rights, flags, file, 0) };
            // SAFETY: the page was mapped just now.
            unsafe { part.cast::<u8>().write(1) };
            // SAFETY: the mapping holds the file.
            unsafe { libc::close(file) };
        }
        let of = || reason(start, (FILES + 1) * page, WRITE, libc::EFAULT);
        expect(of(), true, "PROT_NONE");
        // SAFETY: nothing uses the page.
        unsafe { libc::munmap(with_exposed_provenance_mut(start + FILES * page), page) };
        expect(of(), true, "nothing is mapped at");
    }

    #[test]
    fn a_guard_is_named() {
        const MADV_GUARD_INSTALL: i32 = 102;
        let page = page_size() as usize;
        let memory = own(2, PROT_READ | PROT_WRITE);
        // SAFETY: the memory is this test's.
        unsafe { core::ptr::with_exposed_provenance_mut::<u8>(memory).write_volatile(1) };
        // SAFETY: the same.
        let installed =
            unsafe { libc::syscall(libc::SYS_madvise, memory + page, page, MADV_GUARD_INSTALL) }
                == 0;
        if installed && !kernel::is_before(6, 15) {
            let found = reason(memory, 2 * page, WRITE, libc::EFAULT);
            expect(
                found,
                true,
                &format!("the page at {:#x} is a guard", memory + page),
            );
        }
    }

    #[test]
    fn what_is_missing_without_a_cause_is_not_known() {
        let page = page_size() as usize;
        let memory = own(2, PROT_READ | PROT_WRITE);
        let found = reason(memory, 2 * page, WRITE, libc::EFAULT);
        expect(found, false, "not known: the page at");
        for errno in [libc::EEXIST, libc::EOPNOTSUPP] {
            let found = reason(memory, 2 * page, WRITE, errno);
            expect(found, false, "no mapping of it shows the reason");
        }
    }
}
