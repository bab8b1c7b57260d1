// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as a page: one file that loads nothing, runs nothing, and can be attached to a bug
//! report. maud escapes all text of the trace.
use super::callers::Caller;
use super::diff::Diff;
use super::shape::{Kind, Point, Report};
use super::tables::{self, Section};
use super::units::{self, bytes, count, time};
use super::{flame, job, plots};
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

fn more(shown: usize, all: u64) -> Markup {
    html! { @if all > shown as u64 {
        p.aside { (count(all - shown as u64)) " more; " code.word { "--json" } " has up to 100." }
    } }
}

/// Function, source, and place in the module.
fn who(caller: &Caller) -> Markup {
    html! { td.who title=(caller.frame.module.as_deref().unwrap_or("in no module of the trace")) {
        @if caller.leads().is_python { code { (cut(&caller.leads().words())) } " " }
        @if let Some(function) = &caller.frame.function { code { (cut(function)) } " " }
        @if let Some(source) = &caller.frame.source { span.source { (cut(source)) } " " }
        span.place { (cut(&caller.frame.place())) }
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

/// What is said in a section, plots, and the first rows of its table.
fn content(of: &Section, most: usize, plots: Markup) -> Markup {
    let columns = of.columns(&['-'], false);
    html! {
        @if !of.words.is_empty() { p { (of.words) } }
        (plots)
        @if !of.rows.is_empty() {
            div.scroll role="region" tabindex="0" aria-label=(of.heading) { table {
                thead { tr { @for column in &columns { th.number[!column.is_left_aligned] scope="col" { (column.name) } } } }
                tbody { @for (cells, caller) in of.rows.iter().take(most) { tr { @for column in &columns {
                    @match (cells.get(column.at), caller) {
                        (Some(cell), _) if column.is_left_aligned => { td.words { (cut(cell)) } }
                        (Some(cell), _) => { td.number { (cell) } }
                        (None, Some(caller)) => { (who(caller)) }
                        (None, None) => {}
                    }
                } } } }
            } }
            (more(most, of.all))
        }
    }
}

/// A section that is not folded.
fn unfolded(of: &Section, class: &str) -> Markup {
    html! { section.(class) id=(of.id) { h2 { (of.heading) } (content(of, SHOWN, html! {})) } }
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

pub fn render(report: &Report) -> String {
    let first = report.processes.first();
    let program = first.map(|first| units::program(&first.command));
    let program = program.filter(|name| !name.is_empty());
    let program = program.unwrap_or("a program".into());
    let title = format!("Memory registration of {program}");
    let body = html! {
        (head(report, &program))
        (folded("why", "Why", "the reasons, and the price", html! { p { (with_commands(&report.advice.sentence)) } }))
        (over_time(report))
        @for of in tables::sections(report) {
            (folded(of.id, &of.heading, &of.figure, match of.id {
                "ranks" => content(&of, RANKS, html! {}),
                "sizes" => content(&of, SHOWN, plots_of_sizes(report)),
                "callers" => content(&of, SHOWN, flame::draw(report)),
                _ => content(&of, SHOWN, html! {}),
            }))
        }
        (folded("latencies", "Latencies of registrations", "how many took how long", plots::latencies(&report.latencies)))
        (foot("from the trace ", &report.trace, ". Durations are medians and 99th percentiles to 2 %."))
    };
    document(&title, body)
}

fn foot(words: &str, trace: &str, more: &str) -> Markup {
    html! { footer { "rdmamr " (env!("CARGO_PKG_VERSION")) ", " (words) code { (cut(trace)) } (more) } }
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
    units::lines(&page.into_string())
}

/// The page that compares two runs.
pub fn compare(diff: &Diff) -> String {
    let (before, after) = (&diff.before, &diff.after);
    let (ends, gained) = match diff.is_loss() {
        true => ("lost", "lost"),
        false => ("hit", "yes"),
    };
    let bars = [("before", "plain", before), ("after", ends, after)];
    let bars = bars.map(|(name, class, side)| plots::Bar {
        label: name.into(),
        parts: vec![(class, side.time_ns)],
        number: time(side.time_ns),
    });
    let body = html! {
        header { h1 { (diff.title()) }
            p.process { code { (cut(&before.trace)) } " before, " code { (cut(&after.trace)) } " after" } }
        @if !diff.notes.is_empty() { aside.notes { ul { @for note in &diff.notes { li { (note) } } } } }
        section.advice.(gained) { p { (diff.sentence()) } }
        section id="whole" { (plots::bars("Time in calls", "", &bars)) }
        @for of in diff.sections() { (unfolded(&of, "compared")) }
        (foot("a comparison of two traces; the second is ", &after.trace, "."))
    };
    document(diff.title(), body)
}

/// The first screen: the verdict, then what went wrong, then the totals.
fn head(report: &Report, program: &str) -> Markup {
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
        @for trouble in tables::troubles(report) { (unfolded(&trouble, "trouble")) }
        dl.tiles {
            @for (name, words) in tables::facts(report) {
                @let (figure, parts) = words.split_once([':', ',']).unwrap_or((&words, ""));
                div.tile { dt { (name) } dd { strong { (figure) } span { (with_commands(parts)) } } }
            }
        }
    }
}

/// The class of the box around the verdict.
fn colour(report: &Report) -> &'static str {
    match report.advice.verdict.kind {
        Kind::TryIt | Kind::Prefault => "yes",
        Kind::CannotKnow => "unknown",
        Kind::NotWorthIt | Kind::Served | Kind::Gpu => "no",
    }
}

/// A section that is folded to its heading and a figure.
fn folded(id: &str, heading: &str, figure: &str, body: Markup) -> Markup {
    html! { section id=(id) { details {
        summary { h2 { (heading) } " " span.aside { (figure) } }
        (body)
    } } }
}

fn over_time(report: &Report) -> Markup {
    let pinned = &report.pinned;
    let any = |bytes: &dyn Fn(&Point) -> u64| pinned.points.iter().any(|point| bytes(point) > 0);
    let figure = format!("at most {} pinned", bytes(pinned.peak_bytes));
    let body = html! {
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
    };
    folded("pinned", "Over time", &figure, body)
}

fn plots_of_sizes(report: &Report) -> Markup {
    let totals = &report.totals;
    html! {
        (legend(&[
            ("plain", "plain", totals.registrations > totals.hits + totals.misses + totals.gpu),
            ("hit", "hits of the cache", totals.hits > 0),
            ("cache", "misses of the cache", totals.misses > 0),
            ("gpu", "memory of a GPU", totals.gpu > 0),
        ]))
        (plots::by_size(&report.sizes))
    }
}
