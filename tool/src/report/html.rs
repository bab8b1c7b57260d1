// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as a page: one file that loads nothing, runs nothing, and can be attached to a bug
//! report. maud escapes all text of the trace.
use super::callers::Caller;
use super::diff::{self, Cost, Diff, Side};
use super::shape::{Point, Report, Size, What};
use super::text::{leaked, where_they_ran};
use super::units::{self, bytes, count, plural, share, time};
use super::{flame, job, plots, verdict};
use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The most rows of a table.
const SHOWN: usize = 20;
/// The most programs above the verdict.
const PROGRAMS: usize = 3;
/// The most rows of the table of ranks.
const RANKS: usize = 256;
/// The most characters of a text of the trace: a page is read by people, and can be attached.
const LONGEST: usize = 600;
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
        p.aside { (count(all - shown as u64)) " more; " code.word { "--json" } " has up to 100." }
    } }
}

/// Function, source, and place in the module.
fn who(caller: &Caller) -> Markup {
    html! { td.who title=(caller.module.as_deref().unwrap_or("in no module of the trace")) {
        @if caller.leads().is_python { code { (cut(&caller.leads().words())) } " " }
        @if let Some(function) = &caller.function { code { (cut(function)) } " " }
        @if let Some(source) = &caller.source { span.source { (cut(source)) } " " }
        span.place { (cut(&caller.place())) }
        @if let Some(beyond) = caller.beyond() { " " span.place { "< " (cut(&beyond)) } }
    } }
}

/// Text without its end, if it is too long. A long name may be broken behind its separators only.
fn cut(text: &str) -> Markup {
    let shown = match text.char_indices().nth(LONGEST) {
        None => text,
        Some((end, _)) => &text[..end],
    };
    html! {
        @for part in shown.split_inclusive(['/', ':', ',', '|', '+', '=', '<', '(', ' ']) { (part) wbr; }
        @if shown.len() < text.len() { "\u{2026}" }
    }
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
        @if n % 2 == 1 { code { @for word in part.split_inclusive(' ') {
            // A browser would break an option behind its hyphens.
            span.word[word.len() < 25] { (word.trim_end()) } @if word.ends_with(' ') { " " }
        } } } @else { (part) }
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
        .map(|process| units::program(&process.command));
    let program = program.filter(|name| !name.is_empty());
    let program = program.unwrap_or("a program".to_string());
    let title = format!("Memory registration of {program}");
    let body = html! {
        (head(report, &program))
        (why(report))
        (ranks(report))
        (over_time(report))
        (sizes(report))
        (latencies(report))
        (callers(report))
        (ranges(report))
        (past(report))
        (foot(&["from the trace "], &report.trace, ". Durations are medians and 99th percentiles to 2 %."))
    };
    Ok(document(&title, body))
}

fn foot(words: &[&str], trace: &str, more: &str) -> Markup {
    html! { footer { "rdmamr " (env!("CARGO_PKG_VERSION")) ", " @for word in words { (word) } code { (cut(trace)) } (more) } }
}

/// A page with that title and content.
fn document(title: &str, body: Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    };
    // The page's own text has no control characters but line ends and tabs.
    let printable = |c| match c {
        '\n' | '\t' => c,
        c if units::controls(c) => '\u{fffd}',
        c => c,
    };
    page.into_string().chars().map(printable).collect()
}

/// The page that compares two runs.
pub fn compare(diff: &Diff) -> String {
    let (before, after) = (&diff.before, &diff.after);
    let most = [before, after]
        .map(|side| side.time_ns)
        .into_iter()
        .max()
        .unwrap_or(0)
        .max(1);
    let whole = |name: &str, class: &str, side: &Side| {
        html! { tr {
            th.number.axis scope="row" { (name) }
            td.bar { span class=(class) style=(format!("width:{:.2}%", side.time_ns as f64 * 100.0 / most as f64)) {} }
            td.number.axis { (time(side.time_ns)) }
        } }
    };
    let cost = |before: Cost, after: Cost| {
        html! {
            (number(count(before.calls))) (number(count(after.calls)))
            (number(time(before.time_ns))) (number(time(after.time_ns)))
            (number(diff::change(before, after))) (number(diff::times(before, after)))
        }
    };
    let names = [
        "calls before",
        "after",
        "time before",
        "after",
        "change",
        "one call, ratio",
    ];
    let body = html! {
        header { h1 { (diff.title()) }
            p.process { code { (cut(&before.trace)) } " before, " code { (cut(&after.trace)) } " after" } }
        @if !diff.notes.is_empty() { aside.notes { ul { @for note in &diff.notes { li { (note) } } } } }
        section.advice.(if diff.is_loss() { "lost" } else { "yes" }) { p { (diff.sentence()) } }
        section id="whole" { h2 { "Time in calls" }
            table.bars { tbody { (whole("before", "plain", before)) (whole("after", if diff.is_loss() { "lost" } else { "hit" }, after)) } } }
        section id="sizes" { h2 { "By size" }
            (table("Table", &[&["from"][..], &names].concat(), html! { @for row in &diff.sizes { tr {
                (number(bytes(row.from_bytes))) (cost(row.before, row.after))
            } } }))
            p.aside { "Calls are registrations; times are also those of their deregistrations." }
        }
        section id="callers" { h2 { "By caller" }
            (table("Table", &[&names[..], &["<caller"]].concat(), html! { @for row in diff.callers.iter().take(diff::SHOWN) { tr {
                (cost(row.before, row.after)) (who(&row.caller))
            } } }))
            (more(diff::SHOWN, diff.callers.len() as u64))
        }
        (foot(&["a comparison of two traces; the second is "], &after.trace, "."))
    };
    document(diff.title(), body)
}

