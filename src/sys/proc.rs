// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's facts about this process: limits, pinned memory, mappings, proc(5).
//!
//! Any answer can be missing: no /proc in a chroot, no descriptor left, a seccomp filter. No
//! function here takes a missing answer for an empty one. The files are those of the calling thread
//! (`thread-self`): once the first thread has ended by pthread_exit(3), those of `self` are empty.

use super::descriptor::Descriptor;
use super::pages::PageRange;
use core::ffi::CStr;
use core::ptr::null;
use errno::{Errno, errno};

/// RLIMIT_MEMLOCK in bytes; `None` if unlimited.
pub fn memlock_limit() -> Option<u64> {
    limit(libc::RLIMIT_MEMLOCK).filter(|&most| most != libc::RLIM64_INFINITY)
}

/// The process's limit of a resource, by the system call itself: the greatest number if there is none,
/// `None` if it cannot be read.
pub fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let (own, none) = (0, null::<libc::rlimit64>());
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is writable, and the call sets no limit.
    let failed =
        unsafe { libc::syscall(libc::SYS_prlimit64, own, resource, none, &raw mut limit) } != 0;
    (!failed).then_some(limit.rlim_cur)
}

/// How many numbers the calling thread's table of descriptors has room for (proc(5), FDSize).
pub fn descriptor_table_size() -> Option<u32> {
    of_first(c"/proc/thread-self/status", |line| {
        number(field(line, b"FDSize:")?).map(|size| size as u32)
    })
}

/// Whether the kernel shows the process's mappings. Opens no file.
pub fn has_maps() -> bool {
    let path = c"/proc/thread-self/maps".as_ptr();
    // SAFETY: the path ends in 0.
    (unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path, libc::R_OK) }) == 0
}

/// The number of mappings that this process has, the number of those that the kernel would have
/// joined to the one below if nothing but the watch of memory kept them apart, and the most mappings
/// that the process may have (vm.max_map_count). `None` if any of them cannot be read.
pub fn mappings() -> Option<[u64; 3]> {
    let (mut count, mut split) = (0, 0);
    let mut below = None;
    let counted = each_mapping(|mapping| {
        let rights = (mapping.readable, mapping.writable, mapping.executable);
        let at = |address| mapping.is_own().then_some((address, rights));
        split += u64::from(below.is_some() && below == at(mapping.range.start));
        below = at(mapping.range.end);
        count += 1;
        true
    });
    let most = of_first(c"/proc/sys/vm/max_map_count", number)?;
    counted.then_some([count, split, most])
}

/// Fields of /proc/meminfo in KiB, such as "MemAvailable:"; 0 for one that cannot be read.
pub fn memory_kib<const N: usize>(names: [&[u8]; N]) -> [u64; N] {
    let mut found = [0; N];
    let read = each_line(c"/proc/meminfo", |line| {
        for (kib, name) in found.iter_mut().zip(names) {
            *kib = field(line, name).map_or(*kib, decimal);
        }
        found.contains(&0)
    });
    if read { found } else { [0; N] }
}

/// Whether the machine has memory that the kernel keeps movable, ZONE_MOVABLE or CMA: before it pins a
/// page there for long it moves the page elsewhere (`check_and_migrate_movable_pages`, mm/gup.c).
pub fn has_movable_memory() -> bool {
    let mut is_movable = false;
    let mut found = memory_kib([b"CmaTotal:"]) != [0];
    let read = each_line(c"/proc/zoneinfo", |line| {
        match line.strip_prefix(b"Node ") {
            Some(zone) => is_movable = zone.ends_with(b"Movable"),
            None => {
                let present = field(line.trim_ascii_start(), b"present");
                found |= is_movable && present.is_some_and(|pages| decimal(pages) != 0);
            }
        }
        !found
    });
    read && found
}

/// Whether a seccomp filter may be in force: it is unknown if the file cannot be read. prctl(2) would
/// be a call that the filter may not allow.
pub fn is_filtered() -> bool {
    // A kernel without seccomp prints no such line.
    let mut mode = 0;
    let read = each_line(c"/proc/thread-self/status", |line| {
        let value = field(line, b"Seccomp:");
        mode = value.map_or(0, decimal);
        value.is_none()
    });
    !read || mode != 0
}

