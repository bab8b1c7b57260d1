// SPDX-License-Identifier: MIT OR Apache-2.0
//! The call stacks of the trace: the frames beyond the caller. A stack is walked at each call, and
//! written to the file once, under the number that the record then names.
//!
//! Expensive work is done once for each address of code and once for each stack: learning from the
//! file how to unwind the frame (`sys/unwind.rs`), and writing the stack. This work, and the rest
//! of a walk over many pages, has a budget, so that the mean cost of a call stays below 1 us: a
//! process may spend [`AT_START`], and then [`PER_CALL`] for each call in the file. A program that
//! calls seldom may spend a [`PART`] of its time in addition: otherwise 200 calls of pyverbs, each
//! with another stack, paid for one stack. A call that would need more has no stack. Python's
//! frames (`python.rs`) cost as much at each call, so a program in Python that registers without
//! pause has stacks for a part of its calls.
//!
//! The walk takes no lock, allocates nothing, and calls nothing but the kernel. Learning asks the
//! linker, as writing a block does; a child of a fork has its parent's list of files (`modules.rs`).

use super::file::File;
use super::modules;
use core::sync::atomic::{AtomicU64, Ordering::*};
use rdmamr_sys::caller::Caller;
use rdmamr_sys::clock;
use rdmamr_sys::readable::Reader;
use rdmamr_sys::unwind::{Registers, Rule};
use rdmamr_trace_format::kind;
use std::alloc::{Layout, alloc_zeroed};

/// The processor time in ns that a process may spend on new code and new stacks: at its start, and
/// for each call that it has recorded.
const AT_START: u64 = 5_000_000;
const PER_CALL: u64 = 150;
/// In addition, this part of the time since its first call: 1 %.
const PART: u64 = 100;

/// The most frames of a stack. The outermost are left out.
const MOST: usize = 64;
/// More frames than the library itself has between an exported function and this module.
const OWN: usize = 24;
/// The number of pages of a stack whose walk does not count as spending: each page costs a system
/// call.
const PAGES: u32 = 4;
/// How many addresses of code are known at once, and how many stacks a trace can have, as powers of
/// two; how many places an entry may have.
const RULES: u32 = 14;
const STACKS: u32 = 14;
const PLACES: usize = 4;

/// The rule for an address of code.
struct KnownRule {
    /// The address, and above it the number of the list of files; 0: none, [`BUSY`]: a thread is
    /// writing the entry.
    code: AtomicU64,
    rule: AtomicU64,
}
const BUSY: u64 = u64::MAX;
const ADDRESS_BITS: u32 = 48;

/// All zeros are empty tables.
struct Tables {
    rules: [KnownRule; 1 << RULES],
    /// The fingerprint of stack number n, or 0, at index n - 1.
    stacks: [AtomicU64; 1 << STACKS],
}

/// The stacks of a process that are known.
pub struct Stacks {
    tables: Box<Tables>,
    /// The processor time in ns spent so far.
    spent: AtomicU64,
    /// The time of the first call.
    began: u64,
}

/// A number that two different stacks are unlikely to share.
struct Fingerprint(u64);

impl Fingerprint {
    #[inline(always)]
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Never 0.
    fn number(self) -> u64 {
        (self.0 ^ self.0 >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1
    }
}

/// The places of an entry in a table of `1 << bits`.
#[inline(always)]
fn places(number: u64, bits: u32) -> impl Iterator<Item = usize> {
    let first = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize;
    (0..PLACES).map(move |n| (first + n) & ((1 << bits) - 1))
}

/// The time that a call spends beyond its walk.
struct Spending<'a> {
    stacks: &'a Stacks,
    file: &'a File,
    began: Option<u64>,
}

