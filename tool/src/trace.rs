// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a trace, rdmamr_trace(5): the processes that wrote it, and their calls in the order in
//! which they took effect.
//!
//! A trace may be larger than the memory, so it is read twice: first to find the place of each run
//! of calls, then call by call. The second pass holds only calls that overlap in time: a few
//! thousand for each thread that was at work.
use crate::report::units::{plural, shown};
use anyhow::{Context, Result, ensure};
use rdmamr_trace_format::{
    Call, Header, MAGIC, NO_RANK, Numbers, Start, VERSION,
    call::{is_of_program, registers},
    kind,
};
use source::{Place, Source};
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::vec::IntoIter;

mod source;
mod stacks;
pub use source::to_append;
pub use stacks::{PythonFrame, Stack};

const HEADER: usize = size_of::<Header>();
const CALL: usize = size_of::<Call>();
/// The latest time that a trace may have: it is in 2116, and leaves room for arithmetic.
const LATEST: u64 = 1 << 62;
/// How many calls one read takes.
const RUN: usize = 4096;
/// How many lists of modules before and after a call's own may name its caller.
const NEAR: usize = 8;
/// The most stacks of a process; no writer has as many.
const MOST_STACKS: usize = 1 << 16;
/// The most processes. Each takes twenty times the memory, and in JSON twice the bytes, of a block.
const MOST_PROCESSES: usize = 1 << 16;
/// The most bytes of the path of a module: PATH_MAX.
const MOST_PATH: usize = 4096;
/// The most bytes of a block of a kind that is read; a command line, for one, may be longer than a
/// report needs. Calls have no limit: they are never in memory together.
const fn most(kind: u16) -> usize {
    match kind {
        kind::START => size_of::<Start>() + (1 << 16),
        kind::REASON => 1 << 12,
        kind::STACK => 1 << 16,
        _ => 1 << 24,
    }
}

/// A trace whose blocks are known.
#[derive(Default)]
pub struct Trace {
    sources: Vec<Source>,
    pub processes: Vec<Process>,
    /// Paths of modules; [`Mapping::path`] is an index into them.
    pub paths: Vec<String>,
    runs: Vec<Run>,
    /// The numbers of the processes and of the paths.
    process_numbers: HashMap<(u32, u64), usize>,
    path_numbers: HashMap<String, u32>,
    /// Damage to the file, in sentences.
    pub damage: Vec<String>,
}

/// A process that wrote into the trace. Times are CLOCK_REALTIME in ns.
#[derive(Default)]
pub struct Process {
    pub pid: u32,
    /// When the process began to write.
    pub process: u64,
    pub command: Vec<String>,
    /// The host of the process, and its number in its job; absent in traces of an earlier release.
    pub host: Option<String>,
    pub rank: Option<u32>,
    page: u64,
    /// The earliest and the latest moment that the trace has of the process.
    pub begin: u64,
    pub end: u64,
    /// The process wrote that it ends.
    pub ended: bool,
    /// `rdmamr trace` stopped recording, and the process ran on.
    pub stopped: bool,
    pub dropped: u64,
    blocks: u64,
    last_sequence: u64,
    /// CLOCK_REALTIME minus the process's CLOCK_MONOTONIC, once known.
    realtime: Option<i128>,
    reasons: HashMap<u32, Place>,
    modules: Vec<Vec<Mapping>>,
    /// The stacks by their number, each with the list of modules that was valid.
    stacks: HashMap<u32, (Place, u32)>,
}

/// The addresses of a file's code: [`kind::MODULES`].
#[derive(PartialEq)]
struct Mapping {
    start: u64,
    end: u64,
    bias: u64,
    path: u32,
}

/// Adjacent calls of one process.
struct Run {
    source: u32,
    process: u32,
    /// The number of the module list that was valid for these calls.
    modules: u32,
    at: u64,
    calls: usize,
    /// Those that the program made. The cache records its own deregistrations, too.
    of_program: u64,
    first: u64,
    /// The place of the numbers of the calls' stacks, if the calls have any.
    stacks: Option<u64>,
}

/// A file, by its index in [`Trace::paths`], and an address in it; without a file the address itself.
pub type Located = (Option<u32>, u64);

