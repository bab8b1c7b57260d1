// SPDX-License-Identifier: MIT OR Apache-2.0
//! The live page: the file in which a process under the library counts, so that `rdmamr top` can
//! read the counts while the process runs. The library maps the file, the program `rdmamr` reads
//! it, and both are built with this package.
//!
//! The file lies in a directory of the process's user, [`DIRECTORY`], on a tmpfs: it does not
//! outlive a boot, and no write-back disturbs the process. Its name is [`name`]. A file whose name
//! begins with a dot is not finished. All numbers are native.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::*};

/// The first bytes of a page.
pub const MAGIC: [u8; 8] = *b"RDMAMRPG";
/// The version of the layout. A reader accepts no other.
pub const VERSION: u32 = 1;

/// [`Head::rank`] of a process that has none.
pub const NO_RANK: u64 = u64::MAX;

/// The directory's name in XDG_RUNTIME_DIR; elsewhere `-UID` follows it.
pub const DIRECTORY: &str = "rdmamr";
/// The directories that may contain it besides XDG_RUNTIME_DIR.
pub const PARENTS: [&str; 2] = ["/dev/shm", "/tmp"];
/// The address at which a process maps its page, if the kernel has room there.
pub const PLACE: usize = 0x2d72_0080_0000;
/// `f_type` of a tmpfs, statfs(2).
pub const TMPFS: i64 = 0x0102_1994;

/// `f_type` of file systems whose files are the kernel's (linux/magic.h): to open or to write one may
/// have an effect, and it may look empty.
pub const OF_KERNEL: [i64; 14] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x7472_6163, // tracefs
    0x6462_6720, // debugfs
    0x7363_6673, // securityfs
    0x6265_6570, // configfs
    0xcafe_4a11, // bpf
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0xf97c_ff8c, // selinuxfs
    0x6573_5543, // fusectl
    0x4249_4e4d, // binfmt_misc
];

/// The most counters, the shards that threads count in, and the devices that are told apart: the
/// last place is for all further devices.
pub const COUNTERS: usize = 48;
pub const SHARDS: usize = 32;
pub const DEVICES: usize = 8;
/// The most bytes of a path, with its terminating zero.
pub const PATH: usize = 1024;
/// The length of the names of the counters, in bytes.
pub const NAMES: usize = 1024;

/// A page. All zeros are a page without counts.
#[repr(C, align(128))]
pub struct Page {
    pub head: Head,
    /// The names of the counters, each with a newline behind it.
    pub names: [u8; NAMES],
    /// How many devices have been entered; more than [`DEVICES`] if some have no place.
    pub entered: AtomicU64,
    /// The devices' names, with zeros behind them.
    pub devices: [[AtomicU8; 64]; DEVICES],
    pub idle: Idle,
    pub trace: TraceSwitch,
    pub shards: [Shard; SHARDS],
}

/// The process that writes the page. These fields never change.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Head {
    pub magic: [u8; 8],
    pub version: u32,
    /// The size of the page in bytes.
    pub size: u32,
    /// The process's number in its own PID namespace, and that namespace's inode.
    pub pid: u32,
    /// The number of counters.
    pub counters: u32,
    pub pid_namespace: u64,
    /// When the process started, in ticks: field 22 of `/proc/PID/stat`.
    pub start: u64,
    /// The address at which the process has mapped the page.
    pub address: u64,
    /// When the page was made, CLOCK_MONOTONIC in ns.
    pub began: u64,
    /// The rank of the process in its job, or [`NO_RANK`].
    pub rank: u64,
}

/// The cache's idle regions, which the cache's own thread counts several times a second.
#[repr(C)]
pub struct Idle {
    /// All hits of the process up to then.
    pub hits: AtomicU64,
    /// For each device the idle regions and the sum of their lengths.
    pub of_device: [[AtomicU64; 2]; DEVICES],
}

/// Asks the process to record its calls, or to stop that. The asking process writes every field but
/// `answered` and `state`: first `wanted` and `path`, then `number`.
#[repr(C)]
pub struct TraceSwitch {
    /// Grows with each request.
    pub number: AtomicU32,
    /// The request that the process has followed last.
    pub answered: AtomicU32,
    /// 1 to record, 0 to stop.
    pub wanted: AtomicU32,
    /// Whether the process records its calls: 0 or 1, or why it does not.
    pub state: AtomicU32,
    /// The absolute path of the file, with zeros behind it.
    pub path: [AtomicU8; PATH],
}

