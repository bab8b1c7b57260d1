// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr run`: replaces itself by the program, with the library preloaded. The process, its
//! terminal, its signals and its exit status are therefore the program's own. Only if something is
//! to be said at the end, by `--trace`, `--stats` or `--report`, does it stay, as the program's
//! parent: the library says nothing in a program that a signal ends.

mod environment;
mod judge;
mod search;
pub mod traces;
pub mod wait;

use crate::choices;
use crate::inherited;
use crate::library;
use crate::report;
use crate::report::units::{self, shown};
use crate::style::say;
use crate::trace::Trace;
use anyhow::{Context, Result, ensure};
use clap::value_parser;
use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, OsStr, OsString, c_char};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tempfile::TempDir;

/// The exit status that timeout(1), env(1) and nohup(1) use for their own failures.
pub const REFUSED: u8 = 125;
/// Tells the library which process is the program, by its number, and the file to remove once the
/// program's statistics are written. The program alone has a line about them if it registered nothing.
const PROGRAM: &str = "_RDMAMR_PROGRAM";
/// How the name of that file begins: the library removes no other.
const UNWRITTEN: &str = ".rdmamr-run-";
/// The trace in a folder of its own.
const TRACE: &str = "trace";

/// Run a program with the library in front of libibverbs
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr run --report -- ./app --its-own options
  rdmamr run --trace app.trace -- ./app --its-own options
  rdmamr run --stats -- ib_write_bw -d mlx5_0 server
  rdmamr run --cache=local -- ./app
  mpirun -np 4 rdmamr run --cache=local -- ./app

Exit status: the program's. 125: wrong usage, or the library cannot be preloaded.
126: the program cannot be run. 127: it is not found.")]
pub struct Args {
    /// Reuse registrations: off, local (without remote access), all
    #[arg(long, value_name = "WHICH", hide_possible_values = true, value_parser = ["off", "local", "all"])]
    cache: Option<String>,
    /// Record every registration, for 'rdmamr report FILE'
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Limit the trace to SIZE (K, M, G); later calls are only counted
    #[arg(long, value_name = "SIZE", value_parser = choices::bytes)]
    trace_limit: Option<u64>,
    /// Record call stacks of none, of some calls (within 1 % of the time), or of all
    #[arg(long, value_name = "WHICH", hide_possible_values = true, value_parser = ["none", "some", "all"])]
    stacks: Option<String>,
    /// When the program ends, write a report on it to PAGE
    #[arg(long, value_name = "PAGE", num_args = 0..=1, require_equals = true)]
    report: Option<Option<PathBuf>>,
    /// When the program ends, print the counters: a table, json, or JSON to FILE
    #[arg(long, value_name = "json|FILE", num_args = 0..=1, require_equals = true, default_missing_value = "table")]
    stats: Option<PathBuf>,
    /// Populate untouched memory with N threads while it is registered
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=64))]
    prefault: Option<u32>,
    /// Print a line a second while a registration takes longer than a second
    #[arg(long)]
    progress: bool,
    /// Monitor memory for another registration cache: libfabric
    #[arg(long, value_name = "WHOSE", hide_possible_values = true, value_parser = ["libfabric"])]
    monitor: Option<String>,
    /// Do not set LD_AUDIT: functions that dlsym finds in libibverbs stay libibverbs'
    #[arg(long)]
    no_audit: bool,
    /// Which messages the library prints: error, warn, info, debug
    #[arg(long, value_name = "LEVEL", hide_possible_values = true, value_parser = ["error", "warn", "info", "debug"])]
    log: Option<String>,
    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Returns only if the program cannot run.
