// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report's first line: whether the cache is worth it in this program. A person reads it in ten
//! seconds; the reasons stand below it.
use super::shape::{Advice, Saving, Totals};
use super::units::{count, plural, share, time};
use serde::Serialize;

/// A saving below this part of the run is not worth a setting.
const LEAST: i64 = 100;
/// A trace that lacks more than this part of the calls tells nothing of the run.
const LACKING: u64 = 10;
/// The saving is foretold if it is wrong by at most this part of it.
const RIGHT: u64 = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    WorthIt,
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
    /// The saving, as far as the medians foretell it, and whether the next run's is within 25 % of
    /// it.
    pub saved_ns: i64,
    pub foretold: bool,
}

/// The saving that the verdict is about: that of libfabric's calls if it exceeds the others.
pub fn best(advice: &Advice) -> &Saving {
    let plain = match advice.all_is_worth_it() {
        true => &advice.all,
        false => &advice.local,
    };
    match advice.fabric.saved_ns > plain.saved_ns.max(0) {
        true => &advice.fabric,
        // None saves anything: `all` has the outliers of both.
        false if plain.saved_ns <= 0 => &advice.all,
        false => plain,
    }
}

/// Whether that is the saving of libfabric's calls.
pub fn is_of_fabric(advice: &Advice) -> bool {
    std::ptr::eq(best(advice), &advice.fabric)
}

/// Whether the trace has so many of the calls that it tells of all.
pub fn is_whole(totals: &Totals) -> bool {
    totals.dropped.saturating_mul(LACKING) <= totals.calls
}

