// SPDX-License-Identifier: MIT OR Apache-2.0
//! A sample: the registrations of all processes at one moment. Two samples give rates.

use super::ask::Patience;
use super::kernel::{self, Pools};
use super::limits;
use super::pages::{self, Found, Place, Places, user_of};
use crate::files::{of_system, read};
use crate::limit::Limit;
use crate::lists::entry;
use crate::report::units::{printable, reason, script, shortened};
use rdmamr_live_page::{DEVICES, NO_RANK, Page, Shard};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How many bytes of an environment are read.
const MOST_WORDS: u64 = 1 << 16;
/// How many characters of a name are kept: of a command, a counter, a device, the host. It becomes a
/// label of each series of the process.
const NAME: usize = 64;
/// How many characters of a command line are kept.
const LINE: usize = 4096;
/// How many bytes of a list of mappings are read.
const MOST_MAPS: u64 = 1 << 24;
/// The beginning of the library's name.
const LIBRARY: &[u8] = b"librdmamr";

/// The registered memory. The fields are those of the JSON, which scripts read, so their names
/// stay.
#[derive(Serialize)]
pub struct Sample {
    /// Increases if a reader of an earlier version would be misled.
    pub schema: u32,
    /// Seconds since 1970.
    pub time: f64,
    pub host: String,
    pub processes: Vec<Process>,
    pub devices: Vec<Device>,
    /// Why the kernel does not list regions, if it does not.
    pub kernel_error: Option<String>,
    /// What keeps processes from being shown, in sentences.
    pub notes: Vec<String>,
    #[serde(skip)]
    taken: Instant,
}

/// A process that has the library, or memory registered.
#[derive(Serialize, Deserialize, Clone, Default)]
pub struct Process {
    pub pid: u32,
    /// The name: in Python the script's.
    pub command: String,
    /// The words of the command line; without its middle if it is very long.
    pub command_line: String,
    pub user: Option<u32>,
    pub rank: Option<u64>,
    /// The number of its job of Slurm, if this user may know.
    pub job: Option<String>,
    /// Whether the process runs under the library, and shows that.
    pub library: bool,
    /// Of another process: whether it has mapped a file of the library's name, if this user may know.
    pub library_mapped: Option<bool>,
    /// It did not answer: what the kernel lists for it, and its name, is all that is known.
    pub no_answer: bool,
    /// Regions that are registered, the cache's idle ones among them, and the sum of their lengths.
    pub regions: u64,
    pub bytes: u64,
    pub idle_regions: u64,
    pub idle_bytes: u64,
    pub in_use_bytes: u64,
    pub devices: Vec<OfDevice>,
    /// The rest is known of processes under the library only.
    pub registrations: Option<u64>,
    /// Per second, between two samples.
    pub registrations_per_second: Option<f64>,
    pub hits: Option<u64>,
    pub hits_per_second: Option<f64>,
    pub failed: Option<u64>,
    /// The time that registrations took in the kernel. Of many small registrations one in 16 is
    /// measured.
    pub registration_seconds: Option<f64>,
    /// The part of the time between two samples in which a thread was registering; more than 1 with
    /// several threads.
    pub registering: Option<f64>,
    /// Since the first registration, in seconds.
    pub age: Option<f64>,
    /// The counters of rdmamr_get_stats(3), by name.
    pub counters: BTreeMap<String, u64>,
    pub limits: Vec<Limit>,
}

/// The registrations of a process on a device.
#[derive(Serialize, Deserialize, Clone, Default)]
pub struct OfDevice {
    pub device: String,
    pub regions: u64,
    pub bytes: u64,
    pub idle_regions: u64,
    pub idle_bytes: u64,
    pub registrations: Option<u64>,
    /// The same according to the kernel's list, if it lists the process.
    pub kernel_regions: Option<u64>,
    pub kernel_bytes: Option<u64>,
}

