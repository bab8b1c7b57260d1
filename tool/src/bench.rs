// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr bench`: how fast untouched memory is registered, by kind of memory and number of threads,
//! beside its lower bounds: populating alone, and pinning memory that is present.
//!
//! libibverbs and each number of threads have a process of their own (`worker.rs`): if the library is
//! loaded, libibverbs' own calls reach it too. The processes take turns, so that other load on the
//! machine affects all of them.

mod memory;
mod worker;

use crate::choices::{bytes as size, name};
use crate::files::kernel_release;
use crate::library;
use crate::report::json;
use crate::report::units::{bytes, printable};
use crate::style::{self, STRONG};
use crate::verbs::Verbs;
use anyhow::{Context, bail};
use clap::{ValueEnum, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use memory::Kind;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
pub use worker::as_worker;
use worker::{Turn, Worker};

/// Measure how fast large memory is registered on a device
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr bench
  rdmamr bench mlx5_0 --sizes 1G,8G --threads 2,4,8 --kinds memfd,huge
  rdmamr bench --json | jq '.rows[] | [.kind, .pin, .rdmamr[0]]'

The memory is untouched, so that a registration populates it: by libibverbs
alone, and by the library with threads (RDMAMR_PREFAULT). The cost of a small
registration, and of one that is reused, is shown by bench/run plain and
bench/run relaxed in the source tree, and in a program by rdmamr report.")]
pub struct Args {
    /// The device; the first one if none is named
    device: Option<String>,
    /// Print JSON, see rdmamr(1)
    #[arg(long)]
    json: bool,
    /// Sizes in bytes, also with K, M or G
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1G", value_parser = size)]
    sizes: Vec<u64>,
    /// Rounds of each way at each size
    #[arg(long, value_name = "N", default_value = "5", value_parser = value_parser!(u32).range(1..))]
    rounds: u32,
    /// Numbers of threads (RDMAMR_PREFAULT)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2", value_parser = value_parser!(u32).range(1..=64))]
    threads: Vec<u32>,
    /// Kinds of memory, by default all
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    kinds: Vec<Kind>,
}

/// All measurements. The fields are those of the JSON.
#[derive(Serialize)]
struct Results<'a> {
    /// Increases if a reader of an earlier version would be misled.
    schema: u32,
    device: String,
    kernel: String,
    library: PathBuf,
    rounds: u32,
    threads: &'a [u32],
    rows: Vec<Row>,
}

/// The figures of one kind and size, in GiB/s.
#[derive(Serialize)]
struct Row {
    kind: String,
    page: &'static str,
    bytes: u64,
    /// Populating by one thread, without a registration.
    populate: Option<f64>,
    /// Registering memory that is present.
    pin: Option<f64>,
    /// Deregistering it.
    deregister: Option<f64>,
    /// Unmapping it after the deregistration.
    unmap: Option<f64>,
    /// Registering untouched memory, by libibverbs.
    libibverbs: Option<f64>,
    /// The same by the library, for each number of threads.
    rdmamr: Vec<Option<f64>>,
    /// How many times as fast as libibverbs: the median of the rounds' ratios.
    times: Vec<Option<f64>>,
    /// Why a figure is missing.
    error: Option<String>,
}

/// Measures, and prints the result.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let verbs = Verbs::load().context("libibverbs.so.1 cannot be loaded")?;
    let names = verbs.names();
    let first = names.first();
    let first = first.context("there is no RDMA device; 'rdmamr doctor' says how to get one")?;
    let device = args.device.as_ref().unwrap_or(first).clone();
    if !names.contains(&device) {
        let (device, names) = (printable(&device), names.join(", "));
        bail!("there is no device {device}; there are: {names}");
    }
    let library = library::find()?.path;
    let mut workers = vec![Worker::start(&device, None)?];
    for &threads in &args.threads {
        workers.push(Worker::start(&device, Some((&library, threads)))?);
    }
    let kinds = match &args.kinds[..] {
        [] => Kind::value_variants(),
        kinds => kinds,
    };
    // Drawn on a terminal only.
    let steps = (args.sizes.len() * kinds.len()) as u64 * u64::from(args.rounds);
    let bar = ProgressBar::new(steps);
    bar.set_style(ProgressStyle::with_template("{wide_bar} {eta} {msg}")?);
    let mut rows = Vec::new();
    for &size in &args.sizes {
        for &kind in kinds {
            bar.set_message(format!("{} {}", bytes(size), name(kind)));
            rows.push(measure(&mut workers, kind, size, args.rounds, &bar)?);
        }
    }
    bar.finish_and_clear();
    let results = Results {
        schema: 2,
        device,
        kernel: kernel_release(),
        library,
        rounds: args.rounds,
        threads: &args.threads,
        rows,
    };
    match args.json {
        true => style::print(&json::render(&results)?)?,
        false => style::print(&table(&results))?,
    }
    // A machine without huge pages is not a failure.
    let failed = results.rows.iter().all(|row| row.error.is_some());
    Ok(ExitCode::from(u8::from(failed)))
}