/// Fields of `/proc/thread-self/status`.
#[derive(Default)]
pub struct Status {
    /// `VmPin`.
    pub pinned_kib: u64,
    /// CAP_IPC_LOCK is effective, and the process is in the first user namespace, where it counts.
    pub may_lock: bool,
    pub ipc_lock: Capability,
}

/// How far a thread has a capability, capabilities(7).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Capability {
    /// In no set.
    #[default]
    Absent,
    /// In the bounding set alone: a program gains it by execve(2) as root, or by its file.
    Bounding,
    Permitted,
    Effective,
}

const CAP_IPC_LOCK: u32 = 14;

/// Whether the process is in the first user namespace, where capabilities over memory count.
fn is_in_first_namespace() -> bool {
    let first = of_first(c"/proc/thread-self/uid_map", |line| {
        Some(line.ends_with(b" 4294967295"))
    });
    first == Some(true)
}

/// [`Status::may_lock`] alone. Most processes lack the capability, and then this reads no file.
pub fn may_lock() -> bool {
    let effective = capabilities().map_or(0, |[first, _]| first[0]);
    effective >> CAP_IPC_LOCK & 1 == 1 && is_in_first_namespace()
}

/// The calling thread's effective, permitted and inheritable capabilities, in two halves.
pub fn capabilities() -> Option<[[u32; 3]; 2]> {
    /// _LINUX_CAPABILITY_VERSION_3 of linux/capability.h.
    const VERSION: u32 = 0x2008_0522;
    // The version, and the thread: 0 for this one.
    let (mut header, mut sets) = ([VERSION, 0], [[0; 3]; 2]);
    // SAFETY: the arrays have the layout of this version.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, &raw mut sets) } == 0;
    got.then_some(sets)
}

impl Status {
    /// Reads the current values. `None` if they cannot be read.
    pub fn read() -> Option<Status> {
        const SETS: [(&[u8], Capability); 3] = [
            (b"CapPrm:", Capability::Permitted),
            (b"CapEff:", Capability::Effective),
            (b"CapBnd:", Capability::Bounding),
        ];
        let mut status = Status::default();
        let read = each_line(c"/proc/thread-self/status", |line| {
            if let Some(value) = field(line, b"VmPin:") {
                status.pinned_kib = decimal(value);
            }
            for (name, extent) in SETS {
                let set = field(line, name).map_or(0, |set| hexadecimal(set).0);
                if set >> CAP_IPC_LOCK & 1 == 1 {
                    status.ipc_lock = status.ipc_lock.max(extent);
                }
            }
            true
        });
        status.may_lock = status.ipc_lock == Capability::Effective && is_in_first_namespace();
        read.then_some(status)
    }
}

/// A line of `/proc/thread-self/maps`.
#[derive(Clone, Copy)]
pub struct Mapping {
    pub range: PageRange,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    pub shared: bool,
    /// The mapping is of a file, even one without a name, which only the kernel knows.
    pub has_file: bool,
    /// The path is one in /dev that is not known as memory. A path proves nothing: only a caller
    /// that is free to leave a mapping out may ask this.
    pub of_device: bool,
    /// The numbers of the file system that the file is on, (0, 0) without a file.
    pub file_system: (u32, u32),
    pub inode: u64,
    /// The place in the file at which the mapping starts.
    pub offset: u64,
    /// The size of the mapping's pages in bytes; 0 if `smaps` was not read.
    pub page_size: u64,
    /// The mapping's protection key, pkeys(7); 0 if `smaps` was not read.
    pub key: u32,
}

impl Mapping {
    /// Whether memory there may be pinned, for writing or only for reading.
    pub fn allows(&self, writing: bool) -> bool {
        match writing {
            true => self.writable,
            false => self.readable,
        }
    }

    /// Whether only this process can change the mapping's memory: the mapping is private, and its
    /// pages do not come from a file. (For huge pages of hugetlb the kernel makes a file.)
    pub fn is_own(&self) -> bool {
        !self.shared && !self.has_file
    }
}

/// Calls `each` for the mappings in ascending order until it returns false. Returns false if the
/// kernel has not shown all of them up to that point. A mapping that exists during the whole call
/// is shown; one that appears or disappears meanwhile may be shown or not.
#[must_use]
pub fn each_mapping(mut each: impl FnMut(&Mapping) -> bool) -> bool {
    each_named_mapping(&mut |mapping, _| each(mapping))
}

