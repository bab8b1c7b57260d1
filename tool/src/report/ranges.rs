// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges that are registered again and again, and which of their registrations the pool would have served.
use super::access;
use super::shape::Saving;
use crate::format::Call;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// When so many ranges are known, those that have been registered only once are forgotten.
pub const LIMIT: usize = 1 << 20;
/// How long the pool keeps a region by default, in ns: with remote rights, and without.
const LINGER_REMOTE: u64 = 1_000_000_000;
const LINGER_LOCAL: u64 = 60_000_000_000;

/// What two registrations must have in common for the pool to serve the second by the first's region.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub process: u32,
    pub access: u32,
    pub pd: u64,
    /// The whole pages: where they begin, and how many bytes they are.
    pub start: u64,
    pub bytes: u64,
}

#[derive(Default)]
pub struct Totals {
    pub call: u8,
    /// Who registered it first.
    pub site: u32,
    pub registrations: u32,
    pub hits: u32,
    /// Of registrations and deregistrations.
    pub time: u64,
    deregistrations: u32,
    /// How many are registered at the moment, and since when none is.
    live: u32,
    idle: u64,
    /// Of the registrations that would have been hits, and of all deregistrations.
    hit_time: u64,
    deregister_time: u64,
}

impl Totals {
    /// What the pool would have saved, if a hit with its deregistration costs that much.
    pub fn saved(&self, hit_ns: u64) -> u64 {
        // With each registration that is a hit, one deregistration is left out, an average one.
        let left_out = u128::from(self.deregistrations.min(self.hits));
        let deregistrations =
            u128::from(self.deregister_time) * left_out / u128::from(self.deregistrations.max(1));
        (self.hit_time + deregistrations as u64).saturating_sub(u64::from(self.hits) * hit_ns)
    }
}

/// All that are known.
#[derive(Default)]
pub struct Ranges {
    known: FxHashMap<Key, Totals>,
    limit: usize,
    /// Some had to be forgotten.
    pub forgotten: bool,
}

impl Ranges {
    pub fn registered(&mut self, key: Key, site: u32, since: u64, call: &Call) {
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
        let linger = if access::remote(call.call, call.access) {
            LINGER_REMOTE
        } else {
            LINGER_LOCAL
        };
        let kept = range.live > 0 || since.saturating_sub(range.idle) <= linger;
        if range.registrations > 0 && kept {
            range.hits += 1;
            range.hit_time += u64::from(call.duration);
        }
        range.registrations += 1;
        range.live += 1;
        range.time += u64::from(call.duration);
    }

    pub fn deregistered(&mut self, key: &Key, since: u64, duration: u32) {
        if let Some(range) = self.known.get_mut(key) {
            range.deregistrations += 1;
            range.deregister_time += u64::from(duration);
            range.time += u64::from(duration);
        }
        self.ended(key, since);
    }

    /// One of its registrations is no more.
    pub fn ended(&mut self, key: &Key, since: u64) {
        if let Some(range) = self.known.get_mut(key) {
            range.live = range.live.saturating_sub(1);
            range.idle = since;
        }
    }

    /// What would have been saved of those that `counts` says.
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

    /// Those that were registered more than once, the dearest first.
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
