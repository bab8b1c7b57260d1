// SPDX-License-Identifier: MIT OR Apache-2.0
//! Advice on the trace, in words. Commands stand between backticks.
use super::cache::{Cache, Class};
use super::durations::Durations;
use super::ranges::{Costs, Medians, OUTLIER, Ranges, Served};
use super::shape::{Advice, ProcessTotals, Ranks, Saving, Totals, Unserved, What};
use super::start::Start;
use super::{job, units, verdict};
use crate::trace::Process;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// How many hits are enough for a median.
const ENOUGH_HITS: u64 = 10;
/// The assumed time in ns that userfaultfd(2) takes to watch a region, for a trace without it. The
/// trace has it as measured in the process, and the cache's own work takes so many times as long
/// (measured by ctests/tool/predict.py).
pub const WATCH_NS: u64 = 1_500;
/// A hit and its deregistration, with the trace's own time, in a trace without hits.
const HIT: (u64, u64) = (4, 15);
/// The cost of a miss: it includes the look at the mapping around the region.
const MISS: u64 = 3;
/// The same for the end of a region whose memory the program changes, for an eviction because too
/// many regions are idle, and for a registration that the cache refuses after a look at its memory.
const CHANGE: u64 = 5;
const EVICTION: u64 = 10;
const REFUSAL: u64 = 1;

/// The findings of the replay.
pub struct Found<'a> {
    pub totals: &'a Totals,
    pub ranges: &'a Ranges,
    pub medians: &'a Medians,
    pub cache: &'a Cache,
    /// The number and the time of the plain registrations that the cache would not have served, by
    /// reason.
    pub unserved: &'a FxHashMap<&'static str, (u64, u64)>,
    /// The cost of the cache's start in the processes that register.
    pub start: Start,
    /// The command line of the process with the most time in calls.
    pub program: &'a [String],
    pub processes: &'a [ProcessTotals],
    pub ranks: &'a Ranks,
}

/// The registrations that the cache has served in the trace.
fn totals_of_cache(totals: &Totals) -> u64 {
    totals.hits + totals.misses
}

/// How long userfaultfd(2) takes to watch a region, as the processes measured it.
pub fn watch(processes: &[Process]) -> u64 {
    let watches = processes.iter().filter_map(|process| process.cache);
    let watches = watches.map(|cache| cache.watch_ns).filter(|&ns| ns > 0);
    watches.min().unwrap_or(WATCH_NS)
}

/// The costs of the cache's own work, and whether the trace has measured that of a hit. `durations`
/// covers all sizes, by the effect of the call.
pub fn costs(processes: &[Process], durations: impl Fn(What) -> Durations) -> (Costs, bool) {
    let median = |what| {
        Some(durations(what))
            .filter(|of| of.count >= ENOUGH_HITS)
            .map(|of| of.quantile(0.5))
    };
    let measured = median(What::Hit)
        .zip(median(What::Kept))
        .map(|(hit, kept)| hit + kept);
    let watch = watch(processes);
    let costs = Costs {
        hit: measured.unwrap_or(watch * HIT.0 / HIT.1),
        miss: watch * MISS,
        change: watch * CHANGE,
        eviction: watch * EVICTION,
        refusal: watch * REFUSAL,
    };
    (costs, measured.is_some())
}

