// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr top`: the regions that are registered now, by process and device. Processes under the
//! library show their statistics (`pages.rs`); the kernel lists the regions of all (`kernel.rs`).

mod ask;
pub mod kernel;
pub mod limits;
mod openmetrics;
pub mod pages;
pub mod sample;
mod screen;
mod table;

use crate::files::named::replace;
use crate::report::json;
use crate::report::units::shown;
use crate::style::print;
use anyhow::{Context, Result, bail};
use openmetrics::Format;
use sample::{Memory, Sample};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;
use table::View;

/// Show what is registered now: by process, device and rank
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr top                                    q ends it
  rdmamr top --once --sort rate                 one table
  rdmamr top --json | jq '.processes[] | {pid, bytes}'
  rdmamr top --openmetrics                      for a scraper
  rdmamr top --textfile /var/lib/node_exporter/rdmamr.prom

Root sees the counters of all processes, others those of their own.")]
pub struct Args {
    /// Print one table, and end; beside one of the next three only that
    #[arg(long)]
    once: bool,
    /// Print JSON, and end; see rdmamr(1)
    #[arg(long, conflicts_with_all = ["openmetrics", "textfile"])]
    json: bool,
    /// Print OpenMetrics, and end
    #[arg(long, conflicts_with = "textfile")]
    openmetrics: bool,
    /// Write a file for node_exporter's textfile collector, and end
    #[arg(long, value_name = "FILE")]
    textfile: Option<PathBuf>,
    /// Sort by: calls (the part of the time in calls), bytes, idle, regions, rate, hits, time, pid
    #[arg(long, value_name = "COLUMN", default_value = "calls")]
    #[arg(hide_possible_values = true)]
    sort: table::Column,
    /// Show the processes whose command, device, rank or number contains WORDS
    #[arg(long, value_name = "WORDS", default_value = "")]
    filter: String,
    /// Seconds between two samples
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
}

impl Args {
    /// Whether the table is shown until a key ends it.
    pub fn is_screen(&self) -> bool {
        !(self.once || self.json || self.openmetrics || self.textfile.is_some())
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().ok().filter(|it| (0.05..=3600.0).contains(it));
    let number = number.ok_or("it takes a number of seconds, from 0.05 to 3600")?;
    Ok(Duration::from_secs_f64(number))
}

/// The exit status is 2 if nothing could be shown.
pub fn run(args: &Args) -> Result<()> {
    let mut memory = Memory::default();
    let view = View {
        sort: args.sort,
        reversed: false,
        filter: args.filter.clone(),
    };
    let mut metrics = |format| {
        let mut sample = Sample::take(&mut memory);
        view.apply(&mut sample.processes);
        openmetrics::render(&sample, format)
    };
    if args.openmetrics {
        print(&metrics(Format::OpenMetrics))?;
    } else if let Some(file) = &args.textfile {
        let text = metrics(Format::Prometheus);
        // The collector runs as another user.
        rustix::process::umask(0o022.into());
        replace(file, 0o644, |out| Ok(out.write_all(text.as_bytes())?))
            .with_context(|| shown(file))?;
    } else if args.json || args.once {
        let before = Sample::take(&mut memory);
        std::thread::sleep(args.interval);
        let mut sample = Sample::take(&mut memory);
        sample.compare(&before);
        view.apply(&mut sample.processes);
        print(&if args.json {
            json::render(&sample)?
        } else {
            table::text(&sample)
        })?;
    } else if io::stdout().is_terminal() && io::stdin().is_terminal() {
        screen::run(view, args.interval, &mut memory)?;
    } else {
        bail!(
            "not on a terminal: --once prints a table, --json and --openmetrics are for programs"
        );
    }
    Ok(())
}
