// SPDX-License-Identifier: MIT OR Apache-2.0
//! All names of the environment that this project sets or reads, in one table. The library's
//! settings among them are read once, when the library is loaded.
//!
//! A set-uid program ignores all of them (secure_getenv(3)). A name that is not in the table, or a
//! value that its setting does not accept, causes one line of warning, which suggests the nearest
//! valid one. A long one is neither compared nor printed in full: the environment holds megabytes.

#[cfg(test)]
#[path = "../../ctests/fuzz/inputs.rs"]
mod fuzz_inputs;

use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use once_cell::race::OnceBox;
pub use rdmamr_policy::CacheMode;
use rdmamr_stats::live;
use rdmamr_stats::log::{self, Level};
use std::ffi::CString;

/// The destination of the statistics that are written when the process exits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// A table for people, to standard error.
    Table,
    Stderr,
    File(CString),
}

/// What the library does with memory of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gpu {
    /// Registers it as a dma-buf if the kernel refuses its address.
    On,
    /// Nothing.
    Off,
    /// As `On`. A region that the cache keeps is of the whole allocation, also with remote access.
    Whole,
}

/// The settings of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheConfig {
    /// How long an idle region stays in the cache, in ms: a remotely accessible region, and any
    /// other.
    pub linger_remote: u64,
    pub linger_local: u64,
    /// The most idle regions in the cache, and the most bytes; `None` means as the machine allows.
    pub max_idle: u64,
    pub max_idle_bytes: Option<u64>,
    /// Never reuse a remotely accessible region.
    pub fresh_keys: bool,
}

/// The settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// `RDMAMR_DISABLE`: forward everything.
    pub disable: bool,
    /// `RDMAMR_LOG`.
    pub log: Level,
    /// `RDMAMR_STATS`.
    pub stats: Option<Output>,
    /// `RDMAMR_CACHE`.
    pub cache_mode: CacheMode,
    /// `RDMAMR_TRACE`.
    pub trace: Option<CString>,
    /// `RDMAMR_TRACE_LIMIT`: the most bytes of the trace's file.
    pub trace_limit: Option<u64>,
    /// `RDMAMR_TRACE_STACKS`: the trace has call stacks.
    pub trace_stacks: bool,
    /// The same, without a limit on the time for them.
    pub trace_all_stacks: bool,
    /// The process's number in its job, if a launcher has set one. It is not a setting of this
    /// library.
    pub rank: Option<u32>,
    /// `RDMAMR_CACHE_...`; [`cache`] has the settings that hold.
    pub cache: CacheConfig,
    /// `RDMAMR_PREFAULT`: how many threads populate memory during its registration; 0 for none.
    pub prefault: usize,
    /// `RDMAMR_PROGRESS`: write a line a second while a registration takes long.
    pub progress: bool,
    /// `RDMAMR_FABRIC_CACHE`: domains of libfabric's provider register relaxed.
    pub fabric_cache: bool,
    /// `RDMAMR_LIVE`: show the statistics while the process runs.
    pub live: bool,
    /// `RDMAMR_GPU`: register memory of a GPU as a dma-buf if the kernel refuses its address.
    pub gpu: Gpu,
    /// `RDMAMR_MONITOR=libfabric`: watch memory for libfabric's registration cache.
    pub monitor_libfabric: bool,
}

impl Config {
    const DEFAULT: Config = Config {
        disable: false,
        log: Level::Error,
        stats: None,
        cache_mode: CacheMode::Off,
        trace: None,
        trace_limit: None,
        trace_stacks: true,
        trace_all_stacks: false,
        rank: None,
        cache: CacheConfig {
            linger_remote: 1_000,
            linger_local: 60_000,
            max_idle: 16_384,
            max_idle_bytes: None,
            fresh_keys: false,
        },
        prefault: 0,
        progress: false,
        fabric_cache: false,
        live: true,
        gpu: Gpu::On,
        monitor_libfabric: false,
    };
}

/// Stores a value, if it is valid.
fn store<T>(setting: &mut T, value: Option<T>) -> bool {
    value.map(|value| *setting = value).is_some()
}

