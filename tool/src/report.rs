// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr report`: what the registrations of a trace cost, as a page, as text or as JSON.
use crate::trace::Trace;
use anyhow::{Context, Result, bail};
use shape::Report;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod access;
mod advice;
mod callers;
mod durations;
mod errno;
mod figures;
mod html;
mod json;
mod plots;
mod pool;
#[cfg(test)]
mod prediction_tests;
mod ranges;
mod replay;
mod shape;
#[cfg(test)]
mod tests;
mod text;
mod timeline;
mod units;

/// Say what the registrations in a trace cost, who makes them, and what would save them
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr run --trace /tmp/trace -- program     make a trace
  rdmamr report /tmp/trace                     write /tmp/trace.html
  rdmamr report --text /tmp/trace | less       the same as text
  rdmamr report --json /tmp/trace | jq .advice")]
pub struct Args {
    /// The trace: what `rdmamr run --trace FILE` or RDMAMR_TRACE=FILE has written
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    /// Print the report as text
    #[arg(long, conflicts_with = "json")]
    text: bool,
    /// Print the report as JSON, rdmamr_trace(5)
    #[arg(long)]
    json: bool,
    /// Where to write the page; FILE.html beside the trace if not given
    #[arg(short, long, value_name = "PAGE", conflicts_with_all = ["text", "json"])]
    output: Option<PathBuf>,
}

/// The exit status is 2 if no report could be made.
pub fn run(args: &Args) -> Result<ExitCode> {
    match write(args) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The reader has closed the pipe.
        Err(error)
            if error
                .downcast_ref::<io::Error>()
                .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) =>
        {
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            eprintln!("rdmamr report: {error:#}");
            Ok(ExitCode::from(2))
        }
    }
}

fn write(args: &Args) -> Result<()> {
    let path = &args.trace;
    let report = Trace::open(path)
        .and_then(|trace| Report::new(&trace, path))
        .with_context(|| format!("{} cannot be reported on", path.display()))?;
    if args.text {
        io::stdout().write_all(text::render(&report).as_bytes())?;
    } else if args.json {
        io::stdout().write_all(json::render(&report)?.as_bytes())?;
    } else {
        let page = args.output.clone().unwrap_or_else(|| {
            let mut page = path.clone().into_os_string();
            page.push(".html");
            page.into()
        });
        if is_same_file(&page, path) {
            bail!(
                "{} is the trace itself, and the page would replace it. Name another file",
                page.display()
            );
        }
        std::fs::write(&page, html::render(&report)?)
            .with_context(|| format!("{} cannot be written", page.display()))?;
        writeln!(io::stdout(), "{}", page.display())?;
    }
    Ok(())
}

/// Whether two paths lead to the same file, through whatever links.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().ok().map(|it| (it.dev(), it.ino()));
    identity(one).is_some_and(|one| identity(other) == Some(one))
}
