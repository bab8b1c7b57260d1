// SPDX-License-Identifier: MIT OR Apache-2.0
//! The figures of the report, made from the replay's counts: sorted lists, names of callers, and
//! notes in sentences.
use super::callers::{Caller, Resolver};
use super::durations::Durations;
use super::ranges::Class;
use super::replay::{ProcessCounts, Replay, SiteTotals};
use super::shape::*;
use super::units::{self, shown};
use super::{advice, errno, ranks};
use crate::trace::{Process, Trace};
use anyhow::Result;
use rdmamr_trace_format::call;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// The most entries of a list.
const LISTED: usize = 100;

impl Report {
    /// Replays a trace and makes the report.
    pub fn new(trace: &Trace, path: &Path, resolver: &mut Resolver) -> Result<Report> {
        Ok(Replay::of(trace)?.report(trace, path, resolver))
    }
}

impl Replay {
    fn report(mut self, trace: &Trace, path: &Path, resolver: &mut Resolver) -> Report {
        let sites = std::mem::take(&mut self.site_totals);
        let mut caller = |site: u32| {
            let (site, process, _) = &sites[site as usize];
            if let Some(stack) = &site.stack {
                resolver.prepare(trace, *process, &stack.native);
            }
            let mut frames = |place| resolver.at(trace, *process, place);
            Caller::new(frames(site.place), site.stack.as_deref(), frames)
        };

        let mut by_time: Vec<u32> = (0..sites.len() as u32).collect();
        by_time.sort_by_key(|&site| Reverse(sites[site as usize].2.tally.time));
        let callers = by_time.iter().take(LISTED).map(|&site| {
            let SiteTotals { tally, gpu, called } = sites[site as usize].2;
            let functions = (0..call::NAMES.len()).filter(|n| called >> n & 1 == 1);
            CallerTotals {
                caller: caller(site),
                called: functions.map(|n| call::NAMES[n]).collect(),
                calls: tally.calls,
                failed: tally.failed,
                time_ns: tally.time,
                longest_ns: tally.longest.into(),
                gpu_calls: gpu.calls,
                gpu_time_ns: gpu.time,
            }
        });
        let callers = callers.collect();
        let past = self.past(&mut caller);
        let leaks = self.leaks(trace, &mut caller);
        let failures = self.failed(&mut caller);
        let processes = self.process_totals(trace);
        let peaks = self.processes.iter().map(|process| process.peak);
        self.totals.process_peak_bytes = peaks.max().unwrap_or(0);
        let ending = || self.processes.iter().map(|process| process.ending);
        self.totals.ending_deregistrations = ending().map(|ending| ending.calls).sum();
        self.totals.ending_ns = total(ending().map(|ending| ending.time));
        self.totals.callers = sites.len() as u64;
        self.totals.run_ns = total(processes.iter().map(|process| process.run_ns));
        self.totals.threads = processes.iter().map(|process| process.threads).sum();
        self.totals.dropped = total(processes.iter().map(|process| process.dropped));
        self.totals.thread_ns = total(processes.iter().map(|process| process.thread_ns));
        let ranks = ranks::ranks(&trace.processes, &self.processes);
        let advice = self.advice();
        let again = self.again(&mut caller);
        let notes = self.notes(trace, &processes, resolver.notes());
        let latencies = self.latencies();
        let (pinned, activity, lanes) = self.timeline.finish(self.totals.span_ns);
        let mut report = Report {
            version: 3,
            trace: shown(path),
            notes,
            processes,
            ranks,
            advice,
            pinned,
            activity,
            lanes,
            sizes: sizes(&self.sizes),
            latencies,
            callers,
            again,
            past,
            leaks,
            failures,
            totals: self.totals,
        };
        advice::complete(&mut report, path);
        report
    }

