// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two runs of a program beside each other: the gain, by size and by caller.
use super::callers::{Caller, Frame};
use super::shape::{CallerTotals, Report, Size, What};
use super::tables::Section;
use super::units::{bytes, count, name_of, share, time};
use serde::Serialize;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

/// The most rows of a table of text.
pub const SHOWN: usize = 20;

#[derive(Serialize)]
pub struct Diff {
    pub version: u32,
    pub before: Side,
    pub after: Side,
    /// Reservations about the comparison, in sentences.
    pub notes: Vec<String>,
    /// By the power of two of the length; registrations and their deregistrations.
    pub sizes: Vec<OfSize>,
    /// The callers that gained or lost most come first.
    pub callers: Vec<OfCaller>,
}

/// A run.
#[derive(Serialize)]
pub struct Side {
    pub trace: String,
    pub processes: usize,
    pub calls: u64,
    pub failed: u64,
    pub registrations: u64,
    pub hits: u64,
    pub time_ns: u64,
    pub run_ns: u64,
    pub peak_pinned_bytes: u64,
}

/// Calls, and the time in them.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Cost {
    pub calls: u64,
    pub time_ns: u64,
}

/// Calls of both runs.
#[derive(Clone, Copy, Default, Serialize)]
pub struct Both {
    pub before: Cost,
    pub after: Cost,
}

#[derive(Serialize)]
pub struct OfSize {
    pub from_bytes: u64,
    /// The calls are registrations; the time is also that of deregistrations.
    #[serde(flatten)]
    pub cost: Both,
}

#[derive(Serialize)]
pub struct OfCaller {
    #[serde(flatten)]
    pub caller: Caller,
    #[serde(flatten)]
    pub cost: Both,
}

impl Cost {
    fn each(self) -> u64 {
        self.time_ns / self.calls.max(1)
    }
}

impl Both {
    /// The difference, with its sign in front: a gain has a minus, since the time became shorter.
    fn change(self) -> String {
        let (before, after) = (self.before.time_ns, self.after.time_ns);
        let sign = match after.cmp(&before) {
            Ordering::Less => "-",
            Ordering::Equal => "",
            Ordering::Greater => "+",
        };
        format!("{sign}{}", time(before.abs_diff(after)))
    }

    /// How many times as long a call took before, or how much longer it takes now.
    fn times(self) -> String {
        match (self.before.each(), self.after.each()) {
            (0, _) | (_, 0) => String::new(),
            (before, after) => format!("{:.2}", after as f64 / before as f64),
        }
    }

    fn cells(self) -> Vec<String> {
        vec![
            count(self.before.calls),
            count(self.after.calls),
            time(self.before.time_ns),
            time(self.after.time_ns),
            self.change(),
            self.times(),
        ]
    }

    fn of(&mut self, is_after: bool) -> &mut Cost {
        match is_after {
            true => &mut self.after,
            false => &mut self.before,
        }
    }
}

impl Side {
    fn of(report: &Report) -> Side {
        let totals = &report.totals;
        Side {
            trace: report.trace.clone(),
            processes: report.processes.len(),
            calls: totals.calls,
            failed: totals.failed,
            registrations: totals.registrations,
            hits: totals.hits,
            time_ns: totals.time_ns,
            run_ns: totals.run_ns,
            peak_pinned_bytes: report.pinned.peak_bytes,
        }
    }

    fn each(&self) -> u64 {
        self.time_ns / self.registrations.max(1)
    }
}

/// What identifies a caller in two lists: an address whose name is known may have moved.
fn identity(leads: &Frame) -> (Option<&str>, String) {
    let module = leads.module.as_deref().map(name_of);
    let source = leads.source.as_deref().unwrap_or_default();
    (module, format!("{} {source}", leads.name()))
}

