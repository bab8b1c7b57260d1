// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr doctor`: reports what in this machine and this process helps or hinders registration.
//! Each subject has its own file.

mod attributes;
pub mod cgroup;
mod container;
mod devices;
mod driver;
mod fork;
mod hugepages;
pub mod kernel;
mod libfabric;
mod mappings;
mod memlock;
mod preload;
mod print;
pub mod rdma_core;
mod userfaultfd;

pub use self::cgroup::check as cgroup;
pub use self::container::check as container;
pub use self::hugepages::check as hugepages;
pub use self::mappings::check as mappings;
pub use self::memlock::check as memlock;
pub use self::print::{paragraphs, wrap};
pub use self::userfaultfd::check as userfaultfd;
use crate::verbs::Verbs;
use serde::Serialize;
use std::fs;
use std::process::ExitCode;

/// Look for what hinders memory registration, and say how to change it
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr doctor
  rdmamr doctor mlx5_0 mlx5_1
  rdmamr doctor --json | jq '.checks[] | select(.state != \"ok\")'
  sudo -u service rdmamr doctor        limits and rights are those of who asks

Exit status: 0: no failure, 1: at least one failure, 2: wrong usage.
Warnings do not change it.")]
pub struct Args {
    /// Print JSON, see rdmamr(1)
    #[arg(long)]
    json: bool,
    /// The devices to look at; all if none is named
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
}

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Debug)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Ok,
    /// It works, but not as well as it could.
    Warning,
    /// It does not work.
    Failure,
}

/// A line of the answer. The fields are those of the JSON, which scripts read, so their names stay.
#[derive(Serialize)]
pub struct Check {
    /// The subject: "device", "driver", "memlock" and so on.
    subject: &'static str,
    /// The device, if the check is about one.
    device: Option<String>,
    state: State,
    /// The finding.
    found: String,
    /// The consequence for registration.
    meaning: Option<String>,
    /// The command that changes it.
    fix: Option<String>,
}

impl Check {
    fn new(subject: &'static str, state: State, found: impl Into<String>) -> Check {
        Check {
            subject,
            device: None,
            state,
            found: found.into(),
            meaning: None,
            fix: None,
        }
    }
    fn ok(subject: &'static str, found: impl Into<String>) -> Check {
        Check::new(subject, State::Ok, found)
    }
    fn warning(subject: &'static str, found: impl Into<String>) -> Check {
        Check::new(subject, State::Warning, found)
    }
    fn failure(subject: &'static str, found: impl Into<String>) -> Check {
        Check::new(subject, State::Failure, found)
    }
    fn of(self, device: &str) -> Check {
        Check {
            device: Some(device.into()),
            ..self
        }
    }
    fn meaning(self, meaning: impl Into<String>) -> Check {
        Check {
            meaning: Some(meaning.into()),
            ..self
        }
    }
    fn fix(self, fix: impl Into<String>) -> Check {
        Check {
            fix: Some(fix.into()),
            ..self
        }
    }
}

/// Makes all checks and prints them.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let verbs = Verbs::load();
    let (mut checks, devices) = devices::check(&args.devices);
    for device in &devices {
        let context = kernel::open(device, &verbs, &mut checks);
        if let Some(context) = &context {
            checks.push(driver::check(device, context));
            checks.extend(attributes::check(device, context));
        }
    }
    checks.push(kernel::check());
    checks.push(rdma_core::check(&verbs));
    checks.push(libfabric::check());
    checks.push(preload::check());
    checks.push(container::check());
    checks.push(memlock::check());
    checks.push(cgroup::check());
    checks.push(userfaultfd::check());
    checks.push(mappings::check());
    checks.push(fork::check(&verbs));
    checks.push(hugepages::check());
    checks.push(hugepages::check_transparent());
    let worst = print::print(&checks, args.json)?;
    Ok(ExitCode::from(u8::from(worst == State::Failure)))
}

/// The content of a small file of proc(5) or sysfs(5), without white space around it.
fn read(path: impl AsRef<std::path::Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The value of a line `NAME: VALUE` of a file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Some(value?.trim().to_owned())
}

/// The kernel's version, such as (6, 12).
fn kernel_version() -> (u32, u32) {
    let release = kernel::release();
    let mut numbers = release
        .split(|it: char| !it.is_ascii_digit())
        .map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// A number of bytes for people.
fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = UNITS.iter().find(|unit| bytes >> unit.1 > 0);
    let Some((name, shift)) = unit else {
        return format!("{bytes} bytes");
    };
    let value = bytes as f64 / (1u64 << shift) as f64;
    if value.fract() == 0.0 {
        format!("{value} {name}")
    } else {
        format!("{value:.1} {name}")
    }
}