/// A call, with its process and its time.
#[derive(Clone, Copy)]
pub struct Event {
    pub process: u32,
    pub modules: u32,
    /// When the call took effect, CLOCK_REALTIME in ns: a registration at its end, a deregistration
    /// at its beginning. If one thread releases a key and another gets it, the two calls thus
    /// appear in that order even if they overlap.
    pub effect: u64,
    pub call: Call,
    /// The number of the call's stack in its process, or 0.
    pub stack: u32,
}

/// How long after its beginning a call takes effect: [`Event::effect`].
pub fn delay(call: &Call) -> u64 {
    let at_its_end = call.errno != 0 || registers(call.call);
    u64::from(at_its_end) * u64::from(call.duration)
}

/// The header of a block that begins with these bytes.
pub fn header(bytes: &[u8]) -> Option<Header> {
    Header::read(bytes).filter(|header| header.magic == MAGIC && header.header as usize >= HEADER)
}

impl Process {
    fn new(header: &Header) -> Process {
        Process {
            pid: header.pid,
            process: header.process,
            page: 4096,
            begin: header.process,
            end: header.process,
            ..Process::default()
        }
    }

    /// Whether a region without a deregistration in the trace was left registered.
    pub fn tells_leaks(&self) -> bool {
        !self.lacks_calls() && !self.stopped
    }

    /// Whether calls of the process are missing: for lack of room, or because the file is damaged.
    pub fn lacks_calls(&self) -> bool {
        self.dropped > 0 || self.lacking_blocks() > 0
    }

    fn lacking_blocks(&self) -> u64 {
        let last = self.last_sequence.saturating_add(1);
        last.saturating_sub(self.blocks)
    }

    /// Converts a time of the process's CLOCK_MONOTONIC to CLOCK_REALTIME.
    fn wall(&self, monotonic: u64) -> u64 {
        (i128::from(monotonic) + self.realtime.unwrap_or(0)).clamp(0, i128::from(LATEST)) as u64
    }

    fn place(&mut self, content: &[u8]) {
        if let Some(rank) = u32::read(content) {
            self.rank = Some(rank).filter(|&rank| rank != NO_RANK);
            self.host = Some(String::from_utf8_lossy(&content[size_of::<u32>()..]).into_owned());
        }
    }

    /// The whole pages around the memory of a call: their first byte, and the byte after them.
    pub fn pages(&self, call: &Call) -> (u64, u64) {
        let end = call.addr.saturating_add(call.length);
        let end = end.checked_next_multiple_of(self.page).unwrap_or(u64::MAX);
        (call.addr & !(self.page - 1), end)
    }

    fn saw(&mut self, moment: u64) {
        self.begin = self.begin.min(moment);
        self.end = self.end.max(moment);
    }

    fn effect(&self, call: &Call) -> u64 {
        self.wall(call.time) + delay(call)
    }

    fn start(&mut self, content: &[u8]) {
        let Some(start) = Start::read(content) else {
            return;
        };
        self.realtime
            .get_or_insert(i128::from(start.realtime) - i128::from(start.monotonic));
        if start.page.is_power_of_two() {
            self.page = start.page;
        }
        self.saw(start.realtime);
        let text = String::from_utf8_lossy(&content[size_of::<Start>()..]);
        let arguments = text.strip_suffix('\0').unwrap_or(&text);
        self.command = arguments.split('\0').map(str::to_string).collect();
    }
}

impl Trace {
    /// Finds the blocks of several files, folders and pipes, which may be those of several hosts.
    pub fn of(paths: &[PathBuf]) -> Result<Trace> {
        let mut damage = Vec::new();
        let mut trace = Trace {
            sources: source::open(paths, &mut damage)?,
            damage,
            ..Trace::default()
        };
        for number in 0..trace.sources.len() {
            let indexed = trace.index(number);
            indexed.with_context(|| shown(&trace.sources[number].path))?;
        }
        for process in &trace.processes {
            let lacking = process.lacking_blocks();
            if lacking > 0 {
                let (pid, blocks) = (process.pid, plural(lacking, "block", "blocks"));
                let lacks = format!("The file lacks {blocks} of process {pid}.");
                trace.damage.push(lacks);
            }
        }
        trace.runs.sort_by_key(|run| run.first);
        Ok(trace)
    }

