// SPDX-License-Identifier: MIT OR Apache-2.0
//! The replay of a trace, call by call: when, and by which caller, each region was registered and
//! pinned. It counts only; other modules put the counts into words.
use super::access;
use super::durations::Durations;
use super::ranges::{self, Ranges, Registration};
use super::shape::{Bound, Failure, LARGE, Past, Totals, What};
use super::timeline::{Change, Timeline};
use crate::trace::{Event, Located, Process, Stack, Trace};
use anyhow::Result;
use rdmamr_policy::Range;
use rdmamr_trace_format::call::registers;
use rdmamr_trace_format::{Call, call, how};
use std::collections::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The most call sites that are told apart: no program has more, and the memory for them must have
/// a bound.
pub const MOST_SITES: usize = 1 << 17;
/// Only so many sites may have a stack, which takes far more memory.
const MOST_STACKS: usize = 1 << 14;

const PIN: Change = u64::saturating_add;
const UNPIN: Change = u64::saturating_sub;

/// The place in the program that a call comes from.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Site {
    pub place: Located,
    /// The call stack beyond it.
    pub stack: Option<Rc<Stack>>,
}

/// Calls, and the time in them.
#[derive(Clone, Copy, Default)]
pub struct Tally {
    pub calls: u64,
    pub failed: u64,
    pub time: u64,
    pub longest: u32,
}

impl Tally {
    fn add(&mut self, call: &Call) {
        self.calls += 1;
        self.failed += u64::from(call.errno != 0);
        self.time += u64::from(call.duration);
        self.longest = self.longest.max(call.duration);
    }
}

#[derive(Clone, Copy, Default)]
pub struct SiteTotals {
    pub tally: Tally,
    /// The registrations of a GPU's memory.
    pub gpu: Tally,
    /// A bit for each function that was called from here.
    pub called: u32,
}

/// The identity of a region while it is registered: process, whether it is a umem, lkey, and domain
/// or address of the umem.
pub type Key = (u32, bool, u32, u64);

fn key(process: u32, call: &Call) -> Key {
    (process, call::is_on_umem(call.call), call.lkey, call.pd)
}

/// The whole pages around the memory of a call: the range by which the cache's rule knows it.
fn range(process: &Process, call: &Call) -> Range {
    let (start, end) = process.pages(call);
    Range {
        pd: call.pd,
        start,
        end: if call.length == 0 { start } else { end },
        access: call.access,
    }
}

/// A region that is pinned.
pub struct Region {
    /// For a plain region that the cache may serve.
    of_range: Option<Registration>,
    pub cache: bool,
    pub pinned: u64,
    /// How many bytes of a GPU's memory it is.
    gpu: u64,
    /// The registrations that the program has not ended: their sites, by the address and the length of
    /// their memory.
    pub holders: BTreeMap<(u64, u64), Vec<u32>>,
}

#[derive(Clone, Default)]
pub struct ProcessCounts {
    pub tally: Tally,
    /// For each thread the beginning of its first call, and the end of its last.
    pub threads: HashMap<u32, (u64, u64)>,
    pub registrations: u64,
    pub hits: u64,
    /// Pinned bytes: of plain regions, and of the cache's; and the most of both.
    pub pinned: [u64; 2],
    pub peak: u64,
    /// The bytes of GPUs' memory that are registered.
    gpu: u64,
    /// The deregistrations since the last registration that ended regions.
    pub ending: Tally,
}

/// The state after the calls so far.
#[derive(Default)]
pub struct Replay {
    pub begin: u64,
    pub totals: Totals,
    pub processes: Vec<ProcessCounts>,
    /// The sites of addresses, by process, list of modules, address and number of the stack.
    pub sites: HashMap<(u32, u32, u64, u32), u32>,
    /// The stacks by their process and number.
    stacks: HashMap<(u32, u32), Option<Rc<Stack>>>,
    pub site_numbers: HashMap<Site, u32>,
    pub site_totals: Vec<(Site, u32, SiteTotals)>,
    /// The regions that are registered.
    pub regions: BTreeMap<Key, Region>,
    /// How many regions of the cache had that lkey before it was assigned again, and have no end in
    /// the trace yet.
    pub ended_before: HashMap<Key, u32>,
    pub ranges: Ranges,
    pub large: Bound,
    pub sizes: BTreeMap<(u32, What), Durations>,
    pub timeline: Timeline,
    /// The ends of processes that are to come.
    pub ends: BTreeSet<(u64, usize)>,
    /// By call and errno, with the site of the example.
    pub failures: HashMap<(u8, u16), (Failure, u32)>,
    /// Registrations past the library, by site and function.
    pub past: HashMap<(u32, u8), Past>,
    /// Deregistrations and hits of regions whose registration is not in the trace; registrations
    /// whose key was taken.
    pub unknown: u64,
    pub taken: u64,
    /// The bytes of GPUs' memory that are registered.
    gpu_bytes: u64,
}

