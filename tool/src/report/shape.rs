// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of a report. The page, the text and the JSON all show a [`Report`] and count nothing
//! themselves.
use super::callers::Caller;
use rdmamr_trace_format::call::registers;
use rdmamr_trace_format::{Call, how};
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
    pub ranks: Ranks,
    pub advice: Advice,
    pub pinned: Pinned,
    pub activity: Activity,
    pub lanes: Vec<Lane>,
    pub sizes: Vec<Size>,
    pub latencies: Vec<Latency>,
    pub callers: Vec<CallerTotals>,
    pub again: Vec<Again>,
    pub past: Vec<Past>,
    pub leaks: Vec<Leak>,
    pub failures: Vec<Failure>,
}

#[derive(Default, Serialize)]
pub struct Totals {
    pub calls: u64,
    pub failed: u64,
    pub dropped: u64,
    /// The calls whose call stack is in the trace.
    pub calls_with_stack: u64,
    /// Time in calls, of all threads.
    pub time_ns: u64,
    /// The sum of the processes' run times.
    pub run_ns: u64,
    /// The sum of the threads' times: the main thread's from the start to the end of its process,
    /// another's from its first call to the end of its last.
    pub thread_ns: u64,
    /// From the first moment of the trace to its last.
    pub span_ns: u64,
    pub threads: u64,
    pub registrations: u64,
    pub hits: u64,
    pub misses: u64,
    /// Registrations of a GPU's memory as a dma-buf, the time in them, and the most bytes of it that
    /// were registered at once. The kernel pins no page for them.
    pub gpu: u64,
    pub gpu_ns: u64,
    pub gpu_peak_bytes: u64,
    pub deregistrations: u64,
    /// Deregistrations that left the region in the cache.
    pub kept: u64,
    /// The deregistrations that ended regions after the last registration of their process, and the
    /// time in them.
    pub ending_deregistrations: u64,
    pub ending_ns: u64,
    /// Registrations past the library, by libmlx5's own calls, and the sum of their lengths.
    pub past_registrations: u64,
    pub past_bytes: u64,
    pub past_callers: u64,
    /// Regions that the cache deregistered by itself.
    pub cache_deregistrations: u64,
    /// The most that one process had pinned at once.
    pub process_peak_bytes: u64,
    /// The number of callers, and of those whose registrations came back, by access, including those
    /// not listed.
    pub callers: u64,
    pub repeating_callers: u64,
    /// Whether the trace tells for every process which regions it left registered: none is cut off.
    pub leaks_known: bool,
    /// Regions that were registered and never deregistered.
    pub leaked_regions: u64,
    pub leaked_bytes: u64,
    pub leaking_callers: u64,
    /// Regions that were registered where the trace of their process is cut off.
    pub cut_off_regions: u64,
    pub cut_off_bytes: u64,
    pub cut_off_callers: u64,
}

#[derive(Clone, Serialize)]
pub struct ProcessTotals {
    pub pid: u32,
    /// The host of the process, and its number in its job.
    pub host: Option<String>,
    pub rank: Option<u32>,
    pub command: Vec<String>,
    /// The time in UTC, as in RFC 3339.
    pub started: String,
    pub run_ns: u64,
    /// The time of its threads, as in [`Totals::thread_ns`].
    pub thread_ns: u64,
    pub calls: u64,
    pub failed: u64,
    pub time_ns: u64,
    pub threads: u64,
    pub dropped: u64,
    /// The process has written its last block: it was not killed and does not run any more.
    pub ended: bool,
    /// `rdmamr trace` stopped recording it, and it ran on.
    pub stopped: bool,
}

/// What the report's first line says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    TryIt,
    #[default]
    NotWorthIt,
    /// The trace does not tell.
    CannotKnow,
    /// The cache was on and serves what can be served.
    Served,
    /// Large registrations cost more than the cache could save.
    Prefault,
    /// The cache saves nothing, and registrations of a GPU's memory need the library.
    Gpu,
}

#[derive(Clone, Default, Serialize)]
pub struct Verdict {
    pub kind: Kind,
    /// The verdict in one line.
    pub line: String,
}

/// What the cache could save at most, and how to find out what it saves.
#[derive(Default, Serialize)]
pub struct Advice {
    pub verdict: Verdict,
    /// The reasons for the verdict, and the price.
    pub sentence: String,
    /// The commands to type next, if the cache is worth a trial: those that run the program with the
    /// cache, for a job one for each launcher, and the one that compares the trial with this trace,
    /// if that can be read again.
    pub next: Vec<String>,
    /// The bounds of `--cache=local`, of `--cache=all` (which includes the former), and of libfabric's
    /// calls (which neither includes).
    pub local: Bound,
    pub all: Bound,
    pub fabric: Bound,
    /// Registrations of [`LARGE`] bytes and more that no cached region served, and their time.
    pub large: Bound,
    /// Plain registrations that the cache does not serve; the reason with the most time comes first.
    pub unserved: Vec<Unserved>,
}

/// The length from which on `--prefault` populates memory.
pub const LARGE: u64 = 16 << 20;