impl Spending<'_> {
    /// Whether any of the budget is left.
    #[cold]
    fn begin(&mut self) -> bool {
        if self.began.is_some() {
            return true;
        }
        let ran = clock::monotonic().saturating_sub(self.stacks.began);
        let budget =
            (AT_START + ran / PART).saturating_add(self.file.written().saturating_mul(PER_CALL));
        let some_left = self.stacks.spent.load(Relaxed) < budget;
        if some_left {
            self.began = Some(clock::of_thread());
        }
        some_left
    }

    /// Finds out how to unwind a frame whose code is not known yet.
    #[cold]
    fn learn(&mut self, code: u64) -> Option<Rule> {
        if !self.begin() {
            return None;
        }
        let list = modules::current();
        let rule = match list.file(code) {
            // Without a description that can be parsed, the stack ends here.
            Some(file) => file.rule(code).unwrap_or(Rule::END),
            None => Rule::POINTERS,
        };
        self.stacks.keep(code, list.number, rule);
        Some(rule)
    }
}

impl Drop for Spending<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(began) = self.began {
            let spent = clock::of_thread().saturating_sub(began);
            self.stacks.spent.fetch_add(spent, Relaxed);
        }
    }
}

/// The key of [`KnownRule`]. `None` if `code` is not an address of a program.
#[inline(always)]
fn key(code: u64, list: u64) -> Option<u64> {
    (code >> ADDRESS_BITS == 0).then_some(code | list << ADDRESS_BITS)
}

impl Stacks {
    /// Empty tables, in memory that the system provides as zeros. `None` if there is none.
    pub fn new() -> Option<Stacks> {
        // SAFETY: the size is not 0.
        let memory = unsafe { alloc_zeroed(Layout::new::<Tables>()) }.cast::<Tables>();
        (!memory.is_null()).then(|| Stacks {
            // SAFETY: the allocator gave the memory for this type, and zeros are empty tables.
            tables: unsafe { Box::from_raw(memory) },
            spent: AtomicU64::new(0),
            began: clock::monotonic(),
        })
    }

    #[inline(always)]
    fn known(&self, code: u64, list: u64) -> Option<Rule> {
        let key = key(code, list)?;
        for place in places(code, RULES) {
            let known = &self.tables.rules[place];
            let found = known.code.load(Acquire);
            if found == key {
                let rule = known.rule.load(Acquire);
                // Another thread may have given the entry to other code meanwhile.
                return Rule::of(rule).filter(|_| known.code.load(Relaxed) == key);
            }
            if found == 0 {
                return None;
            }
        }
        None
    }

    /// Stores a rule, in the place of a rule for earlier files, or else of any other.
    fn keep(&self, code: u64, list: u64, rule: Rule) {
        let Some(key) = key(code, list) else {
            return;
        };
        let is_free = |place: &usize| {
            let found = self.tables.rules[*place].code.load(Relaxed);
            found == 0 || (found != BUSY && found >> ADDRESS_BITS != key >> ADDRESS_BITS)
        };
        let mut own = places(code, RULES);
        let Some(first) = own.next() else {
            return;
        };
        let place = places(code, RULES).find(is_free).unwrap_or(first);
        let known = &self.tables.rules[place];
        let before = known.code.load(Relaxed);
        let is_ours = before != BUSY
            && known
                .code
                .compare_exchange(before, BUSY, AcqRel, Relaxed)
                .is_ok();
        if is_ours {
            known.rule.store(rule.number(), Release);
            known.code.store(key, Release);
        }
    }