fn measure(
    workers: &mut [Worker],
    kind: Kind,
    bytes: u64,
    rounds: u32,
    bar: &ProgressBar,
) -> anyhow::Result<Row> {
    let mut fresh: Vec<Vec<Turn>> = workers.iter().map(|_| Vec::new()).collect();
    let mut present = Vec::new();
    let mut error = None;
    // The first round warms up: its memory may be new to the machine.
    for round in 0..=rounds as usize {
        let mut turn = |worker: &mut Worker, is_present, turns: &mut Vec<Turn>| {
            match worker.turn(kind, bytes, is_present)? {
                Ok(turn) if round > 0 => turns.push(turn),
                Ok(_) => {}
                Err(why) => error = Some(why),
            }
            anyhow::Ok(())
        };
        turn(&mut workers[0], true, &mut present)?;
        // Another process goes first in each round.
        for at in 0..workers.len() {
            let way = (at + round) % workers.len();
            turn(&mut workers[way], false, &mut fresh[way])?;
        }
        if error.is_some() {
            break;
        }
        bar.inc(u64::from(round > 0));
    }
    let rate = |turns: &[Turn], time: fn(&Turn) -> f64| {
        let gib = bytes as f64 / f64::from(1 << 30);
        Some(gib / median(turns.iter().map(time))?)
    };
    let registered = |turns: &Vec<Turn>| rate(turns, |turn| turn.register);
    let times = |turns: &Vec<Turn>| {
        let both = fresh[0].iter().zip(turns);
        median(both.map(|(theirs, ours)| theirs.register / ours.register))
    };
    Ok(Row {
        kind: name(kind),
        page: kind.page(),
        bytes,
        populate: rate(&present, |turn| turn.populate),
        pin: registered(&present),
        deregister: rate(&present, |turn| turn.deregister),
        unmap: rate(&present, |turn| turn.unmap),
        libibverbs: registered(&fresh[0]),
        rdmamr: fresh[1..].iter().map(registered).collect(),
        times: fresh[1..].iter().map(times).collect(),
        error,
    })
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (last, middle) = (values.len().checked_sub(1)?, values.len() / 2);
    Some((values[last / 2] + values[middle]) / 2.0)
}

fn table(results: &Results) -> String {
    let mut text = format!(
        "Registering untouched memory on {}, Linux {}, GiB/s, medians of {} rounds.\n\
         Floors: populate alone (one thread), pin alone. Leaving: deregister, then unmap.\n\n",
        results.device, results.kernel, results.rounds
    );
    let names = "size memory pages populate pin dereg unmap libibverbs".split(' ');
    let threads = results.threads.iter().map(|of| format!("{of} threads"));
    let head = line(names.map(String::from).chain(threads));
    text += &format!("{STRONG}{head}{STRONG:#}\n");
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
    for row in &results.rows {
        let what = [bytes(row.bytes), row.kind.clone(), row.page.into()];
        let leaving = [row.deregister, row.unmap, row.libibverbs];
        let rates = [row.populate, row.pin].into_iter().chain(leaving);
        let ours = row.rdmamr.iter().zip(&row.times);
        let ours = ours.map(|(rate, times)| format!("{} x {:>5}", number(*rate), number(*times)));
        let cells = what.into_iter().chain(rates.map(number)).chain(ours);
        text += &(line(cells) + "\n");
    }
    for row in &results.rows {
        if let Some(error) = &row.error {
            text += &format!("\n{} {}: {error}\n", bytes(row.bytes), row.kind);
        }
    }
    text
}

fn line(cells: impl Iterator<Item = String>) -> String {
    let place = |(column, cell)| match column {
        0 => format!("{cell:>8} "),
        1 => format!(" {cell:<16}"),
        2 => format!(" {cell:<6}"),
        3..8 => format!(" {cell:>10}"),
        _ => format!(" {cell:>16}"),
    };
    cells.enumerate().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn a_median_lies_in_the_middle() {
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
    }
}
