// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model of the cache under `RDMAMR_CACHE=all`: which registrations of a trace the cache would
//! have served. The library's own rule, `rdmamr-policy`, decides which it serves. The rest is
//! modelled: a region serves one use at a time; idle regions end by age and by number, and when
//! their memory changes.
use super::access;
use crate::trace::Process;
use rdmamr_policy::{Asked, CacheMode, Range, Released, Wanted, is_exact};
use rdmamr_trace_format::{CacheSettings as Facts, Call, cache, call, how, unserved};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// The library's defaults, for a trace without the settings.
const DEFAULTS: Facts = Facts {
    flags: 0,
    linger_local: rdmamr_policy::LINGER_LOCAL,
    linger_remote: rdmamr_policy::LINGER_REMOTE,
    most_regions: rdmamr_policy::MAX_IDLE,
    most_bytes: u64::MAX,
    watch_ns: 0,
};
/// The refusal that costs time: the library finds it out each time.
pub const UNKEPT: &str = "the memory is shared or belongs to a file: it can change without notice";
/// What the cache never keeps: nothing tells the library that the GPU's memory was freed.
pub const OF_GPU: &str = "the memory is a GPU's, registered as a dma-buf";
/// The most changes of memory during a region's use that its release looks at.
const CHANGES: usize = 4096;
/// How many idle regions a search for one that holds a range looks at.
const LOOKS: usize = 64;

/// A range of a process, as the rule defines it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    pub process: u32,
    pub range: Range,
}

impl Key {
    /// The whole pages around some memory: its address and its length.
    pub fn new(process: u32, pd: u64, access: u32, memory: (u64, u64), page: u64) -> Key {
        let start = memory.0 & !(page - 1);
        let end = memory.0.saturating_add(memory.1);
        let end = end.checked_next_multiple_of(page).unwrap_or(u64::MAX);
        let end = if memory.1 == 0 { start } else { end };
        let range = Range {
            pd,
            start,
            end,
            access,
        };
        Key { process, range }
    }

    pub fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Why the cache would not serve such a registration, in words; `None` if it would.
pub fn refusal(process: &Process, call: &Call, effect: u64, key: &Key) -> Option<&'static str> {
    let facts = process.cache.unwrap_or(DEFAULTS);
    if call.how == how::GPU {
        return Some(OF_GPU);
    }
    if access::of_fabric(call.call) {
        return None;
    }
    if call.how == how::FORWARDED {
        return Some(unserved::WORDS[unserved::DEVICE as usize]);
    }
    let asked = Asked {
        access: call.access,
        at_own_address: true,
        is_empty: call.length == 0,
    };
    let reason = match call.reason {
        unserved::UNKNOWN if call.call == call::REG_DMABUF_MR => unserved::DEVICE,
        unserved::UNKNOWN => rdmamr_policy::refusal_of(CacheMode::All, asked),
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
        return Some("RDMAMR_CACHE_FRESH_KEYS=1 gives each remotely accessible region a new key");
    }
    if process.is_unkept(effect, key.range.start, key.range.end) {
        return Some(UNKEPT);
    }
    None
}

/// The registrations that a region serves: those of `--cache=local`, those that `--cache=all` adds,
/// and libfabric's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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

/// The ends of the regions of a class.
#[derive(Clone, Copy, Default)]
pub struct Ends {
    /// Regions that ended because there were too many, and because their memory changed.
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
    /// Since when the region is idle, and how many were released before it.
    idle: (u64, u64),
}

impl Region {
    fn place(&self) -> Place {
        let Key { process, range } = self.key;
        let size = size(self.key.bytes());
        (process, range.pd, size, range.start, self.idle.1)
    }
}

/// The caches of all processes.
#[derive(Default)]
pub struct Cache {
    regions: Vec<Region>,
    free: Vec<u32>,
    idle: BTreeMap<Place, u32>,
    /// How many regions have been released.
    turns: u64,
    /// The changes of memory of each process, in their order.
    changes: FxHashMap<u32, Vec<(u64, u64)>>,
    /// The ranges that each process has registered plainly and released.
    released: FxHashMap<u32, Box<Released>>,
    pub ends: [Ends; Class::COUNT],
    idle_bytes: [u64; Class::COUNT],
    /// The most that was idle at once: of the local regions, of these and the remote ones, and of
    /// libfabric's.
    pub most_idle: [u64; Class::COUNT],
    /// By process and by whether remote peers have rights: the two kinds stay idle for different
    /// times.
    of_process: FxHashMap<(u32, bool), OfProcess>,
}

