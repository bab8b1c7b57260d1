// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges that are registered again and again, and how many of their registrations the cache would
//! have served.
use super::cache::{Class, Done, Key};
use super::durations::Durations;
use super::shape::What;
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

/// The registrations that a cache would serve.
#[derive(Clone, Copy, Default)]
pub struct Served {
    pub registrations: u32,
    pub hits: u32,
    /// How many of the hits were deregistered.
    pub ended: u32,
    /// Regions that would have been made for the cache. All other registrations are plain.
    pub made: u32,
    /// Regions that ended because their memory changed.
    pub changes: u32,
    /// Regions that ended because too many were idle.
    pub evictions: u32,
    /// Registrations that the cache would have to look at before it refuses them.
    pub refused: u32,
}

impl Served {
    /// The cost of the cache's own work.
    pub fn paid(&self, costs: Costs) -> u64 {
        let paid = [
            (self.hits, costs.hit),
            (self.made, costs.miss),
            (self.changes, costs.change),
            (self.evictions, costs.eviction),
            (self.refused, costs.refusal),
        ];
        paid.iter().map(|&(times, ns)| u64::from(times) * ns).sum()
    }
}

/// Calls that the cache would have left out, which one median describes: their class, whether they
/// register, and the power of two of their length.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kind(Class, bool, u32);

/// The time that a cache would leave out.
#[derive(Clone, Copy, Default)]
pub struct LeftOut {
    /// If each call took the median of its kind.
    pub typical: u64,
    /// The calls that took far longer than that, and by how much.
    pub outliers: u64,
    pub excess: u64,
    /// By how much the sum of the other calls differs from that of as many medians.
    pub skew: u64,
}

/// A call is an outlier if it takes this many medians of its kind. Among the calls of a kind are
/// lengths that differ by a factor of 2.
pub const OUTLIER: u64 = 8;
/// How many calls are enough for a median of their own. The first registration of a range, which is
/// never left out, may take longer: its pages may be new.
const ENOUGH: u64 = 10;

/// The medians of the calls that the cache would leave out.
#[derive(Default)]
pub struct Medians(FxHashMap<Kind, u64>);

impl Medians {
    fn of(&self, class: Class, registers: bool, bits: u32) -> u64 {
        let median = self.0.get(&Kind(class, registers, bits));
        median.copied().unwrap_or(0)
    }
}

/// At this many known ranges, those that were registered only once are forgotten.
pub const LIMIT: usize = 1 << 18;

#[derive(Default)]
pub struct Totals {
    pub call: u8,
    /// The caller that registered the range first.
    pub site: u32,
    /// The power of two of the first length.
    bits: u32,
    pub served: Served,
    /// The time of registrations and deregistrations.
    pub time: u64,
}

impl Totals {
    /// The time that the cache would have saved: less than 0 if it costs more than it saves.
    pub fn saved(&self, key: &Key, medians: &Medians, costs: Costs) -> i64 {
        let class = Class::of(self.call, key.range.access);
        let left_out = [(self.served.hits, true), (self.served.ended, false)]
            .map(|(calls, registers)| u64::from(calls) * medians.of(class, registers, self.bits));
        left_out.iter().sum::<u64>() as i64 - self.served.paid(costs) as i64
    }
}

/// The power of two of a length, as [`super::replay::Replay::sizes`] counts it.
pub fn bits(length: u64) -> u32 {
    u64::BITS - length.leading_zeros()
}

/// All known ranges.
#[derive(Default)]
pub struct Ranges {
    known: FxHashMap<Key, Totals>,
    pub classes: [Served; Class::COUNT],
    /// The durations of the calls that the cache would leave out.
    left_out: FxHashMap<Kind, Durations>,
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
            bits: bits(call.length),
            ..Totals::default()
        };
        let range = self.known.entry(key).or_insert(first);
        range.time += u64::from(call.duration);
        let class = Class::of(call.call, key.range.access);
        for served in [&mut range.served, &mut self.classes[class as usize]] {
            served.registrations += 1;
            match done {
                Done::Hit(_) => served.hits += 1,
                Done::Made(_) => served.made += 1,
                Done::First => {}
            }
        }
        if let Done::Hit(_) = done {
            self.leave_out(Kind(class, true, bits(call.length)), call.duration);
        }
    }

    fn leave_out(&mut self, kind: Kind, duration: u32) {
        let durations = self.left_out.entry(kind).or_insert_with(Durations::new);
        durations.add(duration);
    }

    /// A region was deregistered whose registration would have been a hit, or a miss.
    pub fn deregistered(&mut self, key: &Key, hit: bool, length: u64, duration: u32) {
        let Some(range) = self.known.get_mut(key) else {
            return;
        };
        range.time += u64::from(duration);
        if hit {
            let class = Class::of(range.call, key.range.access);
            range.served.ended += 1;
            self.classes[class as usize].ended += 1;
            self.leave_out(Kind(class, false, bits(length)), duration);
        }
    }

    /// The medians of the calls that the cache would leave out. `sizes` has the durations of all
    /// calls: few calls have no median of their own if all calls of their length took less.
    pub fn medians(&self, sizes: &FxHashMap<(u32, What), Durations>) -> Medians {
        let median = |(&kind, durations): (&Kind, &Durations)| {
            let median = durations.quantile(0.5);
            let Kind(_, registers, bits) = kind;
            let what = if registers {
                What::Plain
            } else {
                What::Deregister
            };
            let all = sizes.get(&(bits, what)).map(|all| all.quantile(0.5));
            let median = match all {
                Some(all) if durations.count < ENOUGH => median.min(all),
                _ => median,
            };
            (kind, median)
        };
        Medians(self.left_out.iter().map(median).collect())
    }

    /// The time that the cache would leave out of the calls of these classes.
    pub fn left_out(&self, classes: &[Class], medians: &Medians) -> LeftOut {
        let mut sum = LeftOut::default();
        let left_out = self.left_out.iter();
        for (kind, durations) in left_out.filter(|(kind, _)| classes.contains(&kind.0)) {
            let median = medians.of(kind.0, kind.1, kind.2);
            let (outliers, time) = durations.above(OUTLIER * median);
            sum.typical += durations.count * median;
            sum.outliers += outliers;
            sum.excess += time - outliers * median;
            let others = (durations.count - outliers) * median;
            sum.skew += (durations.total - time).abs_diff(others);
        }
        sum
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
    pub fn repeated(&self, medians: &Medians, costs: Costs) -> Vec<(&Key, &Totals)> {
        let mut repeated: Vec<_> = self
            .known
            .iter()
            .filter(|(_, range)| range.served.registrations > 1)
            .collect();
        repeated.sort_by_cached_key(|(key, range)| {
            (
                Reverse(range.saved(key, medians, costs)),
                Reverse(range.time),
                key.process,
                key.range.start,
                key.range.access,
            )
        });
        repeated
    }
}
