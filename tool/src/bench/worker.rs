// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that registers in one way when it is its turn, and its protocol: a line `BYTES PAIRS`
//! in, a line of JSON out.

use super::median;
use super::process::Process;
use crate::abi::rdma_core::ibv_pd;
use crate::verbs::{DeregMr, Loaded, RegMr, Verbs};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::time::Instant;

/// The library that registers.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    Libibverbs,
    Plain,
    Relaxed,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Libibverbs, Kind::Plain, Kind::Relaxed];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Libibverbs => "libibverbs",
            Kind::Plain => "plain",
            Kind::Relaxed => "relaxed",
        }
    }
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
        let process = Process::start(&[COMMAND, kind.name(), device], library, &[])?;
        Ok(Worker { kind, process })
    }

    /// Makes the process register and deregister `pairs` times. The inner error is a
    /// registration's.
    pub fn turn(&mut self, bytes: u64, pairs: u32) -> anyhow::Result<Result<Turn, String>> {
        let turn = self.process.ask(&format!("{bytes} {pairs}"));
        turn.with_context(|| self.kind.name())
    }
}

/// The hidden command that starts the process.
pub const COMMAND: &str = "bench-worker";

/// The arguments of the process.
#[derive(clap::Parser)]
pub struct Args {
    kind: Kind,
    device: String,
}

/// The functions of one kind, and how many registrations it has served.
struct Way {
    kind: Kind,
    pd: *mut ibv_pd,
    reg: RegMr,
    dereg: DeregMr,
    get_stats: Option<GetStats>,
}

/// `rdmamr_get_stats`. This program asks for the first fields only.
type GetStats = unsafe extern "C" fn(*mut u64, usize) -> c_int;
const STATS: usize = 10;
const REG_KERNEL: usize = 0;
const HITS: usize = 9;

/// Runs the process: answers until no more questions come.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let verbs = Verbs::load().map_err(anyhow::Error::msg)?;
    let context = verbs
        .open(&args.device)
        .map_err(anyhow::Error::msg)
        .with_context(|| args.device.clone())?;
    let pd = verbs
        .alloc_pd(&context)
        .map_err(anyhow::Error::msg)
        .context("ibv_alloc_pd")?;
    let (from, reg, dereg): (_, &CStr, &CStr) = match args.kind {
        // Bypasses the library even if the environment loads it.
        Kind::Libibverbs => (verbs.library, c"ibv_reg_mr", c"ibv_dereg_mr"),
        Kind::Plain => (Loaded::whole_program(), c"ibv_reg_mr", c"ibv_dereg_mr"),
        Kind::Relaxed => (
            Loaded::whole_program(),
            c"ibv_reg_mr_relaxed",
            c"ibv_dereg_mr_relaxed",
        ),
    };
    // SAFETY: both functions have this type, in <infiniband/verbs.h> and <rdmamr/verbs.h>.
    let reg = unsafe { from.function::<RegMr>(reg) };
    // SAFETY: both functions have this type, in <infiniband/verbs.h> and <rdmamr/verbs.h>.
    let dereg = unsafe { from.function::<DeregMr>(dereg) };
    // SAFETY: <rdmamr.h> gives this type; the statistics are 64-bit numbers.
    let get_stats = unsafe { Loaded::whole_program().function::<GetStats>(c"rdmamr_get_stats") };
    let (Some(reg), Some(dereg)) = (reg, dereg) else {
        bail!("the library was not preloaded into the process that measures");
    };
    if get_stats.is_some() != (args.kind != Kind::Libibverbs) {
        bail!("the library is preloaded where it should not be, or not where it should");
    }
    let way = Way {
        kind: args.kind,
        pd,
        reg,
        dereg,
        get_stats,
    };
    let mut memory = Memory::map(0)?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let (bytes, pairs) = line.split_once(' ').context("BYTES PAIRS")?;
        let bytes = bytes.parse()?;
        if memory.length != bytes {
            memory = Memory::map(bytes)?;
        }
        println!(
            "{}",
            serde_json::to_string(&way.turn(&memory, pairs.parse()?))?
        );
    }
    Ok(())
}

/// Memory that is present, in small pages: whether a process gets huge pages is luck.
struct Memory {
    address: *mut c_void,
    length: usize,
}

impl Memory {
    fn map(length: usize) -> anyhow::Result<Memory> {
        if length == 0 {
            return Ok(Memory {
                address: std::ptr::null_mut(),
                length,
            });
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the call makes a new mapping and touches no other.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).context("mmap");
        }
        // SAFETY: the mapping is ours. A kernel without huge pages refuses the advice, which is
        // harmless.
        unsafe { libc::madvise(address, length, libc::MADV_NOHUGEPAGE) };
        // SAFETY: the memory is writable and has that length.
        unsafe { std::ptr::write_bytes(address.cast::<u8>(), 1, length) };
        Ok(Memory { address, length })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this type mapped the memory, which is no longer registered. With a length of 0
        // the call unmaps nothing.
        unsafe { libc::munmap(self.address, self.length) };
    }
}

const ACCESS: c_int = 1 | 1 << 1 | 1 << 2; // IBV_ACCESS_LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ

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
            // SAFETY: the PD is open, and the memory is ours.
            let mr = unsafe { (self.reg)(self.pd, memory.address, memory.length, ACCESS) };
            let registered = start.elapsed().as_nanos();
            if mr.is_null() {
                return Err(self.why());
            }
            // SAFETY: `mr` was registered just now.
            let error = unsafe { (self.dereg)(mr) };
            pair.push(start.elapsed().as_nanos() as f64);
            register.push(registered as f64);
            if error != 0 {
                return Err(std::io::Error::from_raw_os_error(error).to_string());
            }
        }
        let median = |values| median(values).unwrap_or_default();
        Ok((median(pair), median(register)))
    }

    /// The mean over pairs that are too fast to be timed one by one.
    fn together(&self, memory: &Memory, pairs: u32) -> Result<f64, String> {
        let start = Instant::now();
        for _ in 0..pairs {
            // SAFETY: the PD is open, and the memory is ours.
            let mr = unsafe { (self.reg)(self.pd, memory.address, memory.length, ACCESS) };
            if mr.is_null() {
                return Err(self.why());
            }
            // SAFETY: `mr` was registered just now.
            let error = unsafe { (self.dereg)(mr) };
            if error != 0 {
                return Err(std::io::Error::from_raw_os_error(error).to_string());
            }
        }
        Ok(start.elapsed().as_nanos() as f64 / f64::from(pairs))
    }

    /// Why the registration just before this call failed.
    fn why(&self) -> String {
        let error = std::io::Error::last_os_error();
        let preloaded = Loaded::whole_program();
        // SAFETY: <rdmamr.h> gives this type.
        let last_reason = unsafe {
            preloaded.function::<unsafe extern "C" fn() -> *const std::ffi::c_char>(
                c"rdmamr_last_reason",
            )
        };
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
