// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model of the pool under `RDMAMR_CACHE=all`: which registrations of a trace the pool would have
//! served. The rules are the library's. A region serves one use at a time. Pages and access must be
//! the same if peers have rights or if pinned memory is limited. Idle regions end by age and by
//! number.
use super::access;
use crate::format::{Call, PoolSettings as Facts, how, pool, unserved};
use crate::trace::Process;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};

/// The library's defaults, for a trace without the settings.
const DEFAULTS: Facts = Facts {
    flags: 0,
    linger_local: 60_000,
    linger_remote: 1_000,
    most_regions: 16_384,
    most_bytes: u64::MAX,
};
const LOCAL_WRITE: u32 = 1;
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

/// Why the pool would not serve such a registration, in words; `None` if it would.
pub fn refusal(process: &Process, call: &Call, effect: u64, range: &Key) -> Option<&'static str> {
    let facts = process.pool.unwrap_or(DEFAULTS);
    if access::of_fabric(call.call) {
        return None;
    }
    if call.how == how::PASSED_ON {
        return Some(unserved::WORDS[unserved::DEVICE as usize]);
    }
    match call.reason {
        unserved::NONE => {}
        unserved::UNKNOWN if access::kept(call.call, call.access) => {}
        unserved::UNKNOWN => return Some(unserved::WORDS[unserved::ACCESS as usize]),
        reason => {
            let words = unserved::WORDS.get(reason as usize);
            return Some(words.unwrap_or(&"a reason that this program does not know"));
        }
    }
    if facts.flags & pool::CANNOT_WATCH != 0 {
        return Some("userfaultfd(2) is refused (rdmamr doctor says how to allow it)");
    }
    if facts.flags & pool::FRESH_KEYS != 0 && access::remote(call.call, call.access) {
        return Some("RDMAMR_RELAXED_FRESH_KEYS=1 gives each region with remote rights a new key");
    }
    if process.is_unkept(effect, range.start, range.start.saturating_add(range.bytes)) {
        return Some("the memory is shared, or a file's: it can change unseen");
    }
    None
}

/// A region of the pool.
struct Region {
    key: Key,
    remote: bool,
    /// Since when the region is idle, and the number of this idle time: entries of the queue with
    /// an older number are void.
    idle: Option<u64>,
    turn: u32,
}

/// The pools of all processes.
#[derive(Default)]
pub struct Pool {
    regions: Vec<Region>,
    free: Vec<u32>,
    /// The idle regions of each domain of each process, by start address.
    idle: FxHashMap<(u32, u64), BTreeMap<u64, Vec<u32>>>,
    /// By process and by whether peers have rights: the pool keeps the two kinds for different
    /// times.
    of_process: FxHashMap<(u32, bool), OfProcess>,
}

#[derive(Default)]
struct OfProcess {
    /// The idle regions, the longest idle first.
    order: VecDeque<(u32, u32)>,
    count: u64,
    bytes: u64,
}

impl Pool {
    /// Registers: returns the number of the region that serves the registration, and whether the
    /// pool had it.
    pub fn register(&mut self, process: &Process, key: Key, remote: bool, now: u64) -> (u32, bool) {
        let facts = process.pool.unwrap_or(DEFAULTS);
        self.expire(&facts, key.process, now);
        let exact = remote || facts.flags & pool::PINS_ALL == 0;
        if let Some(found) = self.find(&key, exact) {
            self.take(found);
            return (found, true);
        }
        let region = Region {
            key,
            remote,
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
        (number, false)
    }

    fn find(&self, key: &Key, exact: bool) -> Option<u32> {
        let idle = self.idle.get(&(key.process, key.pd))?;
        let end = key.start.saturating_add(key.bytes);
        let serves = |number: &&u32| {
            let of = &self.regions[**number as usize].key;
            if exact {
                of == key
            } else {
                of.start.saturating_add(of.bytes) >= end
                    && (of.access == key.access || of.access == key.access | LOCAL_WRITE)
            }
        };
        let mut starts = idle
            .range(..=key.start)
            .rev()
            .take(if exact { 1 } else { LOOKS });
        starts.find_map(|(_, regions)| regions.iter().rev().find(serves).copied())
    }

    /// Ends the use of a region.
    pub fn release(&mut self, process: &Process, number: u32, now: u64) {
        let facts = process.pool.unwrap_or(DEFAULTS);
        let region = &mut self.regions[number as usize];
        region.idle = Some(now);
        region.turn += 1;
        let (key, turn, remote) = (region.key, region.turn, region.remote);
        let idle = self.idle.entry((key.process, key.pd)).or_default();
        idle.entry(key.start).or_default().push(number);
        let of_process = self.of_process.entry((key.process, remote)).or_default();
        of_process.order.push_back((number, turn));
        of_process.count += 1;
        of_process.bytes = of_process.bytes.saturating_add(key.bytes);
        self.expire(&facts, key.process, now);
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
                self.take(number);
                self.free.push(number);
            }
        }
    }

    /// Removes a region from the idle ones.
    fn take(&mut self, number: u32) {
        let region = &mut self.regions[number as usize];
        region.idle = None;
        let (key, remote) = (region.key, region.remote);
        if let Some(idle) = self.idle.get_mut(&(key.process, key.pd))
            && let Some(same) = idle.get_mut(&key.start)
        {
            same.retain(|&other| other != number);
            if same.is_empty() {
                idle.remove(&key.start);
            }
        }
        if let Some(of_process) = self.of_process.get_mut(&(key.process, remote)) {
            of_process.count -= 1;
            of_process.bytes = of_process.bytes.saturating_sub(key.bytes);
        }
    }
}