/// A device.
#[derive(Serialize)]
pub struct Device {
    pub name: String,
    /// Regions of all processes, and of the kernel's own.
    pub regions: u64,
    /// The sum of the lengths of those that the kernel lists.
    pub bytes: u64,
    /// The most regions (max_mr).
    pub most_regions: Option<u64>,
    pub key_pools: Option<Pools>,
}

/// What one sample keeps for the next.
#[derive(Default)]
pub struct Memory {
    devices: limits::Devices,
    patience: Patience,
}

/// A process to ask about.
struct Question {
    pid: u32,
    user: u32,
    /// The files that may be its page.
    places: Vec<Place>,
    /// Whether it has mounts of its own, so that its page is where its mapping leads.
    elsewhere: bool,
    /// Whether the kernel lists regions of it.
    holds: bool,
}

impl Question {
    fn about(&self) -> (u32, u32) {
        (self.user, self.pid)
    }

    /// The process, if there is something to show. It may keep whoever asks waiting.
    fn answer(&self, places: &Places) -> Option<Process> {
        let by_mapping = || self.elsewhere.then(|| pages::mapped(self.pid))?;
        let found = places.at(self.pid, &self.places).or_else(by_mapping);
        let mut process = match found {
            Some(found) => under_library(&found),
            None if self.holds => Process {
                library_mapped: library_mapped(self.pid),
                ..unknown(self.pid)
            },
            None => return None,
        };
        process.limits = limits::of(self.pid);
        Some(process)
    }
}

/// What is known of a process that does not answer.
fn silent(question: &Question) -> Process {
    let name = read(format!("/proc/{}/comm", question.pid)).unwrap_or_default();
    Process {
        pid: question.pid,
        command: cut(&name, NAME),
        user: Some(question.user),
        no_answer: true,
        ..Process::default()
    }
}

/// The processes that have a page or regions, each with what it says.
fn processes(
    table: &kernel::Table,
    patience: &mut Patience,
) -> (BTreeMap<u32, Process>, Vec<String>) {
    let mut places = Places::of_all();
    patience.renew(std::mem::take(&mut places.left));
    let (mut pages, mut notes) = pages::find(&mut places, patience);
    let elsewhere: HashSet<u32> = places.mapped().collect();
    let holders: HashSet<u32> = table.keys().map(|(_, pid)| *pid).collect();
    let pids = elsewhere.iter().chain(&holders).chain(pages.keys());
    let pids: BTreeSet<u32> = pids.copied().filter(|pid| *pid != 0).collect();
    let question = |pid| Question {
        pid,
        user: user_of(pid).unwrap_or_default(),
        places: pages.remove(&pid).unwrap_or_default(),
        elsewhere: elsewhere.contains(&pid),
        holds: holders.contains(&pid),
    };
    let questions: Vec<Question> = pids.into_iter().map(question).collect();
    let answers = patience.ask(&questions, Question::about, |it| it.answer(&places));
    notes.extend(patience.notes());
    let answered = questions.iter().zip(answers).filter_map(|(it, answer)| {
        let is_shown = it.holds || !it.places.is_empty() || patience.is_late(&it.about());
        let process = answer.unwrap_or_else(|| is_shown.then(|| silent(it)))?;
        Some((it.pid, process))
    });
    (answered.collect(), notes)
}

