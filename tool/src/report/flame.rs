// SPDX-License-Identifier: MIT OR Apache-2.0
//! A flame graph of callers, in the page, as a drawing and as folded stacks: each frame is as wide as its time is long, and lies under the frame
//! around it.
use super::shape::{CallerTotals, Report};
use super::units::{controls, name_of, printable, share, time};
use maud::{Markup, html};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Frames narrower than this part of the whole are left out, so that the page stays small.
const NARROWEST: u64 = 500;
/// The size of the drawing, and of a letter in it.
const WIDTH: f64 = 960.0;
const ROW: f64 = 20.0;
const LETTER: f64 = 7.3;

#[derive(Default)]
struct Frame {
    time: u64,
    /// By their names.
    within: BTreeMap<String, Frame>,
}

impl Frame {
    /// Adds a stack, the outermost frame first.
    fn add(&mut self, stack: &[String], time: u64) {
        self.time += time;
        if let Some((name, rest)) = stack.split_first() {
            let within = self.within.entry(name.clone());
            within.or_default().add(rest, time);
        }
    }

    fn depth(&self) -> usize {
        1 + self.within.values().map(Frame::depth).max().unwrap_or(0)
    }

    /// Draws the frame, and those within it that are wide enough, the longest first.
    fn draw(&self, name: &str, left: f64, top: f64, whole: u64) -> Markup {
        let wide = |frame: &Frame| WIDTH * frame.time as f64 / whole.max(1) as f64;
        let letters = (wide(self) / LETTER) as usize;
        let mut shown = format!("{name} {}", time(self.time));
        if shown.chars().count() > letters {
            let whole = shown.chars().take(letters.saturating_sub(1));
            shown = whole.chain(['\u{2026}']).collect();
        }
        let within = self.within.iter();
        let within = within.filter(|of| of.1.time > whole / NARROWEST);
        let mut within = Vec::from_iter(within);
        within.sort_by_key(|of| Reverse(of.1.time));
        let mut at = left;
        let within = within.into_iter().map(|(name, frame)| {
            let drawn = frame.draw(name, at, top + ROW, whole);
            at += wide(frame);
            drawn
        });
        html! {
            g {
                title { (name) ": " (time(self.time)) ", " (share(self.time, whole)) }
                rect x=(format!("{left:.1}")) y=(top) width=(format!("{:.1}", wide(self))) height=(ROW - 1.0) fill="#ffd9a8" stroke="#ffffff" {}
                @if letters > 3 { text x=(format!("{:.1}", left + 3.0)) y=(top + 14.0) fill="#000000" { (shown) } }
            }
            @for frame in within { (frame) }
        }
    }
}

/// The frames from the outermost one to the caller. Without a call stack the outermost is the
/// module.
fn stack(caller: &CallerTotals) -> Vec<String> {
    let frames = caller.caller.stack.iter().rev();
    let mut names: Vec<String> = frames.map(|frame| frame.words()).collect();
    if names.is_empty() {
        let module = caller.caller.frame.module.as_deref();
        names.push(module.map_or("no module", name_of).to_string());
    }
    names.extend([caller.caller.frame.name(), caller.called.join(", ")]);
    names
}

/// All callers, from the outermost frames inwards.
fn tree(report: &Report) -> Frame {
    let mut all = Frame::default();
    for (stack, time) in stacks(report) {
        all.add(&stack, time);
    }
    all
}

/// Each stack, the outermost frame first, with the time of its calls.
fn stacks(report: &Report) -> Vec<(Vec<String>, u64)> {
    let mut stacks = Vec::new();
    for caller in &report.callers {
        let mut stack = stack(caller);
        stacks.push((stack.clone(), caller.time_ns - caller.gpu_time_ns));
        if caller.gpu_calls > 0 {
            stack.push("GPU memory".into());
            stacks.push((stack, caller.gpu_time_ns));
        }
    }
    stacks
}

/// The flame graph without a script. A frame's title has its numbers.
fn drawing(all: &Frame, xmlns: Option<&str>) -> Markup {
    let height = ROW * all.depth() as f64;
    html! {
        svg xmlns=[xmlns] width=(WIDTH) height=(height) viewBox=(format!("0 0 {WIDTH} {height}"))
            font-family="monospace" font-size="12" { (all.draw("all calls", 0.0, 0.0, all.time)) }
    }
}

pub fn draw(report: &Report) -> Markup {
    html! { figure {
        figcaption { "Time in calls by caller " span.unit { "from the outermost function, or the module, down to the function that was called" } }
        div.window.flame role="region" tabindex="0" aria-label="Flame graph of callers; the table below has its numbers" {
            (drawing(&tree(report), None))
        }
        p.aside { "To search and to zoom: " code.word { "rdmamr report --folded" } " prints these stacks for speedscope and flamegraph.pl; "
            code.word { "--flamegraph FILE.svg" } " draws them." }
    } }
}

/// The flame graph as a file.
pub fn svg(report: &Report) -> String {
    let content = drawing(&tree(report), Some("http://www.w3.org/2000/svg")).into_string();
    let content: String = content.chars().filter(|&c| !controls(c)).collect();
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{content}\n")
}

/// The stacks as lines `OUTERMOST;...;CALLED NS`, which speedscope, flamegraph.pl and inferno read.
pub fn folded(report: &Report) -> String {
    let mut text = String::new();
    for (stack, time) in stacks(report) {
        let frames = stack.iter().map(|name| printable(name).replace(';', ":"));
        let frames = frames.collect::<Vec<_>>().join(";");
        let _ = writeln!(text, "{frames} {time}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;
    use crate::sample::{deregister, register};

    #[test]
    fn the_stacks_are_folded_and_drawn() {
        let report = report(&[
            register(0, 1, 0x1000, 4096),
            deregister(50_000, 1, 0x1000, 4096),
        ]);
        let folded = folded(&report);
        // The caller is outside of all modules.
        assert_eq!(folded, "no module;0x1000;ibv_reg_mr, ibv_dereg_mr 14000\n");
        let svg = svg(&report);
        assert!(
            svg.contains("<title>0x1000: 14.0 us, 100 %</title>"),
            "{svg}"
        );
        assert_eq!(svg.matches("<rect").count(), 4);
        assert!(!svg.contains("<script"));
    }
}