pub fn run(args: &Args) -> Result<ExitCode> {
    let called = &args.command[0];
    let is_traced = args.trace.is_some() || args.report.is_some();
    ensure!(
        is_traced || args.trace_limit.is_none() && args.stacks.is_none(),
        "--trace-limit and --stacks are of a trace, which needs --trace or --report"
    );
    let program = match search::find(called) {
        Ok(program) => program,
        Err((why, status)) => {
            say(format_args!("{}: {why}", shown(called)));
            return Ok(ExitCode::from(status));
        }
    };
    let library = library::find()?;
    let arguments = &args.command[1..];
    judge::judge(&program, arguments, &library, judge::MOST_SCRIPTS)
        .with_context(|| format!("{} cannot have the library preloaded", shown(&program)))?;
    let mut environment = BTreeMap::new();
    for (name, value) in env::vars_os() {
        // Of a variable that comes twice, getenv(3) finds the first one.
        environment.entry(name).or_insert(value);
    }
    // For this program only.
    environment.remove(OsStr::new("RDMAMR_LIBRARY"));
    environment.remove(OsStr::new(PROGRAM));
    let mut set = |name: &str, value: &OsStr| environment.insert(name.into(), value.to_owned());
    let given = |name: &str| env::var_os(name).unwrap_or_default();
    let preloads = environment::preloads(&library.path, &given("LD_PRELOAD"));
    set("LD_PRELOAD", &preloads);
    let options = environment::sanitizer_options(given("ASAN_OPTIONS"));
    set("ASAN_OPTIONS", &options);
    if !args.no_audit {
        match library.module() {
            Ok(module) => {
                let modules = environment::modules(&module, &given("LD_AUDIT"));
                set("LD_AUDIT", &modules);
            }
            Err(why) => say(format_args!(
                "{why}: functions that the program looks up in libibverbs by dlsym bypass the \
                 library (--no-audit: accept that)"
            )),
        };
    }
    let page = args.report.clone();
    let page = page.map(|page| page.unwrap_or_else(|| page_of(args)));
    // If the report is made at once, the trace need not stay.
    let folder = (page.is_some() && args.trace.is_none()).then(tempfile::tempdir);
    let folder = folder.transpose()?;
    let trace = folder.as_ref().map(|folder| folder.path().join(TRACE));
    let trace = args.trace.clone().or(trace);
    let trace = trace.map(std::path::absolute).transpose()?;
    if let Some(trace) = &trace {
        traces::prepare(trace).with_context(|| format!("--trace {}", shown(trace)))?;
        set("RDMAMR_TRACE", trace.as_os_str());
    }
    if let Some(page) = &page {
        report::ensure_writable(page).with_context(|| format!("--report={}", shown(page)))?;
    }
    // What has not grown at the end is of other runs.
    let before = trace.as_deref().map(traces::existing).unwrap_or_default();
    // A trace without a report has a command that makes one.
    let next = trace.as_ref().filter(|_| page.is_none()).map(|trace| {
        let of_folder = trace.parent().filter(|_| traces::is_pattern(trace));
        let name = units::quoted(of_folder.unwrap_or(trace));
        format!("rdmamr report {name}")
    });
    let is_told = next.is_some() && io::stderr().is_terminal();
    if let Some(next) = next.as_ref().filter(|_| is_told) {
        say(format_args!("when the program has ended: {next}"));
    }
    if let Some(stats) = &args.stats {
        let stats = match stats.to_str() {
            Some("table") => stats.clone(),
            Some("json" | "stderr") => "stderr".into(),
            _ => {
                report::ensure_writable(stats)
                    .with_context(|| format!("--stats={}", shown(stats)))?;
                std::path::absolute(stats)?
            }
        };
        set("RDMAMR_STATS", stats.as_os_str());
    }
    let stacks = args.stacks.as_deref().map(|stacks| match stacks {
        "none" => "0",
        "some" => "1",
        all => all,
    });
    let limit = args.trace_limit.map(|it| it.to_string());
    for (setting, value) in [
        ("RDMAMR_TRACE_LIMIT", limit),
        ("RDMAMR_TRACE_STACKS", stacks.map(String::from)),
        ("RDMAMR_PREFAULT", args.prefault.map(|it| it.to_string())),
        ("RDMAMR_PROGRESS", args.progress.then(|| "1".into())),
        ("RDMAMR_CACHE", args.cache.clone()),
        ("RDMAMR_MONITOR", args.monitor.clone()),
        ("RDMAMR_LOG", args.log.clone()),
    ] {
        if let Some(value) = value {
            set(setting, value.as_ref());
        }
    }
    // The library removes the file when the program ends and its statistics are written.
    let unwritten = args.stats.as_ref();
    let unwritten = unwritten.map(|_| tempfile::Builder::new().prefix(UNWRITTEN).tempfile());
    let unwritten = unwritten.transpose()?.map(|file| file.into_temp_path());
    let become_it = || {
        if let Some(file) = &unwritten {
            let mut program = OsString::from(format!("{} ", std::process::id()));
            program.push(file);
            environment.insert(PROGRAM.into(), program);
        }
        let error = become_program(&program, &args.command, environment);
        let (why, status) = search::refused(error);
        say(format_args!("{}: {why}", shown(&program)));
        ExitCode::from(status)
    };
    if trace.is_none() && args.stats.is_none() {
        return Ok(become_it());
    }
    let ended = match wait::run(become_it)? {
        Err(cannot_run) => {
            // In the child. The parent removes the folder. The file goes here: there is no program whose
            // statistics could be missing.
            std::mem::forget(folder);
            return Ok(cannot_run);
        }
        Ok(ended) => ended,
    };
    // The file goes before a signal that ended the program ends this process, too.
    let unwritten = unwritten.is_some_and(|file| file.exists());
    if let Some(signal) = ended.signal() {
        let statistics = match args.stats {
            Some(_) => ", without its statistics",
            None => "",
        };
        say(format_args!("{signal} ended the program{statistics}"));
    } else if unwritten {
        say(
            "the program has no statistics: it left by _exit, or ended as another program without the library",
        );
    }
    if let Some(trace) = trace {
        let mut files = traces::existing(&trace);
        files.retain(|file| !before.contains(file));
        let files: Vec<_> = files.into_iter().map(|(file, _)| file).collect();
        if let Err(why) = report_trace(&files, page, folder, next.filter(|_| !is_told)) {
            say(units::reason(&why));
        }
    }
    Ok(ended.follow())
}