impl Sample {
    /// Takes a sample.
    pub fn take(memory: &mut Memory) -> Sample {
        let Memory { devices, patience } = memory;
        let ((listed, table), kernel_error) = match kernel::regions() {
            Ok(listed) => (listed, None),
            // No module has registered RDMA netlink.
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {
                let why = "there is no RDMA device (no module ib_core)";
                (Default::default(), Some(why.into()))
            }
            Err(error) => (Default::default(), Some(reason(&error.into()))),
        };
        let (mut processes, notes) = processes(&table, patience);
        for ((device, pid), held) in &table {
            if let Some(process) = processes.get_mut(pid) {
                add_held(process, device, *held);
            }
        }
        for process in processes.values_mut() {
            let of_devices = process.devices.iter().filter_map(|of| {
                let device = listed.iter().find(|device| device.name == of.device);
                let most = device.and_then(|device| device.most);
                Some(Limit {
                    name: "max_mr".into(),
                    device: Some(of.device.clone()),
                    bytes: false,
                    used: device.map_or(0, |device| device.regions).max(of.regions),
                    most: most.or_else(|| devices.most(&of.device))?,
                })
            });
            process.limits.extend(of_devices.collect::<Vec<_>>());
        }
        let devices = listed.into_iter().map(|device| {
            let of_it = table.iter().filter(|((name, _), _)| *name == device.name);
            Device {
                regions: device.regions,
                bytes: of_it.fold(0, |sum, (_, held)| held.bytes.saturating_add(sum)),
                most_regions: device.most.or_else(|| devices.most(&device.name)),
                key_pools: device.pools(),
                name: device.name,
            }
        });
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        Sample {
            schema: 1,
            time: time.map_or(0.0, |time| time.as_secs_f64()),
            host: cut(&read("/proc/sys/kernel/hostname").unwrap_or_default(), NAME),
            devices: devices.collect(),
            processes: processes.into_values().collect(),
            kernel_error,
            notes,
            taken: Instant::now(),
        }
    }

    /// Adds the rates since an earlier sample.
    pub fn compare(&mut self, before: &Sample) {
        let seconds = self.taken.duration_since(before.taken).as_secs_f64();
        let by_pid: HashMap<_, _> = before.processes.iter().map(|was| (was.pid, was)).collect();
        for process in &mut self.processes {
            let was = by_pid.get(&process.pid);
            let Some(was) = was.filter(|was| was.library == process.library) else {
                continue;
            };
            let rate =
                |now: Option<u64>, was: Option<u64>| Some(now?.checked_sub(was?)? as f64 / seconds);
            process.registrations_per_second = rate(process.registrations, was.registrations);
            process.hits_per_second = rate(process.hits, was.hits);
            let times = process.registration_seconds.zip(was.registration_seconds);
            process.registering = times.map(|(now, was)| ((now - was) / seconds).max(0.0));
        }
    }
}

fn add_held(process: &mut Process, device: &str, held: kernel::Held) {
    let of = on_device(&mut process.devices, device);
    (of.kernel_regions, of.kernel_bytes) = (Some(held.regions), Some(held.bytes));
    if !process.library {
        (of.regions, of.bytes) = (held.regions, held.bytes);
        process.regions += held.regions;
        process.bytes = process.bytes.saturating_add(held.bytes);
        process.in_use_bytes = process.bytes;
    }
}

/// Text from outside, of at most so many characters.
fn cut(text: &str, most: usize) -> String {
    shortened(&printable(text), most)
}

/// The entry of a device, which is added if it is missing.
fn on_device<'a>(devices: &'a mut Vec<OfDevice>, name: &str) -> &'a mut OfDevice {
    let new = || OfDevice {
        device: name.to_owned(),
        ..OfDevice::default()
    };
    entry(devices, |of| of.device == name, new)
}

