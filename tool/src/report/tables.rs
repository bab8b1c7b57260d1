// SPDX-License-Identifier: MIT OR Apache-2.0
//! The figures and the tables of a report. The text and the page print the same ones.
use super::callers::Caller;
use super::shape::Report;
use super::units::{bytes, count, plural, share, shortened, time};

/// A heading with a figure, what is to be said about it, and a table.
#[derive(Default)]
pub struct Section<'a> {
    pub id: &'static str,
    pub heading: String,
    pub figure: String,
    pub words: String,
    /// The columns, with bars between them. '<' aligns a column to the left. One with '+' is in the page
    /// alone, one with '-' in the text alone; the text shows one with '!' below the row. The last column
    /// is the callers', if the rows have some.
    pub columns: &'static str,
    pub rows: Vec<Row<'a>>,
    /// How many rows there are, of which these are the first.
    pub all: u64,
}

/// The cells, and the caller.
pub type Row<'a> = (Vec<String>, Option<&'a Caller>);

pub struct Column {
    pub at: usize,
    pub name: &'static str,
    pub is_left_aligned: bool,
}

impl Section<'_> {
    /// The columns without, or with, one of these marks.
    pub fn columns(&self, marks: &[char], with: bool) -> Vec<Column> {
        let columns = self.columns.split('|').enumerate();
        let shown = columns.filter(|(_, column)| column.starts_with(marks) == with);
        let column = |(at, column): (usize, &'static str)| Column {
            at,
            name: column.trim_start_matches(['+', '-', '!', '<']),
            is_left_aligned: column.contains('<'),
        };
        shown.map(column).collect()
    }
}

/// From so many pinned bytes on, a fork takes a time that people notice.
const SLOW_FORK: u64 = 256 << 20;

/// The figures of the whole trace, by name. Behind a colon are a figure's parts.
pub fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let (totals, pinned) = (&report.totals, &report.pinned);
    let plain =
        totals.registrations - totals.hits - totals.misses - totals.gpu - totals.past_registrations;
    let some = |calls: u64, how: &str| match calls {
        0 => String::new(),
        calls => format!(", {} {how}", count(calls)),
    };
    let together = match report.processes.len() {
        0 | 1 => String::new(),
        processes => format!(", {processes} processes together"),
    };
    let in_calls = format!(
        "{}: {} of {} thread time; ran {}{together}",
        time(totals.time_ns),
        share(totals.time_ns, totals.thread_ns),
        time(totals.thread_ns),
        time(totals.run_ns)
    );
    let calls = format!(
        "{}: {}, {} dropped, {} failed",
        count(totals.calls),
        plural(totals.threads, "thread", "threads"),
        count(totals.dropped),
        count(totals.failed)
    );
    let registrations = format!(
        "{}: {} plain, {}, {}{}{}",
        count(totals.registrations),
        count(plain),
        plural(totals.hits, "hit", "hits"),
        plural(totals.misses, "miss", "misses"),
        some(totals.gpu, "of a GPU's memory"),
        some(totals.past_registrations, "past the library")
    );
    let (ended, kept) = (count(totals.deregistrations), count(totals.kept));
    let peak = format!(
        "{}: after {}, {} plain, {} by the cache; at the end {}",
        bytes(pinned.peak_bytes),
        time(pinned.peak_at_ns),
        bytes(pinned.peak_plain_bytes),
        bytes(pinned.peak_cache_bytes),
        bytes(pinned.end_bytes)
    );
    let mut facts = vec![
        ("Time in calls", in_calls),
        ("Calls", calls),
        ("Registrations", registrations),
        ("Deregistrations", format!("{ended}: {kept} cached")),
        ("Peak pinned", peak),
        ("Left registered", leaked(report)),
    ];
    // A trace has no forks.
    if totals.process_peak_bytes >= SLOW_FORK {
        let most = bytes(totals.process_peak_bytes);
        let words = "the kernel copies pinned private memory for a child; not by posix_spawn, vfork, nor after MADV_DONTFORK";
        facts.push(("A fork copies", format!("up to {most}: {words}")));
    }
    if totals.gpu > 0 {
        let most = bytes(totals.gpu_peak_bytes);
        facts.push(("Memory of GPUs", format!("{most}: at most, as dma-bufs")));
    }
    if totals.calls_with_stack > 0 {
        let (some, all) = (totals.calls_with_stack, totals.calls);
        let more = match some == all {
            true => "",
            false => "; `rdmamr run --stacks=all` records more, and takes longer",
        };
        let words = format!("{}: {} of the calls{more}", count(some), share(some, all));
        facts.push(("Call stacks", words));
    }
    facts
}

