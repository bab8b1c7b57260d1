// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr trace --pid`: has a process under the library record its calls while it runs. The
//! request lies in the process's live page. Its next registration sees the request: nothing
//! interrupts it.

use crate::files::named::me;
use crate::files::{read, result, value_in};
use crate::report::units::{self, shown};
use crate::run::traces;
use crate::style::say;
use crate::top::pages::{self, Found};
use crate::top::sample::library_mapped;
use crate::trace::to_append;
use anyhow::{Context, Result, bail, ensure};
use clap::value_parser;
use rdmamr_live_page::{NOT_FOLLOWED, PATH, Page, TraceSwitch};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
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
    #[arg(long, value_name = "PID", value_parser = value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pid: u32,
    /// The file of the trace; PID.trace if not given
    #[arg(short, long, value_name = "FILE", conflicts_with = "off")]
    output: Option<PathBuf>,
    /// Record for so many seconds; wait as long for the first registration
    #[arg(long = "for", value_name = "SECONDS", conflicts_with_all = ["on", "off"])]
    seconds: Option<u32>,
    /// Start recording, and exit
    #[arg(long, conflicts_with = "off")]
    on: bool,
    /// Stop recording, and exit
    #[arg(long)]
    off: bool,
}

/// The time without an answer after which the user is told that the process has not answered.
const TIMEOUT: Duration = Duration::from_secs(2);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(_: i32) {
    INTERRUPTED.store(true, Relaxed);
}

/// The exit status is 2 if the process cannot be asked, and 1 if it has recorded no call.
pub fn run(args: &Args) -> Result<ExitCode> {
    let found = pages::of(args.pid)?.with_context(|| why_not(args.pid))?;
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
        stop(&found)?;
        return Ok(ExitCode::SUCCESS);
    }
    become_its_user(&found)?;
    let file = args.output.clone();
    let file = file.unwrap_or_else(|| format!("{}.trace", args.pid).into());
    let file = std::path::absolute(file)?;
    if word(&found, offset_of!(TraceSwitch, state))? == 1 {
        // The end of an earlier recording must not come into the emptied file.
        stop(&found)?;
    }
    let (place, written) = to_append(&file).with_context(|| shown(&file))?;
    traces::empty(&written).with_context(|| shown(&file))?;
    let is_empty = || written.metadata().is_ok_and(|it| it.len() == 0);
    let seconds = args.seconds.map(Into::into).map(Duration::from_secs);
    let begun = begin(&found, &file, seconds);
    if !begun.as_ref().is_ok_and(|&begun| begun) {
        // This request cancels the one above.
        let _ = ask(&found, None);
        if is_empty() {
            place.remove()?;
        }
        begun?;
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
        }
    }
    let file = units::quoted(&file);
    let when = match whole {
        true => "next",
        false => "next, when the process has registered again",
    };
    say(format_args!("{when}: rdmamr report {file}"));
    Ok(ExitCode::SUCCESS)
}

/// Why a process cannot be asked, and a command that shows its registrations all the same.
fn why_not(pid: u32) -> String {
    if !Path::new(&format!("/proc/{pid}")).exists() {
        return format!("there is no process {pid}");
    }
    match library_mapped(pid) {
        Some(true) => format!(
            "process {pid} runs under the library, but has no live page: it has registered nothing yet, \
             RDMAMR_LIVE=0 is set, or there is no directory for the page (man 7 rdmamr)"
        ),
        None if me() == 0 => format!(
            "process {pid} cannot be read even by root here: a container without CAP_SYS_PTRACE, or a security module"
        ),
        None => format!("process {pid} belongs to another user: only root can trace it"),
        Some(false) => format!(
            "process {pid} does not run under the library (rdmamr run). This counts its uverbs calls:\n\
             \x20 bpftrace -e 'tracepoint:syscalls:sys_enter_ioctl /pid == {pid} && args->cmd == 0xc0181b01/ \
             {{ @uverbs = count(); }}'"
        ),
    }
}

