// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model of the cache under `RDMAMR_CACHE=all`: which registrations of a trace the cache would
//! have served. What it serves is decided by the library's own rule, `rdmamr-policy`. The rest is
//! modelled: a region serves one use at a time; idle regions end by age and by number, and when
//! their memory changes.
use super::access;
use crate::trace::Process;
use rdmamr_policy::{Asked, CacheMode, Range, Released, Wanted, is_exact};
use rdmamr_trace_format::{CacheSettings as Facts, Call, cache, call, how, unserved};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};

/// The library's defaults, for a trace without the settings.
const DEFAULTS: Facts = Facts {
    flags: 0,
    linger_local: 60_000,
    linger_remote: 1_000,
    most_regions: 16_384,
    most_bytes: u64::MAX,
    watch_ns: 0,
};
/// The refusal that costs time: the library finds it out each time.
pub const UNKEPT: &str = "the memory is shared, or a file's: it can change unseen";
/// How many changes of memory the release of a region looks at, which was in use meanwhile.
const CHANGES: usize = 4096;
/// How many idle regions a search for one that holds a range looks at.
const LOOKS: usize = 64;

/// Whole pages in a domain, and the access to them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    pub process: u32,
    pub access: u32,
    pub pd: u64,
    pub start: u64,
    pub bytes: u64,
}

impl Key {
    /// `page_range` is the start and the length of whole pages.
    pub fn new(process: u32, access: u32, pd: u64, page_range: (u64, u64)) -> Key {
        Key {
            process,
            access,
            pd,
            start: page_range.0,
            bytes: page_range.1,
        }
    }

    /// The range as the rule has it.
    fn range(&self) -> Range {
        Range {
            pd: self.pd,
            start: self.start,
            end: self.start.saturating_add(self.bytes),
            access: self.access,
        }
    }
}

/// What the rule asks of a process, which an old trace does not tell.
struct Unknown;

impl rdmamr_policy::Process for Unknown {
    fn is_disabled(&self) -> bool {
        false
    }
    fn is_interrupted(&self) -> bool {
        false
    }
    fn is_child(&self) -> bool {
        false
    }
    fn is_fork_protected(&self) -> bool {
        false
    }
}

/// Why the cache would not serve such a registration, in words; `None` if it would.
pub fn refusal(process: &Process, call: &Call, effect: u64, range: &Key) -> Option<&'static str> {
    let facts = process.cache.unwrap_or(DEFAULTS);
    if access::of_fabric(call.call) {
        return None;
    }
    if call.how == how::PASSED_ON {
        return Some(unserved::WORDS[unserved::DEVICE as usize]);
    }
    let asked = Asked {
        access: call.access,
        at_own_address: true,
        is_empty: call.length == 0,
    };
    let reason = match call.reason {
        unserved::UNKNOWN if call.call == call::REG_DMABUF_MR => unserved::DEVICE,
        unserved::UNKNOWN => rdmamr_policy::refusal(CacheMode::All, asked, &Unknown),
        reason => reason,
    };
    match reason {
        unserved::NONE => {}
        reason => {
            let words = unserved::WORDS.get(reason as usize);
            return Some(words.unwrap_or(&"a reason that this program does not know"));
        }
    }
    if facts.flags & cache::CANNOT_WATCH != 0 {
        return Some("userfaultfd(2) is refused (rdmamr doctor says how to allow it)");
    }
    if facts.flags & cache::FRESH_KEYS != 0 && access::remote(call.call, call.access) {
        return Some("RDMAMR_CACHE_FRESH_KEYS=1 gives each region with remote rights a new key");
    }
    if process.is_unkept(effect, range.start, range.start.saturating_add(range.bytes)) {
        return Some(UNKEPT);
    }
    None
}

/// Whose registrations a region serves: what `--mode=local` covers, what `--mode=all` adds, and
/// libfabric's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    Local,
    Remote,
    Fabric,
}

impl Class {
    pub const COUNT: usize = 3;

    pub fn of(call: u8, access: u32) -> Class {
        if access::of_fabric(call) {
            Class::Fabric
        } else if access::remote(call, access) {
            Class::Remote
        } else {
            Class::Local
        }
    }
}

/// What happens to the regions of a class, besides hits and misses.
#[derive(Clone, Copy, Default)]
pub struct Ends {
    /// Regions that ended since there were too many, and since their memory changed.
    pub evicted: u32,
    pub changed: u32,
}

/// A region of the cache.
struct Region {
    key: Key,
    class: Class,
    remote: bool,
    /// How many registrations it has served after the first.
    hits: u32,
    /// How many changes of memory the process had made when this use began.
    since: usize,
    /// Since when the region is idle, and the number of this idle time: entries of the queue with
    /// an older number are void.
    idle: Option<u64>,
    turn: u32,
}