/// As [`each_mapping`], with the name of each mapping, which is empty if the mapping has none.
#[must_use]
#[inline(never)]
pub fn each_named_mapping(each: &mut dyn FnMut(&Mapping, &[u8]) -> bool) -> bool {
    let mut understood = true;
    let read = each_line(c"/proc/thread-self/maps", |line| match parse(line) {
        Some(mapping) => {
            let name = line.splitn(6, |&byte| byte == b' ').nth(5);
            each(&mapping, name.unwrap_or_default().trim_ascii())
        }
        None => {
            understood = false;
            false
        }
    });
    read && understood
}

/// Calls `each` with the name of the mapping at this address, if it has one.
pub fn name_at(addr: u64, each: &mut dyn FnMut(&[u8])) {
    let _ = each_named_mapping(&mut |mapping, name| {
        let is_it = mapping.range.end > addr;
        if is_it {
            each(name);
        }
        !is_it
    });
}

/// The structure of PROCMAP_QUERY (include/uapi/linux/fs.h), Linux 6.11.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
const _: () = assert!(size_of::<Query>() == 0x68);
const VMA_SHARED: u64 = 1 << 3;
const COVERING_OR_NEXT_VMA: u64 = 1 << 4;

/// Calls `each` for the mappings that reach into a range, in ascending order, with whether each is
/// the process's own ([`Mapping::is_own`]). Unlike [`each_mapping`], this takes no time for other
/// mappings. The error is ENOTTY before Linux 6.11.
pub fn each_mapping_in(
    range: PageRange,
    mut each: impl FnMut(PageRange, bool),
) -> Result<(), Errno> {
    // Each call opens the file anew: the program may close a descriptor that stays open, and reuse
    // its number.
    let file = open(c"/proc/thread-self/maps")?;
    let mut at = range.start;
    while at < range.end {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            query_flags: COVERING_OR_NEXT_VMA,
            query_addr: at,
            ..Query::default()
        };
        let (maps, to) = (file.number(), &raw mut query);
        // SAFETY: `query` has the layout of the kernel's structure, and room for no name.
        if unsafe { libc::syscall(libc::SYS_ioctl, maps, PROCMAP_QUERY, to) } != 0 {
            match errno() {
                Errno(libc::ENOENT) => break,
                errno => return Err(errno),
            }
        }
        let mapping = PageRange::new(query.vma_start, query.vma_end);
        if mapping.start >= range.end {
            break;
        }
        let has_file = query.inode != 0 || query.dev_major != 0 || query.dev_minor != 0;
        each(mapping, query.vma_flags & VMA_SHARED == 0 && !has_file);
        at = mapping.end;
    }
    Ok(())
}

/// Like [`each_mapping`], with the kernel's flags for each mapping, two letters a flag (VmFlags).
/// The kernel also reports how much of each mapping is present, which callers do not need, and
/// looks at the pages for that: 24 ns for each present page, and 1.2 us for each mapping. Without
/// CONFIG_PROC_PAGE_MONITOR the list is empty.
#[must_use]
pub fn each_mapping_with_flags(mut each: impl FnMut(&Mapping, &[u8]) -> bool) -> bool {
    let mut mapping = None;
    each_line(c"/proc/thread-self/smaps", |line| {
        if let Some(flags) = field(line, b"VmFlags:") {
            return mapping.take().is_none_or(|mapping| each(&mapping, flags));
        }
        if let (Some(size), Some(mapping)) = (field(line, b"KernelPageSize:"), &mut mapping) {
            mapping.page_size = decimal(size) * 1024;
        }
        if let (Some(key), Some(mapping)) = (field(line, b"ProtectionKey:"), &mut mapping) {
            mapping.key = decimal(key) as u32;
        }
        mapping = parse(line).or(mapping.take());
        true
    })
}