/// The key of an idle region: process, domain, the power of two of its length, its start, and the
/// number of regions that were released before it. In this order a search for the regions around or
/// in a range looks at few others.
type Place = (u32, u64, u32, u64, u64);

/// The power of two of a length.
fn size(bytes: u64) -> u32 {
    bytes.checked_ilog2().unwrap_or(0)
}

#[derive(Default)]
struct OfProcess {
    /// The idle regions, the longest idle first.
    order: BTreeMap<u64, u32>,
    bytes: u64,
}

/// How the cache would have served a registration, with the number of its region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Done {
    /// By a cached region.
    Hit(u32),
    /// By a new region, which stays in the cache.
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
            range: key.range,
            exact: match class {
                // The relaxed calls share regions.
                Class::Fabric => remote,
                _ => is_exact(key.range.access, true, facts.flags & cache::PINS_ALL != 0),
            },
        };
        let since = self.changes.get(&key.process).map_or(0, Vec::len);
        if let Some(found) = self.find(key.process, wanted) {
            self.take(found);
            let region = &mut self.regions[found as usize];
            region.since = since;
            region.hits += 1;
            return Done::Hit(found);
        }
        // A relaxed call says itself that its memory comes back.
        if class != Class::Fabric && !self.comes_back(&key) {
            return Done::First;
        }
        let region = Region {
            key,
            class,
            remote,
            hits: 0,
            since,
            idle: (0, 0),
        };
        let number = self.free.pop().unwrap_or(self.regions.len() as u32);
        match self.regions.get_mut(number as usize) {
            Some(place) => *place = region,
            None => self.regions.push(region),
        }
        Done::Made(number)
    }

    fn comes_back(&self, key: &Key) -> bool {
        let released = self.released.get(&key.process);
        released.is_some_and(|released| released.comes_back(&key.range))
    }

    /// A plain registration has ended.
    pub fn released_plainly(&mut self, key: &Key) {
        let released = self.released.entry(key.process);
        let released = released.or_insert_with(|| Box::new(Released::new()));
        released.add(&key.range);
    }

    /// A region has ended though its memory has not changed.
    fn ended(&self, number: u32) {
        let region = &self.regions[number as usize];
        if let Some(released) = self.released.get(&region.key.process) {
            released.ended(&region.key.range, region.hits > 0, false);
        }
    }

    /// The powers of two of which there are idle regions, each with its process and its domain.
    fn sizes(&self, mut from: (u32, u64, u32)) -> impl Iterator<Item = (u32, u64, u32)> {
        std::iter::from_fn(move || {
            let mut places = self.idle.range((from.0, from.1, from.2, 0, 0)..);
            let (&(process, pd, size, ..), _) = places.next()?;
            from = (process, pd, size + 1);
            Some((process, pd, size))
        })
    }

    fn find(&self, process: u32, wanted: Wanted) -> Option<u32> {
        let Range { pd, start, end, .. } = wanted.range;
        let serves = |number: &u32| wanted.fits(self.regions[*number as usize].key.range);
        let smallest = (process, pd, size(end - start));
        let of_domain = |of: &(u32, u64, u32)| match wanted.exact {
            true => *of == smallest,
            false => (of.0, of.1) == (process, pd),
        };
        let first = if wanted.exact { start } else { 0 };
        let sizes = self.sizes(smallest).take_while(of_domain);
        sizes.into_iter().find_map(|(.., size)| {
            let places = (process, pd, size, first, 0)..=(process, pd, size, start, u64::MAX);
            let regions = self.idle.range(places).rev().take(LOOKS);
            regions.map(|(_, &number)| number).find(serves)
        })
    }

    /// Memory of a process changes: no region of it serves again. Returns those that end.
    pub fn change(&mut self, process: u32, start: u64, end: u64) -> Vec<Key> {
        if let Some(released) = self.released.get(&process) {
            released.forget(start, end);
        }
        self.changes.entry(process).or_default().push((start, end));
        let mut found = Vec::new();
        let sizes = self.sizes((process, 0, 0));
        for (_, pd, size) in sizes.take_while(|of| of.0 == process) {
            let longest = u64::MAX >> (u64::BITS - 1 - size);
            let first = start.saturating_sub(longest);
            let near = (process, pd, size, first, 0)..(process, pd, size, end, 0);
            let near = self.idle.range(near).map(|(_, &number)| number);
            found
                .extend(near.filter(|&number| self.regions[number as usize].key.range.end > start));
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
        let Range { start, end, .. } = region.key.range;
        let since = &changes[region.since..];
        since.len() > CHANGES
            || since
                .iter()
                .any(|change| change.0 < end && change.1 > start)
    }

    /// The bytes that would be idle now under `--cache=all`.
    pub fn idle(&self) -> u64 {
        let [local, remote, _] = self.idle_bytes;
        local.saturating_add(remote)
    }

    /// Ends the use of a region.
    pub fn release(&mut self, process: &Process, number: u32, now: u64) {
        let facts = process.cache.unwrap_or(DEFAULTS);
        if self.has_changed(&self.regions[number as usize]) {
            self.ends[self.regions[number as usize].class as usize].changed += 1;
            self.free.push(number);
            return;
        }
        self.turns += 1;
        let region = &mut self.regions[number as usize];
        region.idle = (now, self.turns);
        let (key, remote) = (region.key, region.remote);
        self.idle.insert(region.place(), number);
        let of_process = self.of_process.entry((key.process, remote)).or_default();
        of_process.order.insert(self.turns, number);
        of_process.bytes = of_process.bytes.saturating_add(key.bytes());
        let bytes = &mut self.idle_bytes[region.class as usize];
        *bytes = bytes.saturating_add(key.bytes());
        self.expire(&facts, key.process, now);
        let [local, remote, fabric] = self.idle_bytes;
        let now = [local, local.saturating_add(remote), fabric];
        for (most, now) in self.most_idle.iter_mut().zip(now) {
            *most = now.max(*most);
        }
    }

    /// A process has ended, and its idle regions with it.
    pub fn end(&mut self, process: u32) {
        for remote in [false, true] {
            let idle = self.of_process.remove(&(process, remote));
            for number in idle.unwrap_or_default().order.into_values() {
                self.take(number);
                self.free.push(number);
            }
        }
    }

    /// Ends idle regions that are too old or too many.
    fn expire(&mut self, facts: &Facts, process: u32, now: u64) {
        self.expire_of(facts, (process, false), now);
        self.expire_of(facts, (process, true), now);
    }

    fn expire_of(&mut self, facts: &Facts, process: (u32, bool), now: u64) {
        let linger = if process.1 {
            facts.linger_remote
        } else {
            facts.linger_local
        };
        while let Some(of_process) = self.of_process.get(&process) {
            let Some((_, &number)) = of_process.order.first_key_value() else {
                return;
            };
            let region = &self.regions[number as usize];
            let too_many = of_process.order.len() as u64 > facts.most_regions
                || of_process.bytes > facts.most_bytes;
            let too_old = now.saturating_sub(region.idle.0) > linger.saturating_mul(1_000_000);
            if !too_many && !too_old {
                return;
            }
            self.ends[region.class as usize].evicted += u32::from(!too_old);
            self.take(number);
            self.ended(number);
            self.free.push(number);
        }
    }

    /// Removes a region from the idle ones.
    fn take(&mut self, number: u32) {
        let region = &self.regions[number as usize];
        let bytes = region.key.bytes();
        self.idle.remove(&region.place());
        let idle = &mut self.idle_bytes[region.class as usize];
        *idle = idle.saturating_sub(bytes);
        let key = (region.key.process, region.remote);
        if let Some(of_process) = self.of_process.get_mut(&key) {
            of_process.order.remove(&region.idle.1);
            of_process.bytes = of_process.bytes.saturating_sub(bytes);
        }
    }
}