    fn latencies(&self) -> Vec<Latency> {
        let mut latencies: BTreeMap<(u64, What), Latency> = BTreeMap::new();
        for (&(_, what), durations) in &self.sizes {
            for (from_ns, calls, time_ns) in durations.steps() {
                let row = latencies.entry((from_ns, what)).or_insert(Latency {
                    from_ns,
                    what,
                    calls: 0,
                    time_ns: 0,
                });
                row.calls += calls;
                row.time_ns += time_ns;
            }
        }
        latencies.into_values().collect()
    }

    /// The bounds.
    fn advice(&mut self) -> Advice {
        let unserved = std::mem::take(&mut self.ranges.unserved);
        let mut unserved = Vec::from_iter(unserved.into_values());
        unserved.sort_by_key(|of| (Reverse(of.time_ns), of.reason));
        let bound = |classes: &[Class]| self.ranges.bound(classes, &self.sizes);
        Advice {
            local: bound(&[Class::Local]),
            all: bound(&[Class::Local, Class::Remote]),
            fabric: bound(&[Class::Fabric]),
            large: self.large,
            unserved,
            ..Advice::default()
        }
    }

    /// The longest times first.
    fn again(&mut self, caller: &mut impl FnMut(u32) -> Caller) -> Vec<Again> {
        let mut again = Vec::from_iter(std::mem::take(&mut self.ranges.by_caller));
        again.sort_by_key(|(of, again)| (Reverse(again.time_ns), *of));
        self.totals.repeating_callers = again.len() as u64;
        let row = |((site, _), again)| Again {
            caller: caller(site),
            ..again
        };
        again.into_iter().take(LISTED).map(row).collect()
    }

    /// The largest sums first.
    fn past(&mut self, caller: &mut impl FnMut(u32) -> Caller) -> Vec<Past> {
        let mut past = Vec::from_iter(std::mem::take(&mut self.past));
        past.sort_by_key(|(of, past)| (Reverse(past.bytes), *of));
        self.totals.past_callers = past.len() as u64;
        let row = |((site, call), past)| Past {
            caller: caller(site),
            call: name_of(call),
            ..past
        };
        past.into_iter().take(LISTED).map(row).collect()
    }

    fn leaks(&mut self, trace: &Trace, caller: &mut impl FnMut(u32) -> Caller) -> Vec<Leak> {
        let is_known = |process: &Process| process.ended && process.tells_leaks();
        self.totals.leaks_known = trace.processes.iter().all(is_known);
        let mut leaks: HashMap<(u32, bool), Leak> = HashMap::default();
        let regions = self.regions.iter();
        let regions = regions.map(|(key, region)| (&trace.processes[key.0 as usize], region));
        for (process, region) in regions.filter(|(process, _)| process.tells_leaks()) {
            for (memory, sites) in &region.holders {
                for &site in sites {
                    let leak = leaks.entry((site, process.ended)).or_default();
                    leak.regions += 1;
                    leak.bytes = leak.bytes.saturating_add(memory.1);
                }
            }
        }
        let mut leaks = Vec::from_iter(leaks);
        leaks.sort_by_key(|(of, leak)| (Reverse(leak.bytes), Reverse(leak.regions), *of));
        let sums = |of_ended: bool| {
            let of = leaks.iter().filter(|((_, ended), _)| *ended == of_ended);
            let callers = of.clone().count() as u64;
            let regions: u64 = of.clone().map(|(_, leak)| leak.regions).sum();
            (callers, regions, total(of.map(|(_, leak)| leak.bytes)))
        };
        let of = &mut self.totals;
        (of.leaking_callers, of.leaked_regions, of.leaked_bytes) = sums(true);
        (of.cut_off_callers, of.cut_off_regions, of.cut_off_bytes) = sums(false);
        let row = |((site, ended), leak)| Leak {
            caller: caller(site),
            ended,
            ..leak
        };
        leaks.into_iter().take(LISTED).map(row).collect()
    }