/// The caches of all processes.
#[derive(Default)]
pub struct Cache {
    regions: Vec<Region>,
    free: Vec<u32>,
    /// The idle regions of each domain of each process.
    idle: BTreeMap<(u32, u64), Idle>,
    /// The changes of memory of each process, in their order.
    changes: FxHashMap<u32, Vec<(u64, u64)>>,
    /// The ranges that each process has registered plainly and released.
    released: FxHashMap<u32, Box<Released>>,
    pub ends: [Ends; Class::COUNT],
    idle_bytes: [u64; Class::COUNT],
    /// The most that was idle at once: of the local regions, of these and the remote ones, and of
    /// libfabric's.
    pub most_idle: [u64; Class::COUNT],
    /// By process and by whether peers have rights: the cache keeps the two kinds for different
    /// times.
    of_process: FxHashMap<(u32, bool), OfProcess>,
}

/// Idle regions by the power of two of their length, and by their start: so a search for those
/// around or in a range looks at few others.
#[derive(Default)]
struct Idle {
    regions: BTreeMap<(u32, u64), VecDeque<u32>>,
    /// A bit for each power of two that is there.
    sizes: u64,
}

impl Idle {
    fn sizes(&self, from: u32) -> impl Iterator<Item = u32> + use<> {
        let sizes = self.sizes;
        (from..u64::BITS).filter(move |size| sizes >> size & 1 == 1)
    }
}

/// The power of two of a length.
fn size(bytes: u64) -> u32 {
    bytes.checked_ilog2().unwrap_or(0)
}

#[derive(Default)]
struct OfProcess {
    /// The idle regions, the longest idle first.
    order: VecDeque<(u32, u32)>,
    count: u64,
    bytes: u64,
}

/// How the cache would have done a registration, with the number of its region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// By a region that it had.
    Hit(u32),
    /// By a new region that it keeps.
    Made(u32),
    /// Not at all: the range comes for the first time.
    First,
}

impl Cache {
    /// Registers.
    pub fn register(
        &mut self,
        process: &Process,
        key: Key,
        class: Class,
        remote: bool,
        now: u64,
    ) -> Done {
        let facts = process.cache.unwrap_or(DEFAULTS);
        self.expire(&facts, key.process, now);
        let wanted = Wanted {
            range: key.range(),
            exact: match class {
                // The relaxed calls share regions.
                Class::Fabric => remote || facts.flags & cache::PINS_ALL == 0,
                _ => is_exact(key.access, true, facts.flags & cache::PINS_ALL != 0),
            },
        };
        let since = self.changes.get(&key.process).map_or(0, Vec::len);
        if let Some(found) = self.find(&key, wanted) {
            self.take(found);
            let region = &mut self.regions[found as usize];
            region.since = since;
            region.hits += 1;
            return Done::Hit(found);
        }
        // Relaxed calls say themselves that their memory comes back.
        if class != Class::Fabric && !self.comes_back(&key) {
            return Done::First;
        }
        let region = Region {
            key,
            class,
            remote,
            hits: 0,
            since,
            idle: None,
            turn: 0,
        };
        let number = match self.free.pop() {
            Some(number) => {
                let turn = self.regions[number as usize].turn + 1;
                self.regions[number as usize] = Region { turn, ..region };
                number
            }
            None => {
                self.regions.push(region);
                self.regions.len() as u32 - 1
            }
        };
        Done::Made(number)
    }

    fn comes_back(&self, key: &Key) -> bool {
        let released = self.released.get(&key.process);
        released.is_some_and(|released| released.comes_back(&key.range()))
    }

    /// A plain registration has ended.
    pub fn released_plainly(&mut self, key: &Key) {
        let released = self.released.entry(key.process);
        let released = released.or_insert_with(|| Box::new(Released::new()));
        released.add(&key.range());
    }

    /// A region has ended though its memory has not changed.
    fn ended(&self, number: u32) {
        let region = &self.regions[number as usize];
        if let Some(released) = self.released.get(&region.key.process) {
            released.ended(&region.key.range(), region.hits > 0, false);
        }
    }

    fn find(&self, key: &Key, wanted: Wanted) -> Option<u32> {
        let idle = self.idle.get(&(key.process, key.pd))?;
        let serves = |number: &&u32| wanted.fits(self.regions[**number as usize].key.range());
        if wanted.exact {
            let same = idle.regions.get(&(size(key.bytes), key.start))?;
            return same.iter().rev().find(serves).copied();
        }
        idle.sizes(size(key.bytes)).find_map(|size| {
            let mut starts = idle.regions.range((size, 0)..=(size, key.start));
            let starts = std::iter::from_fn(|| starts.next_back()).take(LOOKS);
            let mut regions = starts.flat_map(|(_, regions)| regions.iter().rev());
            regions.find(serves).copied()
        })
    }

