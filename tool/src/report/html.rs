// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as a page: one file that loads nothing, runs nothing, and can be attached to a bug
//! report. maud escapes all text of the trace.
use super::callers::Caller;
use super::plots;
use super::shape::{Point, Report, Size, What};
use super::text::command;
use super::units::{bytes, count, plural, share, time};
use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The most rows of a table.
const SHOWN: usize = 20;
const STYLE: &str = include_str!("page.css");
/// Makes the browser itself refuse to load anything.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// A row of headings. A heading that begins with '<' aligns to the left, like its column.
fn headings(names: &[&str]) -> Markup {
    html! { thead { tr { @for name in names {
        @if let Some(name) = name.strip_prefix('<') { th scope="col" { (name) } }
        @else { th.number scope="col" { (name) } }
    } } } }
}

fn more(shown: usize, all: u64) -> Markup {
    html! { @if all > shown as u64 {
        p.aside { (count(all - shown as u64)) " more; " code { "--json" } " has up to 100." }
    } }
}

/// Function, source, and place in the module.
fn who(caller: &Caller) -> Markup {
    html! { td.who title=(caller.module.as_deref().unwrap_or("in no module of the trace")) {
        @if let Some(function) = &caller.function { code { (function) } " " }
        @if let Some(source) = &caller.source { span.source { (source) } " " }
        span.place { (caller.place()) }
    } }
}

fn number(text: String) -> Markup {
    html! { td.number { (text) } }
}

fn tile(name: &str, figure: &str, more: &str) -> Markup {
    html! { div.tile { dt { (name) } dd { strong { (figure) } span { (more) } } } }
}

/// Shows the text between backticks as code.
fn with_commands(text: &str) -> Markup {
    html! { @for (n, part) in text.split('`').enumerate() {
        @if n % 2 == 1 { code { (part) } } @else { (part) }
    } }
}

/// The key to the colours that appear. A report with only plain registrations needs no key.
fn legend(entries: &[(&str, &str, bool)]) -> Markup {
    let shown = || entries.iter().filter(|entry| entry.2);
    html! { @if shown().any(|entry| entry.0 != "plain") {
        p.legend { @for (class, name, _) in shown() { span class=(class) { (name) } " " } }
    } }
}

pub fn render(report: &Report) -> Result<String> {
    let program = report
        .processes
        .first()
        .and_then(|process| process.command.first());
    let program = program.map_or("a program", |path| path.rsplit('/').next().unwrap_or(path));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Memory registration of " (program) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (head(report, program))
                (pinned(report)?)
                (sizes(report)?)
                (callers(report))
                (ranges(report))
                (leaks(report))
                (failures(report))
                footer { "rdmamr " (env!("CARGO_PKG_VERSION")) ", from the trace " code { (report.trace) } ". Durations are medians and 99th percentiles to 2 %." }
            }
        }
    };
    Ok(page.into_string())
}

fn head(report: &Report, program: &str) -> Markup {
    let totals = &report.totals;
    html! {
        header {
            h1 { "Memory registration of " (program) }
            @for process in report.processes.iter().take(SHOWN) {
                p.process {
                    code { (command(process)) } " "
                    span { "pid " (process.pid) ", " (process.started) ", ran " (time(process.run_ns)) @if !process.ended { " at least" } ", "
                        (plural(process.calls, "call", "calls")) ", " (time(process.time_ns)) " in them, "
                        @if process.ended { "ended in order" } @else { strong { "has not ended in order" } } }
                }
            }
            (more(SHOWN, report.processes.len() as u64))
        }
        @if !report.notes.is_empty() {
            aside.notes { ul { @for note in &report.notes { li { (note) } } } }
        }
        section.advice {
            h2 { "What to do" }
            p { (with_commands(&report.advice.sentence)) }
            p.aside { (report.advice.assumption) }
        }
        dl.tiles {
            (tile("Time in calls", &time(totals.time_ns),
                &format!("{} of {} run time", share(totals.time_ns, totals.run_ns), time(totals.run_ns))))
            (tile("Calls", &count(totals.calls), &format!("{}, {} dropped",
                plural(totals.threads, "thread", "threads"), count(totals.dropped))))
            (tile("Registrations", &count(totals.registrations),
                &format!("{}, {}", plural(totals.hits, "hit", "hits"), plural(totals.misses, "miss", "misses"))))
            (tile("Deregistrations", &count(totals.deregistrations), &format!("{} kept", count(totals.kept))))
            (tile("Peak pinned", &bytes(report.pinned.peak_bytes), &format!("after {}", time(report.pinned.peak_at_ns))))
            (tile("Left registered", &count(totals.leaked_regions), &bytes(totals.leaked_bytes)))
            (tile("Failed", &count(totals.failed), &share(totals.failed, totals.calls)))
        }
    }
}

