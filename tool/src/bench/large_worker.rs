// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that registers large memory when it is its turn, and its protocol: a line `KIND BYTES
//! PHASE` in, a line of JSON out.

use super::process::Process;
use crate::abi::rdma_core::ibv_pd;
use crate::verbs::{DeregMr, Loaded, RegMr, Verbs};
use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::ffi::{c_int, c_void};
use std::io;
use std::path::Path;
use std::time::Instant;

/// A kind of memory.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    Anonymous,
    Transparent,
    Memfd,
    Shared,
    Huge,
    HugeShared,
    File,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::Anonymous,
        Kind::Transparent,
        Kind::Memfd,
        Kind::Shared,
        Kind::Huge,
        Kind::HugeShared,
        Kind::File,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Anonymous => "anonymous",
            Kind::Transparent => "transparent",
            Kind::Memfd => "memfd",
            Kind::Shared => "shared",
            Kind::Huge => "huge",
            Kind::HugeShared => "huge-shared",
            Kind::File => "file",
        }
    }

    pub fn page(self) -> &'static str {
        match self {
            Kind::Transparent => "huge",
            Kind::Huge | Kind::HugeShared => "2 MiB",
            _ => "small",
        }
    }
}

/// Whether the memory is there before it is registered.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    Fresh,
    Present,
}

/// The times of a turn, in seconds.
#[derive(Serialize, Deserialize)]
pub struct Turn {
    pub populate: f64,
    pub register: f64,
    pub deregister: f64,
    pub unmap: f64,
}

/// The process, as its parent sees it.
pub struct Large(Process);

impl Large {
    /// Starts a process: libibverbs alone, or the library with so many threads.
    pub fn start(device: &str, library: Option<(&Path, u32)>) -> anyhow::Result<Large> {
        let settings = library.map(|(_, threads)| ("RDMAMR_PREFAULT", threads.to_string()));
        let library = library.map(|(path, _)| path);
        Process::start(&[COMMAND, device], library, settings.as_slice()).map(Large)
    }

    /// Makes the process register memory once. The inner error is a registration's, or says that
    /// this machine has no such memory.
    pub fn turn(
        &mut self,
        kind: Kind,
        bytes: u64,
        phase: Phase,
    ) -> anyhow::Result<Result<Turn, String>> {
        let phase = if phase == Phase::Fresh {
            "fresh"
        } else {
            "present"
        };
        self.0.ask(&format!("{} {bytes} {phase}", kind.name()))
    }
}

/// The hidden command that starts the process.
pub const COMMAND: &str = "bench-large-worker";

/// The arguments of the process.
#[derive(clap::Parser)]
pub struct Args {
    device: String,
}

/// Runs the process: answers until no more questions come.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let verbs = Verbs::load().map_err(anyhow::Error::msg)?;
    let context = verbs
        .open(&args.device)
        .map_err(anyhow::Error::msg)
        .with_context(|| args.device.clone())?;
    let pd = verbs.alloc_pd(&context).map_err(anyhow::Error::msg)?;
    let all = Loaded::whole_program();
    // SAFETY: only whether the function is there is asked.
    let preloaded = unsafe { all.function::<*const c_void>(c"rdmamr_get_stats") }.is_some();
    let from = if preloaded { all } else { verbs.library };
    // SAFETY: the function has this type, in <infiniband/verbs.h>.
    let reg = unsafe { from.function::<RegMr>(c"ibv_reg_mr") };
    // SAFETY: the function has this type, in <infiniband/verbs.h>.
    let dereg = unsafe { from.function::<DeregMr>(c"ibv_dereg_mr") };
    let (Some(reg), Some(dereg)) = (reg, dereg) else {
        bail!("libibverbs has no ibv_reg_mr");
    };
    for line in io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let [kind, bytes, phase] = words[..] else {
            bail!("KIND BYTES PHASE");
        };
        let kind = Kind::from_str(kind, false).map_err(anyhow::Error::msg)?;
        let phase = Phase::from_str(phase, false).map_err(anyhow::Error::msg)?;
        let turn = turn(pd, reg, dereg, kind, bytes.parse()?, phase);
        println!(
            "{}",
            serde_json::to_string(&turn.map_err(|why| why.to_string()))?
        );
    }
    Ok(())
}

const ACCESS: c_int = 1 | 1 << 1 | 1 << 2; // IBV_ACCESS_LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ

fn turn(
    pd: *mut ibv_pd,
    reg: RegMr,
    dereg: DeregMr,
    kind: Kind,
    bytes: usize,
    phase: Phase,
) -> io::Result<Turn> {
    let memory = map(kind, bytes)?;
    let mut start = Instant::now();
    let mut lap = || {
        let took = start.elapsed().as_secs_f64();
        start = Instant::now();
        took
    };
    if phase == Phase::Present {
        // SAFETY: the advice makes the pages of a mapping of ours.
        let failed = unsafe { libc::madvise(memory, bytes, libc::MADV_POPULATE_WRITE) } != 0;
        if failed {
            return Err(io::Error::last_os_error());
        }
    }
    let populate = lap();
    // SAFETY: the PD is open, and the memory is ours.
    let mr = unsafe { reg(pd, memory, bytes, ACCESS) };
    let register = lap();
    if mr.is_null() {
        return Err(io::Error::last_os_error());
    }
    lap();
    // SAFETY: `mr` was registered just now.
    let error = unsafe { dereg(mr) };
    let deregister = lap();
    // SAFETY: the mapping is ours, and no longer registered.
    unsafe { libc::munmap(memory, bytes) };
    let unmap = lap();
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(Turn {
        populate,
        register,
        deregister,
        unmap,
    })
}

/// Maps memory of a kind, of which no page is there.
fn map(kind: Kind, bytes: usize) -> io::Result<*mut c_void> {
    let (private, none) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    let (flags, fd) = match kind {
        Kind::Anonymous | Kind::Transparent => (private, none),
        Kind::Shared => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, none),
        Kind::Huge => (private | libc::MAP_HUGETLB, none),
        Kind::HugeShared => (
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB,
            none,
        ),
        Kind::Memfd | Kind::File => (
            if kind == Kind::File {
                libc::MAP_PRIVATE
            } else {
                libc::MAP_SHARED
            },
            file(kind, bytes)?,
        ),
    };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the call makes a new mapping and touches no other.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
    let error = io::Error::last_os_error();
    if fd >= 0 {
        // SAFETY: the descriptor is ours. The mapping stays.
        unsafe { libc::close(fd) };
    }
    if memory == libc::MAP_FAILED {
        return Err(error);
    }
    let advice = match kind {
        Kind::Transparent => libc::MADV_HUGEPAGE,
        _ => libc::MADV_NOHUGEPAGE,
    };
    // SAFETY: the mapping is ours. A kernel without huge pages refuses the advice, which is
    // harmless.
    unsafe { libc::madvise(memory, bytes, advice) };
    Ok(memory)
}

/// A file in memory, or an empty one on the disk, which has no name.
fn file(kind: Kind, bytes: usize) -> io::Result<c_int> {
    let fd = if kind == Kind::Memfd {
        // SAFETY: the name ends with a NUL.
        unsafe { libc::memfd_create(c"rdmamr bench".as_ptr(), libc::MFD_CLOEXEC) }
    } else {
        let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: the path ends with a NUL.
        unsafe { libc::open(c"/var/tmp".as_ptr(), flags, 0o600) }
    };
    // SAFETY: the call takes no pointers.
    if fd < 0 || unsafe { libc::ftruncate(fd, bytes as libc::off_t) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}