/// Writes the report, or says in one line how many calls the program's traces have, whatever ended it.
/// Removes the trace's own folder, if it has one and the report is written.
fn report_trace(
    files: &[PathBuf],
    page: Option<PathBuf>,
    folder: Option<TempDir>,
    next: Option<String>,
) -> Result<()> {
    let trace = Trace::of(files).context("the trace cannot be read")?;
    let (calls, dropped) = trace.count();
    // The library has said why it could not write.
    ensure!(
        calls > 0 || dropped > 0,
        "no call is recorded: the program has registered no memory, or its trace could not be written"
    );
    if let Some(page) = page {
        let stays = folder.is_none();
        return report::after_run(&trace, files, &page, stays).with_context(|| match folder {
            Some(folder) => {
                let trace = folder.keep().join(TRACE);
                format!("no report (the trace is {})", shown(&trace))
            }
            None => "no report".into(),
        });
    }
    let limited = match dropped {
        0 => String::new(),
        dropped => format!(", {} are only counted", units::count(dropped)),
    };
    let next = next.map_or(String::new(), |next| format!("; next: {next}"));
    let calls = units::plural(calls, "call is", "calls are");
    say(format_args!("{calls} recorded{limited}{next}"));
    Ok(())
}

/// The default path of a report's page: beside the trace, or named after the program.
fn page_of(args: &Args) -> PathBuf {
    let words = args.command.iter();
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into()).collect();
    let mut page = match &args.trace {
        Some(trace) if traces::is_pattern(trace) => return trace.with_file_name("report.html"),
        Some(trace) => trace.clone().into_os_string(),
        None => units::program(&words).into(),
    };
    page.push(".html");
    page.into()
}

/// execvpe(3). The standard library's own exec would change which signals are blocked and ignored.
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
    inherited::close_again();
    // SAFETY: the strings and the null-terminated arrays live until the end of this function.
    unsafe { libc::execvpe(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}
