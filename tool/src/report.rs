// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr report`: the cost of the registrations of a trace, as a page, as text or as JSON.
use crate::files::named::find;
use crate::style::{print, say};
use crate::trace::Trace;
use anyhow::{Context, Result, bail};
use shape::Report;
use std::io::Write;
use std::path::{Path, PathBuf};

pub mod access;
mod advice;
pub mod callers;
mod diff;
mod durations;
pub mod errno;
pub mod figures;
mod flame;
mod html;
mod job;
pub mod json;
pub mod names;
mod output;
pub mod perfetto;
mod plots;
mod ranges;
mod ranks;
mod replay;
mod shape;
mod stacks;
mod symbols;
mod tables;
#[cfg(test)]
mod tests;
mod text;
mod timeline;
pub mod units;
mod verdict;

use self::callers::Resolver;
use self::names::Modules;
pub use self::output::ensure_writable;
use self::units::shown;

/// Report what the registrations in a trace cost, by caller, and what would avoid them
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr run --trace /tmp/trace -- program     make a trace
  rdmamr report /tmp/trace                     write /tmp/trace.html
  rdmamr report --text /tmp/trace | less       the same as text
  rdmamr report --json /tmp/trace | jq .advice
  rdmamr report traces/                        all traces of a job, as one
  zstdcat old.zst | rdmamr report --text -     from a pipe
  rdmamr report --diff before.trace after.trace
  rdmamr report --perfetto /tmp/trace          for ui.perfetto.dev
  rdmamr report --flamegraph callers.svg /tmp/trace
  rdmamr report --folded /tmp/trace >stacks    for speedscope, flamegraph.pl")]
pub struct Args {
    /// The trace: what `rdmamr run --trace FILE` or RDMAMR_TRACE=FILE has written; several of one
    /// job; a folder of them; - for standard input
    #[arg(value_name = "FILE", required = true)]
    traces: Vec<PathBuf>,
    /// Print the report as text
    #[arg(long)]
    text: bool,
    /// Print the report as JSON, rdmamr_trace(5), also beside --text
    #[arg(long)]
    json: bool,
    /// Compare two runs, each a trace or a folder: what was gained, by size and by caller
    #[arg(long)]
    diff: bool,
    /// Write the calls in Chrome's trace format, for Perfetto, to FILE.json
    #[arg(long, conflicts_with_all = ["text", "json", "diff"])]
    perfetto: bool,
    /// Draw the flame graph of callers to FILE, an SVG
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "json", "diff", "perfetto", "output"])]
    flamegraph: Option<PathBuf>,
    /// Print the callers' stacks with their ns, folded: for speedscope, flamegraph.pl, inferno
    #[arg(long, conflicts_with_all = ["text", "json", "diff", "perfetto", "flamegraph", "output"])]
    folded: bool,
    /// Where to write the page; FILE.html beside the trace if not given, or FOLDER/report.html
    #[arg(short, long, value_name = "PAGE", conflicts_with_all = ["text", "json"])]
    output: Option<PathBuf>,
    /// Look up functions in files that the trace names: on this machine's file systems (local), or on
    /// any, also a network's
    #[arg(long, value_enum, value_name = "WHICH", default_value_t)]
    modules: Modules,
}

/// An error means that no report could be made.
pub fn run(args: &Args) -> Result<()> {
    if args.diff {
        return compare(args);
    }
    let mut names = Resolver::new(args.modules);
    let (trace, report) = read(&args.traces, &mut names)?;
    if args.json {
        print(&json::render(&report)?)
    } else if args.text {
        print(&text::render(&report))
    } else if args.folded {
        print(&flame::folded(&report))
    } else if let Some(place) = &args.flamegraph {
        output(&[&trace], place, whole(&flame::svg(&report)))
    } else if args.perfetto {
        let place = place(args, "json");
        output(&[&trace], &place, |out| {
            perfetto::write(&trace, &report, &mut names, out)
        })
    } else {
        let page = html::render(&report);
        output(&[&trace], &place(args, "html"), whole(&page))
    }
}

