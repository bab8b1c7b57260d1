// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report's first line: whether the cache is worth a trial in this program. A person reads it in
//! ten seconds; the reasons stand below it.
use super::shape::{Advice, Bound, Totals};
use super::units::{count, plural, share, time};
use serde::Serialize;

/// What saves at most this part of the run is not worth a trial.
const LEAST: u64 = 100;
/// A trace that lacks more than this part of the calls tells nothing of the run.
const LACKING: u64 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    TryIt,
    #[default]
    NotWorthIt,
    /// The trace does not tell.
    CannotKnow,
    /// The cache was on and serves what can be served.
    Served,
}

#[derive(Clone, Default, Serialize)]
pub struct Verdict {
    pub kind: Kind,
    /// The verdict in one line.
    pub line: String,
}

/// The setting to try, and its bound: libfabric's if its calls came back for longer. `--cache=all` has
/// a price, so it must save more than twice as much as `local`.
pub fn best(advice: &Advice) -> (&'static str, &Bound) {
    let (local, all, fabric) = (&advice.local, &advice.all, &advice.fabric);
    if fabric.most_ns > all.most_ns {
        ("RDMAMR_FABRIC_CACHE=1", fabric)
    } else if all.most_ns > 2 * local.most_ns {
        ("--cache=all", all)
    } else {
        ("--cache=local", local)
    }
}

/// Whether the trace has so many of the calls that it tells of all.
fn is_whole(totals: &Totals) -> bool {
    totals.dropped.saturating_mul(LACKING) <= totals.calls
}

pub fn of(advice: &Advice, totals: &Totals) -> Verdict {
    let (setting, bound) = best(advice);
    let most = bound.most_ns.saturating_add(bound.outlier_ns);
    let kind = if !is_whole(totals) {
        Kind::CannotKnow
    } else if most >= (totals.thread_ns / LEAST).max(1) {
        Kind::TryIt
    } else if totals.hits > 0 && 2 * totals.hits >= totals.registrations {
        Kind::Served
    } else {
        Kind::NotWorthIt
    };
    let run = match totals.threads {
        0 | 1 => "the run",
        _ => "the threads' time",
    };
    let of_run = |ns: u64| format!("{} of {run}", share(ns, totals.thread_ns));
    let came_back = format!(
        "{} of {} came back",
        count(bound.registrations),
        plural(totals.registrations, "registration", "registrations")
    );
    let saves = format!(
        "`{setting}` saves at most {} ({}){}",
        time(bound.most_ns),
        of_run(bound.most_ns),
        match bound.outliers {
            0 => String::new(),
            calls => format!(
                ", besides {} of outliers ({})",
                time(bound.outlier_ns),
                plural(calls, "call", "calls")
            ),
        }
    );
    let in_calls = format!("the calls take {}", of_run(totals.time_ns));
    let line = match kind {
        Kind::CannotKnow => format!(
            "Cannot be known: the trace has {} of {} calls.",
            count(totals.calls),
            count(totals.calls.saturating_add(totals.dropped))
        ),
        Kind::TryIt => format!("{came_back}: {saves}."),
        Kind::Served => format!(
            "Already cached: {} of the registrations are hits; {in_calls}.",
            share(totals.hits, totals.registrations)
        ),
        Kind::NotWorthIt if most > 0 => format!("Not worth it: {came_back}, and {saves}."),
        Kind::NotWorthIt => format!("Not worth it: no registration came back; {in_calls}."),
    };
    Verdict { kind, line }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn verdict(most_ms: u64, outlier_ms: u64, hits: u64) -> Verdict {
        let all = Bound {
            registrations: 500 * most_ms.min(1),
            most_ns: most_ms * MS,
            outliers: outlier_ms.div_ceil(240),
            outlier_ns: outlier_ms * MS,
        };
        let advice = Advice {
            all,
            ..Advice::default()
        };
        let totals = Totals {
            registrations: 600,
            hits,
            threads: 1,
            time_ns: 3_440 * MS,
            thread_ns: 25_000 * MS,
            ..Totals::default()
        };
        of(&advice, &totals)
    }

    #[test]
    fn one_percent_of_the_run_is_worth_a_trial_and_less_is_not() {
        for (most, outliers, kind, line) in [
            (
                800,
                0,
                Kind::TryIt,
                "500 of 600 registrations came back: `--cache=all` saves at most 800 ms (3.20 % of the run).",
            ),
            (
                150,
                3_060,
                Kind::TryIt,
                "500 of 600 registrations came back: `--cache=all` saves at most 150 ms (0.60 % of the run), \
                 besides 3.06 s of outliers (13 calls).",
            ),
            (
                65,
                0,
                Kind::NotWorthIt,
                "Not worth it: 500 of 600 registrations came back, and `--cache=all` saves at most 65.0 ms \
                 (0.26 % of the run).",
            ),
            (
                0,
                0,
                Kind::NotWorthIt,
                "Not worth it: no registration came back; the calls take 13.8 % of the run.",
            ),
        ] {
            let found = verdict(most, outliers, 0);
            assert_eq!((found.kind, &*found.line), (kind, line));
        }
        let served = verdict(0, 0, 594);
        assert_eq!(served.kind, Kind::Served);
        assert!(served.line.starts_with("Already cached: 99.0 %"));
    }

    #[test]
    fn a_trace_that_lacks_calls_tells_nothing() {
        let verdict = |calls, dropped| {
            let totals = Totals {
                calls,
                dropped,
                ..Totals::default()
            };
            of(&Advice::default(), &totals)
        };
        let found = verdict(2, 7_998);
        assert_eq!(
            found.line,
            "Cannot be known: the trace has 2 of 8 000 calls."
        );
        assert_eq!(verdict(0, 1).kind, Kind::CannotKnow);
        assert_eq!(verdict(9, 1).kind, Kind::CannotKnow);
        assert_eq!(verdict(10, 1).kind, Kind::NotWorthIt);
    }
}