/// Stores the choice that has that name.
fn choose<T: Copy>(setting: &mut T, value: &CStr, choices: &[(&CStr, T)]) -> bool {
    let choice = choices.iter().find(|choice| choice.0 == value);
    store(setting, choice.map(|choice| choice.1))
}

/// Stores a value that is 0 or 1.
fn set_switch(switch: &mut bool, value: &CStr) -> bool {
    choose(switch, value, &[(c"0", false), (c"1", true)])
}

fn parse<T: core::str::FromStr>(value: &CStr) -> Option<T> {
    value.to_str().ok()?.parse().ok()
}

/// Parses a number of bytes: 4096, 64K, 256M, 4G.
fn parse_bytes(value: &CStr) -> Option<u64> {
    let text = value.to_str().ok()?;
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Parses a number of seconds, such as 1 or 0.5. The result is in ms. It uses no floating-point
/// number: parsing one brings 15 KiB of code and tables into the library.
fn parse_seconds(value: &CStr) -> Option<u64> {
    let text = value.to_str().ok()?;
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    if !decimals.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let seconds = match whole {
        "" if !decimals.is_empty() => 0,
        _ => whole.parse::<u64>().ok()?,
    };
    let thousandths = decimals.bytes().chain("000".bytes()).take(3);
    (seconds < 1_000_000_000).then(|| {
        thousandths.fold(seconds, |number, digit| {
            number * 10 + u64::from(digit - b'0')
        })
    })
}

/// A row of the table: a setting of the library, or a name that others of this project read.
struct Setting {
    name: &'static CStr,
    /// The values to suggest after an invalid one.
    values: &'static [&'static str],
    /// Stores a value. False if the value is invalid.
    set: fn(&mut Config, &CStr) -> bool,
}

/// The `set` of a name that others read: the comment on its row says who.
const OF_OTHERS: fn(&mut Config, &CStr) -> bool = |_, _| true;

