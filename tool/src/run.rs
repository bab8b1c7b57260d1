// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr run`: becomes the program, with the library in front of it. Since it becomes it, the process, its terminal,
//! its signals and its exit status are the program's own.

mod judge;
mod search;

use crate::format;
use crate::library;
use anyhow::{Context, bail};
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, OsStr, OsString, c_char};
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The exit status of timeout(1), env(1) and nohup(1) for what they do not do.
pub const REFUSED: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Run a program with the library in front of libibverbs
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr run --trace app.trace -- ./app --its-own options
  rdmamr run --stats -- ib_write_bw -d mlx5_0 server
  rdmamr run --cache=local -- ./app
  mpirun -np 4 rdmamr run --cache=local -- ./app

Exit status: the program's. 125: preloading cannot work, the reason is printed;
126: the program cannot be run; 127: it is not found.")]
pub struct Args {
    /// Use registrations again: off, local (those without remote rights), all
    #[arg(long, value_name = "WHICH", hide_possible_values = true)]
    cache: Option<Cache>,
    /// Record every registration, for 'rdmamr report FILE'
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// When the program ends, print the counters, or append them to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "stderr")]
    stats: Option<PathBuf>,
    /// Populate fresh memory with N threads before it is registered
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    prefault: Option<u32>,
    /// Watch memory for another registration cache: libfabric
    #[arg(long, value_name = "WHOSE", hide_possible_values = true)]
    monitor: Option<Monitor>,
    /// What the library says: error, warn, info, debug
    #[arg(long, value_name = "LEVEL", hide_possible_values = true)]
    log: Option<Level>,
    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Cache {
    Off,
    Local,
    All,
}

#[derive(Clone, Copy, ValueEnum)]
enum Monitor {
    Libfabric,
}

#[derive(Clone, Copy, ValueEnum)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// Returns only if the program does not run.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = &args.command[0];
    let program = match search::find(name) {
        Ok(program) => program,
        Err(refused) => {
            anstream::eprintln!("rdmamr: {}: {}", name.display(), refused.why);
            return Ok(ExitCode::from(if refused.exists {
                CANNOT_RUN
            } else {
                NOT_FOUND
            }));
        }
    };
    let library = library::find()?;
    if let Err(why) = judge::judge(&program, &args.command[1..], &library) {
        bail!(
            "{} cannot have the library preloaded: {why}",
            program.display()
        );
    }
    let mut environment: BTreeMap<OsString, OsString> = env::vars_os().collect();
    // For this program only: the library would warn of a name that it does not know.
    environment.remove(OsStr::new("RDMAMR_LIBRARY"));
    let mut set = |name: &str, value: &OsStr| environment.insert(name.into(), value.to_owned());
    set(
        "LD_PRELOAD",
        &preload(&library.path, env::var_os("LD_PRELOAD")),
    );
    if let Some(trace) = &args.trace {
        let trace = std::path::absolute(trace)?;
        empty(&trace).with_context(|| format!("--trace {}", trace.display()))?;
        set("RDMAMR_TRACE", trace.as_os_str());
        if io::stderr().is_terminal() {
            eprintln!(
                "rdmamr: when the program has ended: rdmamr report {}",
                quoted(&trace)
            );
        }
    }
    if let Some(stats) = &args.stats {
        let stderr = stats == Path::new("stderr");
        let stats = if stderr {
            stats.clone()
        } else {
            std::path::absolute(stats)?
        };
        set("RDMAMR_STATS", stats.as_os_str());
    }
    if let Some(threads) = args.prefault {
        set("RDMAMR_PREFAULT", threads.to_string().as_ref());
    }
    let named = [
        (
            "RDMAMR_CACHE",
            args.cache.and_then(|cache| cache.to_possible_value()),
        ),
        (
            "RDMAMR_MONITOR",
            args.monitor.and_then(|monitor| monitor.to_possible_value()),
        ),
        (
            "RDMAMR_LOG",
            args.log.and_then(|level| level.to_possible_value()),
        ),
    ];
    for (name, value) in named {
        if let Some(value) = value {
            set(name, value.get_name().as_ref());
        }
    }
    let error = become_program(&program, &args.command, environment);
    anstream::eprintln!("rdmamr: {}: {error}", program.display());
    Ok(ExitCode::from(CANNOT_RUN))
}

/// As a shell takes it for one word.
fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if path.chars().all(is_plain) {
        path
    } else {
        format!("'{}'", path.replace('\'', r"'\''"))
    }
}

/// The library before what is to be preloaded already.
fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        list.push(":");
        list.push(before);
    }
    list
}

/// Makes the file of a trace, or empties that of an earlier one: the library appends. Not while another program that was
/// run with it is alive, as with mpirun(1): they share it. That is known by a lock, which the program inherits.
fn empty(trace: &Path) -> anyhow::Result<()> {
    if trace.exists() && !trace.metadata()?.is_file() {
        bail!("it is no regular file");
    }
    let mut file = File::options()
        .read(true)
        .append(true)
        .create(true)
        .open(trace)?;
    let mut magic = Vec::new();
    (&mut file)
        .take(format::MAGIC.len() as u64)
        .read_to_end(&mut magic)?;
    if !magic.is_empty() && magic != format::MAGIC {
        bail!("it exists and is no trace; it is left as it is");
    }
    // Without close-on-exec, and out of the way of programs that count on the lowest numbers, if the limit allows.
    let kept = [900, 200, 3].into_iter().find_map(|number| {
        // SAFETY: no pointers.
        let kept = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, number) };
        (kept >= 0).then_some(kept)
    });
    let kept = kept.ok_or_else(io::Error::last_os_error)?;
    let lock = |how| {
        // SAFETY: no pointers.
        unsafe { libc::flock(kept, how) == 0 }
    };
    if lock(libc::LOCK_EX | libc::LOCK_NB) {
        file.set_len(0)?;
    }
    // Whoever comes in between, and empties it too, finds nothing: this one has not begun to write.
    lock(libc::LOCK_SH);
    Ok(())
}

/// execvpe(3), and not that of the standard library, which changes the signals that are blocked and ignored.
fn become_program(
    program: &Path,
    command: &[OsString],
    environment: BTreeMap<OsString, OsString>,
) -> io::Error {
    let string = |value: OsString| CString::new(value.into_vec());
    let assignment =
        |(name, value): (OsString, OsString)| string([name, value].join(OsStr::new("=")));
    let arguments: Result<Vec<_>, _> = command.iter().cloned().map(string).collect();
    let environment: Result<Vec<_>, _> = environment.into_iter().map(assignment).collect();
    let path = string(program.as_os_str().to_owned());
    let (Ok(path), Ok(arguments), Ok(environment)) = (path, arguments, environment) else {
        return io::ErrorKind::InvalidInput.into();
    };
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        let strings = strings.iter().map(|string| string.as_ptr());
        strings.chain([std::ptr::null()]).collect()
    };
    let (argv, envp) = (pointers(&arguments), pointers(&environment));
    // SAFETY: strings, and arrays of strings with a null at their end, all of which live here.
    unsafe { libc::execvpe(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}