impl Diff {
    pub fn new(before: &Report, after: &Report) -> Diff {
        let mut notes: Vec<String> = Vec::new();
        for (name, report) in [("Before", before), ("After", after)] {
            notes.extend(report.notes.iter().map(|note| format!("{name}: {note}")));
        }
        let (one, other) = (before.totals.registrations, after.totals.registrations);
        if one.abs_diff(other) > one.max(other) / 50 {
            notes.push(format!(
                "The runs registered {} and {} times: compare the time of one call.",
                count(one),
                count(other)
            ));
        }
        Diff {
            version: 1,
            before: Side::of(before),
            after: Side::of(after),
            notes,
            sizes: sizes(&before.sizes, &after.sizes),
            callers: callers(&before.callers, &after.callers),
        }
    }

    /// Whether the calls take longer than before.
    pub fn is_loss(&self) -> bool {
        self.after.time_ns > self.before.time_ns
    }

    /// The heading of the comparison.
    pub fn title(&self) -> &'static str {
        match self.is_loss() {
            true => "What was lost",
            false => "What was gained",
        }
    }

    /// The gain, in words.
    pub fn sentence(&self) -> String {
        let (before, after) = (&self.before, &self.after);
        let all = before.time_ns.abs_diff(after.time_ns);
        let mut sentence = format!(
            "{} {}: {} in calls before, {} after ({}). A registration with its deregistration took {} before, {} after.",
            time(all),
            if self.is_loss() { "lost" } else { "gained" },
            time(before.time_ns),
            time(after.time_ns),
            share(all, before.time_ns),
            time(before.each()),
            time(after.each()),
        );
        if before.hits + after.hits > 0 {
            sentence += &format!(
                " The cache served {} of the registrations before, {} after.",
                share(before.hits, before.registrations),
                share(after.hits, after.registrations)
            );
        }
        let ran = match before.processes.max(after.processes) {
            0 | 1 => "The run",
            _ => "All processes together",
        };
        sentence += &format!(
            " {ran} took {} before, {} after; at most {} were pinned before, {} after.",
            time(before.run_ns),
            time(after.run_ns),
            bytes(before.peak_pinned_bytes),
            bytes(after.peak_pinned_bytes)
        );
        sentence
    }

    /// The tables by size and by caller.
    pub fn sections(&self) -> [Section<'_>; 2] {
        let sizes = self.sizes.iter().map(|of| {
            let from = vec![bytes(of.from_bytes)];
            ([from, of.cost.cells()].concat(), None)
        });
        let callers = self.callers.iter();
        let callers = callers.map(|of| (of.cost.cells(), Some(&of.caller)));
        [
            Section {
                id: "sizes",
                heading: "By size".into(),
                words:
                    "Calls are registrations; times are also those of their deregistrations. The \
                        ratio is of one call."
                        .into(),
                columns: "from|calls before|after|time before|after|change|ratio",
                rows: sizes.collect(),
                ..Section::default()
            },
            Section {
                id: "callers",
                heading: "By caller".into(),
                columns: "+calls before|+after|time before|after|change|ratio|<caller",
                rows: callers.collect(),
                all: self.callers.len() as u64,
                ..Section::default()
            },
        ]
    }
}

/// The elements of both runs, each with whether it is of the second.
fn both<'a, T>(before: &'a [T], after: &'a [T]) -> impl Iterator<Item = (bool, &'a T)> {
    let before = before.iter().map(|of| (false, of));
    before.chain(after.iter().map(|of| (true, of)))
}

fn sizes(before: &[Size], after: &[Size]) -> Vec<OfSize> {
    let mut rows: BTreeMap<u64, Both> = BTreeMap::new();
    for (is_after, size) in both(before, after) {
        let cost = rows.entry(size.from_bytes).or_default().of(is_after);
        cost.time_ns += size.time_ns;
        if !matches!(size.what, What::Deregister | What::Kept) {
            cost.calls += size.calls;
        }
    }
    let row = |(from_bytes, cost)| OfSize { from_bytes, cost };
    rows.into_iter().map(row).collect()
}

