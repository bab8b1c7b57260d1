// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that measures when it is asked: this program once more, which answers each line by a
//! line of JSON.

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use std::env;
use std::io::{BufRead, BufReader, Write};
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

    /// Asks, and waits for the answer. The inner error is what the process says went wrong.
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
