// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges that are registered again and again, and how many of their registrations the pool would
//! have served.
use super::pool::Key;
use super::shape::Saving;
use crate::format::Call;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// At this many known ranges, those that were registered only once are forgotten.
pub const LIMIT: usize = 1 << 20;
#[derive(Default)]
pub struct Totals {
    pub call: u8,
    /// The caller that registered the range first.
    pub site: u32,
    pub registrations: u32,
    pub hits: u32,
    /// The time of registrations and deregistrations.
    pub time: u64,
    deregistrations: u32,
    /// The time of the registrations that would have been hits, and of all deregistrations.
    hit_time: u64,
    deregister_time: u64,
}

impl Totals {
    /// The time that the pool would have saved if a hit and its deregistration cost `hit_ns`.
    pub fn saved(&self, hit_ns: u64) -> u64 {
        // Each hit also saves one deregistration, counted at the average time.
        let left_out = u128::from(self.deregistrations.min(self.hits));
        let deregistrations =
            u128::from(self.deregister_time) * left_out / u128::from(self.deregistrations.max(1));
        (self.hit_time + deregistrations as u64).saturating_sub(u64::from(self.hits) * hit_ns)
    }
}

/// All known ranges.
#[derive(Default)]
pub struct Ranges {
    known: FxHashMap<Key, Totals>,
    limit: usize,
    /// Some ranges had to be forgotten.
    pub forgotten: bool,
}

impl Ranges {
    pub fn registered(&mut self, key: Key, site: u32, hit: bool, call: &Call) {
        if self.known.len() >= LIMIT.max(self.limit) {
            self.known.retain(|_, range| range.registrations > 1);
            self.limit = 2 * self.known.len();
            self.forgotten = true;
        }
        let first = Totals {
            call: call.call,
            site,
            ..Totals::default()
        };
        let range = self.known.entry(key).or_insert(first);
        if hit {
            range.hits += 1;
            range.hit_time += u64::from(call.duration);
        }
        range.registrations += 1;
        range.time += u64::from(call.duration);
    }

    pub fn deregistered(&mut self, key: &Key, duration: u32) {
        if let Some(range) = self.known.get_mut(key) {
            range.deregistrations += 1;
            range.deregister_time += u64::from(duration);
            range.time += u64::from(duration);
        }
    }

    /// The saving over the ranges that `counts` selects.
    pub fn saving(&self, hit_ns: u64, counts: impl Fn(&Key, &Totals) -> bool) -> Saving {
        let mut saving = Saving::default();
        for (_, range) in self
            .known
            .iter()
            .filter(|(key, range)| range.hits > 0 && counts(key, range))
        {
            saving.ranges += 1;
            saving.hits += u64::from(range.hits);
            saving.saved_ns += range.saved(hit_ns);
        }
        saving
    }

    /// The ranges that were registered more than once, the most expensive first.
    pub fn repeated(&self, hit_ns: u64) -> Vec<(&Key, &Totals)> {
        let mut repeated: Vec<_> = self
            .known
            .iter()
            .filter(|(_, range)| range.registrations > 1)
            .collect();
        repeated.sort_by_key(|(key, range)| {
            (
                Reverse(range.saved(hit_ns)),
                Reverse(range.time),
                key.process,
                key.start,
                key.access,
            )
        });
        repeated
    }
}
