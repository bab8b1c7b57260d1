// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that registers large memory when it is its turn, and its protocol: a line `KIND BYTES
//! IS_PRESENT` in, a line of JSON out.

use super::memory::{Kind, map};
use super::process::{Calls, Process, answer_each};
use crate::choices::name;
use crate::report::units;
use crate::verbs::Loaded;
use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::ffi::c_void;
use std::io;
use std::path::Path;
use std::time::Instant;

/// The times of a turn, in seconds.
#[derive(Serialize, Deserialize)]
pub struct Turn {
    pub populate: f64,
    pub register: f64,
    pub deregister: f64,
    pub unmap: f64,
}

/// Starts a process: libibverbs alone, or the library with this number of threads.
pub fn start(device: &str, library: Option<(&Path, u32)>) -> anyhow::Result<Process> {
    let settings = library.map(|(_, threads)| ("RDMAMR_PREFAULT", threads.to_string()));
    let library = library.map(|(path, _)| path);
    Process::start(&[COMMAND, device], library, settings.as_slice())
}

/// Makes a process register memory once, which is present before or not. The inner error is a
/// registration's, or says that this machine has no such memory.
pub fn ask(
    worker: &mut Process,
    kind: Kind,
    bytes: u64,
    is_present: bool,
) -> anyhow::Result<Result<Turn, String>> {
    worker.ask(&format!("{} {bytes} {is_present}", name(kind)))
}

/// The hidden command that starts the process.
pub const COMMAND: &str = "bench-large-worker";

/// Runs the process: answers until no more questions come.
pub fn run(device: &str) -> anyhow::Result<()> {
    let all = Loaded::whole_program();
    // SAFETY: the function is only looked up, and not called.
    let preloaded = unsafe { all.function::<*const c_void>(c"rdmamr_get_stats") }.is_some();
    let calls = Calls::open(device, c"ibv_reg_mr", c"ibv_dereg_mr", preloaded)?;
    answer_each(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [kind, bytes, is_present] = words[..] else {
            bail!("KIND BYTES IS_PRESENT");
        };
        let kind = Kind::from_str(kind, false).map_err(anyhow::Error::msg)?;
        let turn = turn(&calls, kind, bytes.parse()?, is_present.parse()?);
        Ok(turn.map_err(|why| units::reason(&why)))
    })
}

fn turn(calls: &Calls, kind: Kind, bytes: usize, is_present: bool) -> anyhow::Result<Turn> {
    let memory = map(kind, bytes).with_context(|| match kind {
        Kind::Huge | Kind::HugeShared => "vm.nr_hugepages has too few huge pages",
        _ => "mmap",
    })?;
    let mut start = Instant::now();
    let mut lap = || {
        let took = start.elapsed().as_secs_f64();
        start = Instant::now();
        took
    };
    if is_present {
        // SAFETY: the advice populates a mapping of this process.
        let failed =
            unsafe { libc::madvise(memory.address, bytes, libc::MADV_POPULATE_WRITE) } != 0;
        if failed {
            return Err(io::Error::last_os_error().into());
        }
    }
    let populate = lap();
    let mr = calls.register(memory.address, bytes);
    let register = lap();
    let mr = mr.ok_or_else(io::Error::last_os_error)?;
    lap();
    // SAFETY: `mr` was registered just now.
    let ended = unsafe { calls.deregister(mr) };
    let deregister = lap();
    drop(memory);
    let unmap = lap();
    ended?;
    Ok(Turn {
        populate,
        register,
        deregister,
        unmap,
    })
}