    /// How many calls of the program the trace has, and how many were dropped.
    pub fn count(&self) -> (u64, u64) {
        let calls = self.runs.iter().map(|run| run.of_program).sum();
        let dropped = self.processes.iter().map(|process| process.dropped);
        (calls, dropped.fold(0, u64::saturating_add))
    }

    /// The earliest moment of the trace, CLOCK_REALTIME in ns.
    pub fn begin(&self) -> u64 {
        let begins = self.processes.iter().map(|process| process.begin);
        begins.min().unwrap_or(0)
    }

    /// Whether one of the trace's files is at that path, through any links.
    pub fn is_at(&self, path: &Path) -> bool {
        self.sources.iter().any(|source| source.is_at(path))
    }

    /// The permissions that a file with content of the trace may have: for its user alone, unless all
    /// may read each file of the trace. A group counts for nothing, since the new file may have another.
    pub fn mode(&self) -> u32 {
        let all = self.sources.iter().map(|source| source.mode);
        match all.fold(0o044, |mode, of_one| mode & of_one) {
            mode if mode & 0o004 == 0 => 0o600,
            mode => 0o600 | mode,
        }
    }

    fn index(&mut self, number_of_source: usize) -> Result<()> {
        let mut bytes = Vec::new();
        let first = self.processes.len();
        let (mut garbage, mut cut, mut newer, mut beyond, mut whole) = (0, 0, 0, 0, 0u64);
        let mut at = 0;
        while at < self.sources[number_of_source].size {
            let source = &self.sources[number_of_source];
            source.read(at, HEADER, &mut bytes)?;
            let Some(header) = header(&bytes) else {
                if at == 0 {
                    ensure!(
                        MAGIC.starts_with(&bytes[..bytes.len().min(MAGIC.len())]),
                        "it is not a trace of librdmamr: a trace begins with {}",
                        String::from_utf8_lossy(&MAGIC)
                    );
                }
                let next = source.next_magic(at + 1, source.size)?;
                garbage += next - at;
                at = next;
                continue;
            };
            let content = at + u64::from(header.header);
            let mut end = content + u64::from(header.length);
            // A block without another after it was not written whole: the disk was full, or the
            // file was copied while it grew. The next block may then begin inside the length that
            // this block claims.
            source.read(end, MAGIC.len(), &mut bytes)?;
            if end != source.size && bytes != MAGIC {
                let next = source.next_magic(at + HEADER as u64, end.min(source.size))?;
                if next < end {
                    cut += 1;
                    end = next;
                }
            }
            let begin = at;
            at = end;
            let hole = source.data_until(begin);
            if hole < end {
                cut += 1;
                end = hole;
            }
            if header.version != VERSION {
                ensure!(
                    self.processes.len() > first,
                    "it is a trace of version {}, and this program reads version {VERSION}",
                    header.version
                );
                newer += 1;
                continue;
            }
            let new = self.processes.len();
            let number = match self.process_numbers.entry((header.pid, header.process)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(_) if new >= MOST_PROCESSES => {
                    beyond += 1;
                    continue;
                }
                Entry::Vacant(place) => {
                    self.processes.push(Process::new(&header));
                    *place.insert(new)
                }
            };
            let place = Place {
                source: number_of_source as u32,
                at: content,
                length: end.saturating_sub(content),
            };
            self.block(&header, number, place)?;
            whole += 1;
        }
        ensure!(whole > 0, "there is no whole block in it");
        // A report on one file need not name it.
        let name = match self.sources.len() {
            1 => String::new(),
            _ => format!("{}: ", shown(&self.sources[number_of_source].path)),
        };
        if cut > 0 {
            self.damage.push(format!(
                "{name}{} cut off: the program was killed while it wrote, the disk was full, or the file was \
                 copied in part. \
                 The calls up to there are counted.",
                if cut == 1 { "A block is".to_string() } else { format!("{cut} blocks are") }
            ));
        }
        let bytes = plural(garbage, "byte", "bytes") + " outside of any block";
        let blocks = plural(newer, "block", "blocks") + " of another version";
        let others = format!(
            "{} of processes beyond the first {MOST_PROCESSES}",
            plural(beyond, "block", "blocks")
        );
        let left_out = [(garbage, bytes), (newer, blocks), (beyond, others)].into_iter();
        let left_out = left_out.filter(|(count, _)| *count > 0);
        let left_out = left_out.map(|(_, what)| format!("{name}The report leaves out {what}."));
        self.damage.extend(left_out);
        Ok(())
    }