/// [`TraceSwitch::state`]: the file is missing, is no regular file of the user's with one name, or is
/// neither empty nor a trace.
pub const NOT_POSSIBLE: u32 = 2;
/// [`TraceSwitch::state`]: the process follows no request: it has capabilities or is not dumpable.
pub const NOT_FOLLOWED: u32 = 3;

/// The counts of one thread. The value of a counter is the sum over all shards, modulo 2^64.
#[repr(C, align(128))]
pub struct Shard {
    pub counters: [AtomicU64; COUNTERS],
    /// The time that registrations took in the kernel, in ns.
    pub nanoseconds: AtomicU64,
    pub devices: [OfDevice; DEVICES],
}

/// Counts of a device.
#[repr(C)]
pub struct OfDevice {
    /// Registrations by the kernel and by libibverbs.
    pub registrations: AtomicU64,
    /// Regions of the library that are registered for the program, and the sum of their lengths.
    pub regions: AtomicU64,
    pub bytes: AtomicU64,
    /// The same of the cache's regions, idle or in use.
    pub cache_regions: AtomicU64,
    pub cache_bytes: AtomicU64,
}

impl Page {
    /// The place of the device of that name, which is entered if it is missing. The last place is
    /// for all devices that find no other.
    pub fn enter(&self, name: &[u8; 64]) -> usize {
        let last = DEVICES - 1;
        let has = |place: &[AtomicU8; 64]| place.each_ref().map(|byte| byte.load(Relaxed)) == *name;
        let entered = (self.entered.load(Acquire) as usize).min(last);
        if let Some(place) = self.devices[..entered].iter().position(has) {
            return place;
        }
        // Two threads that enter one device at a time give it two places. A reader adds them up.
        let place = self.entered.fetch_add(1, AcqRel) as usize;
        if place >= last {
            return last;
        }
        for (to, byte) in self.devices[place].iter().zip(name) {
            to.store(*byte, Relaxed);
        }
        place
    }
}

/// Whether a character controls a terminal, or the direction or the lines of text around it. The
/// library's lines and the program's output have none.
pub fn controls(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// The name of a process's page in its directory.
pub fn name(pid_namespace: u64, pid: u32, start: u64) -> String {
    format!("{pid_namespace}-{pid}-{start}")
}

/// The parts of a page's name: namespace, pid, start. `None` for another file's.
pub fn parse_name(name: &[u8]) -> Option<(u64, u32, u64)> {
    let (namespace, rest) = core::str::from_utf8(name).ok()?.split_once('-')?;
    let (pid, start) = rest.split_once('-')?;
    let [namespace, start] = [namespace, start].map(|number| number.parse().ok());
    Some((namespace?, pid.parse().ok()?, start?))
}

/// The start of a process in ticks, from the text of its `/proc/PID/stat`.
pub fn start_of(stat: &[u8]) -> Option<u64> {
    // The name of the program, in parentheses, may have any bytes.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = core::str::from_utf8(&stat[end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_not() {
        let text = name(4026531836, 17, 99);
        assert_eq!(parse_name(text.as_bytes()), Some((4026531836, 17, 99)));
        for other in ["", "1-2", "1-2-3-4", ".1-2-3", "1-2-x", "-1-2-3"] {
            assert_eq!(parse_name(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_start_is_found_behind_any_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        for program in ["x", ") (", "a b) S 1"] {
            let stat = format!("7 ({program}) {rest}");
            assert_eq!(start_of(stat.as_bytes()), Some(4711));
        }
        assert_eq!(start_of(b"7 (x) S 1"), None);
    }

    #[test]
    fn a_device_has_one_place_and_further_ones_share_the_last() {
        // SAFETY: a page consists of numbers, so zeros are one.
        let page: Page = unsafe { core::mem::zeroed() };
        let name = |n: u8| {
            let mut name = [0; 64];
            name[..2].copy_from_slice(&[b'd', b'0' + n]);
            name
        };
        for _ in 0..2 {
            for n in 0..10 {
                let place = usize::from(n).min(DEVICES - 1);
                assert_eq!(page.enter(&name(n)), place);
            }
        }
    }
}