    /// The number of this call's stack in the file, or 0 for none.
    #[inline(never)]
    pub fn number(&self, caller: Caller, file: &File) -> u32 {
        let start = Registers::here();
        let mut spending = Spending {
            stacks: self,
            file,
            began: None,
        };
        let Some(walked) = self.walk(start, caller, &mut spending) else {
            return 0;
        };
        let mut fingerprint = Fingerprint(0);
        for &address in walked.addresses() {
            fingerprint.add(address);
        }
        let python = walked.python();
        // CPython's dump is a hundred system calls, so it has the same budget.
        if python.is_some() && (file.is_full() || !spending.begin()) {
            return 0;
        }
        let lines = python.map_or(String::new(), |thread| thread.lines());
        for bytes in lines.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            fingerprint.add(u64::from_le_bytes(word));
        }
        let fingerprint = fingerprint.number();
        let mut free = None;
        for place in places(fingerprint, STACKS) {
            match self.tables.stacks[place].load(Relaxed) {
                0 => {
                    free = Some(place);
                    break;
                }
                found if found == fingerprint => return place as u32 + 1,
                _ => {}
            }
        }
        let Some(place) = free else {
            return 0;
        };
        if file.is_full() || !spending.begin() {
            return 0;
        }
        let ours = self.tables.stacks[place].compare_exchange(0, fingerprint, Relaxed, Relaxed);
        match ours {
            Ok(_) => {}
            Err(other) if other == fingerprint => return place as u32 + 1,
            Err(_) => return 0,
        }
        let number = place as u32 + 1;
        write(number, &walked, &lines, file);
        number
    }

    /// Walks from the program's call outwards. `None` if the call is not on this stack, or if there
    /// is no time left to find out.
    #[inline(always)]
    fn walk(&self, start: Registers, caller: Caller, spending: &mut Spending) -> Option<Walked> {
        let caller = caller.address() as u64;
        let mut walked = Walked {
            addresses: [0; MOST],
            frames: 0,
            interrupted: false,
        };
        if !cfg!(target_arch = "x86_64") {
            walked.addresses[0] = caller;
            walked.frames = 1;
            return Some(walked);
        }
        let list = modules::last();
        let number = list.map_or(0, |list| list.number);
        let is_code = |address| modules::last().is_some_and(|list| list.file(address).is_some());
        // The walk begins beyond this function's own frame.
        let mut memory = Reader::around(&walked.interrupted);
        let mut at = start;
        let (mut own, mut frames) = (0, 0);
        loop {
            let address = at.return_address();
            if frames > 0 || address == caller {
                walked.addresses[frames] = address;
                frames += 1;
            } else {
                own += 1;
            }
            if frames == MOST || own == OWN {
                break;
            }
            let rule = match self.known(at.code(), number) {
                Some(rule) => rule,
                None => spending.learn(at.code())?,
            };
            walked.interrupted |= rule.is_signal();
            if memory.asked > PAGES && !spending.begin() {
                return None;
            }
            match at.step(rule, &mut memory, is_code) {
                Some(next) => at = next,
                None => break,
            }
        }
        walked.frames = frames;
        (walked.frames > 0).then_some(walked)
    }
}

/// Writes a stack, with the lines of its frames of Python.
#[cold]
fn write(number: u32, walked: &Walked, lines: &str, file: &File) {
    let addresses = walked.addresses();
    let mut bytes = Vec::with_capacity(8 + size_of_val(addresses) + lines.len());
    bytes.extend(number.to_le_bytes());
    bytes.extend((addresses.len() as u32).to_le_bytes());
    for address in addresses {
        bytes.extend(address.to_le_bytes());
    }
    bytes.extend(lines.as_bytes());
    file.modules();
    file.block(kind::STACK, &bytes);
}

/// A stack.
struct Walked {
    addresses: [u64; MOST],
    frames: usize,
    /// A signal handler made the call.
    interrupted: bool,
}

impl Walked {
    /// The return addresses, the program's call first.
    #[inline(always)]
    fn addresses(&self) -> &[u64] {
        self.addresses.get(..self.frames).unwrap_or_default()
    }

    /// The interpreter's state of this thread. `None` if a signal interrupted the thread: it may
    /// have been changing its frames.
    #[inline(always)]
    fn python(&self) -> Option<super::python::Thread<'static>> {
        let list = modules::last().filter(|_| !self.interrupted)?;
        list.python.as_ref()?.thread()
    }
}

#[cfg(test)]
mod tests;
