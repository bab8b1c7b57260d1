// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `rdmamr`: runs programs under the library, and says what their registrations cost.
use clap::Parser;
use std::process::ExitCode;

#[path = "../../src/trace/format.rs"]
#[allow(dead_code, reason = "the library writes what this only reads")]
mod format;
mod report;
#[cfg(test)]
mod sample;
mod trace;

/// What RDMA memory registration costs, and how to be rid of it
#[derive(clap::Parser)]
#[command(version)]
enum Command {
    Report(report::Args),
}

fn main() -> anyhow::Result<ExitCode> {
    match Command::parse() {
        Command::Report(args) => report::run(&args),
    }
}