#[rustfmt::skip]
const SETTINGS: &[Setting] = &[
    // Forward every call to libibverbs.
    Setting { name: c"RDMAMR_DISABLE", values: &["0", "1"], set: |config, value| {
        set_switch(&mut config.disable, value)
    } },
    // The messages on standard error: errors (default), also failed registrations, also devices
    // and slow registrations, or every call.
    Setting { name: c"RDMAMR_LOG", values: &["error", "warn", "info", "debug"], set: |config, value| {
        choose(&mut config.log, value, &[
            (c"error", Level::Error), (c"warn", Level::Warn), (c"info", Level::Info), (c"debug", Level::Debug),
        ])
    } },
    // The destination of the statistics when the process exits: a line of JSON, or a table to
    // standard error.
    Setting { name: c"RDMAMR_STATS", values: &["stderr", "table", "a file's path"], set: |config, value| {
        config.stats = match value.to_bytes() {
            b"" => None,
            b"table" => Some(Output::Table),
            b"stderr" => Some(Output::Stderr),
            _ => absolute(value).map(Output::File),
        };
        config.stats.is_some()
    } },
    // The plain registrations that cached regions serve.
    Setting { name: c"RDMAMR_CACHE", values: &["off", "local", "all"], set: |config, value| {
        choose(&mut config.cache_mode, value, &[
            (c"off", CacheMode::Off), (c"local", CacheMode::Local), (c"all", CacheMode::All),
        ])
    } },
    // The file in which to record every call.
    Setting { name: c"RDMAMR_TRACE", values: &["a file's path"], set: |config, value| {
        config.trace = if value.is_empty() { None } else { absolute(value) };
        config.trace.is_some()
    } },
    // How large that file may become; later calls are only counted.
    Setting { name: c"RDMAMR_TRACE_LIMIT", values: &["256M", "4G", "any number of bytes"], set: |config, value| {
        store(&mut config.trace_limit, parse_bytes(value).map(Some))
    } },
    // Record the call stack of each call; "all" without a limit on the time for them.
    Setting { name: c"RDMAMR_TRACE_STACKS", values: &["0", "1", "all"], set: |config, value| {
        config.trace_stacks = value != c"0";
        config.trace_all_stacks = value == c"all";
        [c"0", c"1", c"all"].contains(&value)
    } },
    // How many seconds an idle region stays in the cache: by default 1 if it is remotely
    // accessible, else 60.
    Setting { name: c"RDMAMR_CACHE_LINGER", values: &["1", "0.5", "any number of seconds"], set: |config, value| {
        let linger = parse_seconds(value);
        store(&mut config.cache.linger_remote, linger) && store(&mut config.cache.linger_local, linger)
    } },
    // How many idle regions the cache holds.
    Setting { name: c"RDMAMR_CACHE_MAX_IDLE", values: &["16384", "0", "any number"], set: |config, value| {
        store(&mut config.cache.max_idle, parse(value))
    } },
    // How many bytes of idle regions the cache holds.
    Setting { name: c"RDMAMR_CACHE_MAX_IDLE_BYTES", values: &["256M", "4G", "0", "any number of bytes"], set: |config, value| {
        store(&mut config.cache.max_idle_bytes, parse_bytes(value).map(Some))
    } },
    // Register a remotely accessible region anew each time.
    Setting { name: c"RDMAMR_CACHE_FRESH_KEYS", values: &["0", "1"], set: |config, value| {
        set_switch(&mut config.cache.fresh_keys, value)
    } },
    // How many threads populate memory during its registration.
    Setting { name: c"RDMAMR_PREFAULT", values: &["0", "2", "any number up to 64"], set: |config, value| {
        let threads = parse(value).filter(|&threads| threads <= rdmamr_prefault::MOST_THREADS);
        store(&mut config.prefault, threads)
    } },
    // Draw a bar on a terminal while a registration takes longer than a second.
    Setting { name: c"RDMAMR_PROGRESS", values: &["0", "1"], set: |config, value| {
        set_switch(&mut config.progress, value)
    } },
    // Register relaxed in domains that are opened through libfabric.
    Setting { name: c"RDMAMR_FABRIC_CACHE", values: &["0", "1"], set: |config, value| {
        set_switch(&mut config.fabric_cache, value)
    } },
    // Show the statistics to `rdmamr top` while the process runs.
    Setting { name: c"RDMAMR_LIVE", values: &["0", "1"], set: |config, value| {
        set_switch(&mut config.live, value)
    } },
    // Register memory of a GPU as a dma-buf if the kernel refuses its address.
    Setting { name: c"RDMAMR_GPU", values: &["on", "off", "whole"], set: |config, value| {
        choose(&mut config.gpu, value, &[(c"on", Gpu::On), (c"off", Gpu::Off), (c"whole", Gpu::Whole)])
    } },
    // The registration cache to notify of changes of memory.
    Setting { name: c"RDMAMR_MONITOR", values: &["libfabric"], set: |config, value| {
        choose(&mut config.monitor_libfabric, value, &[(c"libfabric", true)])
    } },
    // The library's path. Module files set it; the program rdmamr and Slurm's task-prolog read it.
    Setting { name: c"RDMAMR_LIBRARY", values: &[], set: OF_OTHERS },
    // The folder of the static library. The build.rs of examples/rust reads it.
    Setting { name: c"RDMAMR_LIBDIR", values: &[], set: OF_OTHERS },
    // Which process is the program of `rdmamr run --stats`, which sets it. The library reads it when
    // it writes the statistics.
    Setting { name: c"_RDMAMR_PROGRAM", values: &[], set: OF_OTHERS },
];

/// Makes a path absolute, so that it keeps its meaning after the program changes its directory.
/// `None` in a directory that is deleted.
fn absolute(path: &CStr) -> Option<CString> {
    if path.to_bytes().starts_with(b"/") {
        return Some(path.to_owned());
    }
    let here = std::env::current_dir().ok()?;
    let mut whole = here.into_os_string().into_encoded_bytes();
    whole.push(b'/');
    whole.extend_from_slice(path.to_bytes());
    CString::new(whole).ok()
}

/// The variables in which launchers give a process its rank: PMIx, Open MPI, MPICH and its kin,
/// Slurm, torchrun.
const RANKS: [&CStr; 5] = [
    c"PMIX_RANK",
    c"OMPI_COMM_WORLD_RANK",
    c"PMI_RANK",
    c"SLURM_PROCID",
    c"RANK",
];

