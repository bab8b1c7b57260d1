// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr fence`: the service by whose counters a process knows that no change of its memory has
//! begun, so that a hit need not ask the kernel. What both sides agree on is in the package
//! `rdmamr-fence`.
//!
//! The kernel counts, by programs of BPF: `btf.rs` finds what they read, `programs.rs` has them,
//! `bpf.rs` loads them. `trial.rs` proves that they count, `service.rs` gives them out, and
//! `closers.rs` closes what processes leave. The
//! service holds nothing that a process needs later: the process has files of its own.

mod bpf;
mod btf;
mod closers;
mod code;
mod programs;
mod service;
mod trial;

pub use self::service::{Absent, answers as service_answers};
use crate::files::{kernel_release, of_system, read};
use crate::style::say;
use anyhow::{Context, Result, bail, ensure};
use btf::Btf;
use rdmamr_fence::{About, LINE, LINKS, MOST_LINKS, SIZE};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::gettid;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Count memory changes in the kernel, so that cache hits need no system call
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sudo systemctl enable --now rdmamr-fence    on each node
  sudo rdmamr fence --check                   whether this kernel can

Needs root; --check alone needs CAP_BPF and CAP_PERFMON. A process asks the
service once, when its cache starts. The service may end at any time: processes
that have asked keep what they have. It pays from some thousands of hits a
second on. Do not set kernel.ftrace_enabled to 0 meanwhile: hits may be stale.")]
pub struct Args {
    /// Load the programs, prove that they count, and end
    #[arg(long)]
    check: bool,
}

/// The initial PID namespace, in whose numbers the kernel knows processes (PROC_PID_INIT_INO).
const INITIAL: &str = "pid:[4026531836]";
/// The setting that says who may load programs.
const WHO_LOADS: &str = "/proc/sys/kernel/unprivileged_bpf_disabled";

/// The exit status is 2 if the service cannot run.
pub fn run(args: &Args) -> Result<()> {
    let namespace = std::fs::read_link("/proc/self/ns/pid").context("/proc/self/ns/pid")?;
    ensure!(
        namespace.to_str() == Some(INITIAL),
        "this process has a PID namespace of its own: run the service in the machine's (hostPID: true, --pid=host)"
    );
    // Any user who may load a program could have it write the counters: freezing them keeps
    // processes from writing, and not programs.
    let who = std::fs::read_to_string(WHO_LOADS).context(WHO_LOADS)?;
    ensure!(
        matches!(who.trim(), "1" | "2"),
        "any user may load BPF programs here, which could change the counters of others: set kernel.unprivileged_bpf_disabled to 1 or 2"
    );
    if let Some(what) = lacks() {
        bail!("Linux {} lacks {what}", kernel_release());
    }
    // Before the programs: a second service would slow the calls of all for nothing.
    let service = (!args.check).then(service::Service::open).transpose()?;
    let files = load().with_context(|| format!("Linux {}", kernel_release()))?;
    if let Some(service) = service {
        let files: Vec<_> = files.iter().map(OwnedFd::as_fd).collect();
        service.serve(&files)?;
    }
    Ok(())
}

/// What the running kernel lacks, as far as any user can see it.
pub fn lacks() -> Option<&'static str> {
    if !Path::new(btf::PATH).exists() {
        return Some("BTF (CONFIG_DEBUG_INFO_BTF)");
    }
    // The kernel finds variables by this list, which has them only with that option.
    let symbols = BufReader::new(of_system("/proc/kallsyms", false).ok()?);
    let mut lines = symbols.split(b'\n').map_while(Result::ok);
    let is_there = lines.any(|line| line.ends_with(b" runqueues"));
    (!is_there).then_some("the names of its variables (CONFIG_KALLSYMS_ALL)")
}

/// Loads the programs, and returns what a process gets: the counters, then the links of the programs.
fn load() -> Result<Vec<OwnedFd>> {
    let btf = Btf::of_kernel()?;
    let counters = bpf::array(SIZE)?;
    let lines = processors()?.next_power_of_two();
    let private = bpf::array(lines as usize * LINE)?;
    let depth = depth(&btf)?;
    // First what notices that a count was skipped, then what counts.
    let switches = programs::at_switches(&btf, depth, counters.as_fd(), private.as_fd(), lines)?;
    let mut all = vec![switches];
    all.extend(programs::hooks(&btf, counters.as_fd())?);
    let links = all.iter().map(bpf::attach);
    let links = links.collect::<Result<Vec<_>>>()?;
    name(&counters, &links)?;
    bpf::freeze(&counters)?;
    trial::run(&counters)?;
    let instructions = all.iter().map(|it| it.code.instructions().len());
    say(format_args!(
        "Linux {} counts changes of memory: {} programs, {} instructions",
        kernel_release(),
        links.len(),
        instructions.sum::<usize>()
    ));
    Ok(std::iter::once(counters).chain(links).collect())
}

/// Writes the ids of the links into the counters, which must not be frozen yet.
fn name(counters: &OwnedFd, links: &[OwnedFd]) -> Result<()> {
    ensure!(links.len() <= MOST_LINKS, "too many programs");
    let ids = links.iter().map(|link| {
        let path = format!("/proc/self/fdinfo/{}", link.as_raw_fd());
        let mut about = About::default();
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        text.lines().for_each(|line| about.read(line.as_bytes()));
        let id = about.link();
        id.with_context(|| format!("{path} has no id of a link"))
    });
    let ids = ids.collect::<Result<Vec<_>>>()?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: no address is given, so no other memory is touched.
    let at = unsafe { mmap(null_mut(), SIZE, access, MapFlags::SHARED, counters, 0) }?;
    for (n, id) in ids.into_iter().enumerate() {
        // SAFETY: the word is in the mapping and aligned, and no program writes it.
        unsafe { at.wrapping_byte_add(LINKS + 8 * n).cast::<u64>().write(id) };
    }
    // The kernel freezes no array that is mapped for writing.
    // SAFETY: the mapping is the one made above, and nothing uses it.
    unsafe { munmap(at, SIZE) }?;
    Ok(())
}

/// The number of processors that this machine can have.
fn processors() -> Result<u32> {
    let possible = read("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = possible.rsplit(['-', ',']).next();
    let last: Option<u32> = last.and_then(|last| last.parse().ok());
    Ok(last.context("/sys/devices/system/cpu/possible")? + 1)
}

/// How many times the kernel disables migration around a program at its switches.
fn depth(btf: &Btf) -> Result<i32> {
    let seen = bpf::array(8)?;
    let thread = gettid().as_raw_nonzero().get();
    let _attached = bpf::attach(&programs::measuring(btf, thread, seen.as_fd())?)?;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_micros(100));
    }
    match bpf::view(&seen, 8)?[0].load(SeqCst) {
        0b01 => Ok(0),
        0b10 => Ok(1),
        other => bail!("the kernel disables migration in a way that is not known ({other:#b})"),
    }
}
