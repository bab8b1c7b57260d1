// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a report says: the page, the text and the JSON all show a [`Report`], and count nothing themselves.
use super::callers::Caller;
use crate::format::{Call, how};
use crate::trace::registers;
use serde::Serialize;

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
    pub fn bytes(&self) -> u64 {
        self.plain_bytes.saturating_add(self.pool_bytes)
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