fn table(label: &str, names: &[&str], rows: Markup) -> Markup {
    html! { div.scroll role="region" tabindex="0" aria-label=(label) { table { (headings(names)) tbody { (rows) } } } }
}

/// The first screen: the verdict, then what went wrong, then the totals.
fn head(report: &Report, program: &str) -> Markup {
    let totals = &report.totals;
    let groups = job::groups(&report.processes);
    html! {
        header {
            h1 { "Memory registration of " (program) }
            @for group in groups.iter().take(PROGRAMS) {
                p.process {
                    code { (cut(&group.line())) } " "
                    span { (group.facts()) @if group.ended() { (group.end()) } @else { strong { (group.end()) } } }
                }
            }
            (more(PROGRAMS, groups.len() as u64))
        }
        section.advice.(colour(report)) { p { (with_commands(&report.advice.verdict.line)) } }
        @for command in &report.advice.next { p.next { (with_commands(&format!("Next: `{command}`"))) } }
        @if !report.notes.is_empty() {
            aside.notes { ul { @for note in &report.notes { li { (note) } } } }
        }
        (failures(report))
        (leaks(report))
        dl.tiles {
            (tile("Time in calls", &time(totals.time_ns),
                &format!("{} of {} thread time", share(totals.time_ns, totals.thread_ns), time(totals.thread_ns))))
            (tile("Calls", &count(totals.calls), &format!("{}, {} dropped",
                plural(totals.threads, "thread", "threads"), count(totals.dropped))))
            (tile("Registrations", &count(totals.registrations),
                &format!("{}, {}", plural(totals.hits, "hit", "hits"), plural(totals.misses, "miss", "misses"))))
            (tile("Deregistrations", &count(totals.deregistrations), &format!("{} cached", count(totals.kept))))
            (tile("Peak pinned", &bytes(report.pinned.peak_bytes), &format!("after {}", time(report.pinned.peak_at_ns))))
            (tile("Left registered", &count(totals.leaked_regions), &match totals.leaks_known {
                true => bytes(totals.leaked_bytes),
                false => format!("{}, and perhaps others", bytes(totals.leaked_bytes)),
            }))
            (tile("Failed", &count(totals.failed), &share(totals.failed, totals.calls)))
        }
    }
}

/// The class of the box around the verdict.
fn colour(report: &Report) -> &'static str {
    match report.advice.verdict.kind {
        verdict::Kind::TryIt => "yes",
        verdict::Kind::CannotKnow => "unknown",
        verdict::Kind::NotWorthIt | verdict::Kind::Served => "no",
    }
}

/// A section that is folded to its heading and a figure.
fn folded(id: &str, heading: &str, figure: &str, body: Markup) -> Markup {
    html! { section id=(id) { details {
        summary { h2 { (heading) } " " span.aside { (figure) } }
        (body)
    } } }
}

fn why(report: &Report) -> Markup {
    folded(
        "why",
        "Why",
        "the reasons, and the price",
        html! { p { (with_commands(&report.advice.sentence)) } },
    )
}