/// How many bytes of the mappings in a range are in huge pages, of any kind. `None` if that cannot
/// be read. It takes as long as [`each_mapping_with_flags`].
pub fn huge_bytes(range: PageRange) -> Option<u64> {
    const KINDS: [&[u8]; 5] = [
        b"AnonHugePages:",
        b"ShmemPmdMapped:",
        b"FilePmdMapped:",
        b"Shared_Hugetlb:",
        b"Private_Hugetlb:",
    ];
    let mut within = false;
    let mut kib = 0;
    let read = each_line(c"/proc/thread-self/smaps", |line| {
        if let Some(mapping) = parse(line) {
            within = mapping.range.overlaps(range);
            return mapping.range.start < range.end;
        }
        if within {
            let value = KINDS.iter().find_map(|kind| field(line, kind));
            kib += value.map_or(0, decimal);
        }
        true
    });
    read.then_some(kib * 1024)
}

/// How many pages of this process are resident. `None` if that cannot be read.
pub fn resident_pages() -> Option<u64> {
    of_first(c"/proc/thread-self/statm", |line| {
        line.split(|&byte| byte == b' ').nth(1).map(decimal)
    })
}

fn parse(line: &[u8]) -> Option<Mapping> {
    let (start, rest) = hexadecimal(line);
    let (end, rest) = hexadecimal(rest.strip_prefix(b"-")?);
    let mut fields = rest.strip_prefix(b" ")?.splitn(5, |&byte| byte == b' ');
    let permissions = fields.next().filter(|field| field.len() == 4)?;
    let (offset, device, inode) = (fields.next()?, fields.next()?, fields.next()?);
    let path = fields.next().unwrap_or_default().trim_ascii_start();
    const MEMORY: [&[u8]; 3] = [b"/dev/zero", b"/dev/shm/", b"/dev/huge"];
    let is_memory = MEMORY.iter().any(|memory| path.starts_with(memory));
    let (major, minor) = hexadecimal(device);
    let minor = hexadecimal(minor.strip_prefix(b":").unwrap_or_default()).0;
    Some(Mapping {
        range: PageRange { start, end },
        readable: permissions[0] == b'r',
        writable: permissions[1] == b'w',
        executable: permissions[2] == b'x',
        shared: permissions[3] == b's',
        // No file system has the device number 0.
        has_file: device != b"00:00" || inode != b"0",
        of_device: path.starts_with(b"/dev/") && !is_memory,
        file_system: (major as u32, minor as u32),
        inode: decimal(inode),
        offset: hexadecimal(offset).0,
        page_size: 0,
        key: 0,
    })
}

/// The kind of the file system with these numbers, if this process has it mounted: `kind` is called
/// with its name and its mount point, as mountinfo spells it.
pub fn file_system((major, minor): (u32, u32), kind: &mut dyn FnMut(&[u8], &[u8])) {
    let _ = each_line(c"/proc/thread-self/mountinfo", |line| {
        let mut words = line.split(|&byte| byte == b' ');
        let (Some(device), Some(_root), Some(place)) = (words.nth(2), words.next(), words.next())
        else {
            return true;
        };
        let mut numbers = device.split(|&byte| byte == b':').map(decimal);
        let is_it =
            numbers.next() == Some(u64::from(major)) && numbers.next() == Some(u64::from(minor));
        if is_it {
            if let Some(name) = words.skip_while(|&word| word != b"-").nth(1) {
                kind(name, place);
            }
        }
        !is_it
    });
}

fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    Some(line.strip_prefix(name)?.trim_ascii_start())
}

/// The number at the start of a text; 0 if there is none.
pub fn decimal(text: &[u8]) -> u64 {
    number(text).unwrap_or(0)
}

/// The number at the start of a text; `None` if there is none, as for the word "max".
pub fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    core::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// The number at the start of `text`, and the text after it.
fn hexadecimal(text: &[u8]) -> (u64, &[u8]) {
    let mut value = 0u64;
    for (n, &digit) in text.iter().enumerate() {
        match (digit as char).to_digit(16) {
            Some(digit) => value = value.wrapping_mul(16).wrapping_add(u64::from(digit)),
            None => return (value, &text[n..]),
        }
    }
    (value, b"")
}

/// Calls `each` for the lines of a file, without their newlines, until it returns false. A line
/// longer than the buffer is cut; only a path can make a line that long. Returns false if the file
/// cannot be read to its end, or to the line at which `each` returned false, and if it has no line.
#[must_use]
pub fn each_line(path: &CStr, mut each: impl FnMut(&[u8]) -> bool) -> bool {
    each_line_of(path, &mut each)
}

