// SPDX-License-Identifier: MIT OR Apache-2.0
//! Advice on the trace, in words. Commands stand between backticks.
use super::access;
use super::durations::Durations;
use super::ranges::Ranges;
use super::shape::{Advice, Saving, Totals, Unserved, What};
use super::units;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// The assumed cost of a hit and its deregistration in ns, for a trace without hits: 0.2 us, and
/// the trace's own time.
const HIT_NS: u64 = 400;
/// How many hits are enough for a median.
const ENOUGH_HITS: u64 = 10;

/// `durations` covers all sizes, by the effect of the call.
pub fn advice(
    totals: &Totals,
    ranges: &Ranges,
    unserved: &FxHashMap<&'static str, (u64, u64)>,
    durations: impl Fn(What) -> Durations,
) -> Advice {
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
        "The pool is replayed with the rules and limits that the process had: a region serves one use at a time, and \
         stays for a while after its deregistration (by default 1 s where peers have rights, 60 s where not). A hit \
         and its deregistration count as {} ({}). The trace does not show when memory is unmapped: a program that unmaps \
         between two registrations saves less. Left out: a first registration of pages costs more with the pool than \
         without, and the pool's start some milliseconds a process.",
        units::time(hit_ns),
        match measured {
            Some(_) => "the median of this trace",
            None => "assumed: the trace has too few hits",
        },
    );
    let mut unserved: Vec<_> = unserved
        .iter()
        .map(|(reason, &(registrations, time_ns))| Unserved {
            reason,
            registrations,
            time_ns,
        })
        .collect();
    unserved.sort_by_key(|of| (Reverse(of.time_ns), of.reason));
    let sentence = sentence(totals, &local, &all, &fabric, &unserved);
    Advice {
        sentence,
        assumption,
        hit_ns,
        hit_measured: measured.is_some(),
        local,
        all,
        fabric,
        unserved,
    }
}

fn sentence(
    totals: &Totals,
    local: &Saving,
    all: &Saving,
    fabric: &Saving,
    unserved: &[Unserved],
) -> String {
    let shares = |saving: &Saving| {
        format!(
            "{} of the time in calls, {} of the run time",
            units::share(saving.saved_ns, totals.time_ns),
            units::share(saving.saved_ns, totals.run_ns)
        )
    };
    let saved = |saving: &Saving| format!("{} ({})", units::time(saving.saved_ns), shares(saving));
    let saved_of_all = |saving: &Saving| {
        format!(
            "{} of the {} in calls ({})",
            units::time(saving.saved_ns),
            units::time(totals.time_ns),
            shares(saving)
        )
    };
    let mut sentence = String::new();
    if totals.hits > 0 {
        let served = units::share(totals.hits, totals.registrations);
        sentence += &format!("The pool has already served {served} of the registrations. ");
    }
    sentence += &if all.saved_ns == 0 && totals.hits > 0 {
        "There is nothing that it could save beyond that.".to_string()
    } else if all.saved_ns == 0 && !unserved.is_empty() {
        "`--cache=all` would have saved nothing.".to_string()
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
    if let [only] = unserved {
        sentence += &format!(
            " The pool does not serve {}: {}.",
            registrations(only.registrations),
            only.reason
        );
    } else if !unserved.is_empty() {
        let count = unserved.iter().map(|of| of.registrations).sum();
        let reasons: Vec<_> = unserved
            .iter()
            .map(|of| format!("{} because {}", units::count(of.registrations), of.reason))
            .collect();
        sentence += &format!(
            " The pool does not serve {}: {}.",
            registrations(count),
            reasons.join("; ")
        );
    }
    sentence
}

fn registrations(count: u64) -> String {
    units::plural(count, "plain registration", "plain registrations")
}