/// `which` is the value of `--cache` that the advice recommends.
pub fn of(advice: &Advice, totals: &Totals, which: Option<&str>) -> Verdict {
    let saving = best(advice);
    let saved = saving.saved_ns;
    let doubt = saving.unsure_ns.saturating_add(saving.outlier_ns);
    let foretold = doubt.saturating_mul(RIGHT) <= saved.unsigned_abs() || doubt == 0;
    let least = (totals.thread_ns as i64 / LEAST).max(1);
    let (lowest, highest) = (
        saved.saturating_sub_unsigned(saving.unsure_ns),
        saved.saturating_add_unsigned(doubt),
    );
    let mostly_served = 2 * totals.hits >= totals.registrations && totals.hits > 0;
    let kind = if mostly_served && highest < least {
        Kind::Served
    } else if lowest >= least || (foretold && saved >= least) {
        Kind::WorthIt
    } else if highest < least || (foretold && saved < least) {
        Kind::NotWorthIt
    } else {
        Kind::CannotKnow
    };
    let is_whole = is_whole(totals);
    let (kind, foretold) = if is_whole {
        (kind, foretold)
    } else {
        (Kind::CannotKnow, false)
    };
    let setting = match which {
        _ if is_of_fabric(advice) => "`RDMAMR_FABRIC_CACHE=1`".to_string(),
        Some(which) => format!("`--cache={which}`"),
        None => "`--cache=all`".to_string(),
    };
    let run = match totals.threads {
        0 | 1 => "the run",
        _ => "the threads' time",
    };
    let of_run = |ns: u64| format!("{} of {run}", share(ns, totals.thread_ns));
    let amount = format!(
        "{} of the {} in calls, {}",
        time(saved.unsigned_abs()),
        time(totals.time_ns),
        of_run(saved.unsigned_abs())
    );
    let outliers = format!(
        "{} of outliers ({})",
        time(saving.outlier_ns),
        plural(saving.outliers, "call", "calls")
    );
    let doubts = match saving.outliers {
        0 => format!(", give or take {}", time(saving.unsure_ns)),
        _ => format!("; {outliers} cannot be predicted"),
    };
    let line = match kind {
        _ if !is_whole => format!(
            "Cannot be known: the trace has {} of {} calls.",
            count(totals.calls),
            count(totals.calls.saturating_add(totals.dropped))
        ),
        Kind::WorthIt if foretold => format!("Worth it: {setting} saves {amount}."),
        Kind::WorthIt => format!("Worth it: {setting} saves {amount}{doubts}."),
        Kind::NotWorthIt if saved > 0 => format!("Not worth it: {setting} saves {amount}."),
        Kind::NotWorthIt if saved < 0 => format!(
            "Not worth it: {setting} costs {}{} more, {}.",
            if foretold { "" } else { "about " },
            time(saved.unsigned_abs()),
            of_run(saved.unsigned_abs())
        ),
        Kind::NotWorthIt if totals.registrations == totals.gpu + totals.past_registrations => {
            "Not worth it: the cache serves no registration of this program.".to_string()
        }
        Kind::NotWorthIt => format!(
            "Not worth it: the cache saves nothing; the calls take {}.",
            of_run(totals.time_ns)
        ),
        Kind::CannotKnow => format!(
            "Cannot be known: {setting} {} {}, {}{}.",
            if saved < 0 { "costs" } else { "saves" },
            time(saved.unsigned_abs()),
            of_run(saved.unsigned_abs()),
            match saving.outliers {
                0 => doubts,
                _ => format!(", and perhaps saves {outliers}"),
            }
        ),
        Kind::Served => format!(
            "Already cached: {} of the registrations are hits; the calls take {}.",
            share(totals.hits, totals.registrations),
            of_run(totals.time_ns)
        ),
    };
    Verdict {
        kind,
        line,
        saved_ns: saved,
        foretold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn verdict(saved_ms: i64, unsure_ms: u64, outlier_ms: u64, hits: u64) -> Verdict {
        let saving = Saving {
            saved_ns: saved_ms * MS,
            unsure_ns: unsure_ms * MS as u64,
            outliers: outlier_ms.div_ceil(240),
            outlier_ns: outlier_ms * MS as u64,
            ..Saving::default()
        };
        let advice = Advice {
            all: saving,
            ..Advice::default()
        };
        let totals = Totals {
            registrations: 600,
            hits,
            threads: 1,
            time_ns: 3_440 * MS as u64,
            thread_ns: 25_000 * MS as u64,
            ..Totals::default()
        };
        of(&advice, &totals, Some("all").filter(|_| saved_ms > 0))
    }

    #[test]
    fn one_percent_of_the_run_is_worth_it_and_less_is_not() {
        for (saved, kind, foretold, line) in [
            (
                800,
                Kind::WorthIt,
                true,
                "Worth it: `--cache=all` saves 800 ms of the 3.44 s in calls, 3.20 % of the run.",
            ),
            (
                65,
                Kind::NotWorthIt,
                true,
                "Not worth it: `--cache=all` saves 65.0 ms of the 3.44 s in calls, 0.26 % of the run.",
            ),
            (
                -50,
                Kind::NotWorthIt,
                true,
                "Not worth it: `--cache=all` costs 50.0 ms more, 0.20 % of the run.",
            ),
            (
                0,
                Kind::NotWorthIt,
                true,
                "Not worth it: the cache saves nothing; the calls take 13.8 % of the run.",
            ),
        ] {
            let found = verdict(saved, 0, 0, 0);
            assert_eq!(
                (found.kind, found.foretold, &*found.line),
                (kind, foretold, line)
            );
        }
        let served = verdict(0, 0, 0, 594);
        assert_eq!(served.kind, Kind::Served);
        assert!(served.line.starts_with("Already cached: 99.0 %"));
    }

    #[test]
    fn a_trace_that_lacks_calls_tells_nothing() {
        let advice = Advice::default();
        let verdict = |calls, dropped| {
            let totals = Totals {
                calls,
                dropped,
                ..Totals::default()
            };
            of(&advice, &totals, None)
        };
        let found = verdict(2, 7_998);
        assert_eq!((found.kind, found.foretold), (Kind::CannotKnow, false));
        assert_eq!(
            found.line,
            "Cannot be known: the trace has 2 of 8 000 calls."
        );
        assert_eq!(verdict(0, 1).kind, Kind::CannotKnow);
        assert_eq!(verdict(9, 1).kind, Kind::CannotKnow);
        assert_eq!(verdict(10, 1).kind, Kind::NotWorthIt);
    }

    #[test]
    fn outliers_are_no_saving_and_say_when_the_next_run_cannot_be_known() {
        // 13 calls made 90 % of the time: the medians alone are below 1 % of the run.
        let found = verdict(150, 0, 3_060, 0);
        assert_eq!((found.kind, found.foretold), (Kind::CannotKnow, false));
        assert_eq!(
            found.line,
            "Cannot be known: `--cache=all` saves 150 ms, 0.60 % of the run, and perhaps saves 3.06 s of outliers \
             (13 calls)."
        );
        // The medians alone suffice; the rest is in doubt.
        let found = verdict(300, 0, 3_060, 0);
        assert_eq!((found.kind, found.foretold), (Kind::WorthIt, false));
        assert!(
            found
                .line
                .ends_with("run; 3.06 s of outliers (13 calls) cannot be predicted.")
        );
        // The outliers are too few to matter.
        assert!(verdict(800, 0, 190, 0).foretold);
        assert_eq!(verdict(20, 0, 190, 0).kind, Kind::NotWorthIt);
        // So are costs that are estimated.
        assert_eq!(verdict(260, 60, 0, 0).kind, Kind::WorthIt);
        let found = verdict(260, 90, 0, 0);
        assert_eq!(found.kind, Kind::CannotKnow);
        assert!(
            found
                .line
                .ends_with("1.04 % of the run, give or take 90.0 ms."),
            "{}",
            found.line
        );
    }
}
