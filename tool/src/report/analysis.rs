// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a trace to the figures of the report.
use super::callers::{Caller, Resolver};
use super::durations::Durations;
use super::ranges::{self, Ranges};
use super::shape::*;
use super::timeline::Timeline;
use super::{access, advice, errno, units};
use crate::format::{Call, call, how};
use crate::trace::{Event, Process, Trace, pooled, registers};
use anyhow::Result;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// How long the lists are.
const LISTED: usize = 100;

/// The whole pages around some memory: where they begin, and how many bytes they are.
fn hull(addr: u64, length: u64, page: u64) -> (u64, u64) {
    let start = addr & !(page - 1);
    let end = addr
        .saturating_add(length)
        .checked_next_multiple_of(page)
        .unwrap_or(u64::MAX);
    (start, if length == 0 { 0 } else { end - start })
}

/// Where a call comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Site {
    path: Option<u32>,
    offset: u64,
}

#[derive(Clone, Copy, Default)]
struct SiteTotals {
    calls: u64,
    failed: u64,
    time: u64,
    longest: u32,
    /// A bit for each call.
    called: u32,
}

/// What tells a region from others while it is registered: process, lkey, domain.
type Key = (u32, u32, u64);

/// A registration that the program has not taken back.
struct Holder {
    addr: u64,
    length: u64,
    site: u32,
}

/// A region that is pinned.
struct Region {
    /// Of a plain one, what the pool would have known it by.
    range: Option<ranges::Key>,
    pinned: u64,
    pool: bool,
    holders: Vec<Holder>,
}

#[derive(Clone, Default)]
struct ProcessCounts {
    calls: u64,
    failed: u64,
    time: u64,
    threads: FxHashSet<u32>,
    /// Bytes, of plain regions and of the pool's.
    pinned: [u64; 2],
}

struct FailureCounts {
    count: u64,
    process: u32,
    reason: u32,
    site: u32,
}

/// What has been seen so far.
struct Analysis<'a> {
    trace: &'a Trace,
    begin: u64,
    totals: Totals,
    processes: Vec<ProcessCounts>,
    /// Where addresses are, by process, list of modules and address.
    sites: FxHashMap<(u32, u32, u64), u32>,
    site_numbers: FxHashMap<Site, u32>,
    site_totals: Vec<(Site, u32, SiteTotals)>,
    regions: FxHashMap<Key, Region>,
    /// Regions of the pool whose lkey was given again, and whose end is yet to be told.
    ended_before: FxHashMap<Key, u32>,
    ranges: Ranges,
    sizes: FxHashMap<(u32, What), Durations>,
    timeline: Timeline,
    /// When processes end, the first last.
    ends: Vec<(u64, usize)>,
    failures: FxHashMap<(u8, u16), FailureCounts>,
    /// Deregistrations of regions, and hits, of which the trace has no registration; registrations whose key was taken.
    unknown: u64,
    taken: u64,
}

impl Report {
    pub fn new(trace: &Trace, path: &Path) -> Result<Report> {
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
        let mut analysis = Analysis {
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
            sizes: FxHashMap::default(),
            timeline: Timeline::new(span),
            ends,
            failures: FxHashMap::default(),
            unknown: 0,
            taken: 0,
        };
        trace.calls(|event| analysis.see(event))?;
        analysis.end_processes(span);
        Ok(analysis.report(path))
    }
}