static CONFIG: OnceBox<Config> = OnceBox::new();

/// The settings of this process.
#[inline]
pub fn config() -> &'static Config {
    CONFIG.get_or_init(|| {
        let config = read();
        log::set_level(config.log);
        Box::new(config)
    })
}

/// Limits of the cache that a call sets; `None` leaves a limit as it is. In this order: how long local
/// and remotely accessible idle regions stay, how many, and how many bytes ([`CacheConfig`]).
pub type CacheLimits = [Option<u64>; 4];

/// The limits that calls have set; the others are `UNSET`.
static BY_CALL: [AtomicU64; 4] = [const { AtomicU64::new(UNSET) }; 4];
const UNSET: u64 = u64::MAX;

/// The settings of the cache: those of the environment, but for the limits that a call has set.
pub fn cache() -> CacheConfig {
    let cache = config().cache;
    let by_call = |limit: &AtomicU64| Some(limit.load(Relaxed)).filter(|&limit| limit != UNSET);
    let [linger_local, linger_remote, max_idle, max_idle_bytes] = BY_CALL.each_ref().map(by_call);
    CacheConfig {
        linger_local: linger_local.unwrap_or(cache.linger_local),
        linger_remote: linger_remote.unwrap_or(cache.linger_remote),
        max_idle: max_idle.unwrap_or(cache.max_idle),
        max_idle_bytes: max_idle_bytes.or(cache.max_idle_bytes),
        ..cache
    }
}

/// Sets limits of the cache.
pub fn set_cache_limits(limits: CacheLimits) {
    for (to, limit) in BY_CALL.iter().zip(limits) {
        if let Some(limit) = limit {
            to.store(limit, Relaxed);
        }
    }
}

/// True once the library has failed internally: its tables may be half changed.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// Whether everything is forwarded, because the user wants it or because the library has failed.
#[inline]
pub fn disabled() -> bool {
    config().disable || BROKEN.load(Relaxed)
}

/// Forwards every call from now on.
pub fn disable_for_good() {
    BROKEN.store(true, Relaxed);
}

unsafe extern "C" {
    // The libc crate does not declare it.
    fn secure_getenv(name: *const libc::c_char) -> *const libc::c_char;
}

/// A variable of the environment; `None` in a set-uid program. Only for use while the library is
/// loaded, before the program can change its environment.
pub fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name ends with a NUL.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    // SAFETY: a value that is not null is a string, and the program has not begun to change its
    // environment.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

fn read() -> Config {
    let mut config = Config::DEFAULT;
    let complain = |complaint: String| log::always(format_args!("{complaint}"));
    for setting in SETTINGS {
        if let Some(value) = variable(setting.name) {
            apply(&mut config, setting, value).map(complain);
        }
    }
    config.rank = RANKS.iter().find_map(|name| parse(variable(name)?));
    // SAFETY: getauxval takes a number and has no other preconditions.
    if unsafe { libc::getauxval(libc::AT_SECURE) } == 0 {
        if config.live {
            live::turn_on(variable(c"XDG_RUNTIME_DIR"), config.rank);
        }
        names().filter_map(unknown).for_each(complain);
    }
    config
}

/// The names in the environment that look like settings of this library.
fn names() -> impl Iterator<Item = &'static str> {
    unsafe extern "C" {
        static mut environ: *const Option<NonNull<libc::c_char>>;
    }
    // SAFETY: the library's load is the first to read the settings (`capi/rdmamr.rs`), before the program
    // can change `environ`.
    let mut at = unsafe { environ };
    core::iter::from_fn(move || {
        // SAFETY: `at` is null or points into an array that ends with a null.
        let entry = (*unsafe { at.as_ref() }?)?;
        at = at.wrapping_add(1);
        // SAFETY: an entry is a NUL-terminated string.
        Some(unsafe { CStr::from_ptr(entry.as_ptr()) })
    })
    .filter_map(|entry| {
        let name = entry.to_bytes().split(|&byte| byte == b'=').next()?;
        let name = core::str::from_utf8(name).ok()?;
        name.starts_with("RDMAMR_").then_some(name)
    })
}

