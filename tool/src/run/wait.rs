// SPDX-License-Identifier: MIT OR Apache-2.0
//! Running a program as a child, for a word at its end: the program gets this process's
//! signals, and this process ends as the program does.

use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, set_parent_process_death_signal,
    setrlimit, waitpid,
};
use std::ffi::c_void;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The program's process number.
static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// Signals that are sent to this process alone. The last two reach the program, too, if they come from
/// the keyboard.
#[rustfmt::skip]
const PASSED: [i32; 6] = [
    libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGINT, libc::SIGQUIT,
];

/// The status of the ended program.
pub struct Ended(WaitStatus);

extern "C" fn pass(signal: i32, info: &libc::siginfo_t, _: *const c_void) {
    let program = PROGRAM.load(Relaxed);
    // A code above 0 is the kernel's own.
    let from_keyboard = [libc::SIGINT, libc::SIGQUIT].contains(&signal) && info.si_code > 0;
    if program > 0 && !from_keyboard {
        // SAFETY: kill may be called in a signal handler, and takes no pointers.
        unsafe { libc::kill(program, signal) };
    }
}

/// Blocks the signals, and returns their set, and the mask before.
pub fn block(signals: &[i32]) -> [libc::sigset_t; 2] {
    // SAFETY: all zeros is a valid `sigset_t`.
    let (mut set, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    for &signal in signals {
        // SAFETY: the set is writable.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    // SAFETY: the first set is readable, the second one writable.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before) };
    [set, before]
}

fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: the set is readable.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}

/// Runs `become_program`, which returns only if it fails, in a child, and waits for its end.
pub fn run(become_program: impl FnOnce() -> ExitCode) -> io::Result<Result<Ended, ExitCode>> {
    // The program may run, and its user send a signal, before this process has its handlers. The
    // kernel keeps a blocked signal even where it is ignored.
    let [_, mask_at_start] = block(&PASSED);
    // SAFETY: this process has one thread, so the child may call any function.
    let child = unsafe { libc::fork() };
    match child {
        -1 => {
            let error = io::Error::last_os_error();
            set_mask(&mask_at_start);
            return Err(error);
        }
        0 => {
            set_mask(&mask_at_start);
            // Whoever kills the launcher means the program.
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            return Ok(Err(become_program()));
        }
        _ => PROGRAM.store(child, Relaxed),
    }
    // SAFETY: all zeros is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = pass as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    for signal in PASSED {
        // SAFETY: the handler calls kill alone, and has the type that SA_SIGINFO asks for.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
    set_mask(&mask_at_start);
    // A reader of standard error that is gone must not change how this process ends.
    // SAFETY: the call sets no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let ended = retry_on_intr(|| waitpid(Pid::from_raw(child), WaitOptions::empty()))?;
    PROGRAM.store(0, Relaxed);
    let (_, status) = ended.expect("waitpid(2) without WNOHANG waits for the end");
    Ok(Ok(Ended(status)))
}

impl Ended {
    /// The name of the signal that ended the program, if one did.
    pub fn signal(&self) -> Option<String> {
        let signal = self.0.terminating_signal()?;
        // "signal: 9 (SIGKILL)", with the number alone for what has no name.
        let words = ExitStatus::from_raw(signal).to_string();
        let name = words.split(['(', ')']).nth(1).map(String::from);
        Some(name.unwrap_or_else(|| format!("signal {signal}")))
    }

    /// Ends this process in the same way.
    pub fn follow(self) -> ExitCode {
        let Some(signal) = self.0.terminating_signal() else {
            return ExitCode::from(self.0.exit_status().unwrap_or(0) as u8);
        };
        let (current, maximum) = (Some(0), Some(0));
        // The program has written a core file, if one is wanted.
        let _ = setrlimit(Resource::Core, Rlimit { current, maximum });
        // SAFETY: the call sets no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        // SAFETY: raise takes no pointers.
        unsafe { libc::raise(signal) };
        ExitCode::from(128 + signal as u8)
    }
}