/// As [`each_line`], compiled once and not for each caller, whose frame would have the buffer
/// twice.
#[inline(never)]
fn each_line_of(path: &CStr, each: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    let Ok(file) = open(path) else {
        return false;
    };
    let mut any = false;
    let mut each = |line: &[u8]| {
        any = true;
        each(line)
    };
    let mut whole = true;
    // The smallest stack of a thread has no room for a page.
    let mut buffer = [0u8; 3072];
    let mut used = 0;
    let mut rest_of_long_line = false;
    'file: loop {
        let read = file.read(&mut buffer[used..]);
        let Some(read @ 1..) = read else {
            // A last line without a newline has been cut off.
            whole = read == Some(0) && used == 0;
            break;
        };
        used += read;
        let mut start = 0;
        while let Some(length) = buffer[start..used].iter().position(|&byte| byte == b'\n') {
            if !core::mem::take(&mut rest_of_long_line) && !each(&buffer[start..start + length]) {
                break 'file;
            }
            start += length + 1;
        }
        if start == 0 && used == buffer.len() {
            if !core::mem::replace(&mut rest_of_long_line, true) && !each(&buffer) {
                break;
            }
            start = used;
        }
        buffer.copy_within(start..used, 0);
        used -= start;
    }
    whole && any
}

/// The first result that `find` has for a line of a file. `None` if the file cannot be read up to
/// that line.
pub fn of_first<T>(path: &CStr, find: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    let mut found = None;
    let read = each_line(path, |line| {
        found = find(line);
        found.is_none()
    });
    found.filter(|_| read)
}

