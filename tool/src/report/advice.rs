// SPDX-License-Identifier: MIT OR Apache-2.0
//! What to do about what the trace shows, in words. What is a command stands between backticks.
use super::access;
use super::durations::Durations;
use super::ranges::Ranges;
use super::shape::{Advice, Saving, Totals, What};
use super::units;

/// What a hit and its deregistration are taken to cost when the trace has none, in ns: 0.2 us, and the trace's own time.
const HIT_NS: u64 = 400;
/// How many hits make a median.
const ENOUGH_HITS: u64 = 10;

/// `durations`: of all sizes, by what was done.
pub fn advice(totals: &Totals, ranges: &Ranges, durations: impl Fn(What) -> Durations) -> Advice {
    let median = |what| {
        Some(durations(what))
            .filter(|of| of.count >= ENOUGH_HITS)
            .map(|of| of.quantile(0.5))
    };
    let measured = median(What::Hit)
        .zip(median(What::Kept))
        .map(|(hit, kept)| hit + kept);
    let hit_ns = measured.unwrap_or(HIT_NS);
    let local = ranges.saving(hit_ns, |key, range| {
        !access::of_fabric(range.call) && !access::remote(range.call, key.access)
    });
    let all = ranges.saving(hit_ns, |_, range| !access::of_fabric(range.call));
    let fabric = ranges.saving(hit_ns, |_, range| access::of_fabric(range.call));
    let assumption = format!(
        "A registration counts as saved if the same pages of the same protection domain were registered with the \
         same access before and are in use, or were let go not longer ago than the pool keeps them by default (1 s \
         where peers have rights, 60 s where not). In its place and that of its deregistration stands a hit of {} \
         ({}). A program that unmaps the memory in between saves less, one that registers parts of what is kept more. The \
         pool's limits on what it keeps are left out of account.",
        units::time(hit_ns),
        match measured {
            Some(_) => "the median of this trace",
            None => "assumed: the trace has too few hits",
        },
    );
    let sentence = sentence(totals, &local, &all, &fabric);
    Advice {
        sentence,
        assumption,
        hit_ns,
        hit_measured: measured.is_some(),
        local,
        all,
        fabric,
    }
}

fn sentence(totals: &Totals, local: &Saving, all: &Saving, fabric: &Saving) -> String {
    let run = |saving: &Saving| {
        format!(
            "{} of the run time",
            units::share(saving.saved_ns, totals.run_ns)
        )
    };
    let saved = |saving: &Saving| format!("{} ({})", units::time(saving.saved_ns), run(saving));
    let saved_of_all = |saving: &Saving| {
        format!(
            "{} of the {} in calls ({})",
            units::time(saving.saved_ns),
            units::time(totals.time_ns),
            run(saving)
        )
    };
    let mut sentence = String::new();
    if totals.hits > 0 {
        let served = units::share(totals.hits, totals.registrations);
        sentence += &format!("The pool has already served {served} of the registrations. ");
    }
    sentence += &if all.saved_ns == 0 && totals.hits > 0 {
        "There is nothing that it could save beyond that.".to_string()
    } else if all.saved_ns == 0 {
        "No plain region was registered again soon enough for the pool to save time.".to_string()
    } else if local.saved_ns == 0 {
        format!(
            "`rdmamr run --cache=all -- program` would have saved {}; `--cache=local` nothing, since peers have \
             rights to all that is registered again.",
            saved_of_all(all)
        )
    } else if local.hits == all.hits {
        format!(
            "`rdmamr run --cache=local -- program` would have saved {}.",
            saved_of_all(all)
        )
    } else {
        format!(
            "`rdmamr run --cache=local -- program` would have saved {}, and `--cache=all`, which also keeps \
             regions that peers can reach, {}.",
            saved_of_all(local),
            saved(all)
        )
    };
    if fabric.saved_ns > 0 {
        sentence += &format!(
            " `RDMAMR_FABRIC_RELAXED=1` would have saved {} of libfabric's calls.",
            saved(fabric)
        );
    }
    sentence
}
