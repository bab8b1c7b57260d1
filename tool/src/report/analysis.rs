// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a trace to the figures of the report. The page, the text and the JSON all show a [`Report`], and count nothing
//! themselves.
use super::callers::{Caller, Resolver};
use super::{errno, units};
use crate::format::{Call, call, how};
use crate::trace::{Event, Process, Trace, pooled, registers};
use anyhow::Result;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::cmp::Reverse;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// How long the lists are.
const LISTED: usize = 100;
/// Points of the plot of pinned bytes.
const POINTS: u64 = 800;
/// When so many ranges are known, those that have been registered only once are forgotten.
const RANGES: usize = 1 << 20;
/// What a hit and its deregistration are taken to cost when the trace has none, in ns: 0.2 us, and the trace's own time.
const HIT_NS: u64 = 400;
/// How many hits make a median.
const ENOUGH_HITS: u64 = 10;
/// How long the pool keeps a region by default, in ns: with remote rights, and without.
const LINGER_REMOTE: u64 = 1_000_000_000;
const LINGER_LOCAL: u64 = 60_000_000_000;

/// What the trace says. Names end in their unit; times are in ns, and points in time since the start of the trace.
#[derive(Serialize)]
pub struct Report {
    /// Of this shape: fields may be added to it without a change.
    pub version: u32,
    pub trace: String,
    /// What makes the figures less than the whole truth, in sentences.
    pub notes: Vec<String>,
    pub totals: Totals,
    pub processes: Vec<ProcessTotals>,
    pub advice: Advice,
    pub pinned: Pinned,
    pub sizes: Vec<Size>,
    pub callers: Vec<CallerTotals>,
    pub ranges: Vec<Range>,
    pub leaks: Vec<Leak>,
    pub failures: Vec<Failure>,
}

#[derive(Default, Serialize)]
pub struct Totals {
    pub calls: u64,
    pub failed: u64,
    pub dropped: u64,
    /// Time in calls, of all threads.
    pub time_ns: u64,
    /// How long the processes ran, one added to the other.
    pub run_ns: u64,
    /// From the first moment of the trace to its last.
    pub span_ns: u64,
    pub threads: u64,
    pub registrations: u64,
    pub hits: u64,
    pub misses: u64,
    pub deregistrations: u64,
    /// Deregistrations that left the region to the pool.
    pub kept: u64,
    /// What the pool has deregistered itself.
    pub pool_deregistrations: u64,
    /// Callers, ranges that were registered more than once: those that are not listed too.
    pub callers: u64,
    pub repeated_ranges: u64,
    /// Registered, and never deregistered.
    pub leaked_regions: u64,
    pub leaked_bytes: u64,
}

#[derive(Clone, Serialize)]
pub struct ProcessTotals {
    pub pid: u32,
    pub command: Vec<String>,
    /// UTC, as RFC 3339 has it.
    pub started: String,
    pub run_ns: u64,
    pub calls: u64,
    pub failed: u64,
    pub time_ns: u64,
    pub threads: u64,
    pub dropped: u64,
    /// It has written its last block: neither killed, nor still running.
    pub ended: bool,
}

/// What the pool would have saved of this trace.
#[derive(Default, Serialize)]
pub struct Advice {
    /// What to do.
    pub sentence: String,
    /// What the figures are founded on.
    pub assumption: String,
    /// A hit and its deregistration, and whether this is of this trace.
    pub hit_ns: u64,
    pub hit_measured: bool,
    /// With `--cache=local`; with `--cache=all`, which has the former in it; regions of libfabric's calls, which neither
    /// has in it.
    pub local: Saving,
    pub all: Saving,
    pub fabric: Saving,
}

#[derive(Default, Serialize)]
pub struct Saving {
    pub ranges: u64,
    pub hits: u64,
    pub saved_ns: u64,
}