fn pinned(report: &Report) -> Result<Markup> {
    let pinned = &report.pinned;
    let any = |bytes: &dyn Fn(&Point) -> u64| pinned.points.iter().any(|point| bytes(point) > 0);
    Ok(html! { section id="pinned" {
        h2 { "Pinned memory" }
        p { "At most " strong { (bytes(pinned.peak_bytes)) } ", " (time(pinned.peak_at_ns)) " after the start: "
            (bytes(pinned.peak_plain_bytes)) " of plain regions, " (bytes(pinned.peak_pool_bytes))
            " by the pool. At the end " (bytes(pinned.end_bytes)) "." }
        (legend(&[
            ("plain", "plain regions", any(&|point| point.plain_bytes)),
            ("pool", "regions of the pool", any(&|point| point.pool_bytes)),
        ]))
        figure { figcaption { "Pinned memory over time" } (PreEscaped(plots::pinned(pinned, report.totals.span_ns)?)) }
        p.aside { "Whole pages of all processes. A page that is registered several times counts several times, as the kernel counts it against RLIMIT_MEMLOCK. \
            A region that a process never deregisters counts until the process ends. Each point is the most of its moment; the dot is the peak." }
    } })
}

/// A row of the table of sizes: registrations that were served in one way, and the deregistrations
/// that belong to them.
struct SizeRow<'a> {
    from_bytes: u64,
    how: &'static str,
    registrations: Option<&'a Size>,
    deregistrations: Option<&'a Size>,
}

fn size_rows(sizes: &[Size]) -> Vec<SizeRow<'_>> {
    let mut rows: Vec<SizeRow> = Vec::new();
    for size in sizes {
        let (how, registers) = match size.what {
            What::Plain => ("plain", true),
            What::Hit => ("hit", true),
            What::Miss => ("miss", true),
            What::Deregister => ("plain", false),
            What::Kept => ("kept", false),
        };
        // The registration of a kept region was a hit or a miss; the record does not tell which.
        let its = |row: &SizeRow| {
            row.from_bytes == size.from_bytes
                && (row.how == how || how == "kept" && row.how != "plain")
        };
        let (registrations, deregistrations) = if registers {
            (Some(size), None)
        } else {
            (None, Some(size))
        };
        match rows.iter_mut().find(|row| its(row)).filter(|_| !registers) {
            Some(row) => row.deregistrations = deregistrations,
            None => rows.push(SizeRow {
                from_bytes: size.from_bytes,
                how,
                registrations,
                deregistrations,
            }),
        }
    }
    rows
}

