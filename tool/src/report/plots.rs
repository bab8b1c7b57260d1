// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plots of the page: shapes that the browser stretches, and text in HTML beside them, which
//! keeps its size at any width and at any zoom. The page has no script: its style implements the
//! zoom.
use super::durations::step as step_below;
use super::shape::{Activity, Lane, Latency, Pinned, Point, Report, Size, What};
use super::timeline::POINTS;
use super::units;
use maud::{Markup, html};
use std::fmt::Write;

/// The steps in which calls are drawn: narrower ones could not be seen.
const STEPS: usize = 800;
/// The height of a plot in its own terms.
const HEIGHT: f64 = 1000.0;
/// The most lanes of the page.
pub const LANES: usize = 32;

/// A number of an axis in words, without zeros at the end of its decimals.
fn tick(words: String) -> String {
    words.replace(".00 ", " ").replace(".0 ", " ")
}

fn time(ns: u64) -> String {
    tick(units::time(ns))
}

/// The least of 1, 2, 5, 10 and so on that is not below.
fn step_above(number: u64) -> u64 {
    match step_below(number) {
        // The next one is at most two and a half times as large.
        below if below < number => step_below(below.saturating_mul(5) / 2),
        below => below,
    }
}

/// A plot, without its frame.
struct Plot {
    title: &'static str,
    more: &'static str,
    /// Heights, from 0 to 1, with their numbers.
    ticks: Vec<(f64, String)>,
    /// Each shape's class and path.
    shapes: Vec<(&'static str, String)>,
    /// A moment to point at, from 0 to 1 in both directions.
    dot: Option<(f64, f64)>,
}

impl Plot {
    fn draw(&self) -> Markup {
        html! { figure.plot {
            figcaption { (self.title) " " span.unit { (self.more) } }
            div.area {
                svg role="img" aria-label=(self.title) viewBox=(format!("0 0 {POINTS} {HEIGHT}")) preserveAspectRatio="none" {
                    @for (height, _) in &self.ticks {
                        path.grid d=(format!("M0 {y:.0}H{POINTS}", y = HEIGHT * (1.0 - height))) {}
                    }
                    @for (class, path) in &self.shapes { path class=(class) d=(path) {} }
                }
                @if let Some((x, y)) = self.dot {
                    span.dots { span.dot style=(format!("left:{:.2}%;bottom:{:.1}%", x * 100.0, y * 100.0)) {} }
                }
                div.heights { @for (height, number) in &self.ticks {
                    span.axis style=(format!("bottom:{:.1}%", height * 100.0)) { (number) }
                } }
            }
        } }
    }
}

/// Ticks from 0 to `top`, a step apart.
fn heights(top: f64, step: u64, words: fn(u64) -> String) -> Vec<(f64, String)> {
    let numbers = (0..=top as u64 / step).map(|n| n * step);
    let ticks = numbers.map(|number| (number as f64 / top, tick(words(number))));
    ticks.collect()
}

/// The outline of heights from 0 to 1, each from a place of 0 to [`POINTS`] up to the next.
fn outline(heights: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    let mut last = None;
    for (x, height) in heights {
        let y = (HEIGHT * (1.0 - height.clamp(0.0, 1.0))).round();
        if last == Some(y) {
            continue;
        }
        let x = x.round();
        let _ = match last {
            None => write!(path, "M{x} {HEIGHT}V{y}"),
            Some(_) => write!(path, "H{x}V{y}"),
        };
        last = Some(y);
    }
    if last.is_some() {
        let _ = write!(path, "H{POINTS}V{HEIGHT}Z");
    }
    path
}

/// Bars of heights from 0 to 1, each as wide as one of [`STEPS`].
fn columns(heights: impl Iterator<Item = (usize, f64)>) -> String {
    let width = POINTS as usize / STEPS;
    let mut path = String::new();
    for (step, height) in heights.filter(|(_, height)| *height > 0.0) {
        // Even the shortest call must be visible.
        let y = (HEIGHT * height.min(1.0)).round().max(8.0);
        let _ = write!(path, "M{} {HEIGHT}v-{y}h{width}v{y}z", step * width);
    }
    path
}

fn pinned(pinned: &Pinned, span: u64) -> Plot {
    let peak = pinned.peak_bytes;
    let top = (peak as f64 * 1.08).max(1.0);
    let place = |time_ns: u64| time_ns as f64 / span.max(1) as f64;
    let shape = |bytes: fn(&Point) -> u64| {
        outline(pinned.points.iter().map(|point| {
            let at = place(point.time_ns) * POINTS as f64;
            (at, bytes(point) as f64 / top)
        }))
    };
    let mut shapes = vec![("plain", shape(|point| point.plain_bytes))];
    // Behind the plain one, an equal shape would show at its edges.
    if pinned.points.iter().any(|point| point.cache_bytes > 0) {
        shapes.insert(0, ("cache", shape(Point::bytes)));
    }
    Plot {
        title: "Pinned memory",
        more: "",
        ticks: heights(top, (peak / 4).max(1).next_power_of_two(), units::bytes),
        shapes,
        dot: Some((place(pinned.peak_at_ns), peak as f64 / top)),
    }
}

fn rate(activity: &Activity) -> Plot {
    let mut calls = [0u64; STEPS];
    for moment in &activity.moments {
        calls[step_of(moment.time_ns, activity.step_ns)] += moment.calls;
    }
    let seconds = activity.step_ns as f64 * (POINTS as usize / STEPS) as f64 / 1e9;
    let most = calls.iter().copied().max().unwrap_or(0) as f64 / seconds;
    let top = (most * 1.08).max(1.0);
    let heights_of = calls.iter().map(|&calls| calls as f64 / seconds / top);
    Plot {
        title: "Calls a second",
        more: "",
        ticks: heights(top, step_above(most as u64 / 4).max(1), units::count),
        shapes: vec![("plain", columns(heights_of.enumerate()))],
        dot: None,
    }
}

fn step_of(time_ns: u64, step_ns: u64) -> usize {
    let step = time_ns / step_ns.max(1) / (POINTS / STEPS as u64);
    (step as usize).min(STEPS - 1)
}

/// The latency on a logarithmic axis: the mean of a step, and its longest call behind.
fn latency(activity: &Activity) -> Plot {
    let (mut calls, mut sums, mut longest) = ([0u64; STEPS], [0u64; STEPS], [0u64; STEPS]);
    for moment in &activity.moments {
        let at = step_of(moment.time_ns, activity.step_ns);
        calls[at] += moment.calls;
        sums[at] += moment.mean_ns * moment.calls;
        longest[at] = longest[at].max(moment.longest_ns);
    }
    let means = activity.moments.iter().map(|moment| moment.mean_ns.max(1));
    let most = longest.iter().copied().max().unwrap_or(0).max(1);
    let bottom = means.min().unwrap_or(1).ilog10();
    let decades = (most.ilog10() + 1).saturating_sub(bottom).max(1);
    let height = |ns: u64| ((ns.max(1) as f64).log10() - f64::from(bottom)) / f64::from(decades);
    let shape = |of: &dyn Fn(usize) -> u64| {
        let steps = (0..STEPS).filter(|&at| calls[at] > 0);
        columns(steps.map(|at| (at, height(of(at)).max(0.001))))
    };
    let means = shape(&|at| sums[at] / calls[at]);
    let worst = shape(&|at| longest[at]);
    let place = |n: u32| f64::from(n) / f64::from(decades);
    let ticks = (0..=decades).map(|n| (place(n), time(10u64.pow(bottom + n))));
    Plot {
        title: "Latency of calls",
        more: "mean, and the longest behind it",
        ticks: ticks.collect(),
        shapes: vec![("longest", worst), ("plain", means)],
        dot: None,
    }
}

fn lane(lane: &Lane, span: u64, most: u64) -> Markup {
    let name = match lane.rank {
        Some(rank) => format!("rank {rank}"),
        None => format!("pid {}", lane.pid),
    };
    let place = |time: u64| (time as f64 / span.max(1) as f64 * POINTS as f64).round();
    let (begin, end) = (place(lane.begin_ns), place(lane.end_ns));
    let busy = lane.busy_ns.iter().enumerate();
    let busy = busy.map(|(step, &busy)| (step, busy as f64 / most.max(1) as f64));
    html! { div.area.lane {
        svg role="img" aria-label=(format!("time in calls of {name}")) viewBox=(format!("0 0 {POINTS} {HEIGHT}")) preserveAspectRatio="none" {
            path.life d=(format!("M{begin} 0H{end}V{HEIGHT}H{begin}Z")) {}
            path.plain d=(columns(busy)) {}
        }
        div.heights { span.axis { (name) } }
    } }
}

/// The times under the plots: each with its place from 0 to 1 and the least zoom that has room.
fn times(span: u64) -> Vec<(f64, u8, String)> {
    let whole = step_above(span.max(1) / 5).max(25);
    let finest = whole / 25;
    let level = |n: u64| match n {
        n if n % 25 == 0 => 0,
        n if n % 5 == 0 => 1,
        _ => 2,
    };
    let at = |n: u64| (n * finest) as f64 / span.max(1) as f64;
    // The last label would stand outside.
    let shown = (0..=span / finest).filter(|&n| at(n) < 0.97);
    let labels = shown.map(|n| (at(n), level(n), time(n * finest)));
    labels.collect()
}

/// All plots over time, which are zoomed and moved together.
pub fn over_time(report: &Report) -> Markup {
    let span = report.totals.span_ns;
    let lanes: Vec<&Lane> = report.lanes.iter().take(LANES).collect();
    let most = lanes.iter().flat_map(|lane| &lane.busy_ns).copied().max();
    html! { div.over-time {
        fieldset { legend { "Zoom" } @for (times, name) in [(1, "all"), (5, "5 times"), (25, "25 times")] {
            label { input type="radio" name="zoom" class=(format!("zoom{times}")) checked[times == 1]; " " (name) } " "
        } }
        div.window role="region" tabindex="0" aria-label="Plots over time; zoomed, the arrow keys move them" { div.wide {
            (pinned(&report.pinned, span).draw())
            (rate(&report.activity).draw())
            (latency(&report.activity).draw())
            @if lanes.len() > 1 { figure.plot.lanes {
                figcaption { "Time in calls " span.unit { "of each process" } }
                @for one in lanes { (lane(one, span, most.unwrap_or(1))) }
            } }
            div.times { @for (at, level, label) in times(span) {
                span class=(format!("axis level{level}")) style=(format!("left:{:.3}%", at * 100.0)) { (label) }
            } }
        } }
    } }
}

/// A row of a plot of bars: its label, its parts, each with the class of its colour, and its
/// number.
pub struct Bar {
    pub label: String,
    pub parts: Vec<(&'static str, u64)>,
    pub number: String,
}

pub fn bars(title: &str, first: &str, rows: &[Bar]) -> Markup {
    let whole = |bar: &Bar| bar.parts.iter().map(|part| part.1).sum::<u64>();
    let most = rows.iter().map(whole).max().unwrap_or(0).max(1);
    html! { figure {
        figcaption { (title) }
        table.bars {
            thead.unseen { tr { th scope="col" { (first) } th scope="col" { (title) } th {} } }
            tbody { @for bar in rows { tr {
                th.number.axis scope="row" { (bar.label) }
                td.bar { @for (class, part) in bar.parts.iter().filter(|part| part.1 > 0) {
                    span class=(class) style=(format!("width:{:.2}%", *part as f64 * 100.0 / most as f64)) {}
                } }
                td.number.axis { (bar.number) }
            } } }
        }
    } }
}

fn part_of(what: What) -> Option<usize> {
    match what {
        What::Plain | What::Past => Some(0),
        What::Hit => Some(1),
        What::Miss => Some(2),
        What::Gpu => Some(3),
        What::Deregister | What::Kept => None,
    }
}

/// Calls of one effect: their label, the effect, how many there are, and the time in them.
type Row = (String, What, u64, u64);

/// Adds rows of the same label, which follow each other.
fn rows(list: &[Row], of: fn(&Row) -> u64, number: fn(u64) -> String) -> Vec<Bar> {
    let mut bars: Vec<Bar> = Vec::new();
    for row in list {
        let Some(part) = part_of(row.1) else { continue };
        if bars.last().is_none_or(|bar| bar.label != row.0) {
            bars.push(Bar {
                label: row.0.clone(),
                parts: vec![("plain", 0), ("hit", 0), ("cache", 0), ("gpu", 0)],
                number: String::new(),
            });
        }
        let bar = bars.last_mut().expect("it has just been made sure");
        bar.parts[part].1 += of(row);
        bar.number = number(bar.parts.iter().map(|part| part.1).sum());
    }
    bars
}

/// How many registrations there are, and the time in them.
fn pair(by: &str, list: &[Row]) -> Markup {
    html! { div.pair {
        (bars(&format!("Registrations by {by}"), "from", &rows(list, |row| row.2, units::count)))
        (bars(&format!("Time in registrations by {by}"), "from", &rows(list, |row| row.3, units::time)))
    } }
}

pub fn by_size(list: &[Size]) -> Markup {
    let row = |of: &Size| (units::bytes(of.from_bytes), of.what, of.calls, of.time_ns);
    pair("length", &list.iter().map(row).collect::<Vec<_>>())
}

/// Histograms of latencies.
pub fn latencies(list: &[Latency]) -> Markup {
    let row = |of: &Latency| (time(of.from_ns), of.what, of.calls, of.time_ns);
    pair("latency", &list.iter().map(row).collect::<Vec<_>>())
}
