// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that measures on request: another copy of this program, which answers each line by a
//! line of JSON.

use crate::verbs::{DeregMr, Loaded, RegMr, Verbs};
use anyhow::{Context, bail};
use rdmamr_abi::rdma_core::{ibv_mr, ibv_pd};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::env;
use std::ffi::{CStr, c_int, c_void};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The process, as its parent sees it.
pub struct Process {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a process with these arguments, with this library or with none, and with these
    /// settings of the library alone: others would change the measurement.
    pub fn start(
        arguments: &[&str],
        library: Option<&Path>,
        settings: &[(&str, String)],
    ) -> anyhow::Result<Process> {
        let mut command = Command::new(env::current_exe()?);
        for (name, _) in
            env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RDMAMR_"))
        {
            command.env_remove(name);
        }
        match library {
            None => command.env_remove("LD_PRELOAD"),
            Some(path) => command.env("LD_PRELOAD", path),
        };
        let mut child = command
            .args(arguments)
            .envs(settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("this program cannot be started once more")?;
        let (Some(questions), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a process without its pipes");
        };
        Ok(Process {
            child,
            questions,
            answers: BufReader::new(answers),
        })
    }

    /// Asks, and waits for the answer. The inner error is the one that the process reports.
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        question: &str,
    ) -> anyhow::Result<Result<T, String>> {
        // If the process has ended, the pipe is broken; the read below reports that.
        let _ = writeln!(self.questions, "{question}");
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        if answer.is_empty() {
            bail!("a process that measures has ended ({})", self.child.wait()?);
        }
        Ok(serde_json::from_str(&answer)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers each line of standard input by a line of JSON.
pub fn answer_each<T: Serialize>(
    mut answer: impl FnMut(&str) -> anyhow::Result<T>,
) -> anyhow::Result<()> {
    for line in io::stdin().lines() {
        println!("{}", serde_json::to_string(&answer(&line?)?)?);
    }
    Ok(())
}

/// The calls that are measured, on a device.
pub struct Calls {
    pd: *mut ibv_pd,
    reg: RegMr,
    dereg: DeregMr,
}

const ACCESS: c_int = 1 | 1 << 1 | 1 << 2; // IBV_ACCESS_LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ

impl Calls {
    /// Opens a device, and looks the functions up in the library that is preloaded, or in libibverbs
    /// even if the environment loads another library. They have the types of `ibv_reg_mr` and
    /// `ibv_dereg_mr`.
    pub fn open(device: &str, reg: &CStr, dereg: &CStr, preloaded: bool) -> anyhow::Result<Calls> {
        let verbs = Verbs::load().map_err(anyhow::Error::msg)?;
        let context = verbs
            .open(device)
            .map_err(anyhow::Error::msg)
            .with_context(|| device.to_owned())?;
        let pd = verbs
            .alloc_pd(&context)
            .map_err(anyhow::Error::msg)
            .context("ibv_alloc_pd")?;
        let from = if preloaded {
            Loaded::whole_program()
        } else {
            verbs.library
        };
        // SAFETY: the caller names such a function.
        let reg = unsafe { from.function::<RegMr>(reg) };
        // SAFETY: the caller names such a function.
        let dereg = unsafe { from.function::<DeregMr>(dereg) };
        let (Some(reg), Some(dereg)) = (reg, dereg) else {
            bail!("the library was not preloaded into the process that measures");
        };
        Ok(Calls { pd, reg, dereg })
    }

    /// Registers memory that is mapped. `None`: it failed, and errno says why.
    pub fn register(&self, memory: *mut c_void, length: usize) -> Option<*mut ibv_mr> {
        // SAFETY: the PD is open. A registration does not access the memory, and fails if none is
        // mapped.
        let mr = unsafe { (self.reg)(self.pd, memory, length, ACCESS) };
        (!mr.is_null()).then_some(mr)
    }

    /// Ends a registration.
    ///
    /// # Safety
    /// `mr` is one of [`Calls::register`] that has not ended.
    pub unsafe fn deregister(&self, mr: *mut ibv_mr) -> io::Result<()> {
        // SAFETY: the caller promises that the region is registered.
        match unsafe { (self.dereg)(mr) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}
