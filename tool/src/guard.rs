// SPDX-License-Identifier: MIT OR Apache-2.0
//! Root's guard. A user can keep the kernel's lock of a file, or of a folder, as long as he likes: who
//! opens it, looks it up or writes it then waits where no signal ends it, SIGKILL included. So root's
//! tool does its work in a child, and the parent only waits. A child that waits in the kernel, or that
//! somebody has stopped, is left behind after a while, and the parent ends: by itself, or by a signal.
//!
//! A pipe to which the tool prints has an end only once each process that holds it has ended. So the child
//! does not hold it: the parent copies.

use crate::child::{close_all_but, fork, limit_memory_for_good, no_core};
use crate::files::named::me;
use crate::files::{of_system, value_in};
use crate::report::units;
use crate::style::say;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, dup};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process, pidfd_open, waitpid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stderr, stdin, stdout};
use rustix::system::sysinfo;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a child may wait in the kernel, or be stopped, without any progress.
const LIMIT: Duration = Duration::from_secs(30);
/// The same after a signal that asks this program to end.
const LIMIT_AT_END: Duration = Duration::from_secs(2);
/// The status of a command whose child was left behind, or ended before its work did.
const LEFT: u8 = 2;
/// The child may use this part of the machine's memory, or 1 GiB if that is more.
const PART: u64 = 4;
const LEAST: u64 = 1 << 30;

/// The signal that asks this program to end, or 0.
static ASKED: AtomicI32 = AtomicI32::new(0);

extern "C" fn asked(signal: i32) {
    ASKED.store(signal, Relaxed);
}

/// A pipe of the child's, and the pipe or socket of this program to which its content goes.
struct Copied {
    from: File,
    to: File,
    /// What has been read and not written.
    rest: Vec<u8>,
    /// Lines for which there is no room are lost, as those of `style::say` are.
    may_lose: bool,
    is_open: bool,
}

impl Copied {
    /// If the output may have a reader that waits for its end: the copy, and what the child writes to.
    fn of(output: impl AsFd, may_lose: bool) -> io::Result<Option<(Copied, OwnedFd)>> {
        if !is_pipe(&output) {
            return Ok(None);
        }
        let (from, of_child) = pipe_with(PipeFlags::CLOEXEC)?;
        let copied = Copied {
            from: from.into(),
            to: dup(output)?.into(),
            rest: Vec::new(),
            may_lose,
            is_open: true,
        };
        Ok(Some((copied, of_child)))
    }

