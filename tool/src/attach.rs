// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr trace --pid`: has a process under the library record its calls while it runs. The
//! request lies in the process's live page. Its next registration sees the request: nothing
//! interrupts it.

use crate::choices::number;
use crate::report::units;
use crate::run::traces;
use crate::say;
use crate::top::pages::{self, Found};
use crate::top::sample::monotonic;
use crate::trace::{Trace, to_append};
use anyhow::{Context, Result, bail};
use rdmamr_live_page::{PATH, Page, TraceSwitch};
use rdmamr_trace_format::{Numbers, kind};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Record the registrations of a running process
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr trace --pid 4711 -o app.trace           until Ctrl-C
  rdmamr trace --pid 4711 -o app.trace --for 10  ten seconds
  rdmamr trace --pid 4711 -o app.trace --on      and keep recording
  rdmamr trace --pid 4711 --off                  stop recording

The process must run under the library and have registered memory.")]
pub struct Args {
    /// The process
    #[arg(long, value_name = "PID", value_parser = number(1, i32::MAX as u32))]
    pid: u32,
    /// The file of the trace; PID.trace if not given
    #[arg(short, long, value_name = "FILE", conflicts_with = "off")]
    output: Option<PathBuf>,
    /// Record for so many seconds; wait as long for the first registration
    #[arg(long = "for", value_name = "SECONDS", conflicts_with_all = ["on", "off"], value_parser = number(0, u32::MAX))]
    seconds: Option<u32>,
    /// Start recording, and exit
    #[arg(long, conflicts_with = "off")]
    on: bool,
    /// Stop recording, and exit
    #[arg(long)]
    off: bool,
}

/// The time without an answer after which the user is told that the process has not answered.
const PATIENCE: Duration = Duration::from_secs(2);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: i32) {
    INTERRUPTED.store(true, Relaxed);
}