/// What is wrong with a name that looks like a setting of this library.
fn unknown(name: &str) -> Option<String> {
    let known = || {
        SETTINGS
            .iter()
            .filter_map(|setting| setting.name.to_str().ok())
    };
    if known().any(|known| known == name) {
        return None;
    }
    // The other names are not for people to set.
    let public = known().filter(|known| known.starts_with("RDMAMR_"));
    let hint = hint(name, public);
    Some(format!(
        "{}: no such setting, ignored{hint}",
        shortened(name)
    ))
}

/// Applies a setting. Returns what is wrong with its value.
fn apply(config: &mut Config, setting: &Setting, value: &CStr) -> Option<String> {
    if (setting.set)(config, value) {
        return None;
    }
    let (name, value) = (setting.name.to_string_lossy(), value.to_string_lossy());
    let hint = hint(&value, setting.values.iter().copied());
    let (value, values) = (shortened(&value), setting.values.join(", "));
    Some(format!(
        "{name}={value}: no such value, ignored{hint} It takes {values}."
    ))
}

/// The length, in bytes, up to which a name or a value is compared and printed.
const LONGEST: usize = 64;

/// A name or value, of a long one the beginning.
fn shortened(text: &str) -> String {
    let whole = |end: &usize| text.is_char_boundary(*end);
    let end = (0..=LONGEST.min(text.len())).rev().find(whole);
    let shown = &text[..end.unwrap_or_default()];
    let rest = if shown.len() < text.len() { "..." } else { "" };
    format!("{shown}{rest}")
}

/// The rest of a sentence. It names the candidate at the smallest edit distance, unless none is
/// like what was given, as "on" is not like "0". A candidate of several words describes values, so
/// it is none.
fn hint(given: &str, candidates: impl Iterator<Item = &'static str>) -> String {
    let near = candidates
        .filter(|candidate| {
            given.len() <= LONGEST
                && !candidate.contains(' ')
                && distance(given, candidate) < candidate.len()
        })
        .min_by_key(|candidate| distance(given, candidate));
    near.map_or_else(|| ".".to_owned(), |near| format!("; did you mean {near}?"))
}