/// Whole pages, as often as they are registered: so the kernel counts them against RLIMIT_MEMLOCK.
#[derive(Serialize)]
pub struct Pinned {
    pub peak_bytes: u64,
    pub peak_plain_bytes: u64,
    pub peak_pool_bytes: u64,
    pub peak_at_ns: u64,
    pub end_bytes: u64,
    /// From each on, up to the next: the most that was pinned at one moment.
    pub points: Vec<Point>,
}

#[derive(Clone, Copy, Default, PartialEq, Serialize)]
pub struct Point {
    pub time_ns: u64,
    pub plain_bytes: u64,
    pub pool_bytes: u64,
}

impl Point {
    fn bytes(&self) -> u64 {
        self.plain_bytes + self.pool_bytes
    }
}

/// What a call of the table of sizes did.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    Plain,
    Hit,
    Miss,
    Deregister,
    Kept,
}

impl What {
    fn of(call: &Call) -> What {
        match (registers(call.call), call.how) {
            (true, how::HIT) => What::Hit,
            (true, how::MISS) => What::Miss,
            (true, _) => What::Plain,
            (false, how::KEPT) => What::Kept,
            (false, _) => What::Deregister,
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            What::Plain => "register, plain",
            What::Hit => "register, hit",
            What::Miss => "register, miss",
            What::Deregister => "deregister",
            What::Kept => "deregister, kept",
        }
    }
}

/// Calls with lengths from `from_bytes` up to, but not with, twice that.
#[derive(Serialize)]
pub struct Size {
    pub from_bytes: u64,
    pub what: What,
    pub calls: u64,
    pub time_ns: u64,
    pub median_ns: u64,
    pub p99_ns: u64,
}

#[derive(Serialize)]
pub struct CallerTotals {
    #[serde(flatten)]
    pub caller: Caller,
    /// Names of what it called.
    pub called: Vec<&'static str>,
    pub calls: u64,
    pub failed: u64,
    pub time_ns: u64,
    pub longest_ns: u64,
}

/// The same pages in the same domain with the same access, registered more than once.
#[derive(Serialize)]
pub struct Range {
    pub pid: u32,
    pub pd: u64,
    pub addr: u64,
    pub bytes: u64,
    pub access: String,
    /// Peers have rights.
    pub remote: bool,
    pub registrations: u64,
    /// How many of them would have been hits.
    pub hits: u64,
    /// The time of its registrations and deregistrations.
    pub time_ns: u64,
    pub saved_ns: u64,
    /// Who registered it first.
    pub caller: Caller,
}

#[derive(Serialize)]
pub struct Leak {
    pub caller: Caller,
    pub regions: u64,
    pub bytes: u64,
    /// The process has ended in order: it has forgotten the regions. Else they were in use when it ended.
    pub ended: bool,
}

#[derive(Serialize)]
pub struct Failure {
    pub call: &'static str,
    pub errno: u16,
    pub name: String,
    pub count: u64,
    /// One of the reasons.
    pub example: Option<String>,
    /// Who got that.
    pub caller: Caller,
}

/// Durations, so that any quantile can be had: 32 classes for each power of two, and the mean of each class.
struct Durations {
    classes: Box<[(u64, u64)]>,
    count: u64,
    total: u64,
}

impl Durations {
    fn new() -> Durations {
        Durations {
            classes: vec![(0, 0); 28 * 32].into(),
            count: 0,
            total: 0,
        }
    }

    fn add(&mut self, ns: u32) {
        let class = match ns {
            0..32 => ns,
            _ => (ns.ilog2() - 4) * 32 + (ns >> (ns.ilog2() - 5) & 31),
        };
        let (count, total) = &mut self.classes[class as usize];
        *count += 1;
        *total += u64::from(ns);
        self.count += 1;
        self.total += u64::from(ns);
    }

    fn quantile(&self, part: f64) -> u64 {
        let mut left = ((self.count as f64 * part).ceil() as u64).max(1);
        for &(count, total) in &self.classes {
            if left <= count {
                return (total as f64 / count as f64).round() as u64;
            }
            left -= count;
        }
        0
    }
}