    fn block(&mut self, header: &Header, number: usize, place: Place) -> Result<()> {
        let Place { source, at, length } = place;
        let process = &mut self.processes[number];
        let file = &self.sources[source as usize];
        let kept = (length as usize).min(most(header.kind));
        process.blocks += 1;
        process.last_sequence = process.last_sequence.max(header.sequence);
        process.dropped = process.dropped.max(header.dropped);
        let read = match header.kind {
            kind::REASON | kind::STACK => kept.min(size_of::<u32>()),
            kind::START | kind::MODULES | kind::PLACE | kind::END | kind::STOPPED => kept,
            _ => 0,
        };
        let mut bytes = Vec::new();
        file.read(at, read, &mut bytes)?;
        // The number of the list that is valid now.
        let modules = process.modules.len().saturating_sub(1) as u32;
        match header.kind {
            kind::START => process.start(&bytes),
            kind::MODULES => {
                let mut path = |path: &str| {
                    let number = self.path_numbers.entry(path.to_string());
                    *number.or_insert_with(|| {
                        self.paths.push(path.to_string());
                        self.paths.len() as u32 - 1
                    })
                };
                let text = String::from_utf8_lossy(&bytes);
                let lines = text.lines();
                let mappings = lines.filter_map(|line| parse_mapping(line, &mut path));
                let mut mappings: Vec<Mapping> = mappings.collect();
                mappings.sort_by_key(|mapping| mapping.start);
                if process.modules.last() != Some(&mappings) {
                    process.modules.push(mappings);
                }
            }
            kind::CALLS => {
                let mut left = length as usize / CALL;
                let mut at = at;
                // The longer header has a number for each call that was written.
                let beyond = header.header as usize - HEADER;
                let written = header.length as usize / CALL;
                let mut stacks = (written > 0 && beyond >= written * size_of::<u32>())
                    .then(|| at - beyond as u64);
                while left > 0 {
                    let calls = left.min(RUN);
                    file.read(at, calls * CALL, &mut bytes)?;
                    let (mut first, mut of_program) = (u64::MAX, 0);
                    for call in bytes.chunks_exact(CALL).filter_map(Call::read) {
                        // If the first block is lost, the process counts as begun with this call.
                        let realtime = i128::from(header.process) - i128::from(call.time);
                        process.realtime.get_or_insert(realtime);
                        let began = process.wall(call.time);
                        process.saw(began);
                        process.saw(began + u64::from(call.duration));
                        first = first.min(process.effect(&call));
                        of_program += u64::from(is_of_program(call.call));
                    }
                    self.runs.push(Run {
                        source,
                        process: number as u32,
                        modules,
                        at,
                        calls,
                        of_program,
                        first,
                        stacks,
                    });
                    stacks = stacks.map(|at| at + (calls * size_of::<u32>()) as u64);
                    left -= calls;
                    at += (calls * CALL) as u64;
                }
            }
            kind::REASON => {
                if let Some(number) = u32::read(&bytes) {
                    let (at, length) = (at + 4, kept as u64 - 4);
                    let place = Place { source, at, length };
                    process.reasons.insert(number, place);
                }
            }
            kind::STACK => {
                let length = kept as u64;
                let number = u32::read(&bytes).filter(|_| process.stacks.len() < MOST_STACKS);
                if let Some(number) = number {
                    let stack = (Place { source, at, length }, modules);
                    process.stacks.entry(number).or_insert(stack);
                }
            }
            kind::PLACE => process.place(&bytes),
            kind::END | kind::STOPPED => {
                if let Some(end) = u64::read(&bytes) {
                    process.ended |= header.kind == kind::END;
                    process.stopped |= header.kind == kind::STOPPED;
                    process.saw(process.wall(end));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Calls `see` with each call, in the order of [`Event::effect`].
    pub fn calls(&self, mut see: impl FnMut(&Event)) -> Result<()> {
        let mut waiting = self.runs.iter().enumerate().peekable();
        // The calls of each open run that are still to come, by the order of the next one. The calls of all
        // runs would be too many for the memory.
        let mut open = BTreeMap::<(u64, usize), IntoIter<_>>::new();
        let mut bytes = Vec::new();
        // If a region ends at the moment of its registration, the registration comes first.
        let order = |effect: u64, call: &Call| effect << 1 | u64::from(!registers(call.call));
        loop {
            let now = open.keys().next().map(|next| next.0);
            let is_due = |run: &Run| now.is_none_or(|now| run.first << 1 <= now);
            if let Some((number, run)) = waiting.next_if(|(_, run)| is_due(run)) {
                let process = &self.processes[run.process as usize];
                self.sources[run.source as usize].read(run.at, run.calls * CALL, &mut bytes)?;
                let calls = bytes.chunks_exact(CALL).filter_map(Call::read);
                let calls = calls.map(|call| (order(process.effect(&call), &call), call, 0));
                let mut calls: Vec<_> = calls.collect();
                if let Some(at) = run.stacks {
                    let length = run.calls * size_of::<u32>();
                    self.sources[run.source as usize].read(at, length, &mut bytes)?;
                    let numbers = bytes.chunks_exact(4).map(<[u8; 4]>::try_from);
                    for (call, number) in calls.iter_mut().zip(numbers.flatten()) {
                        call.2 = u32::from_le_bytes(number);
                    }
                }
                calls.sort_by_key(|&(order, ..)| order);
                open.insert((calls[0].0, number), calls.into_iter());
                continue;
            }
            let Some(((_, number), mut calls)) = open.pop_first() else {
                return Ok(());
            };
            let run = &self.runs[number];
            let (order, call, stack) = calls.next().expect("an open run has a call");
            see(&Event {
                process: run.process,
                modules: run.modules,
                effect: order >> 1,
                call,
                stack,
            });
            if let Some(next) = calls.as_slice().first() {
                open.insert((next.0, number), calls);
            }
        }
    }

    fn content(&self, place: &Place) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let source = &self.sources[place.source as usize];
        let read = source.read(place.at, place.length as usize, &mut bytes);
        read.ok().map(|()| bytes)
    }

    /// Why a call failed, in the library's words.
    pub fn reason(&self, process: u32, number: u32) -> Option<String> {
        let place = self.processes[process as usize].reasons.get(&number)?;
        let bytes = self.content(place)?;
        let text = String::from_utf8_lossy(&bytes);
        Some(text.trim_end_matches(['\0', '\n']).to_string())
    }

    /// The stack of that number. `None` for 0, and if the trace does not have it.
    pub fn stack(&self, process: u32, number: u32) -> Option<Stack> {
        let stacks = &self.processes[process as usize].stacks;
        let (place, modules) = stacks.get(&number).filter(|_| number != 0)?;
        let locate = |address| self.locate(process, *modules, address);
        Stack::parse(&self.content(place)?, locate)
    }

    /// The file that contains an address. If the module list of that time lacks the address, a later
    /// list may have it: the library writes a list when code was loaded that the last list lacks. Lists
    /// that are not near belong to other code.
    pub fn locate(&self, process: u32, modules: u32, address: u64) -> Located {
        let lists = &self.processes[process as usize].modules;
        let (earlier, later) = lists.split_at((modules as usize).min(lists.len()));
        let (later, earlier) = (later.iter().take(NEAR), earlier.iter().rev().take(NEAR));
        let mapping = later.chain(earlier).find_map(|list| {
            let after = list.partition_point(|mapping| mapping.start <= address);
            Some(&list[after.checked_sub(1)?]).filter(|mapping| address < mapping.end)
        });
        mapping.map_or((None, address), |mapping| {
            (Some(mapping.path), address.wrapping_sub(mapping.bias))
        })
    }
}

fn parse_mapping(line: &str, path_number: &mut impl FnMut(&str) -> u32) -> Option<Mapping> {
    let mut parts = line.splitn(4, ' ');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    let (start, end, bias) = (number()?, number()?, number()?);
    // Each caller in the file has the path. No file has a longer one.
    let path = parts.next()?;
    let end_of_path = (0..=path.len().min(MOST_PATH)).rfind(|&at| path.is_char_boundary(at))?;
    Some(Mapping {
        start,
        end,
        bias,
        path: path_number(&path[..end_of_path]),
    })
}

#[cfg(test)]
mod tests;