/// The ranks of a job, if the trace has more than one.
fn ranks(report: &Report) -> Markup {
    let ranks = &report.ranks;
    if ranks.list.len() < 2 {
        return html! {};
    }
    let figure = format!(
        "{}, an imbalance of {:.0} %",
        plural(ranks.list.len() as u64, "rank", "ranks"),
        ranks.imbalance * 100.0
    );
    folded(
        "ranks",
        "Ranks",
        &figure,
        html! {
            p { (where_they_ran(ranks)) ". The slowest spent "
                strong { (time(ranks.list[0].time_ns)) } " in calls, the mean is " (time(ranks.mean_ns)) ": an imbalance of "
                strong { (format!("{:.0} %", ranks.imbalance * 100.0)) } "." }
            (table("Ranks", &["rank", "<host", "time", "to the mean", "of its run", "calls", "registrations", "hits", "longest", "peak pinned", "pids"], html! {
                @for rank in ranks.list.iter().take(RANKS) { tr {
                    (number(rank.rank.map_or("none".to_string(), |rank| rank.to_string())))
                    td.word { (rank.host.as_deref().unwrap_or("not known")) }
                    (number(time(rank.time_ns)))
                    (number(format!("{:+.0} %", (rank.time_ns as f64 / ranks.mean_ns.max(1) as f64 - 1.0) * 100.0)))
                    (number(share(rank.time_ns, rank.run_ns)))
                    (number(count(rank.calls)))
                    (number(count(rank.registrations)))
                    (number(count(rank.hits)))
                    (number(time(rank.longest_ns)))
                    (number(bytes(rank.peak_bytes)))
                    (number(rank.pids.iter().take(3).map(u32::to_string).collect::<Vec<_>>().join(" ")))
                } }
            }))
            (more(RANKS, ranks.list.len() as u64))
        },
    )
}

fn over_time(report: &Report) -> Markup {
    let pinned = &report.pinned;
    let any = |bytes: &dyn Fn(&Point) -> u64| pinned.points.iter().any(|point| bytes(point) > 0);
    folded(
        "pinned",
        "Over time",
        &format!("at most {} pinned", bytes(pinned.peak_bytes)),
        html! {
            p { "At most " strong { (bytes(pinned.peak_bytes)) } " pinned, " (time(pinned.peak_at_ns)) " after the start: "
                (bytes(pinned.peak_plain_bytes)) " of plain regions, " (bytes(pinned.peak_cache_bytes))
                " by the cache. At the end " (bytes(pinned.end_bytes)) "."
                @if report.totals.gpu > 0 { " Besides, at most " strong { (bytes(report.totals.gpu_peak_bytes)) } " of GPUs' memory was registered, as dma-bufs." } }
            (legend(&[
                ("plain", "plain regions", any(&|point| point.plain_bytes)),
                ("cache", "regions of the cache", any(&|point| point.cache_bytes)),
            ]))
            (plots::over_time(report))
            (more(plots::LANES, report.lanes.len() as u64))
            p.aside { "Whole pages of all processes. A page that is registered several times counts several times, as the kernel counts it against RLIMIT_MEMLOCK. \
                A region that a process never deregisters counts until the process ends. Each point is the maximum \
                of its interval; the dot is the peak. \
                The clocks of all hosts are assumed to agree." }
        },
    )
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
            What::Gpu => ("GPU", true),
            What::Past => ("past the library", true),
            What::Deregister => ("plain", false),
            What::Kept => ("kept", false),
        };
        // The registration of a cached region was a hit or a miss; the record does not tell which.
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

