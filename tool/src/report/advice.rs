// SPDX-License-Identifier: MIT OR Apache-2.0
//! Advice on the trace, in words: the most that the cache could save, and the trial that shows what
//! it does save. Commands stand between backticks.
use super::ranges::OUTLIER;
use super::shape::{Advice, Bound, Kind, Report, Totals, Unserved};
use super::verdict;
use super::{job, units};
use std::path::Path;

/// Registrations of GPUs' memory, and deregistrations at the end of a process, are worth a sentence if
/// they take this many ns.
const SLOW: u64 = 1_000_000_000;

/// Adds the trial, the verdict and the reasons to the bounds of a report that is complete apart from them.
pub fn complete(report: &mut Report, path: &Path) {
    let (advice, totals) = (&mut report.advice, &report.totals);
    advice.verdict = verdict::of(advice, totals);
    let setting = match advice.verdict.kind {
        Kind::TryIt => Some(verdict::best(advice).0),
        Kind::Prefault => Some(verdict::PREFAULT),
        _ => None,
    };
    if let Some(setting) = setting {
        // A trial after a trial must not replace the trace of the first.
        let is_trial = path.file_stem().is_some_and(|name| name == "trial");
        let name = if is_trial { "again" } else { "trial" };
        let (trace, traces) = match job::of_ranks(&report.ranks) > 1 {
            true => (format!("{name}/%h-%r.trace"), name.to_string()),
            false => (format!("{name}.trace"), format!("{name}.trace")),
        };
        let run = match setting.starts_with("--") {
            true => format!("rdmamr run {setting} --trace {trace} --"),
            false => format!("env {setting} rdmamr run --trace {trace} --"),
        };
        advice.next = job::commands(&report.processes, &report.ranks, &run);
        // What came through a pipe cannot be read again.
        if path.is_file() || path.is_dir() {
            let before = units::quoted(path);
            let compare = format!("rdmamr report --diff {before} {traces}");
            advice.next.push(compare);
        }
    }
    advice.sentence = match advice.verdict.kind {
        Kind::CannotKnow => {
            "Too few of the calls are in the trace: record with a higher --trace-limit \
                             (RDMAMR_TRACE_LIMIT)."
                .to_string()
        }
        _ => sentence(totals, advice),
    };
}

fn sentence(totals: &Totals, advice: &Advice) -> String {
    let (local, all, best) = (&advice.local, &advice.all, verdict::best(advice).1);
    let most = |bound: &Bound| {
        format!(
            "{} ({} of the time in calls)",
            units::time(bound.most_ns),
            units::share(bound.most_ns, totals.time_ns)
        )
    };
    let mut sentence = match best.most_ns {
        0 => "No registration came back that the cache could serve. The first one of a range is plain, and \
              the second makes the region that serves the others."
            .to_string(),
        _ => format!(
            "{} of memory that the program had registered and deregistered before, with the same domain and \
             access, so that the cache may have kept it. These calls and their deregistrations took {}, \
             and no cache saves more. It saves less, or costs time, if memory changes, or if more of it \
             is idle, or for longer, than the cache keeps. A trial tells.",
            units::plural(best.registrations, "registration is", "registrations are"),
            most(best)
        ),
    };
    if all.most_ns > local.most_ns {
        sentence += &format!(
            " `--cache=local` leaves remotely accessible regions alone and saves at most {}; \
                 `--cache=all` saves at most {}. With `all` an rkey stays valid after ibv_dereg_mr until \
                 the region ends, for any remote peer that kept the rkey: use `all` only for programs \
                 that do not revoke access by deregistering.",
            most(local),
            most(all)
        );
    }
    if best.outliers > 0 {
        sentence += &format!(
            " {} of the calls took more than {OUTLIER} times the median of their length, {} together \
             beyond it: outliers of the machine, which the bound does not have.",
            units::count(best.outliers),
            units::time(best.outlier_ns),
        );
    }
    if totals.gpu_ns >= SLOW {
        sentence += &format!(
            " Registrations of a GPU's memory took {}. On EFA (the driver efa) each takes longer, \
                 the more of it the domain has already: register the smallest first, and each on as few \
                 devices as it needs.",
            units::time(totals.gpu_ns)
        );
    }
    if totals.ending_ns >= SLOW {
        let (all, took) = (totals.ending_deregistrations, units::time(totals.ending_ns));
        let all = units::plural(all, "deregistration", "deregistrations");
        sentence += &format!(
            " The end took {took}: {all} after the last registration of a process. Skip them where the process \
                 exits, since the kernel then does the same work, or make them by several threads."
        );
    }
    let reason =
        |of: &Unserved| format!("{} because {}", units::count(of.registrations), of.reason);
    let reasons: Vec<_> = advice.unserved.iter().map(reason).collect();
    if !reasons.is_empty() {
        sentence += " The cache does not serve some registrations: ";
        sentence += &(reasons.join("; ") + ".");
    }
    sentence
}