/// The exit status is 2 if the process cannot be asked, and 1 if it has recorded no call.
pub fn run(args: &Args) -> Result<ExitCode> {
    let Some(found) = pages::of(args.pid) else {
        bail!("{}", why_not(args.pid));
    };
    let handler = interrupt as extern "C" fn(i32) as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        let before = unsafe { libc::signal(signal, handler) };
        if signal == libc::SIGHUP && before == libc::SIG_IGN {
            // By nohup(1).
            // SAFETY: the call sets no handler.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
    if args.off {
        let file = recorded_into(&found);
        stop(&found)?;
        if let Some(file) = file {
            mark_stopped(&file, args.pid).with_context(|| file.display().to_string())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let file = args.output.clone();
    let file = file.unwrap_or_else(|| format!("{}.trace", args.pid).into());
    let file = std::path::absolute(file)?;
    create(&file, &found).with_context(|| file.display().to_string())?;
    let seconds = args.seconds.map(Into::into).map(Duration::from_secs);
    if !begin(&found, &file, seconds)? {
        // This request cancels the one above.
        ask(&found, None)?;
        if fs::metadata(&file).is_ok_and(|it| it.len() == 0) {
            fs::remove_file(&file)?;
        }
        say(format_args!(
            "no call is recorded: process {} has registered nothing meanwhile",
            args.pid
        ));
        return Ok(ExitCode::from(1));
    }
    let mut whole = true;
    if !args.on {
        let end = seconds.map(|seconds| {
            say(format_args!("recording for {} s", seconds.as_secs()));
            Instant::now() + seconds
        });
        if end.is_none() {
            say("recording; Ctrl-C stops it");
        }
        while !INTERRUPTED.load(Relaxed)
            && end.is_none_or(|end| Instant::now() < end)
            && is_alive(&found)
        {
            std::thread::sleep(Duration::from_millis(50));
        }
        INTERRUPTED.store(false, Relaxed);
        if is_alive(&found) {
            whole = stop(&found)?;
            mark_stopped(&file, args.pid).with_context(|| file.display().to_string())?;
        }
    }
    let file = units::quoted(&file.display().to_string());
    let when = match whole {
        true => "next",
        false => "next, when the process has registered again",
    };
    say(format_args!("{when}: rdmamr report {file}"));
    Ok(ExitCode::SUCCESS)
}

/// The file into which the process records by an earlier request.
fn recorded_into(found: &Found) -> Option<PathBuf> {
    let mut bytes = [0; PATH];
    let at = offset_of!(Page, trace) + offset_of!(TraceSwitch, path);
    found
        .file
        .as_ref()?
        .read_exact_at(&mut bytes, at as u64)
        .ok()?;
    let length = bytes.iter().position(|&byte| byte == 0)?;
    (length > 0).then(|| OsStr::from_bytes(&bytes[..length]).into())
}

/// Notes in the trace that the process ran on when the recording stopped: otherwise a report would
/// say that it was killed.
fn mark_stopped(path: &Path, pid: u32) -> Result<()> {
    if fs::metadata(path)?.len() == 0 {
        // The process has made no call.
        return Ok(());
    }
    let trace = Trace::of(&[path.to_path_buf()])?;
    let processes = trace.processes.iter().filter(|it| it.pid == pid);
    let Some(process) = processes.max_by_key(|it| it.process) else {
        return Ok(());
    };
    let now = monotonic().to_le_bytes();
    let header = process.header(kind::STOPPED, now.len());
    // One write, as the library's own.
    Ok(to_append(path)?.write_all(&[header.as_bytes(), &now[..]].concat())?)
}

/// Why a process cannot be asked, and a command that shows its registrations all the same.
fn why_not(pid: u32) -> String {
    if !Path::new(&format!("/proc/{pid}")).exists() {
        return format!("there is no process {pid}");
    }
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
    match maps {
        Ok(maps) if maps.contains("librdmamr") => format!(
            "process {pid} runs under the library, but has no live page: it has registered nothing yet, \
             RDMAMR_LIVE=0 is set, or there is no directory for the page (man 7 rdmamr)"
        ),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            // SAFETY: geteuid has no preconditions.
            match unsafe { libc::geteuid() } {
                0 => format!(
                    "process {pid} cannot be read even by root here: a container without CAP_SYS_PTRACE, or a security module"
                ),
                _ => format!("process {pid} belongs to another user: only root can trace it"),
            }
        }
        _ => format!(
            "process {pid} does not run under the library (rdmamr run). This counts its uverbs calls:\n\
             \x20 bpftrace -e 'tracepoint:syscalls:sys_enter_ioctl /pid == {pid} && args->cmd == 0xc0181b01/ \
             {{ @uverbs = count(); }}'"
        ),
    }
}

/// Makes the file, or empties a trace that is there if the process sees it. No link is followed. Root
/// gives the file to the process's user, who writes it.
fn create(path: &Path, found: &Found) -> Result<()> {
    let file = to_append(path)?;
    let user = pages::user_of(found.pid).context("the process has ended")?;
    if file.metadata()?.uid() != user {
        std::os::unix::fs::fchown(&file, Some(user), None)?;
    }
    let inside = format!("/proc/{}/root{}", found.pid, path.display());
    let same = |path: &Path| fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
    if same(Path::new(&inside)) != same(path) {
        bail!(
            "process {} does not see this file: it is in another mount namespace",
            found.pid
        );
    }
    traces::empty(path)
}

/// Has the process record into a file. False if its answer has not come.
fn begin(found: &Found, file: &Path, limit: Option<Duration>) -> Result<bool> {
    let answered = wait(found, ask(found, Some(file))?, limit)?;
    if answered && word(found, offset_of!(TraceSwitch, state))? > 1 {
        bail!("process {} cannot write the file", found.pid);
    }
    Ok(answered)
}

/// Has the process stop. False if its last calls come with its next registration.
fn stop(found: &Found) -> Result<bool> {
    let answered = wait(found, ask(found, None)?, Some(PATIENCE))?;
    if !answered {
        say("the process writes its last calls and stops recording at its next registration");
    }
    Ok(answered)
}

/// Waits for the answer of that number. False if the user has interrupted the wait, or if the answer
/// has not come by `limit`.
fn wait(found: &Found, number: u32, limit: Option<Duration>) -> Result<bool> {
    let began = Instant::now();
    let mut said = false;
    while !has_answered(found, number)? {
        let waited = began.elapsed();
        if INTERRUPTED.load(Relaxed) || limit.is_some_and(|limit| waited > limit) {
            return Ok(false);
        }
        if waited > PATIENCE && !said {
            say("waiting: recording begins with the process's next registration");
            said = true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// Asks the process to record into a file, or to stop. The answer has the returned number.
fn ask(found: &Found, file: Option<&Path>) -> Result<u32> {
    let mut bytes = [0; PATH];
    if let Some(file) = file {
        let path = file.as_os_str().as_bytes();
        let room = bytes.get_mut(..path.len()).filter(|room| room.len() < PATH);
        room.context("the path is too long")?.copy_from_slice(path);
    }
    let page = found.file.as_ref().context("the page cannot be written")?;
    let write = |bytes: &[u8], at: usize| {
        let place = offset_of!(Page, trace) + at;
        page.write_all_at(bytes, place as u64)
    };
    write(&bytes, offset_of!(TraceSwitch, path))?;
    let wanted = u32::from(file.is_some());
    write(&wanted.to_ne_bytes(), offset_of!(TraceSwitch, wanted))?;
    let number = word(found, offset_of!(TraceSwitch, number))?.wrapping_add(1);
    write(&number.to_ne_bytes(), offset_of!(TraceSwitch, number))?;
    Ok(number)
}

fn has_answered(found: &Found, number: u32) -> Result<bool> {
    let answered = word(found, offset_of!(TraceSwitch, answered))? == number;
    if !answered && !is_alive(found) {
        bail!("process {} has ended", found.pid);
    }
    Ok(answered)
}

/// A word of the page's switch.
fn word(found: &Found, at: usize) -> Result<u32> {
    let page = found.file.as_ref().context("the page cannot be read")?;
    let mut word = [0; 4];
    page.read_exact_at(&mut word, (offset_of!(Page, trace) + at) as u64)?;
    Ok(u32::from_ne_bytes(word))
}

fn is_alive(found: &Found) -> bool {
    Path::new(&format!("/proc/{}", found.pid)).exists()
}
