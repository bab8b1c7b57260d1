// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file of the trace. It is opened for each block: a descriptor that is kept may be closed by the program, and
//! be another file's when it is used. Each block is one write() to the end, so that those of several processes do
//! not mix.

use super::buffers::Block;
use super::format::{Header, MAGIC, Start, VERSION, kind};
use super::{modules, nanoseconds};
use crate::append::append;
use crate::config::config;
use crate::log;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// So many reasons are written down; later failures have none. They are long, and a program that fails again and
/// again fails for the same one.
const MOST_REASONS: u32 = 4096;

impl Header {
    /// That of a block that is not written yet.
    pub const NONE: Header = Header {
        magic: MAGIC,
        version: VERSION,
        kind: kind::CALLS,
        header: size_of::<Header>() as u32,
        length: 0,
        pid: 0,
        process: 0,
        sequence: 0,
        dropped: 0,
    };
}

/// The file, as one process writes it.
pub struct File {
    pid: u32,
    process: u64,
    sequence: AtomicU64,
    reasons: AtomicU32,
    /// Which files of code are loaded, when that was last written down (`modules.rs`).
    loaded: AtomicU64,
    /// How far it has come with saying which process this is.
    start: AtomicU32,
    failed: AtomicBool,
}

/// Values of `File::start`.
const NOT_STARTED: u32 = 0;
const STARTING: u32 = 1;
const STARTED: u32 = 2;

impl File {
    /// For this process; nothing is written yet.
    pub fn new() -> File {
        File {
            pid: std::process::id(),
            process: nanoseconds(libc::clock_gettime, libc::CLOCK_REALTIME),
            sequence: AtomicU64::new(0),
            reasons: AtomicU32::new(0),
            loaded: AtomicU64::new(u64::MAX),
            start: AtomicU32::new(NOT_STARTED),
            failed: AtomicBool::new(false),
        }
    }

    /// Writes down which process this is, if nobody has. False while another thread is just doing it.
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
            super::monotonic(libc::clock_gettime),
            nanoseconds(libc::clock_gettime, libc::CLOCK_REALTIME),
            crate::proc::page_size(),
        ];
        const _: () = assert!(size_of::<Start>() == size_of::<[u64; 3]>());
        let mut bytes: Vec<u8> = start.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.extend(std::fs::read("/proc/self/cmdline").unwrap_or_default());
        self.block(kind::START, &bytes);
        self.start.store(STARTED, Release);
        true
    }

    /// Writes down records of calls.
    pub fn calls(&self, block: &mut Block) {
        let length = block.bytes().len() - size_of::<Header>();
        let dropped = block.header.dropped;
        block.header = Header {
            dropped,
            ..self.header(kind::CALLS, length)
        };
        self.write(block.bytes());
    }

    /// Writes down where code is, if that has changed.
    pub fn modules(&self) {
        let loaded = modules::loaded();
        if self.loaded.swap(loaded, AcqRel) != loaded {
            self.block(kind::MODULES, modules::list().as_bytes());
        }
    }

    /// Writes down the reason of a failure. Returns its number.
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

    /// Writes down that the process has ended, at that time.
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

    /// Writes a block that is not of records.
    fn block(&self, kind: u16, payload: &[u8]) {
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
        // After a block that is not whole nothing more could be read.
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