    /// Memory of a process changes: no region of it serves again. Returns those that end.
    pub fn change(&mut self, process: u32, start: u64, end: u64) -> Vec<Key> {
        if let Some(released) = self.released.get(&process) {
            released.forget(start, end);
        }
        self.changes.entry(process).or_default().push((start, end));
        let mut found = Vec::new();
        for (_, idle) in self.idle.range((process, 0)..=(process, u64::MAX)) {
            for size in idle.sizes(0) {
                let longest = u64::MAX >> (u64::BITS - 1 - size);
                let first = (size, start.saturating_sub(longest));
                for (_, regions) in idle.regions.range(first..(size, end)) {
                    let touched = |number: &&u32| {
                        let key = &self.regions[**number as usize].key;
                        key.start.saturating_add(key.bytes) > start
                    };
                    found.extend(regions.iter().filter(touched).copied());
                }
            }
        }
        let ended = found.into_iter().map(|number| {
            self.take(number);
            self.free.push(number);
            let region = &self.regions[number as usize];
            self.ends[region.class as usize].changed += 1;
            region.key
        });
        ended.collect()
    }

    /// Whether the memory of a region has changed during its use. If there were too many changes to
    /// look at, it counts as changed.
    fn has_changed(&self, region: &Region) -> bool {
        let Some(changes) = self.changes.get(&region.key.process) else {
            return false;
        };
        let end = region.key.start.saturating_add(region.key.bytes);
        let since = &changes[region.since..];
        since.len() > CHANGES
            || since
                .iter()
                .any(|change| change.0 < end && change.1 > region.key.start)
    }

    /// The bytes that `--mode=all` would keep idle now.
    pub fn idle(&self) -> u64 {
        let [local, remote, _] = self.idle_bytes;
        local.saturating_add(remote)
    }

    /// Ends the use of a region.
    pub fn release(&mut self, process: &Process, number: u32, now: u64) {
        let facts = process.cache.unwrap_or(DEFAULTS);
        if self.has_changed(&self.regions[number as usize]) {
            let region = &mut self.regions[number as usize];
            region.turn += 1;
            self.ends[region.class as usize].changed += 1;
            self.free.push(number);
            return;
        }
        let region = &mut self.regions[number as usize];
        region.idle = Some(now);
        region.turn += 1;
        let (key, turn, remote) = (region.key, region.turn, region.remote);
        let class = region.class;
        let idle = self.idle.entry((key.process, key.pd)).or_default();
        let size = size(key.bytes);
        idle.sizes |= 1 << size;
        let same = idle.regions.entry((size, key.start)).or_default();
        same.push_back(number);
        let of_process = self.of_process.entry((key.process, remote)).or_default();
        of_process.order.push_back((number, turn));
        of_process.count += 1;
        of_process.bytes = of_process.bytes.saturating_add(key.bytes);
        let bytes = &mut self.idle_bytes[class as usize];
        *bytes = bytes.saturating_add(key.bytes);
        self.expire(&facts, key.process, now);
        let [local, remote, fabric] = self.idle_bytes;
        let now = [local, local.saturating_add(remote), fabric];
        for (most, now) in self.most_idle.iter_mut().zip(now) {
            *most = now.max(*most);
        }
    }

    /// Ends idle regions that are too old or too many.
    fn expire(&mut self, facts: &Facts, process: u32, now: u64) {
        self.expire_of(facts, (process, false), now);
        self.expire_of(facts, (process, true), now);
    }

    fn expire_of(&mut self, facts: &Facts, process: (u32, bool), now: u64) {
        while let Some(of_process) = self.of_process.get_mut(&process) {
            let Some(&(number, turn)) = of_process.order.front() else {
                return;
            };
            let region = &self.regions[number as usize];
            let too_many =
                of_process.count > facts.most_regions || of_process.bytes > facts.most_bytes;
            let idle = region.idle.filter(|_| region.turn == turn);
            let linger = if region.remote {
                facts.linger_remote
            } else {
                facts.linger_local
            };
            let too_old = idle
                .is_some_and(|idle| now.saturating_sub(idle) > linger.saturating_mul(1_000_000));
            if idle.is_some() && !too_many && !too_old {
                return;
            }
            of_process.order.pop_front();
            if idle.is_some() {
                self.ends[region.class as usize].evicted += u32::from(too_many && !too_old);
                self.take(number);
                self.ended(number);
                self.free.push(number);
            }
        }
    }

    /// Removes a region from the idle ones.
    fn take(&mut self, number: u32) {
        let region = &mut self.regions[number as usize];
        region.idle = None;
        let (key, remote) = (region.key, region.remote);
        let bytes = &mut self.idle_bytes[region.class as usize];
        *bytes = bytes.saturating_sub(key.bytes);
        let place = (size(key.bytes), key.start);
        if let Some(idle) = self.idle.get_mut(&(key.process, key.pd))
            && let Some(same) = idle.regions.get_mut(&place)
        {
            // A hit takes one of the last, the limits end one of the first.
            if same.front() == Some(&number) {
                same.pop_front();
            } else if let Some(at) = same.iter().rposition(|&other| other == number) {
                same.remove(at);
            }
            if same.is_empty() {
                idle.regions.remove(&place);
            }
        }
        if let Some(of_process) = self.of_process.get_mut(&(key.process, remote)) {
            of_process.count -= 1;
            of_process.bytes = of_process.bytes.saturating_sub(key.bytes);
        }
    }
}