    /// The most frequent first.
    fn failed(&mut self, caller: &mut impl FnMut(u32) -> Caller) -> Vec<Failure> {
        let mut failures = Vec::from_iter(std::mem::take(&mut self.failures));
        failures.sort_by_key(|(what, (failure, _))| (Reverse(failure.count), *what));
        let row = |((call, errno), (failure, site))| Failure {
            call: name_of(call),
            errno,
            name: errno::name(errno),
            caller: caller(site),
            ..failure
        };
        failures.into_iter().take(LISTED).map(row).collect()
    }

    fn process_totals(&self, trace: &Trace) -> Vec<ProcessTotals> {
        let totals = |(process, counts): (&Process, &ProcessCounts)| ProcessTotals {
            pid: process.pid,
            host: process.host.clone(),
            rank: process.rank,
            command: process.command.clone(),
            started: humantime::format_rfc3339_seconds(
                UNIX_EPOCH + Duration::from_nanos(process.begin),
            )
            .to_string(),
            run_ns: process.end - process.begin,
            thread_ns: thread_time(process, counts),
            calls: counts.tally.calls,
            failed: counts.tally.failed,
            time_ns: counts.tally.time,
            threads: counts.threads.len() as u64,
            dropped: process.dropped,
            ended: process.ended,
            stopped: process.stopped,
        };
        let mut processes: Vec<_> = trace.processes.iter().zip(&self.processes).collect();
        processes.sort_by_key(|(process, _)| process.begin);
        processes.into_iter().map(totals).collect()
    }

    fn notes(
        &self,
        trace: &Trace,
        processes: &[ProcessTotals],
        of_names: Vec<String>,
    ) -> Vec<String> {
        let mut notes = Vec::new();
        if self.totals.dropped > 0 {
            notes.push(format!(
                "{} not in the trace, because it reached RDMAMR_TRACE_LIMIT or no buffer was free. The figures lack \
                 them, and which regions were left registered is not known.",
                units::plural(self.totals.dropped, "call is", "calls are")
            ));
        }
        for process in processes.iter().filter(|process| process.stopped) {
            notes.push(format!(
                "Process {} ran on when the recording stopped. Its calls after that are not in the trace, and which \
                 regions it leaves registered is not known.",
                process.pid
            ));
        }
        let killed = processes.iter().filter(|of| !of.ended && !of.stopped);
        let killed: Vec<_> = killed.collect();
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
        notes.extend(trace.damage.iter().cloned());
        if self.unknown > 0 {
            let (one, many) = ("hit or deregistration", "hits or deregistrations");
            notes.push(format!(
                "{} of regions whose registration is not in the trace.",
                units::plural(self.unknown, one, many)
            ));
        }
        if self.taken > 0 {
            notes.push(format!(
                "The lkeys of {} were given again without a deregistration in the trace: it bypassed the \
                 library.",
                units::plural(self.taken, "region", "regions")
            ));
        }
        notes.extend(of_names);
        notes
    }
}

pub fn name_of(call: u8) -> &'static str {
    let name = call::NAMES.get(usize::from(call)).copied();
    name.unwrap_or("a call that this program does not know")
}

/// The time of a process's threads. At least that of the process: its main thread may not register.
fn thread_time(process: &Process, counts: &ProcessCounts) -> u64 {
    let run = process.end - process.begin;
    let threads = counts.threads.iter();
    let threads = threads.map(|(&thread, &(begin, end))| match thread == process.pid {
        true => run,
        false => end.saturating_sub(begin),
    });
    total(threads).max(run)
}

fn sizes(sizes: &BTreeMap<(u32, What), Durations>) -> Vec<Size> {
    let row = |(&(bits, what), durations): (&(u32, What), &Durations)| Size {
        from_bytes: if bits == 0 { 0 } else { 1 << (bits - 1) },
        what,
        calls: durations.count,
        time_ns: durations.total,
        median_ns: durations.quantile(0.5),
        p99_ns: durations.quantile(0.99),
    };
    sizes.iter().map(row).collect()
}

/// A sum of numbers that a trace claims, which may be anything.
fn total(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}
