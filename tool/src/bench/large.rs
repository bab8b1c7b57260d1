// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr bench --large`: how fast untouched memory is registered, by kind of memory and number of
//! threads, beside its lower bounds: populating alone, and pinning memory that is present.

use super::args::Args;
use super::large_worker::{Turn, ask, start};
use super::memory::Kind;
use super::process::Process;
use super::results::{median, size};
use crate::choices::name;
use crate::files::kernel_release;
use crate::library;
use crate::style::STRONG;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// All measurements. The fields are those of the JSON.
#[derive(Serialize)]
struct Results {
    schema: u32,
    device: String,
    kernel: String,
    library: PathBuf,
    rounds: u32,
    threads: Vec<u32>,
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
pub fn run(args: &Args, device: String) -> anyhow::Result<ExitCode> {
    let library = library::find()?;
    let mut workers = vec![start(&device, None)?];
    for &threads in &args.threads {
        workers.push(start(&device, Some((&library.path, threads)))?);
    }
    let sizes = args.sizes.clone().unwrap_or_else(|| vec![1 << 30]);
    let rounds = args.rounds.unwrap_or(5);
    let kinds = match &args.kinds[..] {
        [] => Kind::value_variants(),
        kinds => kinds,
    };
    // Drawn on a terminal only.
    let bar = ProgressBar::new((sizes.len() * kinds.len()) as u64 * u64::from(rounds));
    bar.set_style(ProgressStyle::with_template("{wide_bar} {eta} {msg}")?);
    let mut rows = Vec::new();
    for &bytes in &sizes {
        for &kind in kinds {
            bar.set_message(format!("{} {}", size(bytes), name(kind)));
            rows.push(measure(&mut workers, kind, bytes, rounds, &bar)?);
        }
    }
    bar.finish_and_clear();
    let results = Results {
        schema: 1,
        device,
        kernel: kernel_release(),
        library: library.path,
        rounds,
        threads: args.threads.clone(),
        rows,
    };
    if args.json {
        anstream::println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        print(&results);
    }
    // A machine without huge pages is not a failure.
    let failed = results.rows.iter().all(|row| row.error.is_some());
    Ok(ExitCode::from(u8::from(failed)))
}

fn measure(
    workers: &mut [Process],
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
        match ask(&mut workers[0], kind, bytes, true)? {
            Ok(turn) if round > 0 => present.push(turn),
            Ok(_) => {}
            Err(why) => error = Some(why),
        }
        for turn in 0..workers.len() {
            let way = (turn + round) % workers.len();
            match ask(&mut workers[way], kind, bytes, false)? {
                Ok(turn) if round > 0 => fresh[way].push(turn),
                Ok(_) => {}
                Err(why) => error = Some(why),
            }
        }
        if error.is_some() {
            break;
        }
        bar.inc(u64::from(round > 0));
    }
    let rate = |turns: &[Turn], time: fn(&Turn) -> f64| {
        let gib = bytes as f64 / f64::from(1 << 30);
        Some(gib / median(turns.iter().map(time).collect())?)
    };
    let times = |turns: &[Turn]| {
        let both = fresh[0].iter().zip(turns);
        median(
            both.map(|(theirs, ours)| theirs.register / ours.register)
                .collect(),
        )
    };
    Ok(Row {
        kind: name(kind),
        page: kind.page(),
        bytes,
        populate: rate(&present, |turn| turn.populate),
        pin: rate(&present, |turn| turn.register),
        deregister: rate(&present, |turn| turn.deregister),
        unmap: rate(&present, |turn| turn.unmap),
        libibverbs: rate(&fresh[0], |turn| turn.register),
        rdmamr: fresh[1..]
            .iter()
            .map(|turns| rate(turns, |turn| turn.register))
            .collect(),
        times: fresh[1..].iter().map(|turns| times(turns)).collect(),
        error,
    })
}

fn print(results: &Results) {
    anstream::println!(
        "Registering untouched memory on {}, Linux {}, GiB/s, medians of {} rounds.\n\
         Floors: populate alone (one thread), pin alone. Leaving: deregister, then unmap.\n",
        results.device,
        results.kernel,
        results.rounds
    );
    let mut head = format!(
        "{:>8}  {:<16} {:<6} {:>8} {:>7} {:>8} {:>7} {:>10}",
        "size", "memory", "pages", "populate", "pin", "dereg", "unmap", "libibverbs"
    );
    for threads in &results.threads {
        head += &format!(" {:>16}", format!("{threads} threads"));
    }
    anstream::println!("{STRONG}{head}{STRONG:#}");
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.2}"));
    for row in &results.rows {
        let mut line = format!(
            "{:>8}  {:<16} {:<6} {:>8} {:>7} {:>8} {:>7} {:>10}",
            size(row.bytes),
            row.kind,
            row.page,
            number(row.populate),
            number(row.pin),
            number(row.deregister),
            number(row.unmap),
            number(row.libibverbs)
        );
        for (rate, times) in row.rdmamr.iter().zip(&row.times) {
            line += &format!(" {:>8} x {:>5}", number(*rate), number(*times));
        }
        anstream::println!("{line}");
    }
    for row in results.rows.iter() {
        if let Some(error) = &row.error {
            anstream::println!("\n{} {}: {error}", size(row.bytes), row.kind);
        }
    }
}
