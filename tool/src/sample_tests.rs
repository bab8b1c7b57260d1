// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes traces for the tests.
use rdmamr_trace_format::{Call, MAGIC, VERSION, call, how, kind};
use std::path::PathBuf;

/// The bytes of a trace.
#[derive(Default)]
pub struct Sample(pub Vec<u8>);

/// A process that writes. Its CLOCK_MONOTONIC and CLOCK_REALTIME are equal.
pub struct Writer {
    pub pid: u32,
    pub sequence: u64,
    pub dropped: u64,
    /// How many bytes of a later version are at the end of each header.
    pub longer: usize,
    pub version: u16,
}

pub const BEGAN: u64 = 1_000_000_000_000;

impl Writer {
    pub fn new(pid: u32) -> Writer {
        Writer {
            pid,
            sequence: 0,
            dropped: 0,
            longer: 0,
            version: VERSION,
        }
    }

    pub fn block(&mut self, into: &mut Sample, kind: u16, content: &[u8]) {
        let out = &mut into.0;
        out.extend(MAGIC);
        out.extend(self.version.to_le_bytes());
        out.extend(kind.to_le_bytes());
        out.extend((48 + self.longer as u32).to_le_bytes());
        out.extend((content.len() as u32).to_le_bytes());
        out.extend(self.pid.to_le_bytes());
        out.extend(BEGAN.to_le_bytes());
        out.extend(self.sequence.to_le_bytes());
        out.extend(self.dropped.to_le_bytes());
        out.extend(vec![0xEE; self.longer]);
        out.extend(content);
        self.sequence += 1;
    }

    pub fn start(&mut self, into: &mut Sample, command: &str) {
        let numbers = [BEGAN, BEGAN, 4096u64].map(u64::to_le_bytes).concat();
        self.block(into, kind::START, &[&numbers, command.as_bytes()].concat());
    }

    pub fn calls(&mut self, into: &mut Sample, calls: &[Call]) {
        let bytes: Vec<u8> = calls.iter().flat_map(bytes).collect();
        self.block(into, kind::CALLS, &bytes);
    }

    /// Calls, each with the number of its stack.
    pub fn calls_with_stacks(&mut self, into: &mut Sample, calls: &[Call], stacks: &[u32]) {
        let numbers: Vec<u8> = stacks
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let at = into.0.len() + 48;
        self.longer = numbers.len();
        self.calls(into, calls);
        self.longer = 0;
        into.0[at..at + numbers.len()].copy_from_slice(&numbers);
    }

    pub fn end(&mut self, into: &mut Sample, at: u64) {
        self.block(into, kind::END, &(BEGAN + at).to_le_bytes());
    }
}

fn bytes(call: &Call) -> Vec<u8> {
    [
        &call.time.to_le_bytes()[..],
        &call.duration.to_le_bytes(),
        &[call.call, call.how],
        &call.errno.to_le_bytes(),
        &call.pd.to_le_bytes(),
        &call.addr.to_le_bytes(),
        &call.length.to_le_bytes(),
        &call.access.to_le_bytes(),
        &call.lkey.to_le_bytes(),
        &call.caller.to_le_bytes(),
        &call.thread.to_le_bytes(),
        &call.reason.to_le_bytes(),
    ]
    .concat()
}

/// A plain registration of 10 us, `at` ns after the start.
pub fn register(at: u64, lkey: u32, addr: u64, length: u64) -> Call {
    Call {
        time: BEGAN + at,
        duration: 10_000,
        call: call::REG_MR,
        how: how::KERNEL,
        errno: 0,
        pd: 0xABC,
        addr,
        length,
        access: 1,
        lkey,
        caller: 0x1000,
        thread: 1,
        reason: 0,
    }
}

/// A deregistration of 4 us.
pub fn deregister(at: u64, lkey: u32, addr: u64, length: u64) -> Call {
    Call {
        call: call::DEREG_MR,
        duration: 4_000,
        ..register(at, lkey, addr, length)
    }
}

/// Writes a file in a folder that exists as long as the returned guard.
pub fn file(sample: &Sample) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    std::fs::write(&path, &sample.0).unwrap();
    (folder, path)
}