/// Levenshtein's distance.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (n, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = n + 1;
        for (m, &b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(!a.eq_ignore_ascii_case(&b));
            diagonal = row[m + 1];
            row[m + 1] = replaced.min(diagonal + 1).min(row[m] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(name: &str, value: &CStr) -> (Config, Option<String>) {
        let mut config = Config::DEFAULT;
        let setting = SETTINGS
            .iter()
            .find(|setting| setting.name.to_str() == Ok(name))
            .unwrap();
        let complaint = apply(&mut config, setting, value);
        (config, complaint)
    }

    #[test]
    fn each_value_is_taken() {
        assert!(applied("RDMAMR_DISABLE", c"1").0.disable);
        assert!(!applied("RDMAMR_DISABLE", c"0").0.disable);
        assert!(applied("RDMAMR_MONITOR", c"libfabric").0.monitor_libfabric);
        assert_eq!(applied("RDMAMR_LOG", c"info").0.log, Level::Info);
        assert_eq!(applied("RDMAMR_PREFAULT", c"2").0.prefault, 2);
        assert!(applied("RDMAMR_PROGRESS", c"1").0.progress);
        for (value, linger) in [
            (c"0", 0),
            (c"60", 60_000),
            (c"0.5", 500),
            (c".25", 250),
            (c"2.", 2_000),
            (c"1.0019", 1_001),
        ] {
            let cache = applied("RDMAMR_CACHE_LINGER", value).0.cache;
            assert_eq!((cache.linger_remote, cache.linger_local), (linger, linger));
        }
        assert_eq!(
            applied("RDMAMR_STATS", c"stderr").0.stats,
            Some(Output::Stderr)
        );
        assert_eq!(
            applied("RDMAMR_STATS", c"/x").0.stats,
            Some(Output::File(c"/x".into()))
        );
        let Some(Output::File(path)) = applied("RDMAMR_STATS", c"x").0.stats else {
            panic!("a file")
        };
        assert!(path.to_bytes().starts_with(b"/") && path.to_bytes().ends_with(b"/x"));
    }

    #[test]
    fn a_wrong_value_is_ignored_and_the_nearest_named() {
        for (name, value, near) in [
            ("RDMAMR_LOG", c"wran", "warn"),
            ("RDMAMR_LOG", c"", ""),
            ("RDMAMR_DISABLE", c"yes", ""),
            ("RDMAMR_STATS", c"", ""),
            ("RDMAMR_GPU", c"0", ""),
            ("RDMAMR_GPU", c"whol", "whole"),
            ("RDMAMR_CACHE", c"ALL", "all"),
            ("RDMAMR_PREFAULT", c"65", ""),
            ("RDMAMR_PREFAULT", c"-2", ""),
            ("RDMAMR_CACHE_LINGER", c"-1", ""),
            ("RDMAMR_CACHE_LINGER", c"0.5s", "0.5"),
            ("RDMAMR_CACHE_LINGER", c"0.-5", "0.5"),
            ("RDMAMR_CACHE_LINGER", c"1000000000", ""),
        ] {
            let (config, complaint) = applied(name, value);
            let complaint = complaint.unwrap();
            assert_eq!(config, Config::DEFAULT, "{name}={value:?}");
            assert!(complaint.starts_with(name), "{complaint}");
            let words = match near {
                "" => "ignored. It takes ".to_owned(),
                near => format!("did you mean {near}?"),
            };
            assert!(complaint.contains(&words), "{complaint}");
        }
    }

    #[test]
    fn of_a_wrong_name_the_nearest_is_named() {
        assert_eq!(unknown("RDMAMR_LOG"), None);
        assert_eq!(unknown("RDMAMR_LIBRARY"), None);
        for (name, near) in [
            ("RDMAMR_STAT", "RDMAMR_STATS"),
            ("RDMAMR_DISABLED", "RDMAMR_DISABLE"),
            ("RDMAMR_LGO", "RDMAMR_LOG"),
            ("RDMAMR_LIBRAY", "RDMAMR_LIBRARY"),
            ("RDMAMR_PROGRAM", "RDMAMR_PROGRESS"),
        ] {
            let complaint = format!("{name}: no such setting, ignored; did you mean {near}?");
            assert_eq!(unknown(name), Some(complaint));
        }
    }

    #[test]
    fn a_long_name_is_neither_compared_nor_printed_in_full() {
        const NEAR: &str = concat!(
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        );
        let hint = |length: usize| hint(&NEAR[..length], [NEAR].into_iter());
        assert!(hint(LONGEST).contains(NEAR));
        assert_eq!(hint(LONGEST + 1), ".");
        let name = format!("RDMAMR_{}", "\u{e9}".repeat(60_000));
        let complaint = unknown(&name).unwrap();
        assert!(complaint.len() < 2 * LONGEST, "{complaint}");
        assert!(complaint.ends_with("\u{e9}...: no such setting, ignored."));
        let (_, complaint) = applied("RDMAMR_LOG", &CString::new(name).unwrap());
        assert!(
            complaint
                .unwrap()
                .contains("...: no such value, ignored. It takes ")
        );
    }

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn fuzz_settings() {
        let samples: Vec<&[u8]> = SETTINGS
            .iter()
            .flat_map(|setting| setting.values)
            .map(|value| value.as_bytes())
            .chain([&b"RDMAMR_STAT"[..], b"/tmp/%p-%h-%r", b"16E", b"1e308"])
            .collect();
        crate::fuzz_inputs::each("fuzz_settings", 2000, &samples, |input, _| {
            let end = input.iter().position(|&byte| byte == 0);
            let value = CString::new(&input[..end.unwrap_or(input.len())]).unwrap();
            let name = value.to_string_lossy();
            let _ = unknown(&name);
            for setting in SETTINGS {
                let mut config = Config::DEFAULT;
                if let Some(complaint) = apply(&mut config, setting, &value) {
                    assert_eq!(config, Config::DEFAULT, "{value:?}");
                    assert!(complaint.contains("no such value"));
                }
                assert!(
                    config.prefault <= rdmamr_prefault::MOST_THREADS,
                    "{value:?}"
                );
            }
        });
    }
}
