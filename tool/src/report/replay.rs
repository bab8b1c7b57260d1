// SPDX-License-Identifier: MIT OR Apache-2.0
//! The replay of a trace, call by call: which regions were registered and pinned when, and by whom.
//! It counts only; other modules put the counts into words.
use super::access;
use super::durations::Durations;
use super::pool::{self, Pool};
use super::ranges::Ranges;
use super::shape::{Totals, What};
use super::timeline::Timeline;
use crate::format::{Call, call, how};
use crate::trace::{Event, Trace, pooled, registers};
use anyhow::Result;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;

/// The whole pages around some memory: their start, and their length in bytes.
fn hull(addr: u64, length: u64, page: u64) -> (u64, u64) {
    let start = addr & !(page - 1);
    let end = addr
        .saturating_add(length)
        .checked_next_multiple_of(page)
        .unwrap_or(u64::MAX);
    (start, if length == 0 { 0 } else { end - start })
}

/// The place in the program that a call comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Site {
    pub path: Option<u32>,
    pub offset: u64,
}

#[derive(Clone, Copy, Default)]
pub struct SiteTotals {
    pub calls: u64,
    pub failed: u64,
    pub time: u64,
    pub longest: u32,
    /// A bit for each function that was called from here.
    pub called: u32,
}

/// The identity of a region while it is registered: process, lkey, domain.
pub type Key = (u32, u32, u64);

/// A registration that the program has not ended.
pub struct Holder {
    pub addr: u64,
    pub length: u64,
    pub site: u32,
}

/// A region that is pinned.
pub struct Region {
    /// For a plain region that the pool would have served: its pages, and the number of the pool's
    /// region.
    pub range: Option<(pool::Key, u32)>,
    pub pinned: u64,
    pub pool: bool,
    pub holders: Vec<Holder>,
}

#[derive(Clone, Default)]
pub struct ProcessCounts {
    pub calls: u64,
    pub failed: u64,
    pub time: u64,
    pub threads: FxHashSet<u32>,
    /// Pinned bytes: of plain regions, and of the pool's.
    pub pinned: [u64; 2],
}

pub struct FailureCounts {
    pub count: u64,
    pub process: u32,
    pub reason: u32,
    pub site: u32,
}

/// The state after the calls so far.
pub struct Replay<'a> {
    pub trace: &'a Trace,
    pub begin: u64,
    pub totals: Totals,
    pub processes: Vec<ProcessCounts>,
    /// The sites of addresses, by process, list of modules and address.
    pub sites: FxHashMap<(u32, u32, u64), u32>,
    pub site_numbers: FxHashMap<Site, u32>,
    pub site_totals: Vec<(Site, u32, SiteTotals)>,
    pub regions: FxHashMap<Key, Region>,
    /// Regions of the pool whose lkey was given again before the trace told of their end.
    pub ended_before: FxHashMap<Key, u32>,
    pub ranges: Ranges,
    pub pool: Pool,
    /// The number and the time of the plain registrations that the pool would not have served, by
    /// reason.
    pub unserved: FxHashMap<&'static str, (u64, u64)>,
    pub sizes: FxHashMap<(u32, What), Durations>,
    pub timeline: Timeline,
    /// The ends of processes, the latest first.
    pub ends: Vec<(u64, usize)>,
    pub failures: FxHashMap<(u8, u16), FailureCounts>,
    /// Deregistrations and hits of regions whose registration is not in the trace; registrations
    /// whose key was taken.
    pub unknown: u64,
    pub taken: u64,
}