/// The regions that were never deregistered.
fn leaked(report: &Report) -> String {
    let totals = &report.totals;
    if !totals.leaks_known && totals.leaked_regions == 0 {
        return "not known".to_string();
    }
    let known = if totals.leaks_known { "" } else { "at least " };
    let regions = plural(totals.leaked_regions, "region", "regions");
    format!("{known}{regions}, {}", bytes(totals.leaked_bytes))
}

/// What went wrong. Nothing for most programs.
pub fn troubles(report: &Report) -> Vec<Section<'_>> {
    let failures = report.failures.iter().map(|of| {
        let example = of.example.as_deref();
        let cells = vec![
            count(of.count),
            of.call.to_string(),
            of.name.clone(),
            example.unwrap_or_default().to_string(),
        ];
        (cells, Some(&of.caller))
    });
    let left = |ended: bool| {
        let leaks = report.leaks.iter().filter(move |of| of.ended == ended);
        let rows = leaks.map(|of| (vec![count(of.regions), bytes(of.bytes)], Some(&of.caller)));
        rows.collect()
    };
    let totals = &report.totals;
    let cut_off = plural(totals.cut_off_regions, "region", "regions");
    let failed = plural(report.totals.failed, "call", "calls");
    let mut troubles = vec![
        Section {
            id: "failures",
            heading: format!("Failed: {failed}"),
            columns: "times|<call|<error|!<for example|<caller",
            rows: failures.collect(),
            all: report.failures.len() as u64,
            ..Section::default()
        },
        Section {
            id: "leaks",
            heading: format!("Never deregistered: {}", leaked(report)),
            columns: "regions|bytes|<registered by",
            rows: left(true),
            all: totals.leaking_callers,
            ..Section::default()
        },
        Section {
            id: "cut_off",
            heading: format!("Cut off: {cut_off}, {}", bytes(totals.cut_off_bytes)),
            words: "Registered where the trace of a process ends without the process: it was killed, as \
                    multiprocessing.Pool kills its workers, or called _exit, or still runs. Whether these are \
                    leaks is not known."
                .into(),
            columns: "regions|bytes|<registered by",
            rows: left(false),
            all: totals.cut_off_callers,
            ..Section::default()
        },
    ];
    troubles.retain(|trouble| !trouble.rows.is_empty());
    troubles
}

/// The sections below the figures, less those that most programs lack.
pub fn sections(report: &Report) -> Vec<Section<'_>> {
    let mut sections = Vec::new();
    if report.ranks.list.len() > 1 {
        sections.push(ranks(report));
    }
    sections.extend([sizes(report), callers(report), again(report)]);
    if !report.past.is_empty() {
        sections.push(past(report));
    }
    sections
}

/// The ranks of a job.
fn ranks(report: &Report) -> Section<'_> {
    let ranks = &report.ranks;
    let mut all = plural(ranks.list.len() as u64, "rank", "ranks");
    // Older traces lack the hosts.
    if ranks.hosts > 0 {
        all += &format!(" on {}", plural(ranks.hosts, "host", "hosts"));
    }
    let imbalance = format!("an imbalance of {:.0} %", ranks.imbalance * 100.0);
    let rows = ranks.list.iter().map(|rank| {
        let to_the_mean = rank.time_ns as f64 / ranks.mean_ns.max(1) as f64 - 1.0;
        let pids = rank.pids.iter().take(3).map(u32::to_string);
        let cells = vec![
            rank.rank.map_or("none".into(), |rank| rank.to_string()),
            shortened(rank.host.as_deref().unwrap_or("not known"), 20),
            time(rank.time_ns),
            format!("{:+.0} %", to_the_mean * 100.0),
            share(rank.time_ns, rank.run_ns),
            count(rank.calls),
            count(rank.registrations),
            count(rank.hits),
            time(rank.longest_ns),
            pids.collect::<Vec<_>>().join(" "),
            bytes(rank.peak_bytes),
        ];
        (cells, None)
    });
    Section {
        id: "ranks",
        heading: "Ranks".into(),
        words: format!(
            "{all}. The slowest spent {} in calls, the mean is {}: {imbalance}.",
            time(ranks.list[0].time_ns),
            time(ranks.mean_ns)
        ),
        figure: format!("{all}, {imbalance}"),
        columns: "rank|<host|time|+to the mean|of run|calls|regs|+hits|longest|+pids|peak pinned",
        rows: rows.collect(),
        all: ranks.list.len() as u64,
    }
}

