// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel says about this process: limits, pinned memory, mappings, proc(5).

use core::ffi::CStr;

/// RLIMIT_MEMLOCK in bytes; `None` if unlimited.
pub fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is writable.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } != 0;
    (!failed && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The number of mappings that this process has, and the most that it may have (vm.max_map_count).
pub fn mappings() -> (u64, u64) {
    let (mut count, mut most) = (0, 0);
    each_line(c"/proc/self/maps", |_| {
        count += 1;
        true
    });
    each_line(c"/proc/sys/vm/max_map_count", |line| {
        most = decimal(line);
        false
    });
    (count, if most == 0 { 65530 } else { most })
}

/// The machine's memory, and the part that it could still give out, in KiB (MemTotal,
/// MemAvailable).
pub fn memory_kib() -> (u64, u64) {
    let (mut total, mut available) = (0, u64::MAX);
    each_line(c"/proc/meminfo", |line| {
        if let Some(value) = field(line, b"MemTotal:") {
            total = decimal(value);
        } else if let Some(value) = field(line, b"MemAvailable:") {
            available = decimal(value);
            return false;
        }
        true
    });
    (total, available)
}

/// Fields of `/proc/self/status`.
#[derive(Default)]
pub struct Status {
    /// `VmPin`.
    pub pinned_kib: u64,
    /// CAP_IPC_LOCK is effective, and the process is in the first user namespace, where it counts.
    pub may_lock: bool,
}

const CAP_IPC_LOCK: u32 = 14;

impl Status {
    /// Reads the current values. A field that cannot be read is 0.
    pub fn read() -> Status {
        let mut status = Status::default();
        each_line(c"/proc/self/status", |line| {
            if let Some(value) = field(line, b"VmPin:") {
                status.pinned_kib = decimal(value);
            } else if let Some(value) = field(line, b"CapEff:") {
                status.may_lock = hexadecimal(value).0 >> CAP_IPC_LOCK & 1 == 1;
            }
            true
        });
        let mut first_namespace = false;
        each_line(c"/proc/self/uid_map", |line| {
            first_namespace = line.ends_with(b" 4294967295");
            false
        });
        status.may_lock &= first_namespace;
        status
    }
}

/// A line of `/proc/self/maps`.
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub readable: bool,
    pub writable: bool,
    pub shared: bool,
    /// The mapping is of a file on a file system that keeps pages of its own, not of memory that
    /// only looks like a file.
    pub file: bool,
    /// The mapping is of a System V segment.
    pub segment: bool,
    /// The mapping is of a file made by memfd_create(2).
    pub memfd: bool,
    /// The mapping is of huge pages without a name: a file only inside the kernel.
    pub huge: bool,
    /// The file's inode number.
    pub inode: u64,
}

/// Calls `each` for the mappings in ascending order until it returns false.
pub fn each_mapping(mut each: impl FnMut(&Mapping) -> bool) {
    each_line(c"/proc/self/maps", |line| {
        parse(line).is_none_or(|mapping| each(&mapping))
    });
}

/// Like [`each_mapping`], with the kernel's flags for each mapping, two letters a flag (VmFlags).
/// The kernel also reports how much of each mapping is present, which callers do not need, and
/// looks at the pages for that: 24 ns for each present page, and 1.2 us for each mapping. Without
/// CONFIG_PROC_PAGE_MONITOR the list is empty.
pub fn each_mapping_with_flags(mut each: impl FnMut(&Mapping, &[u8]) -> bool) {
    let mut mapping = None;
    each_line(c"/proc/self/smaps", |line| {
        if let Some(flags) = field(line, b"VmFlags:") {
            return mapping.take().is_none_or(|mapping| each(&mapping, flags));
        }
        mapping = parse(line).or(mapping.take());
        true
    });
}

/// How many pages of this process are resident.
pub fn resident_pages() -> u64 {
    let mut resident = 0;
    each_line(c"/proc/self/statm", |line| {
        resident = line.split(|&byte| byte == b' ').nth(1).map_or(0, decimal);
        false
    });
    resident
}