impl Replay<'_> {
    /// Replays a trace from its beginning to its end.
    pub fn of(trace: &Trace) -> Result<Replay<'_>> {
        let begin = trace
            .processes
            .iter()
            .map(|process| process.begin)
            .min()
            .unwrap_or(0);
        let end = trace
            .processes
            .iter()
            .map(|process| process.end)
            .max()
            .unwrap_or(0);
        let span = end - begin;
        let ended = trace
            .processes
            .iter()
            .enumerate()
            .filter(|(_, process)| process.ended);
        let mut ends: Vec<_> = ended
            .map(|(number, process)| (process.end - begin, number))
            .collect();
        ends.sort_by_key(|&end| Reverse(end));
        let mut replay = Replay {
            trace,
            begin,
            totals: Totals {
                span_ns: span,
                ..Totals::default()
            },
            processes: vec![ProcessCounts::default(); trace.processes.len()],
            sites: FxHashMap::default(),
            site_numbers: FxHashMap::default(),
            site_totals: Vec::new(),
            regions: FxHashMap::default(),
            ended_before: FxHashMap::default(),
            ranges: Ranges::default(),
            pool: Pool::default(),
            unserved: FxHashMap::default(),
            sizes: FxHashMap::default(),
            timeline: Timeline::new(span),
            ends,
            failures: FxHashMap::default(),
            unknown: 0,
            taken: 0,
        };
        trace.calls(|event| replay.see(event))?;
        replay.end_processes(span);
        Ok(replay)
    }

    fn see(&mut self, event: &Event) {
        let Event {
            process,
            modules,
            effect,
            call,
        } = event;
        let since = effect - self.begin;
        self.end_processes(since);
        if call.call == call::POOL {
            self.totals.pool_deregistrations += 1;
            self.pool_ended(since, (*process, call.lkey, call.pd));
            return;
        }
        let site = self.site(*process, *modules, call.caller);
        self.count(*process, site, call);
        if call.errno != 0 {
            self.fail(*process, site, call);
            return;
        }
        let durations = self
            .sizes
            .entry((u64::BITS - call.length.leading_zeros(), What::of(call)));
        durations.or_insert_with(Durations::new).add(call.duration);
        if call.call == call::REREG_MR && self.reregister(*process, since, call) {
            self.totals.registrations += 1;
        } else if registers(call.call) {
            self.register(*process, site, since, call);
        } else {
            self.deregister(*process, since, call);
        }
    }

    fn pool_ended(&mut self, since: u64, key: Key) {
        // The pool reports the end afterwards, and the kernel may have given the lkey again by
        // then. register() has counted such a key.
        if let Some(times) = self.ended_before.get_mut(&key) {
            *times -= 1;
            if *times == 0 {
                self.ended_before.remove(&key);
            }
        } else if let Some(region) = self.regions.remove(&key) {
            self.unpin(key.0, since, &region);
        }
    }

    fn site(&mut self, process: u32, modules: u32, caller: u64) -> u32 {
        *self
            .sites
            .entry((process, modules, caller))
            .or_insert_with(|| {
                let site = match self.trace.locate(process, modules, caller) {
                    Some((path, offset)) => Site {
                        path: Some(path),
                        offset,
                    },
                    None => Site {
                        path: None,
                        offset: caller,
                    },
                };
                *self.site_numbers.entry(site).or_insert_with(|| {
                    self.site_totals
                        .push((site, process, SiteTotals::default()));
                    self.site_totals.len() as u32 - 1
                })
            })
    }

    fn count(&mut self, process: u32, site: u32, call: &Call) {
        let time = u64::from(call.duration);
        let failed = u64::from(call.errno != 0);
        self.totals.calls += 1;
        self.totals.failed += failed;
        self.totals.time_ns += time;
        let of_process = &mut self.processes[process as usize];
        of_process.calls += 1;
        of_process.failed += failed;
        of_process.time += time;
        of_process.threads.insert(call.thread);
        let of_site = &mut self.site_totals[site as usize].2;
        of_site.calls += 1;
        of_site.failed += failed;
        of_site.time += time;
        of_site.longest = of_site.longest.max(call.duration);
        of_site.called |= 1u32.checked_shl(u32::from(call.call)).unwrap_or(0);
    }

    fn fail(&mut self, process: u32, site: u32, call: &Call) {
        let example = FailureCounts {
            count: 0,
            process,
            reason: call.reason,
            site,
        };
        let failure = self
            .failures
            .entry((call.call, call.errno))
            .or_insert(example);
        failure.count += 1;
        if failure.reason == 0 && call.reason != 0 {
            *failure = FailureCounts {
                count: failure.count,
                process,
                reason: call.reason,
                site,
            };
        }
    }

    fn register(&mut self, process: u32, site: u32, since: u64, call: &Call) {
        self.totals.registrations += 1;
        self.totals.hits += u64::from(call.how == how::HIT);
        self.totals.misses += u64::from(call.how == how::MISS);
        let key = (process, call.lkey, call.pd);
        let holder = Holder {
            addr: call.addr,
            length: call.length,
            site,
        };
        let pool = pooled(call.how);
        if call.how == how::HIT {
            if let Some(region) = self.regions.get_mut(&key) {
                region.holders.push(holder);
                return;
            }
            self.unknown += 1;
        }
        let (start, bytes) = hull(
            call.addr,
            call.length,
            self.trace.processes[process as usize].page,
        );
        let pinned = if access::pins(call.call, call.access) {
            bytes
        } else {
            0
        };
        let range = pool::Key {
            process,
            access: call.access,
            pd: call.pd,
            start,
            bytes,
        };
        if let Some(before) = self.regions.remove(&key) {
            if before.pool {
                *self.ended_before.entry(key).or_default() += 1;
            } else {
                self.taken += 1;
            }
            self.release(process, since, &before);
            self.unpin(process, since, &before);
        }
        let range = (!pool)
            .then(|| self.foresee(range, site, since, call))
            .flatten();
        let region = Region {
            range,
            pinned,
            pool,
            holders: vec![holder],
        };
        self.pin(process, since, &region);
        self.regions.insert(key, region);
    }

    /// Returns whether the region was one of the trace.
    fn reregister(&mut self, process: u32, since: u64, call: &Call) -> bool {
        // The region may have left its domain.
        let key = (process, call.lkey, call.pd);
        let before = match self.regions.contains_key(&key) {
            true => Some(key),
            false => self
                .regions
                .keys()
                .find(|key| (key.0, key.1) == (process, call.lkey))
                .copied(),
        };
        let Some(mut region) = before.and_then(|before| self.regions.remove(&before)) else {
            return false;
        };
        self.unpin(process, since, &region);
        if call.length != 0 {
            region.pinned = hull(
                call.addr,
                call.length,
                self.trace.processes[process as usize].page,
            )
            .1;
            for holder in &mut region.holders {
                (holder.addr, holder.length) = (call.addr, call.length);
            }
        }
        self.release(process, since, &region);
        region.range = None;
        self.pin(process, since, &region);
        self.regions.insert(key, region);
        true
    }

    fn deregister(&mut self, process: u32, since: u64, call: &Call) {
        self.totals.deregistrations += 1;
        // The registration of this libfabric region had failed, or had not begun.
        if call.how == how::NONE {
            return;
        }
        let key = (process, call.lkey, call.pd);
        if call.how == how::KEPT {
            self.totals.kept += 1;
            match self.regions.get_mut(&key) {
                Some(region) => region.release(call),
                None => self.unknown += 1,
            }
            return;
        }
        let Some(region) = self.regions.get_mut(&key) else {
            self.unknown += 1;
            return;
        };
        region.release(call);
        if !region.holders.is_empty() {
            return;
        }
        if let Some((range, _)) = &region.range {
            self.ranges.deregistered(range, call.duration);
        }
        if let Some(region) = self.regions.remove(&key) {
            self.release(process, since, &region);
            self.unpin(process, since, &region);
        }
    }

    /// Foresees what the pool would have done with a plain registration: the number of the region
    /// that would have served it, or `None`.
    fn foresee(
        &mut self,
        range: pool::Key,
        site: u32,
        since: u64,
        call: &Call,
    ) -> Option<(pool::Key, u32)> {
        let process = &self.trace.processes[range.process as usize];
        if let Some(why) = pool::refusal(process, call, since + self.begin, &range) {
            let (count, time) = self.unserved.entry(why).or_default();
            *count += 1;
            *time += u64::from(call.duration);
            return None;
        }
        let remote = access::remote(call.call, call.access);
        let (number, hit) = self.pool.register(process, range, remote, since);
        self.ranges.registered(range, site, hit, call);
        Some((range, number))
    }

    /// The program has ended its use of a region that the pool would have kept.
    fn release(&mut self, process: u32, since: u64, region: &Region) {
        if let Some((_, number)) = region.range {
            let process = &self.trace.processes[process as usize];
            self.pool.release(process, number, since);
        }
    }

    fn pin(&mut self, process: u32, since: u64, region: &Region) {
        let pinned = &mut self.processes[process as usize].pinned[usize::from(region.pool)];
        *pinned = pinned.saturating_add(region.pinned);
        self.timeline.pin(since, region.pinned, region.pool);
    }

    fn unpin(&mut self, process: u32, since: u64, region: &Region) {
        let pinned = &mut self.processes[process as usize].pinned[usize::from(region.pool)];
        *pinned = pinned.saturating_sub(region.pinned);
        self.timeline.unpin(since, region.pinned, region.pool);
    }

    /// The kernel unpins the regions of each process that ended before `since`. The trace does not
    /// contain the end of a killed process.
    fn end_processes(&mut self, since: u64) {
        while let Some((end, process)) = self.ends.pop_if(|(end, _)| *end < since) {
            for pool in [false, true] {
                let pinned = self.processes[process].pinned[usize::from(pool)];
                self.timeline.unpin(end, pinned, pool);
            }
        }
    }
}

impl Region {
    /// Removes a holder of the region: the holder with that memory, if there are several.
    fn release(&mut self, call: &Call) {
        let same = |holder: &Holder| (holder.addr, holder.length) == (call.addr, call.length);
        match self.holders.iter().rposition(same) {
            Some(at) => drop(self.holders.swap_remove(at)),
            None => drop(self.holders.pop()),
        }
    }
}