fn callers(before: &[CallerTotals], after: &[CallerTotals]) -> Vec<OfCaller> {
    let mut rows: Vec<OfCaller> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for (is_after, totals) in both(before, after) {
        let leads = totals.caller.leads();
        let at = *known.entry(identity(leads)).or_insert_with(|| {
            // All its stacks together.
            let (frame, stack) = (leads.clone(), Vec::new());
            rows.push(OfCaller {
                caller: Caller { frame, stack },
                cost: Both::default(),
            });
            rows.len() - 1
        });
        let cost = rows[at].cost.of(is_after);
        cost.calls += totals.calls;
        cost.time_ns += totals.time_ns;
    }
    rows.sort_by_key(|row| Reverse(row.cost.before.time_ns.abs_diff(row.cost.after.time_ns)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{MS, report};
    use crate::sample::{deregister, register};
    use rdmamr_trace_format::{Call, how};

    fn runs() -> (Report, Report) {
        let pair = |n: u64, caller, length, slow: u32| {
            [
                Call {
                    caller,
                    duration: 40_000 / slow,
                    how: if slow > 1 && n > 0 {
                        how::HIT
                    } else {
                        how::KERNEL
                    },
                    ..register(n * MS, 1, 0x1000, length)
                },
                Call {
                    caller,
                    duration: 20_000 / slow,
                    ..deregister(n * MS + MS / 2, 1, 0x1000, length)
                },
            ]
        };
        let run = |slow: u32| {
            let calls: Vec<_> = (0..10)
                .flat_map(|n| pair(n, 0x1000 + n % 2, 4096 << (n % 2), slow))
                .collect();
            report(&calls)
        };
        (run(1), run(10))
    }

    #[test]
    fn what_was_gained_is_counted_by_size_and_by_caller() {
        let (before, after) = runs();
        let diff = Diff::new(&before, &after);
        assert_eq!((diff.before.time_ns, diff.after.time_ns), (600_000, 60_000));
        assert_eq!((diff.sizes.len(), diff.callers.len()), (2, 2));
        assert_eq!(
            (
                diff.sizes[1].cost.before.calls,
                diff.sizes[1].cost.after.time_ns
            ),
            (5, 30_000)
        );
        assert_eq!(diff.callers[0].cost.change(), "-270 us");
        assert_eq!(diff.sizes[0].cost.times(), "0.10");
        let sentence = diff.sentence();
        assert!(
            sentence.starts_with("540 us gained: 600 us in calls before, 60.0 us after (90.0 %)."),
            "{sentence}"
        );
        assert!(sentence.contains(" The run took "), "{sentence}");
        assert!(
            crate::report::text::compare(&diff)
                .lines()
                .all(|line| line.chars().count() <= 80)
        );
    }

    #[test]
    fn the_times_of_several_processes_are_added_up_and_said_to_be() {
        let (before, after) = runs();
        let mut diff = Diff::new(&before, &after);
        diff.after.processes = 3;
        let sentence = diff.sentence();
        assert!(
            sentence.contains(" All processes together took "),
            "{sentence}"
        );
    }

    #[test]
    fn a_loss_is_one_and_another_number_of_calls_is_said() {
        let (before, after) = runs();
        let diff = Diff::new(&after, &before);
        assert!(
            diff.sentence().starts_with("540 us lost"),
            "{}",
            diff.sentence()
        );
        assert_eq!(diff.sizes[0].cost.change(), "+270 us");
        assert_eq!(Both::default().change(), "0 ns");
        assert_eq!(diff.title(), "What was lost");
        let page = crate::report::html::compare(&diff);
        assert!(page.contains("<h1>What was lost</h1>") && page.contains("class=\"lost\""));
        assert!(!page.contains("What was gained"), "{page}");
        let fewer = report(&[register(0, 1, 0x1000, 4096)]);
        let diff = Diff::new(&before, &fewer);
        let said = diff
            .notes
            .iter()
            .any(|note| note.contains("compare the time of one call"));
        assert!(said, "{:?}", diff.notes);
        assert_eq!(diff.sizes[1].cost.after.calls, 0);
    }
}
