// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file of the trace. Each block opens it anew: the program may close a descriptor that the
//! library keeps, and its number may then name another file. Each block is one write() to the end,
//! so that the blocks of several processes do not mix.

use super::buffers::Block;
use super::format::{Call, Header, Start, kind};
use super::modules;
use crate::config::config;
use crate::report::log;
use crate::sys::append::append;
use crate::sys::clock;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// The most reasons in a trace; later failures have none. Reasons are long, and a program that
/// fails again and again usually fails for the same reason.
const MOST_REASONS: u32 = 4096;

/// The file, as one process writes it.
pub struct File {
    pid: u32,
    process: u64,
    sequence: AtomicU64,
    reasons: AtomicU32,
    /// The number of `modules::loaded` at the last list of loaded files (`modules.rs`).
    loaded: AtomicU64,
    /// The progress of the block that identifies the process.
    start: AtomicU32,
    failed: AtomicBool,
    /// The number of calls in the file.
    written: AtomicU64,
}

/// Values of `File::start`.
const NOT_STARTED: u32 = 0;
const STARTING: u32 = 1;
const STARTED: u32 = 2;

impl File {
    /// The file of this process, with nothing written yet.
    pub fn new() -> File {
        File {
            pid: std::process::id(),
            process: clock::real(),
            sequence: AtomicU64::new(0),
            reasons: AtomicU32::new(0),
            loaded: AtomicU64::new(u64::MAX),
            start: AtomicU32::new(NOT_STARTED),
            failed: AtomicBool::new(false),
            written: AtomicU64::new(0),
        }
    }

    /// Identifies the process in the file, if no thread has done so yet. False while another thread
    /// is doing it.
    #[inline(always)]
    pub fn is_started(&self) -> bool {
        self.start.load(Acquire) == STARTED || self.begin()
    }

    #[cold]
    fn begin(&self) -> bool {
        let mine = self
            .start
            .compare_exchange(NOT_STARTED, STARTING, Acquire, Relaxed);
        if mine.is_err() {
            return false;
        }
        let start = [
            clock::monotonic(),
            clock::real(),
            crate::sys::pages::page_size(),
        ];
        const _: () = assert!(size_of::<Start>() == size_of::<[u64; 3]>());
        let mut bytes: Vec<u8> = start.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.extend(std::fs::read("/proc/thread-self/cmdline").unwrap_or_default());
        self.block(kind::START, &bytes);
        self.start.store(STARTED, Release);
        true
    }

    /// Writes a block of calls.
    pub fn calls(&self, block: &mut Block) {
        let length = block.bytes().len() - size_of::<Header>();
        let calls = (length / size_of::<Call>()) as u64;
        let dropped = block.header.dropped;
        block.header = Header {
            dropped,
            ..self.header(kind::CALLS, length)
        };
        self.write(block.bytes());
        if !self.failed.load(Relaxed) {
            self.written.fetch_add(calls, Relaxed);
        }
    }

    /// The number of calls in the file.
    pub fn written(&self) -> u64 {
        self.written.load(Relaxed)
    }

    /// Writes where code is, if that has changed.
    pub fn modules(&self) {
        let loaded = modules::loaded();
        if self.loaded.swap(loaded, AcqRel) != loaded {
            self.block(kind::MODULES, modules::list().as_bytes());
        }
    }

    /// Writes the reason of a failure. Returns the reason's number.
    pub fn reason(&self, words: &str) -> u32 {
        let number = self.reasons.fetch_add(1, Relaxed).saturating_add(1);
        if number > MOST_REASONS {
            self.reasons.store(MOST_REASONS, Relaxed);
            return 0;
        }
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.extend(words.as_bytes());
        self.block(kind::REASON, &bytes);
        number
    }

    /// Writes that the process has ended at that time.
    pub fn end(&self, time: u64) {
        self.block(kind::END, &time.to_le_bytes());
    }

    fn header(&self, kind: u16, length: usize) -> Header {
        Header {
            kind,
            length: length as u32,
            pid: self.pid,
            process: self.process,
            sequence: self.sequence.fetch_add(1, Relaxed),
            ..Header::NONE
        }
    }

    /// Writes a block of another kind than calls.
    pub fn block(&self, kind: u16, payload: &[u8]) {
        let header = self.header(kind, payload.len());
        let mut bytes = Vec::with_capacity(size_of::<Header>() + payload.len());
        // SAFETY: a header consists of numbers, without a gap.
        bytes.extend(unsafe {
            core::slice::from_raw_parts((&raw const header).cast::<u8>(), size_of::<Header>())
        });
        bytes.extend(payload);
        self.write(&bytes);
    }

    fn write(&self, bytes: &[u8]) {
        let Some(path) = &config().trace else {
            return;
        };
        // After an incomplete block a reader could read nothing more.
        if self.failed.load(Relaxed) {
            return;
        }
        if let Err(why) = append(path, bytes)
            && !self.failed.swap(true, Relaxed)
        {
            log::always(format_args!(
                "RDMAMR_TRACE: cannot be written, and no more is: {why}"
            ));
        }
    }
}