/// Opens a file of /proc.
pub(super) fn open(path: &CStr) -> Result<Descriptor, Errno> {
    Descriptor::open(libc::AT_FDCWD, path, libc::O_RDONLY, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps() {
        let parse = |line: &str| parse(line.as_bytes());
        let mapping = parse("7f00-8f10 r--s 0001f000 fe:01 12 /home/a file").unwrap();
        assert_eq!((mapping.range.start, mapping.range.end), (0x7f00, 0x8f10));
        assert!(mapping.readable && !mapping.writable && mapping.shared && mapping.has_file);
        let of_file = (mapping.file_system, mapping.inode, mapping.offset);
        assert_eq!(of_file, ((0xfe, 1), 12, 0x1f000));
        let memory = parse("7f00-8f10 rw-s 00000000 00:01 12 /memfd:x (deleted)").unwrap();
        assert!(!memory.is_own());
        for nonsense in [
            "nonsense",
            "",
            "7f00-8f10 rw-p 00000000 00:00",
            "7f00-8f10 rw-p",
        ] {
            assert!(parse(nonsense).is_none(), "{nonsense}");
        }
        let own = |rest: &str| parse(&format!("7f00-8f10 {rest}")).unwrap().is_own();
        assert!(own("rw-p 00000000 00:00 0"));
        assert!(own(
            "rw-p 00000000 00:00 0                          [stack]"
        ));
        assert!(own("rw-p 00000000 00:00 0   [anon:/memfd:x]"));
        // On a file system that is not the kernel's own.
        assert!(!own("rw-p 00000000 00:00 9   /anon_hugepage (deleted)"));
        assert!(!own(
            "rw-p 00000000 00:01 9   [anon_shmem:/anon_hugepage (deleted)]"
        ));
        assert!(!own("rw-p 00000000 00:01 9   /anon_hugepage"));
        assert!(!own("rw-p 00000000 00:06 5   /dev/zero"));
        assert!(!own("rw-p 00003000 fe:01 12  /usr/lib/libc.so.6"));
        assert!(!own(
            "rw-p 00003000 00:21 0   /a file with the inode number 0"
        ));
    }

    #[test]
    fn a_question_has_the_answer_of_the_list() {
        let mut listed = Vec::new();
        assert!(each_mapping(|mapping| {
            listed.push((mapping.range, mapping.is_own()));
            true
        }));
        let everything = PageRange::ALL;
        let mut found = 0;
        let asked = each_mapping_in(everything, |range, own| {
            found += usize::from(listed.contains(&(range, own)));
        });
        // Other tests map and unmap memory meanwhile.
        match asked {
            Ok(()) => assert!(found > listed.len() / 2),
            Err(errno) => assert_eq!(errno.0, libc::ENOTTY),
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_empty() {
        let read = |path: &CStr| {
            let mut lines = 0;
            let whole = each_line(path, |_| {
                lines += 1;
                true
            });
            (whole, lines)
        };
        assert_eq!(read(c"/nowhere/at/all"), (false, 0));
        assert_eq!(read(c"/dev/null"), (false, 0));
        // Reading fails: a directory; the memory at address 0.
        assert_eq!(read(c"/proc"), (false, 0));
        assert_eq!(read(c"/proc/self/mem"), (false, 0));
        let path = std::env::temp_dir().join(format!("rdmamr-cut-{}", std::process::id()));
        std::fs::write(&path, "first\nno end").unwrap();
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        assert_eq!(read(&name), (false, 1));
        assert!(each_line(&name, |_| false));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn flags_belong_to_their_mapping() {
        let mut plain = Vec::new();
        let whole = each_mapping(|mapping| {
            plain.push(mapping.range.start);
            true
        });
        assert!(whole);
        let mut found = 0;
        let whole = each_mapping_with_flags(|mapping, flags| {
            let has = |name: &[u8]| flags.split(|&byte| byte == b' ').any(|flag| flag == name);
            assert_eq!(
                (has(b"rd"), has(b"wr")),
                (mapping.readable, mapping.writable)
            );
            found += usize::from(plain.contains(&mapping.range.start));
            true
        });
        assert!(whole);
        // Other tests map and unmap memory meanwhile.
        assert!(found > plain.len() / 2);
        assert!(resident_pages().is_some_and(|pages| pages > 0));
    }

    #[test]
    fn the_stack_is_among_the_mappings() {
        let here = &raw const here_marker as u64;
        let mut found = false;
        let whole = each_mapping(|mapping| {
            let range = mapping.range;
            found |= range.start <= here && here < range.end && mapping.readable;
            true
        });
        assert!(whole && found);
    }

    #[allow(non_upper_case_globals)]
    static here_marker: u8 = 0;

    #[test]
    fn long_lines_are_cut_and_the_next_is_whole() {
        let path = std::env::temp_dir().join(format!("rdmamr-lines-{}", std::process::id()));
        std::fs::write(&path, format!("first\n{}\nlast\n", "x".repeat(10_000))).unwrap();
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        let mut lines = Vec::new();
        let whole = each_line(&name, |line| {
            lines.push(line.to_vec());
            true
        });
        assert!(whole);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(lines.len(), 3);
        assert_eq!(
            (&lines[0][..], lines[1][0], &lines[2][..]),
            (&b"first"[..], b'x', &b"last"[..])
        );
    }

    #[test]
    fn numbers() {
        assert_eq!(hexadecimal(b"ff-"), (255, &b"-"[..]));
        assert_eq!(decimal(b"64 kB"), 64);
    }

    const LINES: [&[u8]; 5] = [
        b"7f00deadb000-7f00deadc000 rw-p 00001000 103:02 4711  /memfd:a b (deleted)",
        b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0          [vsyscall]",
        b"VmLck:\t    1024 kB",
        b"Max locked memory         8388608              unlimited            bytes     ",
        b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
    ];

    #[test]
    fn fuzz_proc_text() {
        crate::fuzz_inputs::each("fuzz_proc_text", 2000, &LINES, |line, _| {
            let _ = parse(line);
            let _ = decimal(line);
            let _ = hexadecimal(line);
            let _ = field(line, b"VmLck:").map(decimal);
            let _ = rdmamr_live_page::parse_name(line);
            let _ = rdmamr_live_page::start_of(line);
        });
    }

    /// Whole files, in which a line may have any length.
    #[test]
    fn fuzz_proc_files() {
        let path = std::env::temp_dir().join(format!("rdmamr.fuzz.{}", std::process::id()));
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        crate::fuzz_inputs::each("fuzz_proc_files", 100, &LINES, |text, random| {
            let long = text.repeat(1 + random.below(200));
            std::fs::write(&path, &long).unwrap();
            let mut seen = 0;
            let _ = each_line(&name, |line| {
                seen += line.len();
                let _ = parse(line);
                true
            });
            assert!(seen <= long.len());
        });
        std::fs::remove_file(&path).unwrap();
    }
}
