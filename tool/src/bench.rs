// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr bench`: the cost of a registration on a device, by size and by library.
//!
//! Each kind of registration has a process of its own: if the library is loaded, libibverbs' own
//! calls reach it too. The processes take turns, so that other load on the machine affects all of
//! them.

mod args;
mod large;
mod large_worker;
mod memory;
mod plot;
mod process;
mod results;
mod table;
mod worker;

use crate::choices::name;
use crate::files::kernel_release;
use crate::library;
use crate::report::units::shown;
use crate::verbs::Verbs;
use anyhow::{Context, bail};
pub use args::{Args, size as bytes};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use results::{Results, Row, median, size, spread};
use std::env;
use std::process::ExitCode;
use worker::{Kind, Turn, Worker};

/// Measures for a parent that has started this process by a hidden command, absent from help and
/// completions. `None` if there is no such parent.
pub fn as_worker() -> Option<anyhow::Result<()>> {
    let words: Vec<_> = env::args_os().skip(1).collect();
    let words: Option<Vec<_>> = words.iter().map(|word| word.to_str()).collect();
    match words?[..] {
        [worker::COMMAND, kind, device] => Some(worker::run(kind, device)),
        [large_worker::COMMAND, device] => Some(large_worker::run(device)),
        _ => None,
    }
}

/// Measures, and prints the result.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let verbs = Verbs::load()
        .map_err(anyhow::Error::msg)
        .context("libibverbs.so.1 cannot be loaded")?;
    let names = verbs.names();
    let Some(first) = names.first() else {
        bail!("there is no RDMA device; 'rdmamr doctor' says how to get one");
    };
    let device = args.device.as_ref().unwrap_or(first).clone();
    if !names.contains(&device) {
        bail!(
            "there is no device {device}; there are: {}",
            names.join(", ")
        );
    }
    if args.large {
        return large::run(args, device);
    }
    let library = library::find()?;
    let sizes = args.sizes.clone();
    let sizes = sizes.unwrap_or_else(|| [12, 16, 20, 24, 26].map(|shift| 1 << shift).to_vec());
    let rounds = args.rounds.unwrap_or(30);
    let mut workers = Vec::new();
    for &kind in Kind::value_variants() {
        workers.push(Worker::start(kind, &device, &library.path)?);
    }
    // Drawn on a terminal only.
    let bar = ProgressBar::new(sizes.len() as u64 * u64::from(rounds));
    bar.set_style(ProgressStyle::with_template("{wide_bar} {msg}")?);
    let mut rows = Vec::new();
    for &bytes in &sizes {
        bar.set_message(size(bytes));
        rows.push(measure(&mut workers, bytes, rounds, &bar)?);
    }
    bar.finish_and_clear();
    let results = Results {
        schema: 1,
        device,
        kernel: kernel_release(),
        library: library.path,
        rounds,
        sizes: rows,
    };
    if args.json {
        anstream::println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        table::print(&results);
    }
    // The figures took long: they are printed even if the plot cannot be written.
    if let Some(path) = &args.svg {
        plot::write(&results, path).with_context(|| format!("--svg {}", shown(path)))?;
    }
    let failed = results.sizes.iter().any(|row| row.error.is_some());
    Ok(ExitCode::from(u8::from(failed)))
}

/// How long a turn takes in ns, unless one pair takes longer.
const TURN: f64 = 2e6;
const MOST_PAIRS: f64 = 10_000.0;

fn measure(
    workers: &mut [Worker],
    bytes: u64,
    rounds: u32,
    bar: &ProgressBar,
) -> anyhow::Result<Row> {
    let mut turns: Vec<Vec<Turn>> = Vec::new();
    let mut pairs = Vec::new();
    let mut error = None;
    for worker in workers.iter_mut() {
        // The first turn warms up memory, caches and the cache. The second determines the length of
        // the other turns.
        let _ = worker.turn(bytes, 3)?;
        match worker.turn(bytes, 3)? {
            Ok(turn) => pairs.push((TURN / turn.pair).clamp(1.0, MOST_PAIRS) as u32),
            Err(why) => {
                // The library gives the reason in words.
                if error.is_none() || worker.kind == Kind::Plain {
                    error = Some(format!("{}: {why}", name(worker.kind)));
                }
                pairs.push(0);
            }
        }
        turns.push(Vec::new());
    }
    for round in 0..rounds as usize {
        // Another process goes first in each round, so that no process always finds the caches as
        // the same predecessor left them.
        for turn in 0..workers.len() {
            let way = (turn + round) % workers.len();
            if pairs[way] > 0 {
                match workers[way].turn(bytes, pairs[way])? {
                    Ok(turn) => turns[way].push(turn),
                    Err(why) => error = Some(format!("{}: {why}", name(workers[way].kind))),
                }
            }
        }
        bar.inc(1);
    }
    let median_of = |kind: Kind, value: fn(&Turn) -> f64| {
        median(turns[kind as usize].iter().map(value).collect())
    };
    let pair = |kind| median_of(kind, |turn| turn.pair / 1e3);
    let register = |kind| median_of(kind, |turn| turn.register / 1e3);
    let spread_of =
        |kind: Kind| spread(turns[kind as usize].iter().map(|turn| turn.pair).collect());
    let ratio = |kind| Some(pair(kind)? / pair(Kind::Libibverbs)?);
    let served = |kind: Kind| {
        !turns[kind as usize].is_empty() && turns[kind as usize].iter().all(|turn| turn.served)
    };
    Ok(Row {
        bytes,
        libibverbs_us: pair(Kind::Libibverbs),
        plain_us: pair(Kind::Plain),
        relaxed_us: pair(Kind::Relaxed),
        libibverbs_reg_us: register(Kind::Libibverbs),
        plain_reg_us: register(Kind::Plain),
        libibverbs_spread: spread_of(Kind::Libibverbs),
        plain_spread: spread_of(Kind::Plain),
        relaxed_spread: spread_of(Kind::Relaxed),
        plain_ratio: ratio(Kind::Plain),
        relaxed_ratio: ratio(Kind::Relaxed),
        plain_own: served(Kind::Plain),
        relaxed_kept: served(Kind::Relaxed),
        error,
    })
}