fn sizes(report: &Report) -> Markup {
    let (sizes, totals) = (&report.sizes, &report.totals);
    let cells = |size: Option<&Size>| {
        html! { @match size {
            Some(size) => { (number(count(size.calls))) (number(time(size.time_ns))) (number(time(size.median_ns))) (number(time(size.p99_ns))) }
            None => { td colspan="4" {} }
        } }
    };
    folded(
        "sizes",
        "Cost by size",
        &plural(totals.registrations, "registration", "registrations"),
        html! {
            (legend(&[
                ("plain", "plain", totals.registrations > totals.hits + totals.misses + totals.gpu),
                ("hit", "hits of the cache", totals.hits > 0),
                ("cache", "misses of the cache", totals.misses > 0),
                ("gpu", "memory of a GPU", totals.gpu > 0),
            ]))
            div.pair {
                (plots::by_size(sizes, "Registrations by length", false))
                (plots::by_size(sizes, "Time in registrations by length", true))
            }
            div.scroll role="region" tabindex="0" aria-label="Table" { table {
                thead {
                    tr { td colspan="2" {} th.group colspan="4" { "registered" } th.group colspan="4" { "deregistered, or cached" } }
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
        },
    )
}

fn latencies(report: &Report) -> Markup {
    folded(
        "latencies",
        "Latencies of registrations",
        "how many took how long",
        html! {
            div.pair {
                (plots::latencies(&report.latencies, "Registrations by latency", false))
                (plots::latencies(&report.latencies, "Time in registrations by latency", true))
            }
        },
    )
}

fn callers(report: &Report) -> Markup {
    let first = report.callers.first();
    let figure = first.map_or("none".to_string(), |row| {
        let place = row.caller.leads().words();
        format!("{place}: {}", share(row.time_ns, report.totals.time_ns))
    });
    folded(
        "callers",
        "The most expensive callers",
        &figure,
        html! {
            (flame::draw(report))
            @if report.totals.calls_with_stack > 0 {
                p.aside { (count(report.totals.calls_with_stack)) " of " (count(report.totals.calls)) " calls have a call stack." }
            }
            (table("Table", &["time", "share", "calls", "mean", "longest", "<calls", "<caller"], html! {
                @for row in report.callers.iter().take(SHOWN) { tr {
                    (number(time(row.time_ns)))
                    (number(share(row.time_ns, report.totals.time_ns)))
                    (number(count(row.calls)))
                    (number(time(row.time_ns / row.calls.max(1))))
                    (number(time(row.longest_ns)))
                    td { @for name in &row.called { code { (name) } " " } }
                    (who(&row.caller))
                } }
            }))
            (more(SHOWN, report.totals.callers))
        },
    )
}

fn ranges(report: &Report) -> Markup {
    let back = report.advice.all.registrations + report.advice.fabric.registrations;
    folded(
        "ranges",
        "Came back",
        &plural(back, "registration", "registrations"),
        html! {
            @if report.again.is_empty() { p { "No registration came back." } } @else {
                p { "The program had registered and deregistered their memory before, in the same protection domain, \
                    with the same access. The first registration of a range does not count, nor does the second, \
                    which makes the cached region. The time is the most that the cache saves." }
                (table("Table", &["time", "times", "from", "to", "<access", "<caller"], html! {
                    @for again in report.again.iter().take(SHOWN) { tr {
                        (number(time(again.time_ns)))
                        (number(count(again.registrations)))
                        (number(bytes(again.smallest_bytes)))
                        (number(bytes(again.largest_bytes)))
                        td.access { (cut(&again.access)) }
                        (who(&again.caller))
                    } }
                }))
                (more(SHOWN, report.totals.repeating_callers))
            }
        },
    )
}

/// Nothing for most programs.
fn past(report: &Report) -> Markup {
    let totals = &report.totals;
    html! { @if totals.past_registrations > 0 { section id="past" {
        h2 { "Registered past the library" }
        p { (plural(totals.past_registrations, "registration", "registrations")) " of " (bytes(totals.past_bytes))
            " by libmlx5's own calls. The cache does not serve them." }
        (table("Table", &["times", "bytes", "up to", "time", "<call", "<caller"], html! {
            @for past in report.past.iter().take(SHOWN) { tr {
                (number(count(past.registrations)))
                (number(bytes(past.bytes)))
                (number(bytes(past.largest_bytes)))
                (number(time(past.time_ns)))
                td { code { (past.call) } }
                (who(&past.caller))
            } }
        }))
        (more(SHOWN, totals.past_callers))
    } } }
}

/// Nothing for a program that deregisters all.
fn leaks(report: &Report) -> Markup {
    html! { @if !report.leaks.is_empty() { section.trouble id="leaks" {
        h2 { "Never deregistered: " (leaked(&report.totals)) }
        (table("Table", &["regions", "bytes", "<when the process ended", "<registered by"], html! {
            @for leak in report.leaks.iter().take(SHOWN) { tr {
                (number(count(leak.regions)))
                (number(bytes(leak.bytes)))
                td { @if leak.ended { "forgotten" } @else { "in use: it did not end in order" } }
                (who(&leak.caller))
            } }
        }))
        (more(SHOWN, report.totals.leaking_callers))
    } } }
}

/// Nothing for a program without a failed call.
fn failures(report: &Report) -> Markup {
    html! { @if !report.failures.is_empty() { section.trouble id="failures" {
        h2 { "Failed: " (plural(report.totals.failed, "call", "calls")) }
        (table("Table", &["times", "<call", "<error", "<for example", "<caller"], html! {
            @for failure in report.failures.iter().take(SHOWN) { tr {
                (number(count(failure.count)))
                td { code { (failure.call) } }
                td { (failure.name) }
                td.reason { (cut(failure.example.as_deref().unwrap_or("The trace has no reason."))) }
                (who(&failure.caller))
            } }
        }))
        (more(SHOWN, report.failures.len() as u64))
    } } }
}
