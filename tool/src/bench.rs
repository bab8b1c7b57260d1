// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr bench`: the cost of a registration on a device, by size and by library.
//!
//! Each kind of registration has a process of its own: where the library is loaded, libibverbs' own
//! calls reach it too. The processes take turns, so that other load on the machine affects all of
//! them.

mod large;
pub mod large_worker;
mod plot;
mod process;
mod table;
pub mod worker;

use crate::library;
use crate::verbs::Verbs;
use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use worker::{Kind, Turn, Worker};

/// Measure what a registration costs on a device, by size
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr bench
  rdmamr bench mlx5_0 --sizes 4K,2M,1G --rounds 100
  rdmamr bench --svg cost.svg
  rdmamr bench --large --sizes 1G,8G --threads 2,4,8 --kinds memfd,huge
  rdmamr bench --json | jq '.sizes[] | [.bytes, .plain_ratio, .relaxed_ratio]'

Ways: libibverbs alone; plain, ibv_reg_mr with the library in front; relaxed,
ibv_reg_mr_relaxed of memory that the library has kept registered. A figure is
the median of the rounds, of a registration together with its deregistration.")]
pub struct Args {
    /// The device; the first one if none is named
    device: Option<String>,
    /// Print JSON, see rdmamr(1)
    #[arg(long)]
    json: bool,
    /// Write a plot to FILE
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Sizes in bytes, also with K, M or G: by default 4K,64K,1M,16M,64M, with --large 1G
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size)]
    sizes: Option<Vec<u64>>,
    /// How often each way has its turn at each size: by default 30, with --large 5
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Measure how fast untouched memory is registered, by kind, beside its floors
    #[arg(long)]
    large: bool,
    /// With --large: numbers of threads (RDMAMR_PREFAULT)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2", value_parser = clap::value_parser!(u32).range(1..=64), requires = "large")]
    threads: Vec<u32>,
    /// With --large: kinds of memory, by default all
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "large")]
    kinds: Vec<large_worker::Kind>,
}

/// All measurements. The fields are those of the JSON.
#[derive(Serialize)]
pub struct Results {
    /// Increases if a reader of an earlier version would be misled.
    schema: u32,
    device: String,
    kernel: String,
    library: PathBuf,
    rounds: u32,
    sizes: Vec<Row>,
}

/// The figures of one size: microseconds, and ratios to libibverbs.
#[derive(Serialize)]
pub struct Row {
    bytes: u64,
    /// A registration and its deregistration.
    libibverbs_us: Option<f64>,
    plain_us: Option<f64>,
    relaxed_us: Option<f64>,
    /// The registration alone.
    libibverbs_reg_us: Option<f64>,
    plain_reg_us: Option<f64>,
    plain_ratio: Option<f64>,
    relaxed_ratio: Option<f64>,
    /// The library made the plain registrations by its own call and did not forward them.
    plain_own: bool,
    /// The library served the relaxed registrations by cached regions.
    relaxed_kept: bool,
    /// Why a figure is missing.
    error: Option<String>,
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
    for kind in Kind::ALL {
        workers.push(Worker::start(kind, &device, &library.path)?);
    }
    // Drawn on a terminal only.
    let bar = ProgressBar::new(sizes.len() as u64 * u64::from(rounds));
    bar.set_style(ProgressStyle::with_template("{wide_bar} {msg}")?);
    let mut rows = Vec::new();
    for &bytes in &sizes {
        bar.set_message(table::size(bytes));
        rows.push(measure(&mut workers, bytes, rounds, &bar)?);
    }
    bar.finish_and_clear();
    let results = Results {
        schema: 1,
        device,
        kernel: kernel(),
        library: library.path,
        rounds,
        sizes: rows,
    };
    if let Some(path) = &args.svg {
        plot::write(&results, path).with_context(|| format!("--svg {}", path.display()))?;
    }
    if args.json {
        anstream::println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        table::print(&results);
    }
    let failed = results.sizes.iter().any(|row| row.error.is_some());
    Ok(ExitCode::from(u8::from(failed)))
}

/// The running kernel's version.
fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
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
                // The library's reason is in words.
                if error.is_none() || worker.kind == Kind::Plain {
                    error = Some(format!("{}: {why}", worker.kind.name()));
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
                    Err(why) => error = Some(format!("{}: {why}", workers[way].kind.name())),
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
        plain_ratio: ratio(Kind::Plain),
        relaxed_ratio: ratio(Kind::Relaxed),
        plain_own: served(Kind::Plain),
        relaxed_kept: served(Kind::Relaxed),
        error,
    })
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// A number of bytes: 4096, 64K, 1M, 2G.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.to_ascii_uppercase().chars().last() {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes = digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|&bytes| bytes > 0 && bytes < 1 << 46)
        .ok_or_else(|| "a size is a number such as 4096, 64K, 1M or 2G".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("64k"), Ok(65536));
        assert_eq!(size("2G"), Ok(2 << 30));
        for wrong in ["", "K", "0", "-1", "1T", "99999999999G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