impl Replay {
    /// Replays a trace from its beginning to its end.
    pub fn of(trace: &Trace) -> Result<Replay> {
        let processes = trace.processes.iter();
        let begin = trace.begin();
        let end = processes.clone().map(|process| process.end).max();
        let span = end.unwrap_or(0) - begin;
        let ended = processes.enumerate().filter(|(_, process)| process.ended);
        let ends = ended.map(|(number, process)| (process.end - begin, number));
        let mut replay = Replay {
            begin,
            processes: vec![ProcessCounts::default(); trace.processes.len()],
            timeline: Timeline::new(&trace.processes, begin, span),
            ends: ends.collect(),
            ..Replay::default()
        };
        replay.totals.span_ns = span;
        trace.calls(|event| replay.see(trace, event))?;
        replay.end_processes(span);
        Ok(replay)
    }

    fn see(&mut self, trace: &Trace, event: &Event) {
        let (process, call) = (event.process, &event.call);
        let since = event.effect - self.begin;
        self.end_processes(since);
        if call.call == call::CACHE {
            self.totals.cache_deregistrations += 1;
            self.cache_ended(since, key(process, call));
            return;
        }
        // A change of memory, which earlier releases recorded.
        if !call::is_of_program(call.call) {
            return;
        }
        self.totals.calls_with_stack += u64::from(event.stack != 0);
        let site = self.site(trace, (process, event.modules, call.caller, event.stack));
        self.count(process, site, call);
        self.timeline.call(process, since, call);
        if call.errno != 0 {
            self.fail(trace, process, site, call);
            return;
        }
        let length = self.length(process, call);
        let durations = self.sizes.entry((ranges::bits(length), What::of(call)));
        durations.or_default().add(call.duration);
        let is_pinned = registers(call.call) && call.how != how::HIT && access::pins(call);
        if is_pinned && length >= LARGE {
            self.large.registrations += 1;
            self.large.most_ns += u64::from(call.duration);
        }
        let ending = &mut self.processes[process as usize].ending;
        if registers(call.call) {
            *ending = Tally::default();
        } else if call.how != how::KEPT {
            ending.add(call);
        }
        let range = range(&trace.processes[process as usize], call);
        if call.call == call::REREG_MR && self.reregister(process, range, since, call) {
            self.totals.registrations += 1;
            self.processes[process as usize].registrations += 1;
        } else if registers(call.call) {
            self.register(process, range, site, since, call);
        } else {
            self.deregister(process, since, call);
        }
    }

    /// The length of the call's memory. Only the registration of a umem tells the umem's.
    fn length(&self, process: u32, call: &Call) -> u64 {
        if call.call != call::MLX5DV_DEVX_UMEM_DEREG {
            return call.length;
        }
        let umem = self.regions.get(&key(process, call));
        let memory = umem.and_then(|umem| umem.holders.keys().next());
        memory.map_or(0, |memory| memory.1)
    }

    fn cache_ended(&mut self, since: u64, key: Key) {
        // The cache reports the end afterwards, and the kernel may have assigned the lkey again by
        // then. register() has counted such a key.
        if let Some(times) = self.ended_before.get_mut(&key).filter(|it| **it > 0) {
            *times -= 1;
        } else if let Some(region) = self.regions.remove(&key) {
            self.adjust(key.0, since, &region, UNPIN);
        }
    }