/// How access flags are written: those of verbs, or of libfabric's calls.
const VERBS: &[(u32, &str)] = &[
    (1, "local_write"),
    (2, "remote_write"),
    (4, "remote_read"),
    (8, "remote_atomic"),
    (16, "mw_bind"),
    (32, "zero_based"),
    (64, "on_demand"),
    (128, "hugetlb"),
    (256, "flush_global"),
    (512, "flush_persistent"),
    (1 << 20, "relaxed_ordering"),
];
const VERBS_REMOTE: u32 = 2 | 4 | 8;
const ON_DEMAND: u32 = 64;
/// With which the pool keeps no region: window binding, zero-based, on demand, huge pages.
const NOT_KEPT: u32 = 16 | 32 | 64 | 128;
const FABRIC: &[(u32, &str)] = &[
    (1 << 8, "FI_READ"),
    (1 << 9, "FI_WRITE"),
    (1 << 10, "FI_RECV"),
    (1 << 11, "FI_SEND"),
    (1 << 12, "FI_REMOTE_READ"),
    (1 << 13, "FI_REMOTE_WRITE"),
];
const FABRIC_REMOTE: u32 = 1 << 12 | 1 << 13;

fn of_fabric(call: u8) -> bool {
    matches!(
        call,
        call::FI_MR_REG | call::FI_MR_REGV | call::FI_MR_REGATTR | call::FI_CLOSE
    )
}

fn remote(call: u8, access: u32) -> bool {
    access
        & if of_fabric(call) {
            FABRIC_REMOTE
        } else {
            VERBS_REMOTE
        }
        != 0
}

fn access_words(call: u8, access: u32) -> String {
    let names = if of_fabric(call) { FABRIC } else { VERBS };
    let mut words: Vec<_> = names
        .iter()
        .filter(|(flag, _)| access & flag != 0)
        .map(|(_, name)| name.to_string())
        .collect();
    let others = names
        .iter()
        .fold(access, |access, (flag, _)| access & !flag);
    if others != 0 {
        words.push(format!("{others:#x}"));
    }
    if words.is_empty() {
        "local_read".to_string()
    } else {
        words.join(" ")
    }
}

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

/// A registration that the program has not taken back.
struct Holder {
    addr: u64,
    length: u64,
    site: u32,
}