    /// What the copy waits for: something to read, or room for it.
    fn awaited(&self) -> PollFd<'_> {
        match self.rest.is_empty() {
            true => PollFd::new(&self.from, PollFlags::IN),
            false => PollFd::new(&self.to, PollFlags::OUT),
        }
    }

    /// Whether that is there now.
    fn is_ready(&self) -> bool {
        poll(&mut [self.awaited()], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Reads, or writes, what is there. Without a reader, or at the end, the pipe is closed for the child too.
    fn go_on(&mut self) {
        /// A pipe that has room has room for so much (PIPE_BUF), so a write does not wait.
        const ROOM: usize = 4096;
        if self.rest.is_empty() {
            self.rest.resize(1 << 16, 0);
            let read = self.from.read(&mut self.rest).unwrap_or(0);
            self.rest.truncate(read);
            self.is_open = read > 0;
            if self.may_lose && !self.is_ready() {
                self.rest.clear();
            }
            return;
        }
        match self.to.write(&self.rest[..self.rest.len().min(ROOM)]) {
            Ok(written) => drop(self.rest.drain(..written)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.is_open = false,
        }
    }

    /// Copies what an ended child has left in the pipe. A signal ends the wait for a reader.
    fn finish(&mut self) {
        while self.is_open {
            let is_over = self.rest.is_empty() || ASKED.load(Relaxed) != 0;
            if self.is_ready() {
                self.go_on();
            } else if is_over {
                return;
            } else {
                let _ = poll(&mut [self.awaited()], None);
            }
        }
    }
}

fn is_pipe(file: impl AsFd) -> bool {
    fstat(file).is_ok_and(|about| {
        let kind = FileType::from_raw_mode(about.st_mode);
        matches!(kind, FileType::Fifo | FileType::Socket)
    })
}

/// In the child: gives up the files that this program was started with, except the outputs and those that
/// its arguments name. Who waits for the end of a file, or of a lock on one (flock(1)), waits for each
/// process that has it, also for a child that is left behind.
fn give_up_files() -> io::Result<()> {
    let arguments: Vec<_> = std::env::args_os().collect();
    let arguments = || arguments.iter().map(|it| it.to_string_lossy());
    let named = |argument: Cow<str>| argument.rsplit_once("/fd/")?.1.parse().ok();
    close_all_but(arguments().filter_map(named).collect());
    if is_pipe(stdin()) && !arguments().any(|it| it == "-" || it == "/dev/stdin") {
        dup2_stdin(&of_system("/dev/null", false)?)?;
    }
    Ok(())
}

/// What another user's files may use up.
#[derive(PartialEq)]
pub enum Guard {
    OfTime,
    /// The memory that a trace takes grows with it.
    OfTimeAndMemory,
}

/// Does the rest of the program in a child, if this user is root. Returns the status in the parent, once
/// the child has ended, and nothing in the child.
pub fn enter(guard: &Guard) -> io::Result<Option<ExitCode>> {
    if me() != 0 {
        return Ok(None);
    }
    let out = Copied::of(stdout(), false)?;
    let is_one = fstat(stdout()).is_ok_and(|one| {
        fstat(stderr()).is_ok_and(|other| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
    });
    // One pipe keeps the order of both outputs.
    let error = if is_one && out.is_some() {
        None
    } else {
        Copied::of(stderr(), true)?
    };
    // If it is ignored, the kernel tells no end of a child.
    set_handler(libc::SIGCHLD, libc::SIG_DFL);
    let Some(child) = fork()? else {
        if *guard == Guard::OfTimeAndMemory {
            limit_memory_for_good(memory())?;
        }
        if let Some((_, of_child)) = &out {
            dup2_stdout(of_child)?;
            if is_one {
                dup2_stderr(of_child)?;
            }
        }
        if let Some((_, of_child)) = &error {
            dup2_stderr(of_child)?;
        }
        drop((out, error));
        give_up_files()?;
        return Ok(None);
    };
    let copied = [out, error].into_iter().flatten().map(|(copied, _)| copied);
    wait_for(child, copied.collect(), guard).map(Some)
}

fn wait_for(child: Pid, mut copied: Vec<Copied>, guard: &Guard) -> io::Result<ExitCode> {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let handler = asked as extern "C" fn(i32) as libc::sighandler_t;
        if set_handler(signal, handler) == libc::SIG_IGN {
            set_handler(signal, libc::SIG_IGN);
        }
    }
    // Without a reader a write fails, and the child is told.
    set_handler(libc::SIGPIPE, libc::SIG_IGN);
    // Before Linux 5.3 there is no such file, and the child is looked at more often.
    let file = pidfd_open(child, PidfdFlags::empty()).ok();
    let pause = Timespec {
        tv_sec: i64::from(file.is_some()),
        tv_nsec: if file.is_some() { 0 } else { 20_000_000 },
    };
    let mut waits = Waits::default();
    loop {
        copied.retain(|it| it.is_open);
        let of_copies = copied.iter().map(Copied::awaited);
        let mut files: Vec<_> = of_copies.collect();
        files.extend(file.iter().map(|file| PollFd::new(file, PollFlags::IN)));
        let ready = match poll(&mut files, Some(&pause)) {
            Err(Errno::INTR) => 0,
            ready => ready?,
        };
        let ready_copies: Vec<bool> = files[..copied.len()]
            .iter()
            .map(|it| !it.revents().is_empty())
            .collect();
        drop(files);
        for (it, _) in copied.iter_mut().zip(ready_copies).filter(|(_, is)| *is) {
            it.go_on();
        }
        let signal = ASKED.load(Relaxed);
        if signal != 0 && !waits.is_asked {
            waits = Waits {
                is_asked: true,
                ..Waits::default()
            };
            // SAFETY: the call takes no pointers, and the child has not been waited for.
            unsafe { libc::kill(child.as_raw_pid(), signal) };
        }
        if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG)? {
            copied.iter_mut().for_each(Copied::finish);
            return Ok(end_as(status, guard));
        }
        if ready == 0 && waits.are_over(child) {
            let _ = kill_process(child, Signal::KILL);
            say(format!(
                "what this command asks for does not come: a file or a folder of another user is locked, or the \
                 process that works was stopped. It is left behind (process {})",
                child.as_raw_pid()
            ));
            return Ok(ExitCode::from(LEFT));
        }
    }
}

/// Sets the handler of a signal: [`asked`], SIG_IGN or SIG_DFL. Returns the one before.
fn set_handler(signal: i32, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: zeros are a valid action, with no flags and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    // SAFETY: as above.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: both structures are local, and `asked` only stores a number.
    unsafe { libc::sigaction(signal, &raw const action, &raw mut before) };
    before.sa_sigaction
}

/// How long the child has made no progress.
#[derive(Default)]
struct Waits {
    /// Since when it has waited so.
    since: Option<Instant>,
    /// Its state, and the numbers of its switches.
    seen: String,
    is_asked: bool,
}

impl Waits {
    /// Looks once more.
    fn are_over(&mut self, child: Pid) -> bool {
        let folder = format!("/proc/{}", child.as_raw_pid());
        let status = crate::files::read(format!("{folder}/status")).unwrap_or_default();
        let value = |name| value_in(&status, name).unwrap_or_default();
        let is_waiting = value("State").starts_with(['D', 'T']);
        let switches = ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"].map(value);
        let seen = format!("{} {switches:?}", value("State"));
        if !is_waiting || seen != self.seen {
            self.since = is_waiting.then(Instant::now);
            self.seen = seen;
        }
        let limit = if self.is_asked { LIMIT_AT_END } else { LIMIT };
        self.since.is_some_and(|since| since.elapsed() >= limit)
    }
}

/// The bytes that the child may use.
fn memory() -> u64 {
    let machine = sysinfo();
    (machine.totalram as u64 * u64::from(machine.mem_unit) / PART).max(LEAST)
}

/// Ends this program as the child has ended.
fn end_as(status: WaitStatus, guard: &Guard) -> ExitCode {
    if let Some(signal) = status.terminating_signal() {
        if [libc::SIGKILL, libc::SIGABRT].contains(&signal) {
            let limit = match guard {
                Guard::OfTime => String::new(),
                Guard::OfTimeAndMemory => format!(
                    ". It may use {} of memory: another user than root may use more",
                    units::bytes(memory())
                ),
            };
            say(format!("the process that worked was killed{limit}"));
            return ExitCode::from(LEFT);
        }
        // Another user may have sent it.
        let _ = no_core();
        set_handler(signal, libc::SIG_DFL);
        // SAFETY: the call takes no pointers. The signal ends this process.
        unsafe { libc::raise(signal) };
    }
    ExitCode::from(status.exit_status().unwrap_or(LEFT.into()) as u8)
}
