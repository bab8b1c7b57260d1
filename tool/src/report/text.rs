// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as text, as wide as the terminal.
use super::callers::Caller;
use super::job;
use super::shape::{ProcessTotals, Ranks, Report, Totals};
use super::units::{bytes, count, name_of, plural, printable, share, time};
use crate::style::columns;
use std::fmt::Write;

/// The most lines of a table.
const SHOWN: usize = 10;
/// Of more ranks than that, so many.
const RANKS: usize = 5;

/// Rows of cells. If a row is too wide, its last column loses the middle.
pub struct Table {
    /// Whether each column aligns to the left.
    left: Vec<bool>,
    /// The cells of each row, and the text in lines of its own below the row.
    rows: Vec<(Vec<String>, Option<String>)>,
}

impl Table {
    /// `headings` are separated by bars. One that begins with '<' aligns its column to the left.
    pub fn new(headings: &str) -> Table {
        let headings = headings.split('|');
        let left = headings.clone().map(|heading| heading.starts_with('<'));
        let heads = headings.map(|heading| heading.trim_start_matches('<').to_string());
        Table {
            left: left.collect(),
            rows: vec![(heads.collect(), None)],
        }
    }

    /// Adds the frames beyond the caller below the last row.
    pub fn stack(&mut self, caller: &Caller) {
        if let Some((_, below)) = self.rows.last_mut() {
            *below = caller.beyond();
        }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| printable(&cell)).collect();
        self.rows.push((cells, None));
    }

    pub fn write(&self, out: &mut String) {
        let last = self.left.len() - 1;
        let width = |column: usize| {
            let cells = self.rows.iter().map(|(row, _)| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..last).map(width).collect();
        let before: usize = widths.iter().map(|width| width + 2).sum();
        let room = columns().saturating_sub(2 + before);
        widths.push(0);
        for (row, below) in &self.rows {
            let mut line = String::from(" ");
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                let cell = shortened(cell, if column == last { room } else { usize::MAX });
                let _ = if self.left[column] {
                    write!(line, " {cell:<width$} ")
                } else {
                    write!(line, " {cell:>width$} ")
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
            if let Some(text) = below {
                wrapped(out, "      < ", "        ", text);
            }
        }
    }
}

/// Text without its middle, if it is too long.
fn shortened(text: &str, columns: usize) -> String {
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= columns {
        return text.to_string();
    }
    let head = columns.saturating_sub(3) / 3;
    let tail = columns.saturating_sub(3) - head;
    characters[..head]
        .iter()
        .chain(&['.'; 3])
        .chain(&characters[characters.len() - tail..])
        .collect()
}

/// Breaks text into indented lines.
pub fn wrapped(out: &mut String, first: &str, indent: &str, text: &str) {
    let mut line = first.to_string();
    let mut empty = true;
    for word in printable(text).split(' ') {
        if !empty && line.chars().count() + 1 + word.chars().count() > columns() {
            out.push_str(&line);
            out.push('\n');
            line = indent.to_string();
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(&shortened(word, columns() - indent.chars().count()));
        empty = false;
    }
    out.push_str(&line);
    out.push('\n');
}

pub fn heading(out: &mut String, text: &str) {
    let _ = writeln!(out, "\n{text}\n{}", "-".repeat(text.chars().count()));
}

fn more(out: &mut String, all: u64) {
    if all > SHOWN as u64 {
        let _ = writeln!(
            out,
            "  and {} more (--json has up to 100)",
            count(all - SHOWN as u64)
        );
    }
}

/// A table of the first rows of a list, which is the beginning of `all`.
fn list<T>(out: &mut String, headings: &str, list: &[T], all: usize, row: impl Fn(&mut Table, &T)) {
    let mut table = Table::new(headings);
    for one in list.iter().take(SHOWN) {
        row(&mut table, one);
    }
    table.write(out);
    more(out, all as u64);
}

/// Function, source and place, as far as they are known; in Python its own function and line first.
pub fn who(caller: &Caller) -> String {
    if caller.leads().is_python {
        return format!("{}  {}", caller.leads().words(), caller.name());
    }
    let source = caller
        .source
        .as_deref()
        .map(|source| name_of(source).into());
    let words = [caller.function.clone(), source, Some(caller.place())];
    words.into_iter().flatten().collect::<Vec<_>>().join("  ")
}

pub fn command(process: &ProcessTotals) -> String {
    if process.command.is_empty() {
        "(its command line is not in the trace)".to_string()
    } else {
        process.command.join(" ")
    }
}

/// The ranks of a job, if the trace has more than one.
fn ranks(out: &mut String, report: &Report) {
    let ranks = &report.ranks;
    if ranks.list.len() < 2 {
        return;
    }
    heading(out, "Ranks");
    let slowest = &ranks.list[0];
    let words = format!(
        "{}. The slowest spent {} in calls, the mean is {}: an imbalance of {:.0} %.",
        where_they_ran(ranks),
        time(slowest.time_ns),
        time(ranks.mean_ns),
        ranks.imbalance * 100.0
    );
    wrapped(out, "", "", &words);
    let headings = "rank|<host|time|of run|calls|regs|longest|<peak pinned";
    let slowest = match ranks.list.len() {
        all if all > SHOWN => &ranks.list[..RANKS],
        _ => &ranks.list[..],
    };
    list(out, headings, slowest, slowest.len(), |table, rank| {
        table.row([
            rank.rank
                .map_or("none".to_string(), |rank| rank.to_string()),
            shortened(rank.host.as_deref().unwrap_or("not known"), 20),
            time(rank.time_ns),
            share(rank.time_ns, rank.run_ns),
            count(rank.calls),
            count(rank.registrations),
            time(rank.longest_ns),
            bytes(rank.peak_bytes),
        ]);
    });
    let others = &ranks.list[slowest.len()..];
    if let [most, .., least] = others {
        let words = format!(
            "  and {} more, which spent {} to {} in calls (--json has all)",
            count(others.len() as u64),
            time(least.time_ns),
            time(most.time_ns)
        );
        out.push_str(&(words + "\n"));
    }
}

/// "2 ranks on 3 hosts", or without the hosts, which older traces lack.
pub fn where_they_ran(ranks: &Ranks) -> String {
    let all = plural(ranks.list.len() as u64, "rank", "ranks");
    match ranks.hosts {
        0 => all,
        hosts => format!("{all} on {}", plural(hosts, "host", "hosts")),
    }
}

/// What went wrong, if anything did: it stands above all figures.
fn trouble(out: &mut String, report: &Report) {
    let totals = &report.totals;
    if report.failures.is_empty() && report.leaks.is_empty() {
        out.push_str(match totals.leaks_known {
            true => "No call failed, and no region was left registered.\n",
            false => "No recorded call failed. Which regions were left registered is not known.\n",
        });
    }
    if !report.failures.is_empty() {
        heading(
            out,
            &format!("Failed: {}", plural(totals.failed, "call", "calls")),
        );
    }
    for failure in &report.failures {
        let first = format!(
            "{} {}: {}, from {}",
            failure.call,
            failure.name,
            plural(failure.count, "time", "times"),
            who(&failure.caller)
        );
        wrapped(out, "  ", "    ", &first);
        if let Some(beyond) = failure.caller.beyond() {
            wrapped(out, "    < ", "      ", &beyond);
        }
        if let Some(example) = &failure.example {
            wrapped(out, "    ", "    ", example);
        }
    }
    if !report.leaks.is_empty() {
        heading(out, &format!("Never deregistered: {}", leaked(totals)));
        let headings = "regions|bytes|<when it ended|<caller";
        let all = totals.leaking_callers as usize;
        list(out, headings, &report.leaks, all, |table, leak| {
            let when = if leak.ended { "forgotten" } else { "in use" };
            table.row([
                count(leak.regions),
                bytes(leak.bytes),
                when.to_string(),
                who(&leak.caller),
            ]);
            table.stack(&leak.caller);
        });
    }
    out.push('\n');
}

/// The regions that were never deregistered.
pub fn leaked(totals: &Totals) -> String {
    if !totals.leaks_known && totals.leaked_regions == 0 {
        return "not known".to_string();
    }
    format!(
        "{}{}, {}",
        if totals.leaks_known { "" } else { "at least " },
        plural(totals.leaked_regions, "region", "regions"),
        bytes(totals.leaked_bytes)
    )
}

pub fn render(report: &Report) -> String {
    let mut out = String::new();
    let totals = &report.totals;
    wrapped(&mut out, "", "", &report.advice.verdict.line);
    for command in &report.advice.next {
        // Not broken: it is there to be copied.
        let _ = writeln!(out, "  {}", printable(command));
    }
    trouble(&mut out, report);
    let line = |out: &mut String, name: &str, text: String| {
        wrapped(out, &format!("{name:<16}"), &" ".repeat(16), &text);
    };
    line(&mut out, "Trace", report.trace.clone());
    let groups = job::groups(&report.processes);
    for group in groups.iter().take(SHOWN) {
        line(&mut out, "Program", group.line());
        line(&mut out, "", group.facts() + &group.end());
    }
    more(&mut out, groups.len() as u64);
    let plain =
        totals.registrations - totals.hits - totals.misses - totals.gpu - totals.past_registrations;
    let gpu = match totals.gpu {
        0 => String::new(),
        calls => format!(", {} of a GPU's memory", count(calls)),
    };
    let past = match totals.past_registrations {
        0 => String::new(),
        past => format!(", {} past the library", count(past)),
    };
    let calls = format!(
        "{} by {}: {} ({} plain, {}, {}{gpu}{past}), {} ({} cached), {} failed",
        count(totals.calls),
        plural(totals.threads, "thread", "threads"),
        plural(totals.registrations, "registration", "registrations"),
        count(plain),
        plural(totals.hits, "hit", "hits"),
        plural(totals.misses, "miss", "misses"),
        plural(totals.deregistrations, "deregistration", "deregistrations"),
        count(totals.kept),
        count(totals.failed)
    );
    line(&mut out, "Calls", calls);
    let together = match report.processes.len() {
        0 | 1 => String::new(),
        processes => format!(", {processes} processes together"),
    };
    let in_calls = format!(
        "{}, {} of the threads' time of {}; ran {}{together}",
        time(totals.time_ns),
        share(totals.time_ns, totals.thread_ns),
        time(totals.thread_ns),
        time(totals.run_ns)
    );
    line(&mut out, "Time in calls", in_calls);
    line(&mut out, "Dropped calls", count(totals.dropped));
    if totals.calls_with_stack > 0 {
        let with_stack = count(totals.calls_with_stack);
        let stacks = format!("{with_stack} of {} calls have one", count(totals.calls));
        line(&mut out, "Call stacks", stacks);
    }
    let pinned = &report.pinned;
    let peak = format!(
        "{} after {} ({} plain, {} by the cache); at the end {}",
        bytes(pinned.peak_bytes),
        time(pinned.peak_at_ns),
        bytes(pinned.peak_plain_bytes),
        bytes(pinned.peak_cache_bytes),
        bytes(pinned.end_bytes)
    );
    line(&mut out, "Peak pinned", peak);
    if totals.gpu > 0 {
        let most = format!(
            "at most {} registered, as dma-bufs",
            bytes(totals.gpu_peak_bytes)
        );
        line(&mut out, "Memory of GPUs", most);
    }
    line(&mut out, "Left registered", leaked(totals));
    for note in &report.notes {
        line(&mut out, "WARNING", note.clone());
    }

    heading(&mut out, "Why");
    wrapped(&mut out, "", "", &report.advice.sentence);

    ranks(&mut out, report);

    heading(&mut out, "Cost by size");
    let mut table = Table::new("from|<what|calls|time|median|p99");
    for size in &report.sizes {
        table.row([
            bytes(size.from_bytes),
            size.what.words().to_string(),
            count(size.calls),
            time(size.time_ns),
            time(size.median_ns),
            time(size.p99_ns),
        ]);
    }
    table.write(&mut out);

    heading(&mut out, "The most expensive callers");
    let headings = "time|share|calls|longest|<caller";
    let all = totals.callers as usize;
    list(&mut out, headings, &report.callers, all, |table, row| {
        table.row([
            time(row.time_ns),
            share(row.time_ns, totals.time_ns),
            count(row.calls),
            time(row.longest_ns),
            who(&row.caller),
        ]);
        table.stack(&row.caller);
    });

    if !report.again.is_empty() {
        heading(&mut out, "Came back");
        let headings = "time|times|from|to|<rights|<caller";
        let all = totals.repeating_callers as usize;
        list(&mut out, headings, &report.again, all, |table, again| {
            table.row([
                time(again.time_ns),
                count(again.registrations),
                bytes(again.smallest_bytes),
                bytes(again.largest_bytes),
                // All access flags would leave no room for the caller. "--cache" needs only this
                // difference.
                if again.remote { "remote" } else { "local" }.to_string(),
                again.caller.title(),
            ]);
            table.stack(&again.caller);
        });
    }

    if !report.past.is_empty() {
        heading(&mut out, "Registered past the library");
        let headings = "times|bytes|up to|time|<call|<caller";
        let all = totals.past_callers as usize;
        list(&mut out, headings, &report.past, all, |table, past| {
            table.row([
                count(past.registrations),
                bytes(past.bytes),
                bytes(past.largest_bytes),
                time(past.time_ns),
                past.call.to_string(),
                past.caller.title(),
            ]);
            table.stack(&past.caller);
        });
    }

    out
}
