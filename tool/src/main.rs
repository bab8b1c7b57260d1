// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `rdmamr`: runs programs under the library, and says what their registrations cost.

mod attach;
mod bench;
mod child;
mod choices;
mod completions;
mod doctor;
mod elf;
mod explain;
mod files;
#[cfg(test)]
#[path = "../../ctests/fuzz/inputs.rs"]
mod fuzz_inputs;
mod guard;
mod inherited;
mod library;
mod limit;
mod lists;
mod report;
mod run;
#[cfg(test)]
#[path = "sample_tests.rs"]
mod sample;
mod style;
mod top;
mod trace;
mod userfaultfd;
mod verbs;
mod version;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use guard::Guard;
use report::units::shown;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use style::{print, say};

/// What RDMA memory registration costs a program, and how to avoid it
#[derive(Parser)]
#[command(name = "rdmamr", version, max_term_width = 160)]
#[command(after_help = "\
Examples:
  rdmamr doctor                               check this machine
  rdmamr explain ENOMEM                       why a registration fails
  rdmamr run --trace app.trace -- ./app       record what a program registers
  rdmamr report app.trace                     what that costs, and why
  rdmamr run --cache=local -- ./app           reuse registrations
  rdmamr top                                  what is registered now, by process
  rdmamr trace --pid 4711 -o app.trace        record a running process
  rdmamr bench mlx5_0                         how fast large memory is registered

man rdmamr(1) has more, man rdmamr(7) the library's settings.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Report(report::Args),
    Doctor(doctor::Args),
    Explain(explain::Args),
    Top(top::Args),
    Trace(attach::Args),
    Bench(bench::Args),
    /// Print a script that completes this program's arguments in a shell
    #[command(after_help = "\
Examples:
  rdmamr completions bash >/usr/share/bash-completion/completions/rdmamr
  rdmamr completions zsh >/usr/share/zsh/vendor-completions/_rdmamr
  rdmamr completions fish >~/.config/fish/completions/rdmamr.fish")]
    Completions {
        /// bash, zsh, fish, elvish or powershell
        #[arg(hide_possible_values = true)]
        shell: Shell,
    },
}

fn main() -> ExitCode {
    inherited::restore_sigpipe();
    let usage = usage_status();
    if let Some(answered) = bench::as_worker().or_else(doctor::as_child) {
        return end(answered.map(|()| ExitCode::SUCCESS), usage);
    }
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match parse(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // A shell may have made an argument of a file's name, and the error quotes it.
            let arguments: Vec<_> = arguments.iter().map(|it| shown(it).into()).collect();
            let error = parse(&arguments).err().unwrap_or(error);
            let printed = match error.kind() {
                ErrorKind::DisplayVersion => print(&version::lines()),
                _ => error.print().map_err(Into::into),
            };
            return if error.use_stderr() {
                ExitCode::from(usage)
            } else {
                // The help, or the version.
                end(printed.map(|()| ExitCode::SUCCESS), usage)
            };
        }
    };
    match guard_of(&cli.command)
        .map(|of| guard::enter(&of))
        .transpose()
    {
        Ok(None | Some(None)) => {}
        Ok(Some(Some(status))) => return status,
        Err(error) => return end(Err(error.into()), usage),
    }
    let success = |()| ExitCode::SUCCESS;
    let result = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Report(args) => report::run(args).map(success),
        Command::Doctor(args) => doctor::run(args),
        Command::Explain(args) => explain::run(args).map(success),
        Command::Top(args) => top::run(args).map(success),
        Command::Trace(args) => attach::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Completions { shell } => completions(*shell).map(success),
    };
    end(result, usage)
}

/// The guard of a command that asks for files, folders or processes of others.
fn guard_of(command: &Command) -> Option<Guard> {
    match command {
        Command::Report(_) | Command::Explain(_) => Some(Guard::OfTimeAndMemory),
        // GPU drivers that `doctor` asks reserve more addresses than any machine has memory.
        Command::Doctor(_) | Command::Trace(_) => Some(Guard::OfTime),
        Command::Top(args) => (!args.is_screen()).then_some(Guard::OfTime),
        _ => None,
    }
}

/// Prints by way of a buffer: clap_complete panics if it cannot write.
fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "rdmamr", &mut script);
    let script = completions::with_words(shell, &String::from_utf8(script)?);
    print(&script)
}

fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let command = Cli::command().term_width(style::columns());
    Cli::from_arg_matches(&command.try_get_matches_from(arguments)?)
}

fn end(result: anyhow::Result<ExitCode>, status: u8) -> ExitCode {
    result.unwrap_or_else(|error| {
        let io = error.downcast_ref::<io::Error>();
        if io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe) {
            // The reader has closed the pipe, and SIGPIPE is ignored.
            return ExitCode::SUCCESS;
        }
        say(report::units::reason(&error));
        ExitCode::from(status)
    })
}

/// The exit status if this program itself refuses: 2, but 125 for `run`, which otherwise forwards
/// the status of the program that it runs.
fn usage_status() -> u8 {
    match std::env::args_os().nth(1) {
        Some(command) if command == "run" => run::REFUSED,
        _ => 2,
    }
}
