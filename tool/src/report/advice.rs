// SPDX-License-Identifier: MIT OR Apache-2.0
//! Advice on the trace, in words. Commands stand between backticks.
use super::cache::{Cache, Class};
use super::durations::Durations;
use super::ranges::{Costs, Ranges, Served};
use super::shape::{Advice, Saving, Totals, Unserved, What};
use super::units;
use crate::trace::Process;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// The assumed cost of a hit and its deregistration in ns, for a trace without hits: 0.2 us, and
/// the trace's own time.
const HIT_NS: u64 = 400;
/// How many hits are enough for a median.
const ENOUGH_HITS: u64 = 10;
/// The assumed time in ns that userfaultfd(2) takes to watch a region, for a trace without it.
const WATCH_NS: u64 = 1_500;
/// The cost of a miss as a multiple of that time: it includes the look at the mapping around the
/// region, and the cache's own work (measured by ctests/tool/predict.py).
const MISS: u64 = 3;
/// The same for the end of a region whose memory the program changes, for an eviction because too
/// many regions are idle, and for a registration that the cache refuses after a look at its memory.
const CHANGE: u64 = 5;
const EVICTION: u64 = 10;
const REFUSAL: u64 = 6;
/// The cache's start in ns: in a process that has one thread, and in one that has several, where
/// the kernel waits 10 ms for all processors before membarrier(2) serves it; two threads wait with
/// it.
const START_NS: u64 = 300_000;
const START_THREADS_NS: u64 = 20_000_000;

/// The findings of the replay.
pub struct Found<'a> {
    pub totals: &'a Totals,
    pub ranges: &'a Ranges,
    pub cache: &'a Cache,
    /// The number and the time of the plain registrations that the cache would not have served, by
    /// reason.
    pub unserved: &'a FxHashMap<&'static str, (u64, u64)>,
    /// The cost of the cache's start in the processes that register.
    pub start_ns: u64,
    /// The command line of the process with the most time in calls.
    pub program: &'a [String],
}

/// The cost of the cache's start in a process with this number of threads that register.
pub fn start(threads: u64) -> u64 {
    match threads {
        0 => 0,
        1 => START_NS,
        _ => START_THREADS_NS,
    }
}

/// The registrations that the cache has served in the trace.
fn totals_of_cache(totals: &Totals) -> u64 {
    totals.hits + totals.misses
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
    let watches = processes.iter().filter_map(|process| process.cache);
    let watch = watches
        .map(|cache| cache.watch_ns)
        .filter(|&ns| ns > 0)
        .min();
    let watch = watch.unwrap_or(WATCH_NS);
    let costs = Costs {
        hit: measured.unwrap_or(HIT_NS),
        miss: watch * MISS,
        change: watch * CHANGE,
        eviction: watch * EVICTION,
        refusal: watch * REFUSAL,
    };
    (costs, measured.is_some())
}

pub fn advice(found: &Found, costs: Costs, hit_measured: bool) -> Advice {
    let saving = |classes: &[Class]| {
        let mut saving = Saving::default();
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
            saving.saved_ns += served.saved(costs);
            saving.evictions += u64::from(ends.evicted);
            saving.changes += u64::from(ends.changed);
            saving.idle_bytes = found.cache.most_idle[class as usize];
        }
        // A cache that has served a call has started already, and a cache that serves none never
        // starts.
        if totals_of_cache(found.totals) == 0 && saving.hits + saving.misses > 0 {
            saving.saved_ns -= found.start_ns as i64;
        }
        saving
    };
    let mut advice = Advice {
        sentence: String::new(),
        assumption: assumption(costs, hit_measured),
        hit_ns: costs.hit,
        hit_measured,
        miss_ns: costs.miss,
        change_ns: costs.change,
        start_ns: found.start_ns,
        command: None,
        local: saving(&[Class::Local]),
        all: saving(&[Class::Local, Class::Remote]),
        fabric: saving(&[Class::Fabric]),
        unserved: unserved(found.unserved),
    };
    let which = recommended(&advice);
    advice.command = which.map(|which| command(which, found.program));
    advice.sentence = sentence(found, &advice, which);
    advice
}

fn assumption(costs: Costs, hit_measured: bool) -> String {
    format!(
        "The cache is replayed with the rules and limits that the process had: a range is kept once it is \
         registered again, a region serves one use at a time and stays registered for a while after its \
         deregistration (by default 1 s if it is remotely accessible, else 60 s). A hit \
         and its deregistration count as {} ({}), a miss as {} more than its registration, a change of a kept \
         region's memory as {}, an eviction as {}, and the cache's start as 0.3 ms in a \
         process with one thread that registers, 20 ms with several. Changes that the program does not make by \
         its own calls are not in the trace, such as the C library's free() of a large block.",
        units::time(costs.hit),
        if hit_measured {
            "the median of this trace"
        } else {
            "assumed: the trace has too few hits"
        },
        units::time(costs.miss),
        units::time(costs.change),
        units::time(costs.eviction),
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

/// The value of `--cache` that saves time, `local` if it does.
fn recommended(advice: &Advice) -> Option<&'static str> {
    let (local, all) = (advice.local.saved_ns, advice.all.saved_ns);
    if local > 0 {
        // The sentence has both, and the price of `all`.
        Some("local")
    } else {
        (all > 0).then_some("all")
    }
}

/// The command line that runs the program with a cache.
fn command(which: &str, program: &[String]) -> String {
    let mut command = format!("rdmamr run --cache={which} --");
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
    let line = advice.command.as_deref().unwrap_or_default();
    sentence += &match which {
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
    sentence + &refusals(&advice.unserved) + &past(totals.past_registrations)
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