/// A region that is pinned.
struct Region {
    /// How it was made: of a plain one.
    range: Option<RangeKey>,
    pinned: u64,
    pool: bool,
    holders: Vec<Holder>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct RangeKey {
    process: u32,
    access: u32,
    pd: u64,
    start: u64,
    bytes: u64,
}

struct RangeTotals {
    call: u8,
    site: u32,
    registrations: u32,
    deregistrations: u32,
    /// How many are registered at the moment, and since when it is none.
    live: u32,
    idle: u64,
    hits: u32,
    time: u64,
    /// Of the registrations that would have been hits, and of the deregistrations.
    hit_time: u64,
    deregister_time: u64,
}

impl RangeTotals {
    fn saved(&self, hit_ns: u64) -> u64 {
        // All but one deregistration would have been kept for each registration that would have been made.
        let kept = self.deregistrations.min(self.hits);
        let deregistrations = match self.deregistrations {
            0 => 0,
            all => (u128::from(self.deregister_time) * u128::from(kept) / u128::from(all)) as u64,
        };
        (self.hit_time + deregistrations).saturating_sub(u64::from(self.hits) * hit_ns)
    }
}

#[derive(Clone, Default)]
struct ProcessCounts {
    calls: u64,
    failed: u64,
    time: u64,
    threads: FxHashSet<u32>,
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
    /// How long a point of the plot is.
    step: u64,
    totals: Totals,
    processes: Vec<ProcessCounts>,
    /// Where addresses are, by process, list of modules and address.
    sites: FxHashMap<(u32, u32, u64), u32>,
    site_numbers: FxHashMap<Site, u32>,
    site_totals: Vec<(Site, u32, SiteTotals)>,
    regions: FxHashMap<(u32, u32, u64), Region>,
    ranges: FxHashMap<RangeKey, RangeTotals>,
    ranges_limit: usize,
    ranges_forgotten: bool,
    sizes: FxHashMap<(u32, What), Durations>,
    now: Point,
    peak: Point,
    points: Vec<Point>,
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
        let mut analysis = Analysis {
            trace,
            begin,
            step: span / POINTS + 1,
            totals: Totals {
                span_ns: span,
                ..Totals::default()
            },
            processes: vec![ProcessCounts::default(); trace.processes.len()],
            sites: FxHashMap::default(),
            site_numbers: FxHashMap::default(),
            site_totals: Vec::new(),
            regions: FxHashMap::default(),
            ranges: FxHashMap::default(),
            ranges_limit: RANGES,
            ranges_forgotten: false,
            sizes: FxHashMap::default(),
            now: Point::default(),
            peak: Point::default(),
            points: vec![Point::default()],
            failures: FxHashMap::default(),
            unknown: 0,
            taken: 0,
        };
        trace.calls(|event| analysis.see(event))?;
        analysis.advance(span);
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
        if call.call == call::POOL {
            self.totals.pool_deregistrations += 1;
            if let Some(region) = self.regions.remove(&(*process, call.lkey, call.pd)) {
                self.unpin(since, &region);
            }
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
        // Memory of a device, and memory that is paged on demand, is not pinned.
        let pinned = match call.call {
            call::REG_DMABUF_MR => 0,
            _ if !of_fabric(call.call) && call.access & ON_DEMAND != 0 => 0,
            _ => bytes,
        };
        let kept = call.call != call::REG_DMABUF_MR
            && (of_fabric(call.call) || call.access & NOT_KEPT == 0);
        let range = (!pool && kept).then_some(RangeKey {
            process,
            access: call.access,
            pd: call.pd,
            start,
            bytes,
        });
        if let Some(range) = range {
            self.range(range, site, since, call);
        }
        if let Some(before) = self.regions.remove(&key) {
            self.taken += 1;
            if let Some(range) = before.range.and_then(|range| self.ranges.get_mut(&range)) {
                range.live = range.live.saturating_sub(1);
            }
            self.unpin(since, &before);
        }
        let region = Region {
            range,
            pinned,
            pool,
            holders: vec![holder],
        };
        self.pin(since, &region);
        self.regions.insert(key, region);
    }

    fn range(&mut self, key: RangeKey, site: u32, since: u64, call: &Call) {
        if self.ranges.len() >= self.ranges_limit {
            self.ranges.retain(|_, range| range.registrations > 1);
            self.ranges_limit = RANGES.max(2 * self.ranges.len());
            self.ranges_forgotten = true;
        }
        let range = self.ranges.entry(key).or_insert(RangeTotals {
            call: call.call,
            site,
            registrations: 0,
            deregistrations: 0,
            live: 0,
            idle: 0,
            hits: 0,
            time: 0,
            hit_time: 0,
            deregister_time: 0,
        });
        let linger = if remote(call.call, call.access) {
            LINGER_REMOTE
        } else {
            LINGER_LOCAL
        };
        if range.registrations > 0 && (range.live > 0 || since.saturating_sub(range.idle) <= linger)
        {
            range.hits += 1;
            range.hit_time += u64::from(call.duration);
        }
        range.registrations += 1;
        range.live += 1;
        range.time += u64::from(call.duration);
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
        self.unpin(since, &region);
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
        self.pin(since, &region);
        self.regions.insert(key, region);
        true
    }

    fn deregister(&mut self, process: u32, since: u64, call: &Call) {
        self.totals.deregistrations += 1;
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
        if let Some(range) = region.range.and_then(|range| self.ranges.get_mut(&range)) {
            range.deregistrations += 1;
            range.live = range.live.saturating_sub(1);
            range.idle = since;
            range.time += u64::from(call.duration);
            range.deregister_time += u64::from(call.duration);
        }
        if let Some(region) = self.regions.remove(&key) {
            self.unpin(since, &region);
        }
    }