impl Analysis<'_> {
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
        // The pool says so afterwards, and the kernel may have given the lkey again by then: register() knew.
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
        let kept = access::kept(call.call, call.access);
        let range = (!pool && kept).then_some(ranges::Key {
            process,
            access: call.access,
            pd: call.pd,
            start,
            bytes,
        });
        if let Some(range) = range {
            self.ranges.registered(range, site, since, call);
        }
        if let Some(before) = self.regions.remove(&key) {
            if before.pool {
                *self.ended_before.entry(key).or_default() += 1;
            } else {
                self.taken += 1;
            }
            if let Some(range) = &before.range {
                self.ranges.ended(range, since);
            }
            self.unpin(process, since, &before);
        }
        let region = Region {
            range,
            pinned,
            pool,
            holders: vec![holder],
        };
        self.pin(process, since, &region);
        self.regions.insert(key, region);
    }

    /// Whether it was a region of the trace.
    fn reregister(&mut self, process: u32, since: u64, call: &Call) -> bool {
        // It may have left its domain.
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
        region.range = None;
        self.pin(process, since, &region);
        self.regions.insert(key, region);
        true
    }

    fn deregister(&mut self, process: u32, since: u64, call: &Call) {
        self.totals.deregistrations += 1;
        // Of a region of libfabric's whose registration had failed, or had not begun.
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
        if let Some(range) = &region.range {
            self.ranges.deregistered(range, since, call.duration);
        }
        if let Some(region) = self.regions.remove(&key) {
            self.unpin(process, since, &region);
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

    /// What processes leave that end before a moment, the kernel lets go. When one was killed nobody knows.
    fn end_processes(&mut self, since: u64) {
        while let Some((end, process)) = self.ends.pop_if(|(end, _)| *end < since) {
            for pool in [false, true] {
                let pinned = self.processes[process].pinned[usize::from(pool)];
                self.timeline.unpin(end, pinned, pool);
            }
        }
    }

    fn report(mut self, path: &Path) -> Report {
        let mut resolver = Resolver::default();
        let trace = self.trace;
        let sites = std::mem::take(&mut self.site_totals);
        let mut caller = |site: u32| {
            let (site, process, _) = sites[site as usize];
            let module = site.path.map(|path| trace.paths[path as usize].as_str());
            resolver.resolve(
                module,
                site.offset,
                trace.processes[process as usize].process,
            )
        };

        let mut by_time: Vec<u32> = (0..sites.len() as u32).collect();
        by_time.sort_by_key(|&site| Reverse(sites[site as usize].2.time));
        let callers = by_time.iter().take(LISTED).map(|&site| {
            let totals = sites[site as usize].2;
            CallerTotals {
                caller: caller(site),
                called: (0..call::NAMES.len())
                    .filter(|n| totals.called >> n & 1 == 1)
                    .map(|n| call::NAMES[n])
                    .collect(),
                calls: totals.calls,
                failed: totals.failed,
                time_ns: totals.time,
                longest_ns: totals.longest.into(),
            }
        });
        let callers = callers.collect();
        let leaks = self.leaks(&mut caller);
        let failures = self.failed(&mut caller);
        let processes = self.process_totals();
        self.totals.callers = sites.len() as u64;
        self.totals.run_ns = processes.iter().map(|process| process.run_ns).sum();
        self.totals.threads = processes.iter().map(|process| process.threads).sum();
        self.totals.dropped = processes.iter().map(|process| process.dropped).sum();
        let advice = advice::advice(&self.totals, &self.ranges, |what| self.durations(what));
        let repeated = self.ranges.repeated(advice.hit_ns);
        self.totals.repeated_ranges = repeated.len() as u64;
        let ranges = repeated.into_iter().take(LISTED).map(|(key, range)| Range {
            pid: trace.processes[key.process as usize].pid,
            pd: key.pd,
            addr: key.start,
            bytes: key.bytes,
            access: access::words(range.call, key.access),
            remote: access::remote(range.call, key.access),
            registrations: range.registrations.into(),
            hits: range.hits.into(),
            time_ns: range.time,
            saved_ns: range.saved(advice.hit_ns),
            caller: caller(range.site),
        });
        let ranges = ranges.collect();
        let notes = self.notes(&processes, &resolver.changed);
        Report {
            version: 1,
            trace: path.display().to_string(),
            notes,
            processes,
            advice,
            pinned: self.timeline.finish(self.totals.span_ns),
            sizes: sizes(&self.sizes),
            callers,
            ranges,
            leaks,
            failures,
            totals: self.totals,
        }
    }

    /// Of all sizes.
    fn durations(&self, what: What) -> Durations {
        let mut all = Durations::new();
        for (_, durations) in self.sizes.iter().filter(|((_, of), _)| *of == what) {
            all.merge(durations);
        }
        all
    }

    fn leaks(&mut self, caller: &mut impl FnMut(u32) -> Caller) -> Vec<Leak> {
        let mut by_site: FxHashMap<(u32, bool), (u64, u64)> = FxHashMap::default();
        for ((process, ..), region) in &self.regions {
            let ended = self.trace.processes[*process as usize].ended;
            for holder in &region.holders {
                let (regions, bytes) = by_site.entry((holder.site, ended)).or_default();
                *regions += 1;
                *bytes = bytes.saturating_add(holder.length);
                self.totals.leaked_regions += 1;
                self.totals.leaked_bytes = self.totals.leaked_bytes.saturating_add(holder.length);
            }
        }
        let mut leaks: Vec<_> = by_site.into_iter().collect();
        leaks.sort_by_key(|&(site, (regions, bytes))| (Reverse(bytes), Reverse(regions), site));
        let list = leaks
            .into_iter()
            .take(LISTED)
            .map(|((site, ended), (regions, bytes))| Leak {
                caller: caller(site),
                regions,
                bytes,
                ended,
            });
        list.collect()
    }

    fn failed(&self, caller: &mut impl FnMut(u32) -> Caller) -> Vec<Failure> {
        let mut failures: Vec<_> = self.failures.iter().collect();
        failures.sort_by_key(|(what, failure)| (Reverse(failure.count), **what));
        let list = failures
            .into_iter()
            .map(|(&(number, errno), failure)| Failure {
                call: call::NAMES
                    .get(usize::from(number))
                    .copied()
                    .unwrap_or("a call that this program does not know"),
                errno,
                name: errno::name(errno),
                count: failure.count,
                example: self.trace.reason(failure.process, failure.reason),
                caller: caller(failure.site),
            });
        list.collect()
    }

    fn process_totals(&self) -> Vec<ProcessTotals> {
        let totals = |(process, counts): (&Process, &ProcessCounts)| ProcessTotals {
            pid: process.pid,
            command: process.command.clone(),
            started: humantime::format_rfc3339_seconds(
                UNIX_EPOCH + Duration::from_nanos(process.begin),
            )
            .to_string(),
            run_ns: process.end - process.begin,
            calls: counts.calls,
            failed: counts.failed,
            time_ns: counts.time,
            threads: counts.threads.len() as u64,
            dropped: process.dropped,
            ended: process.ended,
        };
        let mut processes: Vec<_> = self.trace.processes.iter().zip(&self.processes).collect();
        processes.sort_by_key(|(process, _)| process.begin);
        processes.into_iter().map(totals).collect()
    }

    fn notes(&self, processes: &[ProcessTotals], changed: &[String]) -> Vec<String> {
        let mut notes = Vec::new();
        if self.totals.dropped > 0 {
            notes.push(format!(
                "{} were dropped, since there was no room for them: every figure here is too low.",
                units::plural(self.totals.dropped, "call", "calls")
            ));
        }
        let killed: Vec<_> = processes.iter().filter(|process| !process.ended).collect();
        match killed[..] {
            [] => {}
            [one] => notes.push(format!(
                "Process {} has not ended in order: it was killed, or called _exit, or is still running. Its last calls \
                 may be missing.",
                one.pid
            )),
            _ => notes.push(format!(
                "{} of {} processes have not ended in order: they were killed, or called _exit, or are still running. \
                 Their last calls may be missing.",
                killed.len(),
                processes.len()
            )),
        }
        notes.extend(self.trace.damage.iter().cloned());
        if self.unknown > 0 {
            notes.push(format!(
                "{} of regions whose registration is not in the trace.",
                units::plural(
                    self.unknown,
                    "hit or deregistration",
                    "hits or deregistrations"
                )
            ));
        }
        if self.taken > 0 {
            notes.push(format!(
                "The lkeys of {} came back without a deregistration in the trace: it was made past the library.",
                units::plural(self.taken, "region", "regions")
            ));
        }
        if self.ranges.forgotten {
            notes.push(format!(
                "There are more than {} ranges: some that came back only after a long time are counted as new.",
                units::count(ranges::LIMIT as u64)
            ));
        }
        notes.extend(changed.iter().map(|path| {
            format!("{path} was written after the trace had begun: functions and lines in it may be wrong.")
        }));
        notes
    }
}

impl Region {
    /// One that holds it lets go: the one with that memory, if there are several.
    fn release(&mut self, call: &Call) {
        let same = |holder: &Holder| (holder.addr, holder.length) == (call.addr, call.length);
        match self.holders.iter().rposition(same) {
            Some(at) => drop(self.holders.swap_remove(at)),
            None => drop(self.holders.pop()),
        }
    }
}

fn sizes(sizes: &FxHashMap<(u32, What), Durations>) -> Vec<Size> {
    let mut sizes: Vec<_> = sizes.iter().collect();
    sizes.sort_by_key(|(key, _)| **key);
    let row = |(&(bits, what), durations): (&(u32, What), &Durations)| Size {
        from_bytes: if bits == 0 { 0 } else { 1 << (bits - 1) },
        what,
        calls: durations.count,
        time_ns: durations.total,
        median_ns: durations.quantile(0.5),
        p99_ns: durations.quantile(0.99),
    };
    sizes.into_iter().map(row).collect()
}
