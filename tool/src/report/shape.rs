// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of a report. The page, the text and the JSON all show a [`Report`] and count nothing
//! themselves.
use super::callers::Caller;
use crate::format::{Call, how};
use crate::trace::registers;
use serde::Serialize;

/// The figures of a trace. Each field's name ends in its unit. Durations are in ns; points in time
/// are in ns since the start of the trace.
#[derive(Serialize)]
pub struct Report {
    /// The version of this shape: added fields do not change it.
    pub version: u32,
    pub trace: String,
    /// Reasons for which the figures are incomplete, in sentences.
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
    /// The sum of the processes' run times.
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
    /// Regions that the pool deregistered by itself.
    pub pool_deregistrations: u64,
    /// The numbers of callers and of ranges registered more than once, including those not listed.
    pub callers: u64,
    pub repeated_ranges: u64,
    /// Regions that were registered and never deregistered.
    pub leaked_regions: u64,
    pub leaked_bytes: u64,
}

#[derive(Clone, Serialize)]
pub struct ProcessTotals {
    pub pid: u32,
    pub command: Vec<String>,
    /// The time in UTC, as in RFC 3339.
    pub started: String,
    pub run_ns: u64,
    pub calls: u64,
    pub failed: u64,
    pub time_ns: u64,
    pub threads: u64,
    pub dropped: u64,
    /// The process has written its last block: it was not killed and does not run any more.
    pub ended: bool,
}

/// The time that the pool would have saved in this trace.
#[derive(Default, Serialize)]
pub struct Advice {
    /// The advice.
    pub sentence: String,
    /// The assumptions behind the figures.
    pub assumption: String,
    /// The cost of a hit and its deregistration, and whether this trace measured it.
    pub hit_ns: u64,
    pub hit_measured: bool,
    /// The saving with `--cache=local`, with `--cache=all` (which includes the former), and for
    /// regions of libfabric's calls (which neither includes).
    pub local: Saving,
    pub all: Saving,
    pub fabric: Saving,
    /// Plain registrations that the pool would not serve; the reason with the most time comes
    /// first.
    pub unserved: Vec<Unserved>,
}

/// Plain registrations that the pool would not serve for one reason.
#[derive(Serialize)]
pub struct Unserved {
    pub reason: &'static str,
    pub registrations: u64,
    pub time_ns: u64,
}

#[derive(Default, Serialize)]
pub struct Saving {
    pub ranges: u64,
    pub hits: u64,
    pub saved_ns: u64,
}

/// Pinned whole pages. Pages that are registered several times count several times, as the kernel
/// counts them against RLIMIT_MEMLOCK.
#[derive(Serialize)]
pub struct Pinned {
    pub peak_bytes: u64,
    pub peak_plain_bytes: u64,
    pub peak_pool_bytes: u64,
    pub peak_at_ns: u64,
    pub end_bytes: u64,
    /// Each point gives the most that was pinned at one moment, from the point up to the next.
    pub points: Vec<Point>,
}

#[derive(Clone, Copy, Default, PartialEq, Serialize)]
pub struct Point {
    pub time_ns: u64,
    pub plain_bytes: u64,
    pub pool_bytes: u64,
}

impl Point {
    pub fn bytes(&self) -> u64 {
        self.plain_bytes.saturating_add(self.pool_bytes)
    }
}

/// The effect of a call in the table of sizes.
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
    pub fn of(call: &Call) -> What {
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
    /// Names of the functions that were called from here.
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
    /// Peers have access rights.
    pub remote: bool,
    pub registrations: u64,
    /// How many of the registrations would have been hits.
    pub hits: u64,
    /// The time of the range's registrations and deregistrations.
    pub time_ns: u64,
    pub saved_ns: u64,
    /// The caller that registered the range first.
    pub caller: Caller,
}

#[derive(Serialize)]
pub struct Leak {
    pub caller: Caller,
    pub regions: u64,
    pub bytes: u64,
    /// True if the process ended in order, and so had forgotten the regions. False if the regions
    /// were in use when the process ended.
    pub ended: bool,
}

#[derive(Serialize)]
pub struct Failure {
    pub call: &'static str,
    pub errno: u16,
    pub name: String,
    pub count: u64,
    /// The reason of one such failure.
    pub example: Option<String>,
    /// The caller that got that reason.
    pub caller: Caller,
}