    /// Lets the plot's time run to a moment.
    fn advance(&mut self, since: u64) {
        let at = (since / self.step) as usize;
        while self.points.len() <= at {
            self.points.push(Point {
                time_ns: self.points.len() as u64 * self.step,
                ..self.now
            });
        }
    }

    fn pin(&mut self, since: u64, region: &Region) {
        self.advance(since);
        let bytes = if region.pool {
            &mut self.now.pool_bytes
        } else {
            &mut self.now.plain_bytes
        };
        *bytes += region.pinned;
        if self.now.bytes() > self.peak.bytes() {
            self.peak = Point {
                time_ns: since,
                ..self.now
            };
        }
        let point = self.points.last_mut().expect("there is a first point");
        if self.now.bytes() > point.bytes() {
            *point = Point {
                time_ns: point.time_ns,
                ..self.now
            };
        }
    }

    fn unpin(&mut self, since: u64, region: &Region) {
        self.advance(since);
        let bytes = if region.pool {
            &mut self.now.pool_bytes
        } else {
            &mut self.now.plain_bytes
        };
        *bytes -= region.pinned;
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
        let advice = self.advice();
        let ranges = self.repeated(advice.hit_ns, &mut caller);
        let leaks = self.leaks(&mut caller);
        let failures = self.failed(&mut caller);
        let processes = self.process_totals();
        self.totals.callers = sites.len() as u64;
        self.totals.run_ns = processes.iter().map(|process| process.run_ns).sum();
        self.totals.threads = processes.iter().map(|process| process.threads).sum();
        self.totals.dropped = processes.iter().map(|process| process.dropped).sum();
        let notes = self.notes(&processes, &resolver.changed);
        Report {
            version: 1,
            trace: path.display().to_string(),
            notes,
            processes,
            advice: Advice {
                sentence: advice.sentence(&self.totals),
                ..advice
            },
            pinned: Pinned {
                peak_bytes: self.peak.bytes(),
                peak_plain_bytes: self.peak.plain_bytes,
                peak_pool_bytes: self.peak.pool_bytes,
                peak_at_ns: self.peak.time_ns,
                end_bytes: self.now.bytes(),
                points: self.points,
            },
            sizes: sizes(&self.sizes),
            callers,
            ranges,
            leaks,
            failures,
            totals: self.totals,
        }
    }

    fn advice(&self) -> Advice {
        let median = |what| {
            let of: Vec<_> = self
                .sizes
                .iter()
                .filter(|((_, of), _)| *of == what)
                .map(|(_, durations)| durations)
                .collect();
            let mut all = Durations::new();
            for durations in of {
                all.count += durations.count;
                for (into, from) in all.classes.iter_mut().zip(&durations.classes) {
                    *into = (into.0 + from.0, into.1 + from.1);
                }
            }
            (all.count >= ENOUGH_HITS).then(|| all.quantile(0.5))
        };
        let measured = median(What::Hit)
            .zip(median(What::Kept))
            .map(|(hit, kept)| hit + kept);
        let hit_ns = measured.unwrap_or(HIT_NS);
        let mut advice = Advice {
            hit_ns,
            hit_measured: measured.is_some(),
            ..Advice::default()
        };
        for (key, range) in self.ranges.iter().filter(|(_, range)| range.hits > 0) {
            let mut add = |saving: &mut Saving| {
                saving.ranges += 1;
                saving.hits += u64::from(range.hits);
                saving.saved_ns += range.saved(hit_ns);
            };
            if of_fabric(range.call) {
                add(&mut advice.fabric);
                continue;
            }
            add(&mut advice.all);
            if !remote(range.call, key.access) {
                add(&mut advice.local);
            }
        }
        advice.assumption = format!(
            "A registration counts as saved if the same pages of the same protection domain were registered with the \
             same access before and are in use, or were let go not longer ago than the pool keeps them by default (1 s \
             where peers have rights, 60 s where not). In its place and that of its deregistration stands a hit of {} \
             ({}). A program that unmaps the memory in between saves less; the pool's limits on kept regions are not \
             regarded.",
            units::time(hit_ns),
            if advice.hit_measured {
                "the median of this trace"
            } else {
                "assumed: this trace has no hits to measure"
            },
        );
        advice
    }