    fn site(&mut self, trace: &Trace, address: (u32, u32, u64, u32)) -> u32 {
        let (process, modules, caller, stack) = address;
        if let Some(&number) = self.sites.get(&address) {
            return number;
        }
        let known = self.stacks.get(&(process, stack)).cloned();
        let stack_of_call = known.unwrap_or_else(|| {
            let read = trace.stack(process, stack).map(Rc::new);
            if self.stacks.len() < MOST_STACKS {
                self.stacks.insert((process, stack), read.clone());
            }
            read
        });
        let mut site = Site {
            place: trace.locate(process, modules, caller),
            stack: stack_of_call,
        };
        let sites = self.site_totals.len();
        if sites >= MOST_STACKS && !self.site_numbers.contains_key(&site) {
            site.stack = None;
        }
        if sites >= MOST_SITES && !self.site_numbers.contains_key(&site) {
            // All further sites are one.
            site = Site::default();
        }
        let number = *self.site_numbers.entry(site.clone()).or_insert_with(|| {
            self.site_totals
                .push((site, process, SiteTotals::default()));
            self.site_totals.len() as u32 - 1
        });
        if self.sites.len() < MOST_SITES {
            self.sites.insert(address, number);
        }
        number
    }

    fn count(&mut self, process: u32, site: u32, call: &Call) {
        self.totals.calls += 1;
        self.totals.failed += u64::from(call.errno != 0);
        self.totals.time_ns += u64::from(call.duration);
        let of_process = &mut self.processes[process as usize];
        of_process.tally.add(call);
        let end = call.time.saturating_add(call.duration.into());
        let span = of_process.threads.entry(call.thread);
        let span = span.or_insert((call.time, 0));
        *span = (span.0.min(call.time), span.1.max(end));
        let of_site = &mut self.site_totals[site as usize].2;
        of_site.tally.add(call);
        if call.how == how::GPU {
            of_site.gpu.add(call);
        }
        of_site.called |= 1u32.checked_shl(u32::from(call.call)).unwrap_or(0);
    }

    fn fail(&mut self, trace: &Trace, process: u32, site: u32, call: &Call) {
        let failure = self.failures.entry((call.call, call.errno));
        let (failure, site_of_example) = failure.or_insert((Failure::default(), site));
        failure.count += 1;
        if failure.example.is_none() {
            failure.example = trace.reason(process, call.reason);
            if failure.example.is_some() {
                *site_of_example = site;
            }
        }
    }

    fn register(&mut self, process: u32, range: Range, site: u32, since: u64, call: &Call) {
        self.totals.registrations += 1;
        self.totals.hits += u64::from(call.how == how::HIT);
        let of_process = &mut self.processes[process as usize];
        of_process.registrations += 1;
        of_process.hits += u64::from(call.how == how::HIT);
        self.totals.misses += u64::from(call.how == how::MISS);
        if call.how == how::PAST {
            self.count_past(site, call);
        }
        let key = key(process, call);
        let memory = (call.addr, call.length);
        let cache = matches!(call.how, how::HIT | how::MISS);
        if call.how == how::HIT {
            if let Some(region) = self.regions.get_mut(&key) {
                region.holders.entry(memory).or_default().push(site);
                return;
            }
            self.unknown += 1;
        }
        let pinned = u64::from(access::pins(call)) * (range.end - range.start);
        let gpu = u64::from(access::is_of_gpu(call)) * call.length;
        if call.how == how::GPU {
            self.totals.gpu += 1;
            self.totals.gpu_ns += u64::from(call.duration);
        }
        if let Some(before) = self.regions.remove(&key) {
            if before.cache {
                *self.ended_before.entry(key).or_default() += 1;
            } else {
                self.taken += 1;
            }
            self.release(process, since, before, None);
        }
        let region = Region {
            of_range: self.ranges.register(process, range, site, call),
            pinned,
            gpu,
            cache,
            holders: [(memory, vec![site])].into(),
        };
        self.adjust(process, since, &region, PIN);
        self.regions.insert(key, region);
    }

    fn count_past(&mut self, site: u32, call: &Call) {
        self.totals.past_registrations += 1;
        self.totals.past_bytes = self.totals.past_bytes.saturating_add(call.length);
        let past = self.past.entry((site, call.call)).or_default();
        past.registrations += 1;
        past.bytes = past.bytes.saturating_add(call.length);
        past.largest_bytes = past.largest_bytes.max(call.length);
        past.time_ns += u64::from(call.duration);
    }

