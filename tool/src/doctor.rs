// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr doctor`: reports what in this machine and this process helps or hinders registration.
//! Each subject has its own file.

mod attributes;
pub mod cgroup;
pub mod check;
pub mod container;
mod devices;
mod driver;
mod fork;
mod gpu;
pub mod hugepages;
mod instruments;
mod kernel;
mod libfabric;
mod live_page;
pub mod mappings;
pub mod memlock;
mod preload;
mod print;
pub mod rdma_core;
pub mod userfaultfd;

pub use self::gpu::as_child;
pub use self::print::paragraphs;
use crate::files::names;
use crate::verbs::{Context, Verbs};
use check::{Check, State};
use std::process::ExitCode;

/// Check this machine for problems with memory registration, and print the fixes
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr doctor
  rdmamr doctor mlx5_0 mlx5_1
  rdmamr doctor --json | jq '.checks[] | select(.state != \"ok\")'
  sudo -u service rdmamr doctor        limits and rights are the caller's

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

/// Makes all checks and prints them.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let verbs = Verbs::load();
    let (mut checks, devices) = devices::check(&args.devices);
    let mut opened = Vec::new();
    for device in devices {
        let context = kernel::open(&device, &verbs, &mut checks);
        if let Some(context) = &context {
            checks.push(driver::check(&device, context));
            checks.extend(attributes::check(&device, context));
        }
        opened.push((device, context));
    }
    checks.push(kernel::check());
    checks.push(rdma_core::check(&verbs));
    checks.push(libfabric::check());
    checks.push(preload::check());
    checks.extend(instruments::check());
    checks.push(container::check());
    checks.push(memlock::check());
    checks.push(cgroup::check());
    checks.push(userfaultfd::check());
    checks.push(live_page::check());
    checks.push(mappings::check());
    checks.push(fork::check(&verbs));
    checks.push(hugepages::check());
    checks.push(hugepages::check_transparent());
    checks.extend(gpu::check(&verbs, &opened));
    let worst = print::print(&checks, args.json)?;
    Ok(ExitCode::from(u8::from(worst == State::Failure)))
}

/// The checks of each device's own, for an errno: GPUs, or the longest region.
pub fn of_devices(errno: &str) -> Vec<Check> {
    if !matches!(errno, "EFAULT" | "ENOMEM" | "EINVAL") {
        return Vec::new();
    }
    let verbs = Verbs::load();
    let open = |device: &String| verbs.as_ref().ok()?.open(device).ok();
    let devices = names("/sys/class/infiniband").into_iter();
    let opened = devices.map(|device| (device.clone(), open(&device)));
    let opened: Vec<_> = opened.collect();
    if errno == "EFAULT" {
        return gpu::check(&verbs, &opened);
    }
    let limits = |(device, context): &(String, Option<Context>)| {
        attributes::regions(device, context.as_ref()?)
    };
    opened.iter().filter_map(limits).collect()
}