fn compare(args: &Args) -> Result<()> {
    let [before, after] = &args.traces[..] else {
        bail!("--diff compares two traces: the one before, and the one after");
    };
    let of = |trace| {
        read(
            std::slice::from_ref(trace),
            &mut Resolver::new(args.modules),
        )
    };
    let (one, before) = of(before)?;
    let (other, after) = of(after)?;
    let diff = diff::Diff::new(&before, &after);
    if args.json {
        print(&json::render(&diff)?)
    } else if args.text {
        print(&text::compare(&diff))
    } else {
        let place = place(args, "diff.html");
        output(&[&one, &other], &place, whole(&html::compare(&diff)))
    }
}

fn read(paths: &[PathBuf], resolver: &mut Resolver) -> Result<(Trace, Report)> {
    let trace = Trace::of(paths)?;
    let report = report_on(&trace, paths, resolver)?;
    Ok((trace, report))
}

fn report_on(trace: &Trace, paths: &[PathBuf], resolver: &mut Resolver) -> Result<Report> {
    let name = names(paths);
    Report::new(trace, Path::new(&name), resolver)
        .with_context(|| format!("{name} cannot be reported on"))
}

/// The content of a file that is this text.
fn whole(text: &str) -> impl FnOnce(&mut dyn Write) -> Result<()> {
    |out| Ok(out.write_all(text.as_bytes())?)
}

/// Writes a file, and prints its name.
fn output(
    traces: &[&Trace],
    place: &Path,
    content: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    save(traces, place, content)?;
    if place != Path::new("-") {
        print(&format!("{}\n", shown(place)))?;
    }
    Ok(())
}

/// Writes a file that must not be one of the traces.
fn save(
    traces: &[&Trace],
    place: &Path,
    content: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    if traces.iter().any(|trace| trace.is_at(place)) {
        bail!(
            "{} is the trace itself, and the output would replace it. Name another file",
            shown(place)
        );
    }
    // The output has addresses, keys and command lines of all traces.
    let modes = traces.iter().map(|trace| trace.mode());
    output::write(place, modes.fold(0o644, |all, mode| all & mode), content)
}

/// Reports on a program that `rdmamr run` has run: writes the page, and prints where it is and what
/// to do. `stays`: the trace does, so that the trial can be compared with it.
pub fn after_run(trace: &Trace, paths: &[PathBuf], place: &Path, stays: bool) -> Result<()> {
    let gone = [PathBuf::from("(removed)")];
    let report = report_on(
        trace,
        if stays { paths } else { &gone },
        &mut Resolver::default(),
    )?;
    let page = html::render(&report);
    save(&[trace], place, whole(&page))?;
    let verdict = &report.advice.verdict.line;
    say(format_args!("{verdict} More: {}", shown(place)));
    for command in &report.advice.next {
        say(format_args!("next: {command}"));
    }
    Ok(())
}

/// The requested traces, as one name.
fn names(paths: &[PathBuf]) -> String {
    let first = shown(&paths[0]);
    match paths.len() {
        1 => first,
        all => format!(
            "{first} and {}",
            units::plural(all as u64 - 1, "other", "others")
        ),
    }
}

/// The path of the output: by default beside the last trace.
fn place(args: &Args, ending: &str) -> PathBuf {
    if let Some(place) = &args.output {
        return place.clone();
    }
    let trace = match args.diff {
        true => &args.traces[args.traces.len() - 1],
        false => &args.traces[0],
    };
    let mut name = match find(trace) {
        Ok(found) if found.about.is_dir() => trace.join("report").into_os_string(),
        Ok(found) if found.about.is_file() => trace.as_os_str().to_owned(),
        _ => "report".into(),
    };
    name.push(".");
    name.push(ending);
    name.into()
}