pub fn advice(found: &Found, costs: Costs, hit_measured: bool) -> Advice {
    let starts = |saving: &Saving| {
        // A cache that has served a call has started already, and a cache that serves none never
        // starts.
        totals_of_cache(found.totals) == 0 && saving.hits + saving.misses > 0
    };
    let saving = |classes: &[Class]| {
        let mut saving = Saving::default();
        let left_out = found.ranges.left_out(classes, found.medians);
        let (mut paid, mut hits) = (0, 0);
        for &class in classes {
            let ends = found.cache.ends[class as usize];
            let served = Served {
                changes: ends.changed,
                evictions: ends.evicted,
                ..found.ranges.classes[class as usize]
            };
            saving.ranges += found.ranges.with_hits(class);
            saving.hits += u64::from(served.hits);
            saving.misses += u64::from(served.made);
            paid += served.paid(costs);
            hits += u64::from(served.hits) * costs.hit;
            saving.evictions += u64::from(ends.evicted);
            saving.changes += u64::from(ends.changed);
            saving.idle_bytes = found.cache.most_idle[class as usize];
        }
        if starts(&saving) {
            paid += found.start.ns;
        }
        saving.saved_ns = left_out.typical as i64 - paid as i64;
        saving.outliers = left_out.outliers;
        saving.outlier_ns = left_out.excess;
        // The costs are a model, but for those that the trace has measured: on one machine a miss took
        // twice as long.
        let modelled = paid - if hit_measured { hits } else { 0 };
        saving.unsure_ns = left_out.skew + modelled;
        saving
    };
    let mut advice = Advice {
        assumption: assumption(costs, hit_measured, found.start),
        hit_ns: costs.hit,
        hit_measured,
        miss_ns: costs.miss,
        change_ns: costs.change,
        start_ns: found.start.ns,
        start_measured: found.start.measured,
        local: saving(&[Class::Local]),
        all: saving(&[Class::Local, Class::Remote]),
        fabric: saving(&[Class::Fabric]),
        unserved: unserved(found.unserved),
        ..Advice::default()
    };
    let which = advice.recommended();
    let run = match which {
        _ if verdict::is_of_fabric(&advice) => {
            Some("env RDMAMR_FABRIC_CACHE=1 rdmamr run --".to_string())
        }
        which => which.map(|which| format!("rdmamr run --cache={which} --")),
    };
    if let Some(run) = run {
        advice.command = Some(command(&run, found.program));
        advice.launch = job::commands(found.processes, found.ranks, &run);
    }
    advice.verdict = verdict::of(&advice, found.totals, which);
    advice.sentence = match verdict::is_whole(found.totals) {
        true => sentence(found, &advice, which),
        false => "Too few of the calls are in the trace: record with a higher --trace-limit \
                  (RDMAMR_TRACE_LIMIT)."
            .to_string(),
    };
    advice
}

fn assumption(costs: Costs, hit_measured: bool, start: Start) -> String {
    format!(
        "Each registration and deregistration that the cache would leave out counts as the median of those of its \
         length. The cache is replayed with the rules and limits that the process had: a range is kept once it is \
         registered again, a region serves one use at a time and stays registered for a while after its \
         deregistration (by default 1 s if it is remotely accessible, else 60 s). A hit \
         and its deregistration count as {} ({}), a miss as {} more than its registration, a change of a kept \
         region's memory as {}, an eviction as {}, and the cache's start as {} ({}). \
         Changes that the program does not make by \
         its own calls are not in the trace, such as the C library's free() of a large block.",
        units::time(costs.hit),
        if hit_measured {
            "the median of this trace"
        } else {
            "estimated: the trace has too few hits"
        },
        units::time(costs.miss),
        units::time(costs.change),
        units::time(costs.eviction),
        units::time(start.ns),
        match start.measured {
            true => "measured on this machine now",
            false => "estimated: the trace is of another machine, or does not name its machine",
        },
    )
}

fn unserved(found: &FxHashMap<&'static str, (u64, u64)>) -> Vec<Unserved> {
    let mut unserved: Vec<_> = found
        .iter()
        .map(|(reason, &(registrations, time_ns))| Unserved {
            reason,
            registrations,
            time_ns,
        })
        .collect();
    unserved.sort_by_key(|of| (Reverse(of.time_ns), of.reason));
    unserved
}

/// The command line that runs the program with a cache.
fn command(run: &str, program: &[String]) -> String {
    let mut command = run.to_string();
    if program.is_empty() {
        command += " program";
    }
    for word in program {
        command.push(' ');
        command += &units::quoted(word);
    }
    command
}

