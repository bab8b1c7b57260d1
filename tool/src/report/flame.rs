// SPDX-License-Identifier: MIT OR Apache-2.0
//! A flame graph of callers: each frame is as wide as its time is long, and lies under the frame
//! around it.
use super::shape::{CallerTotals, Report};
use super::units::{name_of, share, time};
use maud::{Markup, html};

/// Frames narrower than this part of the whole are left out, so that the page stays small.
const NARROWEST: u64 = 500;

#[derive(Default)]
struct Frame {
    name: String,
    time: u64,
    within: Vec<Frame>,
}

impl Frame {
    /// Adds a stack, the outermost frame first.
    fn add(&mut self, stack: &[String], time: u64) {
        self.time += time;
        let Some((name, rest)) = stack.split_first() else {
            return;
        };
        let known = self.within.iter().position(|frame| frame.name == *name);
        let at = known.unwrap_or_else(|| {
            self.within.push(Frame {
                name: name.clone(),
                ..Frame::default()
            });
            self.within.len() - 1
        });
        self.within[at].add(rest, time);
    }

    fn draw(&self, whole: u64) -> Markup {
        let mut within: Vec<&Frame> = self.within.iter().collect();
        within.sort_by_key(|frame| std::cmp::Reverse(frame.time));
        let narrowest = whole / NARROWEST;
        let label = format!(
            "{}: {}, {}",
            self.name,
            time(self.time),
            share(self.time, whole)
        );
        html! { div.frame style=(format!("flex:{} 0 0", self.time.max(1))) {
            div.name title=(label) { (self.name) " " span.unit { (time(self.time)) } }
            @if !within.is_empty() {
                div.within {
                    @for frame in within.iter().filter(|frame| frame.time > narrowest) { (frame.draw(whole)) }
                    @let rest = self.time - within.iter().filter(|frame| frame.time > narrowest).map(|frame| frame.time).sum::<u64>();
                    @if rest > 0 { div.rest style=(format!("flex:{rest} 0 0")) {} }
                }
            }
        } }
    }
}

/// The frames from the outermost one to the caller. Without a call stack the outermost is the
/// module.
fn stack(caller: &CallerTotals) -> Vec<String> {
    let stack = &caller.caller.stack;
    if !stack.is_empty() {
        let mut names: Vec<String> = stack.iter().rev().map(|frame| frame.words()).collect();
        names.extend([caller.caller.name(), caller.called.join(", ")]);
        return names;
    }
    let module = caller.caller.module.as_deref();
    let module = module.map_or("no module", name_of).to_string();
    vec![module, caller.caller.name(), caller.called.join(", ")]
}

pub fn draw(report: &Report) -> Markup {
    let mut all = Frame {
        name: "all calls".to_string(),
        ..Frame::default()
    };
    for caller in &report.callers {
        let mut stack = stack(caller);
        all.add(&stack, caller.time_ns - caller.gpu_time_ns);
        if caller.gpu_calls > 0 {
            stack.push("GPU memory".into());
            all.add(&stack, caller.gpu_time_ns);
        }
    }
    html! { figure {
        figcaption { "Time in calls by caller " span.unit { "from the outermost function, or the module, down to the function that was called" } }
        div.window.flame role="region" tabindex="0" aria-label="Flame graph of callers; the table below has its numbers" {
            div.whole { (all.draw(all.time)) }
        }
    } }
}