fn sizes(report: &Report) -> Result<Markup> {
    let (sizes, totals) = (&report.sizes, &report.totals);
    let cells = |size: Option<&Size>| {
        html! { @match size {
            Some(size) => { (number(count(size.calls))) (number(time(size.time_ns))) (number(time(size.median_ns))) (number(time(size.p99_ns))) }
            None => { td colspan="4" {} }
        } }
    };
    Ok(html! { section id="sizes" {
        h2 { "Cost by size" }
        (legend(&[
            ("plain", "plain", totals.registrations > totals.hits + totals.misses),
            ("hit", "hits of the pool", totals.hits > 0),
            ("pool", "misses of the pool", totals.misses > 0),
        ]))
        div.pair {
            figure { figcaption { "Registrations by length" } (PreEscaped(plots::calls_by_size(sizes)?)) }
            figure { figcaption { "Time in registrations by length" } (PreEscaped(plots::time_by_size(sizes)?)) }
        }
        div.scroll { table {
            thead {
                tr { td colspan="2" {} th.group colspan="4" { "registered" } th.group colspan="4" { "deregistered, or kept" } }
                tr { th.number { "from" } th { "how" }
                    @for _ in 0..2 { @for name in ["calls", "time", "median", "p99"] { th.number { (name) } } } }
            }
            tbody { @for row in size_rows(sizes) { tr {
                (number(bytes(row.from_bytes)))
                td { (row.how) }
                (cells(row.registrations))
                (cells(row.deregistrations))
            } } }
        } }
    } })
}

fn callers(report: &Report) -> Markup {
    html! { section id="callers" {
        h2 { "The most expensive callers" }
        div.scroll { table {
            (headings(&["time", "share", "calls", "mean", "longest", "<calls", "<caller"]))
            tbody { @for row in report.callers.iter().take(SHOWN) { tr {
                (number(time(row.time_ns)))
                (number(share(row.time_ns, report.totals.time_ns)))
                (number(count(row.calls)))
                (number(time(row.time_ns / row.calls.max(1))))
                (number(time(row.longest_ns)))
                td { @for name in &row.called { code { (name) } " " } }
                (who(&row.caller))
            } } }
        } }
        (more(SHOWN, report.totals.callers))
    } }
}

fn ranges(report: &Report) -> Markup {
    html! { section id="ranges" {
        h2 { "Registered again and again" }
        @if report.ranges.is_empty() { p { "No range was registered more than once." } } @else {
            p { (plural(report.totals.repeated_ranges, "range was", "ranges were")) " registered more than once: the same pages, in the \
                same protection domain, with the same access." }
            div.scroll { table {
                (headings(&["saved", "times", "hits", "time", "bytes", "address", "<access", "<first by"]))
                tbody { @for range in report.ranges.iter().take(SHOWN) { tr {
                    (number(time(range.saved_ns)))
                    (number(count(range.registrations)))
                    (number(count(range.hits)))
                    (number(time(range.time_ns)))
                    (number(bytes(range.bytes)))
                    (number(format!("{:#x}", range.addr)))
                    td.access { (range.access) }
                    (who(&range.caller))
                } } }
            } }
            (more(SHOWN, report.totals.repeated_ranges))
        }
    } }
}

fn leaks(report: &Report) -> Markup {
    html! { section id="leaks" {
        h2 { "Never deregistered" }
        @if report.leaks.is_empty() { p { "Every region was deregistered." } } @else {
            p { (plural(report.totals.leaked_regions, "region", "regions")) " of " (bytes(report.totals.leaked_bytes))
                ". In a process that did not end in order they were in use when it ended." }
            div.scroll { table {
                (headings(&["regions", "bytes", "<when the process ended", "<registered by"]))
                tbody { @for leak in report.leaks.iter().take(SHOWN) { tr {
                    (number(count(leak.regions)))
                    (number(bytes(leak.bytes)))
                    td { @if leak.ended { "forgotten" } @else { "in use: it did not end in order" } }
                    (who(&leak.caller))
                } } }
            } }
            (more(SHOWN, report.leaks.len() as u64))
        }
    } }
}

fn failures(report: &Report) -> Markup {
    html! { section id="failures" {
        h2 { "Failed" }
        @if report.failures.is_empty() { p { "No call failed." } } @else {
            div.scroll { table {
                (headings(&["times", "<call", "<error", "<for example", "<caller"]))
                tbody { @for failure in &report.failures { tr {
                    (number(count(failure.count)))
                    td { code { (failure.call) } }
                    td { (failure.name) }
                    td.reason { (failure.example.as_deref().unwrap_or("The trace has no reason.")) }
                    (who(&failure.caller))
                } } }
            } }
        }
    } }
}
