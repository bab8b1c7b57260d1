// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file of the trace. The library opens it anew for each block: the program may close a
//! descriptor that the library holds open, and its number may then name another file. The file must
//! be that of the first block, also in a forked child: another user who can write to the directory
//! could replace it. Each block is one write() to the end, so that the blocks of several processes
//! do not mix.

use super::buffers::Block;
use super::modules::{self, ModuleList};
use super::place;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use errno::Errno;
use once_cell::race::OnceBox;
use rdmamr_config::config;
use rdmamr_stats::log;
use rdmamr_sys::append::{First, Manner, Refused, append};
use rdmamr_sys::{clock, thread};
use rdmamr_trace_format::{Header, MAGIC, NO_RANK, Numbers, Start, kind};
use std::ffi::{CStr, CString};

/// The most reasons in a trace; later failures have none. Reasons are long, and a program that
/// fails again and again usually fails for the same reason.
const MOST_REASONS: u32 = 4096;

/// The file, as one process writes it.
#[derive(Default)]
pub struct File {
    /// Its name for this process (`place::expand`).
    path: Option<CString>,
    /// The file to which that name leads.
    first: Option<&'static First>,
    /// Another process has chosen the name, by a request in the live page.
    is_requested: bool,
    pid: u32,
    process: u64,
    sequence: AtomicU64,
    reasons: AtomicU32,
    /// The last list of files of code that was written (`modules.rs`).
    listed: AtomicPtr<ModuleList>,
    /// The progress of the block that identifies the process.
    start: AtomicU32,
    /// Whether the file could not be written.
    pub failed: AtomicBool,
    /// Whether the file has reached `RDMAMR_TRACE_LIMIT`, and the calls left out since.
    pub full: AtomicBool,
    left_out: AtomicU64,
    /// The number of calls in the file.
    pub written: AtomicU64,
}

/// Values of `File::start`.
const NOT_STARTED: u32 = 0;
const STARTING: u32 = 1;
const STARTED: u32 = 2;

/// The file of that name: a forked child with the same name uses its parent's.
fn shared(path: &CStr) -> &'static First {
    static OLDEST: OnceBox<(CString, First)> = OnceBox::new();
    let oldest = OLDEST.get_or_init(|| Box::new((path.to_owned(), First::default())));
    if *oldest.0 == *path {
        &oldest.1
    } else {
        Box::leak(Box::new(First::default()))
    }
}

impl File {
    /// The file of this process, with nothing written yet.
    pub fn new() -> File {
        let (pid, config) = (std::process::id(), config());
        let pattern = config.trace.as_deref();
        let path = pattern.map(|pattern| place::expand(pattern, pid, config.rank));
        File {
            first: path.as_deref().map(shared),
            path,
            pid,
            process: clock::real(),
            ..File::default()
        }
    }

    /// The file that has this path now, by a request, with nothing written yet.
    pub fn requested(path: CString) -> File {
        File {
            first: Some(Box::leak(Box::new(First::default()))),
            path: Some(path),
            is_requested: true,
            ..File::new()
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
        // std::fs makes calls that are cancellation points.
        let _uncancelled = thread::uncancelled();
        let page = rdmamr_sys::pages::page_size();
        let start = [clock::monotonic(), clock::real(), page];
        const _: () = assert!(size_of::<Start>() == size_of::<[u64; 3]>());
        let mut bytes: Vec<u8> = start.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.extend(std::fs::read("/proc/thread-self/cmdline").unwrap_or_default());
        self.block(kind::START, &bytes);
        let mut place = config().rank.unwrap_or(NO_RANK).to_le_bytes().to_vec();
        place.extend(place::host().into_bytes());
        self.block(kind::PLACE, &place);
        // Over such a file system blocks take long.
        if let Some(system) = self.path.as_deref().and_then(place::slow_file_system) {
            log::always(format_args!(
                "RDMAMR_TRACE: the file is on {system}: calls take longer, and processes that share it may mix \
                 what they write; a local file system is better"
            ));
        }
        self.start.store(STARTED, Release);
        true
    }

    /// Writes a block of calls.
    pub fn calls(&self, block: &mut Block) {
        let calls = block.count as u64;
        if self.full.load(Relaxed) {
            self.left_out.fetch_add(calls, Relaxed);
            return;
        }
        let mut header = self.header(kind::CALLS, 0);
        header.dropped += block.dropped;
        if self.write(block.bytes(&mut header), config().trace_limit) {
            self.written.fetch_add(calls, Relaxed);
        } else if self.full.load(Relaxed) {
            // The block that does not fit has used a sequence number, so an empty block takes that
            // number.
            self.left_out.fetch_add(calls, Relaxed);
            header.header = size_of::<Header>() as u32;
            header.length = 0;
            self.write(header.as_bytes(), None);
        }
    }

    /// Writes the addresses of code, if they have changed.
    pub fn modules(&self) {
        let Some(list) = modules::last() else { return };
        let this = (&raw const *list).cast_mut();
        if self.listed.swap(this, AcqRel) != this {
            self.block(kind::MODULES, list.lines().as_bytes());
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

    fn header(&self, kind: u16, length: usize) -> Header {
        Header {
            kind,
            length: length as u32,
            pid: self.pid,
            process: self.process,
            sequence: self.sequence.fetch_add(1, Relaxed),
            dropped: self.left_out.load(Relaxed),
            ..Header::NONE
        }
    }

    /// Writes a block of another kind than calls.
    pub fn block(&self, kind: u16, payload: &[u8]) {
        let header = self.header(kind, payload.len());
        let mut bytes = Vec::with_capacity(size_of::<Header>() + payload.len());
        bytes.extend(header.as_bytes());
        bytes.extend(payload);
        self.write(&bytes, None);
    }

    /// Whether the bytes are in the file.
    fn write(&self, bytes: &[u8], limit: Option<u64>) -> bool {
        let Some(path) = &self.path else {
            return false;
        };
        // A reader cannot read past an incomplete block.
        if self.failed.load(Relaxed) {
            return false;
        }
        // The file contains addresses of the program, and keys.
        let manner = Manner {
            mode: 0o600,
            limit,
            first: self.first,
            magic: Some(MAGIC),
            only_existing: self.is_requested,
        };
        let Err(why) = append(path, bytes, &manner) else {
            return true;
        };
        if limit.is_some() && why == Refused::Kernel(Errno(libc::EFBIG)) {
            if !self.full.swap(true, Relaxed) {
                log::always(format_args!(
                    "RDMAMR_TRACE_LIMIT: the trace is full, and later calls are only counted"
                ));
            }
        } else if !self.failed.swap(true, Relaxed) {
            log::always(format_args!(
                "RDMAMR_TRACE: cannot be written, tracing stops: {why}"
            ));
        }
        false
    }
}
