// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that registers in one way when it is its turn, and its protocol: a line `BYTES PAIRS`
//! in, a line of JSON out.

use super::memory::{self, Memory, map};
use super::process::{Calls, Process, answer_each};
use super::results::median;
use crate::choices::name;
use crate::report::units;
use crate::verbs::Loaded;
use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::time::Instant;

/// The library that registers.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Libibverbs,
    Plain,
    Relaxed,
}

/// The cost of a turn, in ns.
#[derive(Serialize, Deserialize)]
pub struct Turn {
    /// A registration and its deregistration.
    pub pair: f64,
    /// The registration alone. Not measured for the relaxed kind, which is too fast for that.
    pub register: f64,
    /// The library served the registrations: by its own call, or by a cached region.
    pub served: bool,
}

/// The process, as its parent sees it.
pub struct Worker {
    pub kind: Kind,
    process: Process,
}

impl Worker {
    /// Starts a process, with the library preloaded except for the kind that measures libibverbs
    /// alone.
    pub fn start(kind: Kind, device: &str, library: &Path) -> anyhow::Result<Worker> {
        let library = (kind != Kind::Libibverbs).then_some(library);
        let process = Process::start(&[COMMAND, &name(kind), device], library, &[])?;
        Ok(Worker { kind, process })
    }

    /// Makes the process register and deregister `pairs` times. The inner error is a
    /// registration's.
    pub fn turn(&mut self, bytes: u64, pairs: u32) -> anyhow::Result<Result<Turn, String>> {
        let turn = self.process.ask(&format!("{bytes} {pairs}"));
        turn.with_context(|| name(self.kind))
    }
}

/// The hidden command that starts the process.
pub const COMMAND: &str = "bench-worker";

/// The functions of one kind, and how many registrations it has served.
struct Way {
    kind: Kind,
    calls: Calls,
    get_stats: Option<GetStats>,
}

/// `rdmamr_get_stats`. This program asks for the first fields only.
type GetStats = unsafe extern "C" fn(*mut u64, usize) -> c_int;
const STATS: usize = 10;
const REG_KERNEL: usize = 0;
const HITS: usize = 9;

/// Runs the process: answers until no more questions come.
pub fn run(kind: &str, device: &str) -> anyhow::Result<()> {
    let kind = Kind::from_str(kind, false).map_err(anyhow::Error::msg)?;
    let (reg, dereg) = match kind {
        Kind::Libibverbs | Kind::Plain => (c"ibv_reg_mr", c"ibv_dereg_mr"),
        Kind::Relaxed => (c"ibv_reg_mr_relaxed", c"ibv_dereg_mr_relaxed"),
    };
    let by_library = kind != Kind::Libibverbs;
    let calls = Calls::open(device, reg, dereg, by_library)?;
    // SAFETY: <rdmamr.h> gives this type; the statistics are 64-bit numbers.
    let get_stats = unsafe { Loaded::whole_program().function::<GetStats>(c"rdmamr_get_stats") };
    if get_stats.is_some() != by_library {
        bail!("the library is preloaded where it should not be, or not where it should");
    }
    let way = Way {
        kind,
        calls,
        get_stats,
    };
    let mut mapped: Option<Memory> = None;
    answer_each(|line| {
        let (bytes, pairs) = line.split_once(' ').context("BYTES PAIRS")?;
        let bytes = bytes.parse()?;
        // Memory of another size is unmapped first.
        let memory = match mapped.take().filter(|memory| memory.length == bytes) {
            Some(memory) => memory,
            None => present(bytes)?,
        };
        Ok(way.turn(mapped.insert(memory), pairs.parse()?))
    })
}

/// Present memory in small pages: whether a process gets huge pages is chance.
fn present(length: usize) -> anyhow::Result<Memory> {
    let memory = map(memory::Kind::Anonymous, length).context("mmap")?;
    // SAFETY: the memory is writable and has that length.
    unsafe { std::ptr::write_bytes(memory.address.cast::<u8>(), 1, length) };
    Ok(memory)
}

impl Way {
    fn turn(&self, memory: &Memory, pairs: u32) -> Result<Turn, String> {
        let before = self.served();
        let (pair, register) = match self.kind {
            Kind::Relaxed => (self.together(memory, pairs)?, 0.0),
            _ => self.each(memory, pairs)?,
        };
        let served = self.served() - before >= u64::from(pairs);
        Ok(Turn {
            pair,
            register,
            served,
        })
    }

    /// The medians of a turn in which each call is timed: of pairs, and of registrations.
    fn each(&self, memory: &Memory, pairs: u32) -> Result<(f64, f64), String> {
        let (mut pair, mut register) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            let start = Instant::now();
            let mr = self.calls.register(memory.address, memory.length);
            let registered = start.elapsed().as_nanos();
            let mr = mr.ok_or_else(|| self.why())?;
            // SAFETY: `mr` was registered just now.
            let ended = unsafe { self.calls.deregister(mr) };
            pair.push(start.elapsed().as_nanos() as f64);
            register.push(registered as f64);
            ended.map_err(|error| units::reason(&error.into()))?;
        }
        let median = |values| median(values).unwrap_or_default();
        Ok((median(pair), median(register)))
    }

    /// The mean over pairs that are too fast to be timed one by one.
    fn together(&self, memory: &Memory, pairs: u32) -> Result<f64, String> {
        let start = Instant::now();
        for _ in 0..pairs {
            let mr = self.calls.register(memory.address, memory.length);
            let mr = mr.ok_or_else(|| self.why())?;
            // SAFETY: `mr` was registered just now.
            let ended = unsafe { self.calls.deregister(mr) };
            ended.map_err(|error| units::reason(&error.into()))?;
        }
        Ok(start.elapsed().as_nanos() as f64 / f64::from(pairs))
    }

    /// Why the registration just before this call failed.
    fn why(&self) -> String {
        type LastReason = unsafe extern "C" fn() -> *const c_char;
        let error = errno::errno();
        let preloaded = Loaded::whole_program();
        // SAFETY: <rdmamr.h> gives this type.
        let last_reason = unsafe { preloaded.function::<LastReason>(c"rdmamr_last_reason") };
        let Some(last_reason) = last_reason else {
            return error.to_string();
        };
        // SAFETY: the function may be called at any time.
        let reason = unsafe { last_reason() };
        // SAFETY: the reason is a string of this thread's, valid until the thread's next call.
        let reason = unsafe { CStr::from_ptr(reason) };
        reason.to_string_lossy().into_owned()
    }

    /// How many registrations of the measured kind the library has served so far.
    fn served(&self) -> u64 {
        let Some(get_stats) = self.get_stats else {
            return 0;
        };
        let mut stats = [0u64; STATS];
        // SAFETY: the call states how many bytes are writable.
        unsafe { get_stats(stats.as_mut_ptr(), size_of_val(&stats)) };
        stats[if self.kind == Kind::Relaxed {
            HITS
        } else {
            REG_KERNEL
        }]
    }
}
