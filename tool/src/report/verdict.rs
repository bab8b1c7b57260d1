// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report's first line: the largest cost that a setting may change, and the setting. A person
//! reads it in ten seconds; the reasons stand below it.
use super::shape::{Advice, Bound, Kind, Totals, Verdict};
use super::units::{count, plural, share, time};

/// What saves at most this part of the run is not worth a trial.
const LEAST: u64 = 100;
/// A trace that lacks more than this part of the calls tells nothing of the run.
const LACKING: u64 = 10;

/// The setting for large registrations.
pub const PREFAULT: &str = "--prefault 4";

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

pub fn of(advice: &Advice, totals: &Totals) -> Verdict {
    let (setting, bound) = best(advice);
    let most = bound.most_ns.saturating_add(bound.outlier_ns);
    let (large, least) = (&advice.large, (totals.thread_ns / LEAST).max(1));
    let kind = if totals.dropped.saturating_mul(LACKING) > totals.calls {
        Kind::CannotKnow
    } else if most >= least && 2 * most >= large.most_ns {
        Kind::TryIt
    } else if large.most_ns >= least {
        Kind::Prefault
    } else if totals.hits > 0 && 2 * totals.hits >= totals.registrations {
        Kind::Served
    } else if totals.gpu > 0 {
        Kind::Gpu
    } else {
        Kind::NotWorthIt
    };
    let run = match totals.threads {
        0 | 1 => "the run",
        _ => "the threads' time",
    };
    let of_run = |ns: u64| format!("{} of {run}", share(ns, totals.thread_ns));
    let all = plural(totals.registrations, "registration", "registrations");
    let came_back = format!("{} of {all} came back", count(bound.registrations));
    let (saved, part) = (time(bound.most_ns), of_run(bound.most_ns));
    let mut saves = format!("`{setting}` saves at most {saved} ({part})");
    if bound.outliers > 0 {
        let calls = plural(bound.outliers, "call", "calls");
        let beyond = time(bound.outlier_ns);
        saves += &format!(", besides {beyond} of outliers ({calls})");
    }
    let in_calls = format!("the calls take {}", of_run(totals.time_ns));
    let line = match kind {
        Kind::CannotKnow => format!(
            "Cannot be known: the trace has {} of {} calls.",
            count(totals.calls),
            count(totals.calls.saturating_add(totals.dropped))
        ),
        Kind::TryIt if 2 * large.most_ns >= most => format!(
            "{came_back}: {saves}. Those of 16 MiB and more take {}: if their memory is shared or a file's, \
             the cache leaves it alone, and the program must map it private or keep it registered.",
            time(large.most_ns)
        ),
        Kind::TryIt => format!("{came_back}: {saves}."),
        Kind::Prefault => format!(
            "{} of 16 MiB and more take {} ({}): `{PREFAULT}` populates untouched memory by 4 threads.",
            plural(large.registrations, "registration", "registrations"),
            time(large.most_ns),
            of_run(large.most_ns)
        ),
        Kind::Gpu => format!(
            "Keep the library: the kernel refused {} of a GPU's memory by address, and the library made them by \
             dma-buf; {in_calls}.",
            plural(totals.gpu, "registration", "registrations")
        ),
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
    fn the_largest_cost_is_named() {
        let verdict = |most_ms: u64, large_ms: u64, gpu| {
            let bound = |ms: u64| Bound {
                registrations: ms.min(12),
                most_ns: ms * MS,
                ..Bound::default()
            };
            let (all, large) = (bound(most_ms), bound(large_ms));
            let advice = Advice {
                all,
                large,
                ..Advice::default()
            };
            let totals = Totals {
                registrations: 20,
                gpu,
                threads: 1,
                time_ns: 4_000 * MS,
                thread_ns: 25_000 * MS,
                ..Totals::default()
            };
            of(&advice, &totals)
        };
        let found = verdict(0, 3_200, 1);
        assert_eq!(
            (found.kind, &*found.line),
            (
                Kind::Prefault,
                "12 registrations of 16 MiB and more take 3.20 s (12.8 % of the run): `--prefault 4` populates \
                 untouched memory by 4 threads."
            )
        );
        let found = verdict(3_000, 3_200, 0);
        assert_eq!(found.kind, Kind::TryIt);
        assert!(
            found
                .line
                .contains("Those of 16 MiB and more take 3.20 s: if their memory is shared")
        );
        assert!(!verdict(3_000, 1_000, 0).line.contains("shared"));
        let found = verdict(0, 0, 3);
        assert_eq!(
            (found.kind, &*found.line),
            (
                Kind::Gpu,
                "Keep the library: the kernel refused 3 registrations of a GPU's memory by address, and the \
                 library made them by dma-buf; the calls take 16.0 % of the run."
            )
        );
        assert_eq!(verdict(0, 200, 0).kind, Kind::NotWorthIt);
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