fn sizes(report: &Report) -> Section<'_> {
    let rows = report.sizes.iter().map(|size| {
        let cells = vec![
            bytes(size.from_bytes),
            size.what.words().to_string(),
            count(size.calls),
            time(size.time_ns),
            time(size.median_ns),
            time(size.p99_ns),
        ];
        (cells, None)
    });
    Section {
        id: "sizes",
        heading: "Cost by size".into(),
        figure: plural(report.totals.registrations, "registration", "registrations"),
        columns: "from|<what|calls|time|median|p99",
        rows: rows.collect(),
        ..Section::default()
    }
}

fn callers(report: &Report) -> Section<'_> {
    let part = |ns: u64| share(ns, report.totals.time_ns);
    let rows = report.callers.iter().map(|of| {
        let cells = vec![
            time(of.time_ns),
            part(of.time_ns),
            count(of.calls),
            time(of.time_ns / of.calls.max(1)),
            time(of.longest_ns),
            of.called.join(" "),
        ];
        (cells, Some(&of.caller))
    });
    let first = report.callers.first();
    let first = first.map(|of| format!("{}: {}", of.caller.leads().words(), part(of.time_ns)));
    Section {
        id: "callers",
        heading: "The most expensive callers".into(),
        figure: first.unwrap_or("none".to_string()),
        columns: "time|share|calls|+mean|longest|+<calls|<caller",
        rows: rows.collect(),
        all: report.totals.callers,
        ..Section::default()
    }
}

fn again(report: &Report) -> Section<'_> {
    let back = report.advice.all.registrations + report.advice.fabric.registrations;
    let rows = report.again.iter().map(|of| {
        // All access flags would leave no room for the caller. "--cache" needs only this difference.
        let rights = if of.remote { "remote" } else { "local" };
        let cells = vec![
            time(of.time_ns),
            count(of.registrations),
            bytes(of.smallest_bytes),
            bytes(of.largest_bytes),
            rights.to_string(),
            of.access.clone(),
        ];
        (cells, Some(&of.caller))
    });
    let words = match report.again.is_empty() {
        true => "No registration came back.",
        false => {
            "The program had registered and deregistered their memory before, in the same protection domain, with \
             the same access. The first registration of a range does not count, nor does the second, which makes \
             the cached region. The time is the most that the cache saves."
        }
    };
    Section {
        id: "ranges",
        heading: "Came back".into(),
        figure: plural(back, "registration", "registrations"),
        words: words.to_string(),
        columns: "time|times|from|to|-<rights|+<access|<caller",
        rows: rows.collect(),
        all: report.totals.repeating_callers,
    }
}

fn past(report: &Report) -> Section<'_> {
    let totals = &report.totals;
    let all = plural(totals.past_registrations, "registration", "registrations");
    let rows = report.past.iter().map(|of| {
        let cells = vec![
            count(of.registrations),
            bytes(of.bytes),
            bytes(of.largest_bytes),
            time(of.time_ns),
            of.call.to_string(),
        ];
        (cells, Some(&of.caller))
    });
    Section {
        id: "past",
        heading: "Registered past the library".into(),
        words: format!(
            "{all} of {} by libmlx5's own calls. The cache does not serve them.",
            bytes(totals.past_bytes)
        ),
        figure: all,
        columns: "times|bytes|up to|time|<call|<caller",
        rows: rows.collect(),
        all: totals.past_callers,
    }
}