fn parse(line: &[u8]) -> Option<Mapping> {
    let (start, rest) = hexadecimal(line);
    let (end, rest) = hexadecimal(rest.strip_prefix(b"-")?);
    let permissions = rest.strip_prefix(b" ")?.get(..4)?;
    let path = line
        .iter()
        .position(|&byte| byte == b'/')
        .map_or(&b""[..], |at| &line[at..]);
    const MEMORY: [&[u8]; 5] = [
        b"/memfd:",
        b"/dev/zero",
        b"/dev/shm/",
        b"/SYSV",
        b"/anon_hugepage",
    ];
    Some(Mapping {
        start,
        end,
        readable: permissions[0] == b'r',
        writable: permissions[1] == b'w',
        shared: permissions[3] == b's',
        file: !path.is_empty() && !MEMORY.iter().any(|memory| path.starts_with(memory)),
        segment: path.starts_with(b"/SYSV"),
        huge: path.starts_with(b"/anon_hugepage"),
        memfd: path.starts_with(b"/memfd:"),
        inode: rest.split(|&byte| byte == b' ').nth(4).map_or(0, decimal),
    })
}

fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    Some(line.strip_prefix(name)?.trim_ascii_start())
}

fn decimal(digits: &[u8]) -> u64 {
    let digits = digits.iter().take_while(|digit| digit.is_ascii_digit());
    digits.fold(0, |value, digit| {
        value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'))
    })
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
/// longer than the buffer is cut; only a path can make a line that long.
fn each_line(path: &CStr, mut each: impl FnMut(&[u8]) -> bool) {
    // Bare system calls: the caller may be a thread that the C library does not know, and other
    // libraries replace open.
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path ends with a NUL.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    if fd < 0 {
        return;
    }
    let mut buffer = [0u8; 4096];
    let mut used = 0;
    let mut rest_of_long_line = false;
    'file: loop {
        let free = &mut buffer[used..];
        // SAFETY: `free` is writable.
        let read = unsafe { libc::syscall(libc::SYS_read, fd, free.as_mut_ptr(), free.len()) };
        let Ok(read @ 1..) = usize::try_from(read) else {
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
    // SAFETY: this function opened `fd`.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps() {
        let mapping = parse(b"7f00-8f10 r--s 00000000 fe:01 12 /home/a file").unwrap();
        assert_eq!((mapping.start, mapping.end), (0x7f00, 0x8f10));
        assert!(mapping.readable && !mapping.writable && mapping.shared && mapping.file);
        assert_eq!(
            (mapping.inode, mapping.memfd, mapping.segment),
            (12, false, false)
        );
        assert!(
            !parse(b"7f00-8f10 rw-s 00000000 00:01 12 /memfd:x (deleted)")
                .unwrap()
                .file
        );
        assert!(!parse(b"7f00-8f10 rw-p 00000000 00:00 0").unwrap().file);
        assert!(parse(b"nonsense").is_none());
    }

    #[test]
    fn flags_belong_to_their_mapping() {
        let mut plain = Vec::new();
        each_mapping(|mapping| {
            plain.push(mapping.start);
            true
        });
        let mut found = 0;
        each_mapping_with_flags(|mapping, flags| {
            let has = |name: &[u8]| flags.split(|&byte| byte == b' ').any(|flag| flag == name);
            assert_eq!(
                (has(b"rd"), has(b"wr")),
                (mapping.readable, mapping.writable)
            );
            found += usize::from(plain.contains(&mapping.start));
            true
        });
        // Other tests map and unmap memory meanwhile.
        assert!(found > plain.len() / 2);
        assert!(resident_pages() > 0);
    }

    #[test]
    fn the_stack_is_among_the_mappings() {
        let here = &raw const here_marker as u64;
        let mut found = false;
        each_mapping(|mapping| {
            found |= mapping.start <= here && here < mapping.end && mapping.readable;
            true
        });
        assert!(found);
    }

    #[allow(non_upper_case_globals)]
    static here_marker: u8 = 0;

    #[test]
    fn long_lines_are_cut_and_the_next_is_whole() {
        let path = std::env::temp_dir().join(format!("rdmamr-lines-{}", std::process::id()));
        std::fs::write(&path, format!("first\n{}\nlast\n", "x".repeat(10_000))).unwrap();
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        let mut lines = Vec::new();
        each_line(&name, |line| {
            lines.push(line.to_vec());
            true
        });
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
}
