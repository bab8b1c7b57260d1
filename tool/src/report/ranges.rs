// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges that are registered again and again, and how many of their registrations the cache would
//! have served.
use super::cache::{Class, Done, Key};
use rdmamr_trace_format::Call;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// The costs of the cache's own work, in ns.
#[derive(Clone, Copy)]
pub struct Costs {
    /// A hit and its deregistration.
    pub hit: u64,
    /// The cost of a miss beyond the registration itself.
    pub miss: u64,
    /// The end of a region whose memory changes, for the thread that changes it.
    pub change: u64,
    /// The end of a region because too many are idle.
    pub eviction: u64,
    /// A registration that the cache refuses after a look at its memory.
    pub refusal: u64,
}

/// The registrations that a cache would serve, and the time that it would leave out.
#[derive(Clone, Copy, Default)]
pub struct Served {
    pub registrations: u32,
    pub hits: u32,
    /// Regions that would have been made for the cache. All other registrations are plain.
    pub made: u32,
    /// The time of the registrations that would have been hits, and of their deregistrations.
    pub left_out: u64,
    /// Regions that ended because their memory changed.
    pub changes: u32,
    /// Regions that ended because too many were idle.
    pub evictions: u32,
    /// Registrations that the cache would have to look at before it refuses them.
    pub refused: u32,
}

impl Served {
    /// The time that the cache would have saved: less than 0 if it costs more than it saves.
    pub fn saved(&self, costs: Costs) -> i64 {
        let paid = [
            (self.hits, costs.hit),
            (self.made, costs.miss),
            (self.changes, costs.change),
            (self.evictions, costs.eviction),
            (self.refused, costs.refusal),
        ];
        let paid: u64 = paid.iter().map(|&(times, ns)| u64::from(times) * ns).sum();
        self.left_out as i64 - paid as i64
    }
}

/// At this many known ranges, those that were registered only once are forgotten.
pub const LIMIT: usize = 1 << 18;

#[derive(Default)]
pub struct Totals {
    pub call: u8,
    /// The caller that registered the range first.
    pub site: u32,
    pub served: Served,
    /// The time of registrations and deregistrations.
    pub time: u64,
}

/// All known ranges.
#[derive(Default)]
pub struct Ranges {
    known: FxHashMap<Key, Totals>,
    pub classes: [Served; Class::COUNT],
    limit: usize,
    /// Some ranges had to be forgotten.
    pub forgotten: bool,
}

impl Ranges {
    pub fn registered(&mut self, key: Key, site: u32, done: Done, call: &Call) {
        if self.known.len() >= LIMIT.max(self.limit) {
            self.known.retain(|_, range| range.served.registrations > 1);
            self.limit = 2 * self.known.len();
            self.forgotten = true;
        }
        let first = Totals {
            call: call.call,
            site,
            ..Totals::default()
        };
        let range = self.known.entry(key).or_insert(first);
        range.time += u64::from(call.duration);
        let class = &mut self.classes[Class::of(call.call, key.range.access) as usize];
        for served in [&mut range.served, class] {
            served.registrations += 1;
            match done {
                Done::Hit(_) => {
                    served.hits += 1;
                    served.left_out += u64::from(call.duration);
                }
                Done::Made(_) => served.made += 1,
                Done::First => {}
            }
        }
    }

    /// A region was deregistered whose registration would have been a hit, or a miss.
    pub fn deregistered(&mut self, key: &Key, hit: bool, duration: u32) {
        let duration = u64::from(duration);
        let Some(range) = self.known.get_mut(key) else {
            return;
        };
        range.time += duration;
        if hit {
            range.served.left_out += duration;
            self.classes[Class::of(range.call, key.range.access) as usize].left_out += duration;
        }
    }

    /// The memory of an idle region has changed.
    pub fn changed(&mut self, key: &Key) {
        if let Some(range) = self.known.get_mut(key) {
            range.served.changes += 1;
        }
    }

    /// The cache would have refused a registration after a look at its memory.
    pub fn refused(&mut self, class: Class) {
        self.classes[class as usize].refused += 1;
    }

    /// How many ranges of a class would have had hits.
    pub fn with_hits(&self, class: Class) -> u64 {
        let of_class = |(key, range): &(&Key, &Totals)| {
            range.served.hits > 0 && Class::of(range.call, key.range.access) == class
        };
        self.known.iter().filter(of_class).count() as u64
    }

    /// The ranges that were registered more than once, the most expensive first.
    pub fn repeated(&self, costs: Costs) -> Vec<(&Key, &Totals)> {
        let mut repeated: Vec<_> = self
            .known
            .iter()
            .filter(|(_, range)| range.served.registrations > 1)
            .collect();
        repeated.sort_by_cached_key(|(key, range)| {
            (
                Reverse(range.served.saved(costs)),
                Reverse(range.time),
                key.process,
                key.range.start,
                key.range.access,
            )
        });
        repeated
    }
}
