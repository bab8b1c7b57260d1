// SPDX-License-Identifier: MIT OR Apache-2.0
//! The recording of a process: its buffers, its file, its stacks, and whether it records.

use super::buffers::TraceBuffers;
use super::file::File;
use super::stacks::Stacks;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use rdmamr_config::config;
use rdmamr_sys::clock;
use rdmamr_sys::process::PerProcess;
use rdmamr_trace_format::kind;

/// The recording of this process.
pub struct Trace {
    pub buffers: TraceBuffers,
    pub file: File,
    /// `None` without `RDMAMR_TRACE_STACKS`.
    pub stacks: Option<Stacks>,
}

pub static TRACE: PerProcess<Trace> = PerProcess::new();

/// Whether calls are recorded. `LOOK`: the next call looks at a request of another process
/// (`switch.rs`).
#[unsafe(link_section = ".data.rdmamr_hits")]
pub static ON: AtomicU8 = AtomicU8::new(OFF);
pub const OFF: u8 = 0;
pub const RECORD: u8 = 1;
pub const LOOK: u8 = 2;

/// Whether calls are to be recorded, whatever [`ON`] says.
pub static WANTED: AtomicBool = AtomicBool::new(false);

/// Writes the buffers' records to the file when the process exits.
pub fn exiting() {
    close(kind::END);
}

/// Writes the buffers' records to the file, and a block of that kind, `END` or `STOPPED`. A
/// recording that has been stopped has had it: only calls that were under way are left then.
pub fn close(kind: u16) {
    let Some(trace) = TRACE.get().filter(|trace| trace.file.is_started()) else {
        return;
    };
    let Trace { buffers, file, .. } = trace;
    let now = clock::monotonic();
    file.modules();
    buffers.flush(now, |_| true, |block| file.calls(block));
    if WANTED.load(Relaxed) {
        file.block(kind, &now.to_le_bytes());
    }
}

impl Trace {
    pub fn new() -> Box<Trace> {
        Trace::into(File::new())
    }

    /// The recording into a file.
    pub fn into(file: File) -> Box<Trace> {
        Box::new(Trace {
            buffers: TraceBuffers::new(),
            file,
            stacks: config().trace_stacks.then(Stacks::new).flatten(),
        })
    }
}