/// Plain registrations that the cache does not serve for one reason.
#[derive(Default, Serialize)]
pub struct Unserved {
    pub reason: &'static str,
    pub registrations: u64,
    pub time_ns: u64,
}

/// The most that the cache saves.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Bound {
    /// The registrations that came back: an idle region might have served them.
    pub registrations: u64,
    /// The time of these and of their deregistrations. Of an outlier it has the median of the calls of
    /// that length.
    pub most_ns: u64,
    /// The calls that took far longer than their median, and the time beyond it.
    pub outliers: u64,
    pub outlier_ns: u64,
}

/// Pinned whole pages. Pages that are registered several times count several times, as the kernel
/// counts them against RLIMIT_MEMLOCK.
#[derive(Serialize)]
pub struct Pinned {
    pub peak_bytes: u64,
    pub peak_plain_bytes: u64,
    pub peak_cache_bytes: u64,
    pub peak_at_ns: u64,
    pub end_bytes: u64,
    /// Each point gives the most that was pinned at one moment, from the point up to the next.
    pub points: Vec<Point>,
}

#[derive(Clone, Copy, Default, PartialEq, Serialize)]
pub struct Point {
    pub time_ns: u64,
    pub plain_bytes: u64,
    pub cache_bytes: u64,
}

impl Point {
    pub fn bytes(&self) -> u64 {
        self.plain_bytes.saturating_add(self.cache_bytes)
    }

    /// The same at another time.
    pub fn at(self, time_ns: u64) -> Point {
        Point { time_ns, ..self }
    }
}

/// The ranks of a job.
#[derive(Default, Serialize)]
pub struct Ranks {
    pub hosts: u64,
    /// The mean of the ranks' times in calls, and the part of it by which the slowest exceeds it.
    pub mean_ns: u64,
    pub imbalance: f64,
    /// The slowest first: the one with the most time in calls.
    pub list: Vec<Rank>,
}

/// The processes of a rank on a host, or a process without a rank.
#[derive(Default, Serialize)]
pub struct Rank {
    pub rank: Option<u32>,
    pub host: Option<String>,
    pub pids: Vec<u32>,
    pub calls: u64,
    pub failed: u64,
    pub registrations: u64,
    pub hits: u64,
    pub time_ns: u64,
    pub longest_ns: u64,
    /// The longest run time of its processes, and their highest peak of pinned memory.
    pub run_ns: u64,
    pub peak_bytes: u64,
}

/// Calls over time.
#[derive(Serialize)]
pub struct Activity {
    pub step_ns: u64,
    /// The steps that have calls.
    pub moments: Vec<Moment>,
}

#[derive(Clone, Default, Serialize)]
pub struct Moment {
    pub time_ns: u64,
    pub calls: u64,
    pub mean_ns: u64,
    pub longest_ns: u64,
}

/// A process in the timeline.
#[derive(Serialize)]
pub struct Lane {
    pub rank: Option<u32>,
    pub host: Option<String>,
    pub pid: u32,
    pub begin_ns: u64,
    pub end_ns: u64,
    pub step_ns: u64,
    /// The time in calls of each step.
    pub busy_ns: Vec<u64>,
}

/// Calls that took from `from_ns` up to the next row's.
#[derive(Serialize)]
pub struct Latency {
    pub from_ns: u64,
    pub what: What,
    pub calls: u64,
    pub time_ns: u64,
}

/// The effect of a call in the table of sizes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    Plain,
    Hit,
    Miss,
    /// A GPU's memory, as a dma-buf.
    Gpu,
    /// Past the library.
    Past,
    Deregister,
    Kept,
}

impl What {
    pub fn of(call: &Call) -> What {
        match (registers(call.call), call.how) {
            (true, how::HIT) => What::Hit,
            (true, how::MISS) => What::Miss,
            (true, how::GPU) => What::Gpu,
            (true, how::PAST) => What::Past,
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
            What::Gpu => "register, GPU",
            What::Past => "register, past the library",
            What::Deregister => "deregister",
            What::Kept => "deregister, cached",
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
    /// The registrations of a GPU's memory among the calls, and their time.
    pub gpu_calls: u64,
    pub gpu_time_ns: u64,
}

/// The registrations of one caller with one access that came back.
#[derive(Default, Serialize)]
pub struct Again {
    pub caller: Caller,
    pub access: String,
    /// Remote peers have access rights.
    pub remote: bool,
    /// The lengths of the ranges.
    pub smallest_bytes: u64,
    pub largest_bytes: u64,
    pub registrations: u64,
    /// With the deregistrations.
    pub time_ns: u64,
}

/// What one caller registers past the library by one function.
#[derive(Default, Serialize)]
pub struct Past {
    pub caller: Caller,
    pub call: &'static str,
    pub registrations: u64,
    /// The sum of the lengths, and the greatest.
    pub bytes: u64,
    pub largest_bytes: u64,
    pub time_ns: u64,
}

#[derive(Default, Serialize)]
pub struct Leak {
    pub caller: Caller,
    pub regions: u64,
    pub bytes: u64,
    /// True if the process ended in order, and so had leaked the regions. False if its trace is cut
    /// off: the process was killed, or still runs.
    pub ended: bool,
}

#[derive(Default, Serialize)]
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
