// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that registers memory when it is its turn: another copy of this program. Its protocol is
//! a line of JSON in, the kind, the bytes and whether they are present, and a line of JSON out.

use super::memory::{Kind, map};
use crate::report::units;
use crate::style;
use crate::verbs::{DeregMr, Loaded, RegMr, Verbs};
use anyhow::{Context, bail};
use rdmamr_abi::rdma_core::ibv_pd;
use rustix::mm::{Advice, madvise};
use serde::{Deserialize, Serialize};
use std::env;
use std::ffi::{c_int, c_void};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// The hidden command that starts the process, absent from help and completions.
const COMMAND: &str = "bench-worker";
const ACCESS: c_int = 1 | 1 << 1 | 1 << 2; // IBV_ACCESS_LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ

/// The times of a turn, in seconds.
#[derive(Serialize, Deserialize)]
pub struct Turn {
    pub populate: f64,
    pub register: f64,
    pub deregister: f64,
    pub unmap: f64,
}

type Answer = Result<Turn, String>;

/// The process, as its parent sees it.
pub struct Worker {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a process: libibverbs alone, or the library with this number of threads. Other settings
    /// of the library would change the measurement.
    pub fn start(device: &str, library: Option<(&Path, u32)>) -> anyhow::Result<Worker> {
        let mut command = Command::new(env::current_exe()?);
        command.args([COMMAND, device]).env_remove("LD_PRELOAD");
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("RDMAMR_") {
                command.env_remove(name);
            }
        }
        if let Some((path, threads)) = library {
            command.env("LD_PRELOAD", path);
            command.env("RDMAMR_PREFAULT", threads.to_string());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn();
        let mut child = child.context("this program cannot be started once more")?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (questions, answers) = pipes.context("a process without its pipes")?;
        Ok(Worker {
            child,
            questions,
            answers: BufReader::new(answers),
        })
    }

    /// Makes the process register memory once, which is present before or not. The inner error is a
    /// registration's, or says that this machine has no such memory.
    pub fn turn(&mut self, kind: Kind, bytes: u64, is_present: bool) -> anyhow::Result<Answer> {
        // If the process has ended, the pipe is broken; the read below reports that.
        let question = serde_json::to_string(&(kind, bytes, is_present))?;
        let _ = writeln!(self.questions, "{question}");
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        if answer.is_empty() {
            bail!("a process that measures has ended ({})", self.child.wait()?);
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures for a parent that has started this process by the hidden command. `None` if there is no
/// such parent.
pub fn as_worker() -> Option<anyhow::Result<()>> {
    let words: Vec<_> = env::args_os().skip(1).collect();
    match &words[..] {
        [command, device] if command == COMMAND => Some(answer(device.to_str()?)),
        _ => None,
    }
}

/// Answers until no more questions come.
fn answer(device: &str) -> anyhow::Result<()> {
    let calls = Calls::open(device)?;
    for line in io::stdin().lines() {
        let (kind, bytes, is_present) = serde_json::from_str(&line?)?;
        let turn = calls.turn(kind, bytes, is_present);
        let turn = turn.map_err(|why| units::reason(&why));
        style::print(&(serde_json::to_string(&turn)? + "\n"))?;
    }
    Ok(())
}

/// The calls that are measured, on a device.
struct Calls {
    pd: *mut ibv_pd,
    register: RegMr,
    deregister: DeregMr,
}

impl Calls {
    /// Opens a device, and looks the functions up in the library if it is preloaded, else in libibverbs,
    /// even if the environment loads another library.
    fn open(device: &str) -> anyhow::Result<Calls> {
        let verbs = Verbs::load()?;
        let context = verbs.open(device).with_context(|| device.to_owned())?;
        let pd = verbs.alloc_pd(&context).context("ibv_alloc_pd")?;
        let all = Loaded::WHOLE_PROGRAM;
        // SAFETY: the function is only looked up, and not called.
        let preloaded = unsafe { all.function::<*const c_void>(c"rdmamr_get_stats") };
        let from = preloaded.map_or(verbs.library, |_| all);
        Ok(Calls {
            pd,
            // SAFETY: <infiniband/verbs.h> gives this type.
            register: unsafe { from.function(c"ibv_reg_mr") }?,
            // SAFETY: <infiniband/verbs.h> gives this type.
            deregister: unsafe { from.function(c"ibv_dereg_mr") }?,
        })
    }

    fn turn(&self, kind: Kind, bytes: usize, is_present: bool) -> anyhow::Result<Turn> {
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
            unsafe { madvise(memory.address, bytes, Advice::LinuxPopulateWrite) }?;
        }
        let populate = lap();
        // SAFETY: the domain is live. A registration does not access the memory, which is mapped.
        let mr = unsafe { (self.register)(self.pd, memory.address, bytes, ACCESS) };
        let register = lap();
        if mr.is_null() {
            return Err(io::Error::last_os_error().into());
        }
        lap();
        // SAFETY: `mr` was registered just now.
        let error = unsafe { (self.deregister)(mr) };
        let deregister = lap();
        drop(memory);
        let unmap = lap();
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error).into());
        }
        Ok(Turn {
            populate,
            register,
            deregister,
            unmap,
        })
    }
}