/// A process without the facts that only the library knows.
fn unknown(pid: u32) -> Process {
    // Both may be any bytes, and a process can make its command line as long as its memory.
    let read = |name, most: u64| {
        let mut bytes = Vec::new();
        if let Ok(file) = of_system(format!("/proc/{pid}/{name}"), false) {
            let _ = file.take(most).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let environment = read("environ", MOST_WORDS);
    let mut variables = environment.split('\0');
    let job = variables.find_map(|it| it.strip_prefix("SLURM_JOB_ID="));
    let is_number = |job: &&str| job.len() <= 20 && job.bytes().all(|byte| byte.is_ascii_digit());
    let words = read("cmdline", MOST_WORDS);
    let words: Vec<String> = words.split_terminator('\0').map(printable).collect();
    let name = printable(read("comm", MOST_WORDS).trim_end());
    Process {
        pid,
        command: shortened(&script(&words).unwrap_or(name), NAME),
        command_line: shortened(&words.join(" "), LINE),
        user: user_of(pid),
        job: job.filter(is_number).map(str::to_owned),
        ..Process::default()
    }
}

/// Whether the process has mapped a file of the library's name. Only its user and root may know.
pub fn library_mapped(pid: u32) -> Option<bool> {
    let maps = of_system(format!("/proc/{pid}/maps"), false).ok()?;
    let mut lines = BufReader::new(maps.take(MOST_MAPS)).split(b'\n');
    let is_it = |line: Vec<u8>| line.windows(LIBRARY.len()).any(|words| words == LIBRARY);
    lines.try_fold(false, |found, line| Some(found || is_it(line.ok()?)))
}

fn under_library(found: &Found) -> Process {
    let page = &*found.page;
    let mut counters = BTreeMap::new();
    let names = String::from_utf8_lossy(&page.names);
    let names = names.lines().filter(|name| !name.starts_with('\0'));
    for (n, name) in names.enumerate().take(page.shards[0].counters.len()) {
        counters.insert(cut(name, NAME), sum(page, |shard| &shard.counters[n]));
    }
    let counter = |name: &str| counters.get(name).copied().unwrap_or(0);
    // The counters have the hits of regions that have ended, the page has those of all regions, as
    // of some milliseconds ago.
    let hits = counter("hits").max(page.idle.hits.load(Relaxed));
    let registrations = counter("reg_kernel").saturating_add(counter("reg_next"));
    let failed = counter("reg_failed");
    let devices = of_devices(page);
    let total = |of: fn(&OfDevice) -> u64| devices.iter().map(of).fold(0u64, u64::saturating_add);
    let (bytes, idle_bytes) = (total(|of| of.bytes), total(|of| of.idle_bytes));
    counters.insert("hits".into(), hits);
    // These values are not counters: the library computes them on request.
    let (regions, idle_regions) = (total(|of| of.regions), total(|of| of.idle_regions));
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    let began = Duration::from_nanos(page.head.began);
    counters.insert("live".into(), regions - idle_regions);
    counters.insert("live_bytes".into(), bytes - idle_bytes);
    counters.insert("idle".into(), idle_regions);
    counters.insert("idle_bytes".into(), idle_bytes);
    Process {
        rank: Some(page.head.rank).filter(|&rank| rank != NO_RANK),
        library: true,
        regions,
        bytes,
        idle_regions,
        idle_bytes,
        in_use_bytes: bytes - idle_bytes,
        registrations: Some(registrations),
        hits: Some(hits),
        failed: Some(failed),
        registration_seconds: Some(sum(page, |shard| &shard.nanoseconds) as f64 / 1e9),
        age: Some(now.saturating_sub(began).as_secs_f64()),
        devices,
        counters,
        ..unknown(found.pid)
    }
}

/// The sum of a word over all threads.
fn sum<'a>(page: &'a Page, word: impl Fn(&'a Shard) -> &'a AtomicU64) -> u64 {
    let words = page.shards.iter().map(word);
    words.fold(0, |sum, word| sum.wrapping_add(word.load(Relaxed)))
}

/// The devices of a page. One that two threads entered at a time has two places.
fn of_devices(page: &Page) -> Vec<OfDevice> {
    let entered = (page.entered.load(Relaxed) as usize).min(DEVICES);
    let mut devices: Vec<OfDevice> = Vec::new();
    for place in 0..entered {
        let bytes = page.devices[place].iter().map(|byte| byte.load(Relaxed));
        let name: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        let name = match cut(&String::from_utf8_lossy(&name), NAME) {
            name if !name.is_empty() => name,
            _ if place + 1 == DEVICES => "others".into(),
            _ => "unnamed".into(),
        };
        // While a thread counts, a sum of its parts may be short by a region.
        let of = |word: fn(&rdmamr_live_page::OfDevice) -> &AtomicU64| {
            (sum(page, |shard| word(&shard.devices[place])) as i64).max(0) as u64
        };
        let cached = of(|of| &of.cache_regions);
        let cached_bytes = of(|of| &of.cache_bytes);
        let [idle, idle_bytes] = &page.idle.of_device[place];
        let idle_bytes = idle_bytes.load(Relaxed).min(cached_bytes);
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        let sums = on_device(&mut devices, &name);
        add(&mut sums.regions, of(|of| &of.regions));
        add(&mut sums.regions, cached);
        add(&mut sums.bytes, of(|of| &of.bytes));
        add(&mut sums.bytes, cached_bytes);
        add(&mut sums.idle_regions, idle.load(Relaxed).min(cached));
        add(&mut sums.idle_bytes, idle_bytes);
        let registrations = sums.registrations.get_or_insert_default();
        add(registrations, of(|of| &of.registrations));
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmamr_live_page::{MAGIC, VERSION};
    use std::mem::offset_of;

    /// To look at each process for each other one would take a minute.
    #[test]
    fn many_processes_are_compared_one_by_one() {
        let mut memory = Memory::default();
        let mut of = |hits| {
            let mut sample = Sample::take(&mut memory);
            let process = |pid| Process {
                pid,
                hits: Some(hits),
                ..Process::default()
            };
            sample.processes = (0..1 << 17).map(process).collect();
            sample
        };
        let (before, mut after) = (of(1), of(2));
        after.compare(&before);
        let rates = after.processes.iter().map(|it| it.hits_per_second);
        assert!(rates.flatten().filter(|rate| *rate > 0.0).count() == 1 << 17);
    }

    #[test]
    fn names_and_command_lines_are_cut() {
        let long = "é\u{1b}".repeat(1 << 16);
        assert_eq!(cut(&long, NAME).chars().count(), NAME);
        assert!(!cut(&long, NAME).contains('\u{1b}'));
        assert_eq!(cut("short", NAME), "short");
    }

    /// Another process may have written anything to its page.
    #[test]
    fn fuzz_live_page() {
        // The head, names and two counts; the rest is mutated at a place of its own.
        let mut sample = Vec::new();
        sample.extend(MAGIC);
        sample.extend(VERSION.to_le_bytes());
        sample.extend((size_of::<Page>() as u32).to_le_bytes());
        sample.resize(offset_of!(Page, names), 1);
        sample.extend(b"hits\nreg_kernel\nreg_next\nreg_failed\n");
        let samples: [&[u8]; 2] = [&sample, &[0xff; 256]];
        crate::fuzz_inputs::each("fuzz_live_page", 200, &samples, |input, random| {
            // SAFETY: a page consists of numbers, so zeros are one.
            let mut page: Box<Page> = Box::new(unsafe { std::mem::zeroed() });
            let start: *mut Page = &mut *page;
            // SAFETY: any bytes are a page, and no other code uses this one.
            let bytes =
                unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), size_of::<Page>()) };
            let head = input.len().min(bytes.len());
            bytes[..head].copy_from_slice(&input[..head]);
            for _ in 0..random.below(64) {
                let at = random.below(bytes.len() / 8) * 8;
                let word = match random.below(3) {
                    0 => random.next(),
                    1 => random.below(4) as u64,
                    _ => i64::MAX as u64 - random.below(2) as u64,
                };
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            let pid = std::process::id();
            let file = None;
            let found = Found {
                pid,
                user: 0,
                page,
                file,
            };
            let process = under_library(&found);
            assert!(process.idle_bytes <= process.bytes && process.devices.len() <= DEVICES);
            let mut shown = process
                .counters
                .keys()
                .chain(process.devices.iter().map(|of| &of.device));
            assert!(shown.all(|name| cut(name, NAME) == *name));
        });
    }
}