/// Root makes the file with the rights of the process's user, who writes it: so root's rights make no
/// file, and give none away.
fn become_its_user(found: &Found) -> Result<()> {
    if me() != 0 || found.user == 0 {
        return Ok(());
    }
    let status = read(format!("/proc/{}/status", found.pid)).context("the process has ended")?;
    let (user, group, groups) = identity(&status)?;
    ensure!(user == found.user, "the process has become another user's");
    // A program that it has executed can have other groups, by its set-gid bit.
    ensure!(
        pages::is_still(found),
        "the process has ended, or has executed another program"
    );
    // SAFETY: the list has as many numbers.
    result(unsafe { libc::setgroups(groups.len(), groups.as_ptr()) })?;
    // SAFETY: the call takes numbers.
    result(unsafe { libc::setresgid(group, group, group) })?;
    let parent = getppid();
    // SAFETY: the call takes numbers.
    result(unsafe { libc::setresuid(user, user, user) })?;
    // The kernel forgets at that call that this process ends with its parent (`guard.rs`).
    set_parent_process_death_signal(Some(Signal::KILL))?;
    ensure!(getppid() == parent, "the process that waits has ended");
    Ok(())
}

/// The user, the group and the further groups of a process, by its status (proc(5)).
fn identity(status: &str) -> Result<(u32, u32, Vec<u32>)> {
    let numbers = |name| {
        let words = value_in(status, name).context("its status has no users and groups")?;
        let numbers = words.split_whitespace().map(str::parse);
        Ok::<Vec<u32>, anyhow::Error>(numbers.collect::<Result<_, _>>()?)
    };
    let one = |name| match numbers(name)?[..] {
        [real, effective, saved, of_files] if [effective, saved, of_files] == [real; 3] => Ok(real),
        _ => bail!(
            "the process has the rights of more than one user or group: its real, effective, saved and file system \
             {name} differ"
        ),
    };
    Ok((one("Uid")?, one("Gid")?, numbers("Groups")?))
}

/// Has the process record into a file. False if its answer has not come.
fn begin(found: &Found, file: &Path, limit: Option<Duration>) -> Result<bool> {
    let answered = wait(found, ask(found, Some(file))?, limit)?;
    if answered {
        match word(found, offset_of!(TraceSwitch, state))? {
            0 | 1 => {}
            NOT_FOLLOWED => bail!(
                "process {} follows no request: it has capabilities, or is not dumpable (prctl(2))",
                found.pid
            ),
            _ if pages::mounts_of(found.pid) != pages::mounts_of("self") => bail!(
                "process {} does not see this file, or cannot write it: it is in another mount namespace",
                found.pid
            ),
            _ => bail!("process {} cannot write the file", found.pid),
        }
    }
    Ok(answered)
}

/// Has the process stop. False if its last calls come with its next registration.
fn stop(found: &Found) -> Result<bool> {
    let answered = wait(found, ask(found, None)?, Some(TIMEOUT))?;
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
    while word(found, offset_of!(TraceSwitch, answered))? != number {
        ensure!(is_alive(found), "process {} has ended", found.pid);
        let waited = began.elapsed();
        if INTERRUPTED.load(Relaxed) || limit.is_some_and(|limit| waited > limit) {
            return Ok(false);
        }
        if waited > TIMEOUT && !said {
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

#[cfg(test)]
mod tests {
    use super::identity;

    #[test]
    fn a_process_with_two_users_or_groups_has_no_identity() {
        let of = |users, groups| {
            let status = format!("Name:\tUid: 0\nUid:\t{users}\nGid:\t{groups}\nGroups:\t4 24 \n");
            identity(&status)
        };
        let same = "7\t7\t7\t7";
        assert_eq!(of(same, "8\t8\t8\t8").unwrap(), (7, 8, vec![4, 24]));
        for other in [
            "9\t7\t7\t7",
            "7\t9\t7\t7",
            "7\t7\t9\t7",
            "7\t7\t7\t9",
            "7\t7\t7",
            "",
        ] {
            assert!(
                of(other, same).is_err() && of(same, other).is_err(),
                "{other}"
            );
        }
    }
}