fn sentence(found: &Found, advice: &Advice, which: Option<&str>) -> String {
    let totals = found.totals;
    let (local, all) = (&advice.local, &advice.all);
    let time = |ns: i64| units::time(ns.unsigned_abs());
    let shares = |saving: &Saving| {
        format!(
            "{} of the time in calls, {} of the threads' time",
            units::share(saving.saved_ns.unsigned_abs(), totals.time_ns),
            units::share(saving.saved_ns.unsigned_abs(), totals.thread_ns)
        )
    };
    let saved = |saving: &Saving| format!("{} ({})", time(saving.saved_ns), shares(saving));
    let saved_of_all = |saving: &Saving| {
        format!(
            "{} of the {} in calls ({})",
            time(saving.saved_ns),
            units::time(totals.time_ns),
            shares(saving)
        )
    };
    let mut sentence = String::new();
    if totals.hits > 0 {
        let served = units::share(totals.hits, totals.registrations);
        sentence += &format!("The cache has already served {served} of the registrations. ");
    }
    let line = match which {
        Some(which) if verdict::is_of_fabric(advice) => format!("--cache={which}"),
        _ => {
            let line = advice.launch.first().or(advice.command.as_ref());
            line.cloned().unwrap_or_default()
        }
    };
    sentence += &match which {
        Some("all") if local.saved_ns > 0 => format!(
            "`{line}` would have saved {}, and `--cache=local`, which leaves remotely accessible regions \
             alone, {}.",
            saved_of_all(all),
            saved(local)
        ),
        Some("all") => format!(
            "`{line}` would have saved {}; `--cache=local` would have saved nothing: every buffer that is \
             registered again is remotely accessible.",
            saved_of_all(all)
        ),
        Some(_) if all.saved_ns > local.saved_ns => format!(
            "`{line}` would have saved {}, and `--cache=all`, which also caches remotely accessible regions, {}.",
            saved_of_all(local),
            saved(all)
        ),
        Some(_) => format!("`{line}` would have saved {}.", saved_of_all(local)),
        None if all.saved_ns < 0 && totals.hits == 0 => format!(
            "Leave the cache off: `--cache=all` would have cost {} more ({}), by {} and {}.",
            time(all.saved_ns),
            shares(all),
            units::plural(all.hits, "hit", "hits"),
            units::plural(all.misses, "miss", "misses"),
        ),
        None if totals.hits > 0 => "It could save nothing beyond that.".to_string(),
        None if !advice.unserved.is_empty() => {
            "`--cache=all` would have saved nothing.".to_string()
        }
        None => "No plain region was registered again soon enough for the cache to save time."
            .to_string(),
    };
    if let Some(which) = which {
        sentence += &price(advice, which);
    }
    if advice.fabric.saved_ns > 0 {
        sentence += &format!(
            " `RDMAMR_FABRIC_CACHE=1` would have saved {} of libfabric's calls.",
            saved(&advice.fabric)
        );
    }
    let saving = verdict::best(advice);
    sentence + &outliers(saving) + &refusals(&advice.unserved) + &past(totals.past_registrations)
}

/// The calls of whose time nobody can say whether the cache saves it.
fn outliers(saving: &Saving) -> String {
    if saving.outliers == 0 {
        return String::new();
    }
    format!(
        " {} of the calls that it would have left out took more than {OUTLIER} times the median of their length, \
         {} together beyond it: outliers of the machine, which no figure here counts as saved.",
        units::count(saving.outliers),
        units::time(saving.outlier_ns),
    )
}

/// The price of the cache besides time.
fn price(advice: &Advice, which: &str) -> String {
    let with_remote = advice.all.saved_ns > advice.local.saved_ns;
    let saving = if which == "all" {
        &advice.all
    } else {
        &advice.local
    };
    let mut price = format!(
        " Up to {} would have stayed pinned without being used",
        units::bytes(saving.idle_bytes)
    );
    if which == "local" && with_remote {
        price += &format!(" (`all`: {})", units::bytes(advice.all.idle_bytes));
    }
    price.push('.');
    if with_remote {
        price += " With `all` an rkey stays valid after ibv_dereg_mr until the region ends, for any remote peer \
                  that kept the rkey: use `all` only for programs that do not revoke access by deregistering.";
    }
    let ends = if with_remote { &advice.all } else { saving };
    if ends.evictions > 0 {
        price += &format!(
            " {} would have been evicted, because more were idle than the limits allow (RDMAMR_CACHE_MAX_IDLE, \
             RDMAMR_CACHE_MAX_IDLE_BYTES, RLIMIT_MEMLOCK).",
            units::plural(ends.evictions, "region", "regions")
        );
    }
    price
}

fn refusals(unserved: &[Unserved]) -> String {
    let count = unserved.iter().map(|of| of.registrations).sum();
    match unserved {
        [] => String::new(),
        [only] => format!(
            " The cache does not serve {}: {}.",
            registrations(count),
            only.reason
        ),
        _ => {
            let reasons: Vec<_> = unserved
                .iter()
                .map(|of| format!("{} because {}", units::count(of.registrations), of.reason))
                .collect();
            format!(
                " The cache does not serve {}: {}.",
                registrations(count),
                reasons.join("; ")
            )
        }
    }
}

/// What the cache cannot reach.
fn past(count: u64) -> String {
    if count == 0 {
        return String::new();
    }
    let registrations = units::plural(count, "registration", "registrations");
    format!(" {registrations} by libmlx5's own calls went past the library, and so past the cache.")
}

fn registrations(count: u64) -> String {
    units::plural(count, "plain registration", "plain registrations")
}