    /// Returns whether the trace has the registration of the region.
    fn reregister(&mut self, process: u32, range: Range, since: u64, call: &Call) -> bool {
        let key = key(process, call);
        let before = self.regions.remove(&key).or_else(|| {
            // The region may have left its domain.
            let same = (process, false, call.lkey, 0)..=(process, false, call.lkey, u64::MAX);
            let (&other, _) = self.regions.range(same).next()?;
            self.regions.remove(&other)
        });
        let Some(mut region) = before else {
            return false;
        };
        self.ranges.release(region.of_range.take(), None);
        self.adjust(process, since, &region, UNPIN);
        if call.length != 0 {
            region.pinned = range.end - range.start;
            region.moved((call.addr, call.length));
        }
        self.adjust(process, since, &region, PIN);
        self.regions.insert(key, region);
        true
    }

    fn deregister(&mut self, process: u32, since: u64, call: &Call) {
        self.totals.deregistrations += 1;
        // The registration of this libfabric region had failed, or had not begun.
        if call.how == how::NONE {
            return;
        }
        let key = key(process, call);
        let is_kept = call.how == how::KEPT;
        self.totals.kept += u64::from(is_kept);
        let Some(region) = self.regions.get_mut(&key) else {
            self.unknown += 1;
            return;
        };
        region.release(call);
        if region.holders.is_empty() && !is_kept {
            if let Some(region) = self.regions.remove(&key) {
                self.release(process, since, region, Some(call));
            }
        }
    }

    /// A region has ended: by `call`, if the trace has the deregistration.
    fn release(&mut self, process: u32, since: u64, region: Region, call: Option<&Call>) {
        self.ranges.release(region.of_range, call);
        self.adjust(process, since, &region, UNPIN);
    }

    fn adjust(&mut self, process: u32, since: u64, region: &Region, change: Change) {
        self.timeline
            .adjust(since, region.pinned, region.cache, change);
        let of_process = &mut self.processes[process as usize];
        let pinned = &mut of_process.pinned[usize::from(region.cache)];
        *pinned = change(*pinned, region.pinned);
        let all = of_process.pinned[0].saturating_add(of_process.pinned[1]);
        of_process.peak = of_process.peak.max(all);
        of_process.gpu = change(of_process.gpu, region.gpu);
        self.gpu_bytes = change(self.gpu_bytes, region.gpu);
        self.totals.gpu_peak_bytes = self.totals.gpu_peak_bytes.max(self.gpu_bytes);
    }

    /// The kernel unpins the regions of each process that ended before `since`. The trace does not
    /// contain the end of a killed process.
    fn end_processes(&mut self, since: u64) {
        while let Some(&(end, process)) = self.ends.first().filter(|(end, _)| *end < since) {
            self.ends.pop_first();
            let gpu = std::mem::take(&mut self.processes[process].gpu);
            self.gpu_bytes = self.gpu_bytes.saturating_sub(gpu);
            for cache in [false, true] {
                let pinned = self.processes[process].pinned[usize::from(cache)];
                self.timeline.adjust(end, pinned, cache, UNPIN);
            }
        }
    }
}

impl Region {
    /// Removes a holder of the region: one with the memory of the call, if there is one.
    fn release(&mut self, call: &Call) {
        let memory = (call.addr, call.length);
        let memory = match self.holders.contains_key(&memory) {
            true => Some(memory),
            false => self.holders.keys().next_back().copied(),
        };
        let Some(memory) = memory else { return };
        let sites = self.holders.entry(memory).or_default();
        sites.pop();
        if sites.is_empty() {
            self.holders.remove(&memory);
        }
    }

    /// A re-registration has given all holders this memory. Moves few, however many there are.
    fn moved(&mut self, memory: (u64, u64)) {
        let mut lists: Vec<_> = std::mem::take(&mut self.holders).into_values().collect();
        lists.sort_by_key(Vec::len);
        let mut all = lists.pop().unwrap_or_default();
        all.extend(lists.into_iter().flatten());
        self.holders = [(memory, all)].into();
    }
}