    fn repeated(&mut self, hit_ns: u64, caller: &mut impl FnMut(u32) -> Caller) -> Vec<Range> {
        let mut repeated: Vec<_> = self
            .ranges
            .iter()
            .filter(|(_, range)| range.registrations > 1)
            .collect();
        self.totals.repeated_ranges = repeated.len() as u64;
        repeated.sort_by_key(|(key, range)| {
            (Reverse(range.saved(hit_ns)), Reverse(range.time), key.start)
        });
        let list = repeated.into_iter().take(LISTED).map(|(key, range)| Range {
            pid: self.trace.processes[key.process as usize].pid,
            pd: key.pd,
            addr: key.start,
            bytes: key.bytes,
            access: access_words(range.call, key.access),
            remote: remote(range.call, key.access),
            registrations: range.registrations.into(),
            hits: range.hits.into(),
            time_ns: range.time,
            saved_ns: range.saved(hit_ns),
            caller: caller(range.site),
        });
        list.collect()
    }

    fn leaks(&mut self, caller: &mut impl FnMut(u32) -> Caller) -> Vec<Leak> {
        let mut by_site: FxHashMap<(u32, bool), (u64, u64)> = FxHashMap::default();
        for ((process, ..), region) in &self.regions {
            let ended = self.trace.processes[*process as usize].ended;
            for holder in &region.holders {
                let (regions, bytes) = by_site.entry((holder.site, ended)).or_default();
                *regions += 1;
                *bytes += holder.length;
                self.totals.leaked_regions += 1;
                self.totals.leaked_bytes += holder.length;
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
        self.trace
            .processes
            .iter()
            .zip(&self.processes)
            .map(totals)
            .collect()
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
        if self.ranges_forgotten {
            notes.push(format!(
                "There are more than {} ranges: some that came back only after a long time are counted as new.",
                units::count(RANGES as u64)
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

impl Advice {
    fn sentence(&self, totals: &Totals) -> String {
        let share = |saving: &Saving| {
            format!(
                "{} ({} of the run time)",
                units::time(saving.saved_ns),
                units::share(saving.saved_ns, totals.run_ns)
            )
        };
        let pool = if totals.hits > 0 {
            format!(
                "The pool has already served {} of the registrations. ",
                units::share(totals.hits, totals.registrations)
            )
        } else {
            String::new()
        };
        let (local, all, fabric) = (&self.local, &self.all, &self.fabric);
        let what = if all.saved_ns == 0 {
            "No plain region was registered again soon enough for the pool to save anything."
                .to_string()
        } else if local.saved_ns == 0 {
            format!(
                "\"rdmamr run --cache=all -- program\" would have saved {} of this trace; --cache=local nothing, since peers \
                 have rights to all that is registered again.",
                share(all)
            )
        } else if local.hits == all.hits {
            format!(
                "\"rdmamr run --cache=local -- program\" would have saved {} of this trace.",
                share(all)
            )
        } else {
            format!(
                "\"rdmamr run --cache=local -- program\" would have saved {} of this trace, and --cache=all, which also keeps \
                 regions that peers can reach, {}.",
                share(local),
                share(all)
            )
        };
        let fabric = match fabric.saved_ns {
            0 => String::new(),
            _ => format!(
                " RDMAMR_FABRIC_RELAXED=1 would have saved {} of libfabric's calls.",
                share(fabric)
            ),
        };
        pool + &what + &fabric
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
