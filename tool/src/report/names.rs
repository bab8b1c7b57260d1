// SPDX-License-Identifier: MIT OR Apache-2.0
//! The names of addresses in files that a trace names. A child reads these files (`child.rs`), since
//! each may be anything: it answers one question after the other. A file that ends the child, or keeps
//! it busy, has no names, and a new child reads the others.
use super::symbols::Symbols;
use crate::child::{Answers, Bounds, Child, Received};
use crate::files::mounts::{Elsewhere, Mounts};
use addr2line::gimli;
use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// How long the names in one file, and in all files together, are waited for. The debug information of
/// a program of some GiB takes several seconds.
const OF_A_FILE: Duration = Duration::from_secs(30);
const OF_ALL: Duration = Duration::from_secs(60);
/// The child works only while it is waited for, so a child that needs more was left behind. Each file
/// adds to the memory by what it has on the disk (`symbols.rs`).
const BOUNDS: Bounds = Bounds {
    memory: 1 << 30,
    seconds: OF_ALL.as_secs(),
};
/// The most frames of an address. Compilers inline some tens of functions into each other.
const MOST_FRAMES: usize = 64;
/// The most bytes of a name and of a path, as PATH_MAX.
pub const LONGEST: usize = 4096;

/// Which of the files that a trace names are read: those on file systems of this machine
/// (`files/mounts.rs`), or all. The help of `rdmamr report` describes both.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Modules {
    #[default]
    Local,
    Any,
}

/// A function, and `file:line`, as far as they are known.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Name {
    pub function: Option<String>,
    pub source: Option<String>,
}

impl Name {
    pub fn bytes(&self) -> usize {
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        size_of::<Name>() + length(&self.function) + length(&self.source)
    }
}

#[derive(Serialize, Deserialize)]
pub enum Answer {
    /// The functions at each address, the innermost inlined one first, and whether the file changed
    /// after the moment of the question.
    Names(Vec<Vec<Name>>, bool),
    /// The file cannot be read.
    Unreadable,
    /// The file is not read where it lies.
    Elsewhere,
}

#[derive(Serialize, Deserialize)]
struct Question<'a> {
    path: &'a str,
    offsets: Vec<u64>,
    began: SystemTime,
}

/// The names that a child finds.
pub struct Names {
    modules: Modules,
    child: Option<Child>,
    left: Duration,
}

impl Names {
    pub fn new(modules: Modules) -> Names {
        Names {
            modules,
            child: None,
            left: OF_ALL,
        }
    }

    /// The names at return addresses. `None` if the file takes too much memory or time.
    pub fn at(&mut self, path: &str, offsets: Vec<u64>, began: SystemTime) -> Option<Answer> {
        // A fork of a program under AddressSanitizer takes a second. "fuzz_elf" reads files.
        if cfg!(fuzzing) {
            return None;
        }
        let question = Question {
            path,
            offsets,
            began,
        };
        let question = serde_json::to_vec(&question).ok()?;
        loop {
            let is_new = self.child.is_none();
            let child = match &mut self.child {
                Some(child) => child,
                none => none.insert(Child::start(&BOUNDS, |it| serve(it, self.modules)).ok()?),
            };
            let asked = Instant::now();
            let received = match child.ask(&question) {
                Ok(()) => child.receive(OF_A_FILE.min(self.left)),
                Err(_) => Received::Died,
            };
            self.left = self.left.saturating_sub(asked.elapsed());
            if let Received::Answer(answer) = received {
                return serde_json::from_slice(&answer).ok();
            }
            self.child = None;
            // A child that had read other files may have died by their memory.
            if is_new || received == Received::Late {
                return None;
            }
        }
    }
}

/// Answers the parent's questions, as long as it asks.
fn serve(answers: &mut Answers, modules: Modules) {
    let local = match modules {
        Modules::Local => Some(&*Box::leak(Box::new(Mounts::of_this_process()))),
        Modules::Any => None,
    };
    let mut files: HashMap<String, Result<(Symbols, SystemTime)>> = HashMap::default();
    while let Ok(question) = answers.next() {
        let Ok(question) = serde_json::from_slice::<Question>(&question) else {
            return;
        };
        let path = question.path;
        let read = || {
            // The kernel's own code has no file, and a relative path has an unknown folder.
            ensure!(Path::new(path).is_absolute(), "it is no file");
            Symbols::read(Path::new(path), Path::new("/usr/lib/debug"), local)
        };
        let answer = match files.entry(path.to_owned()).or_insert_with(read) {
            Ok((file, changed)) => {
                let names = question.offsets.iter().map(|&offset| names(file, offset));
                Answer::Names(names.collect(), *changed > question.began)
            }
            Err(error) if error.is::<Elsewhere>() => Answer::Elsewhere,
            Err(_) => Answer::Unreadable,
        };
        let answer = serde_json::to_vec(&answer).unwrap_or_default();
        if answers.send(&answer).is_err() {
            return;
        }
    }
}

/// The functions at a return address, the innermost inlined one first. There is at least one.
fn names(file: &Symbols, offset: u64) -> Vec<Name> {
    // The call instruction lies before its return address, which may belong to another line or
    // another function.
    let call = offset.wrapping_sub(1);
    let mut found: Vec<Name> = Vec::new();
    if let Some(mut frames) = file.frames(call) {
        while let Ok(Some(frame)) = frames.next() {
            // The last one is the function around all others.
            found.truncate(MOST_FRAMES - 1);
            let place = frame.location.and_then(|at| at.file.zip(at.line));
            let name = frame.function;
            found.push(Name {
                function: name.and_then(|it| Some(demangled(&it.raw_name().ok()?, it.language))),
                source: place.map(|(file, line)| format!("{}:{line}", short(file))),
            });
        }
    }
    if found.is_empty() {
        found.push(Name::default());
    }
    if let Some(outermost) = found.last_mut().filter(|frame| frame.function.is_none()) {
        let symbol = file.symbol(call);
        outermost.function = symbol.map(|(name, address)| {
            let name = demangled(name, None);
            format!("{name}+{:#x}", offset - address)
        });
    }
    found
}

/// Text that ends at [`LONGEST`].
#[derive(Default)]
struct Short(String);

impl Short {
    fn is_full(&self) -> bool {
        self.0.len() > LONGEST
    }
}

impl Write for Short {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LONGEST.saturating_sub(self.0.len());
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        let end = (0..=room).rev().find(|&at| text.is_char_boundary(at));
        self.0.push_str(&text[..end.unwrap_or(0)]);
        self.0.push_str("...");
        Err(fmt::Error)
    }
}

fn short(text: &str) -> String {
    let mut short = Short::default();
    let _ = short.write_str(text);
    short.0
}

/// A name as the source has it: a few bytes may stand for a name of many GiB.
fn demangled(name: &str, language: Option<gimli::DwLang>) -> String {
    let (is_rust, is_cxx) = match language {
        None => (true, true),
        Some(gimli::DW_LANG_Rust) => (true, false),
        Some(
            gimli::DW_LANG_C_plus_plus
            | gimli::DW_LANG_C_plus_plus_03
            | gimli::DW_LANG_C_plus_plus_11
            | gimli::DW_LANG_C_plus_plus_14,
        ) => (false, true),
        Some(_) => (false, false),
    };
    let mut text = Short::default();
    if let Some(name) = rustc_demangle::try_demangle(name).ok().filter(|_| is_rust) {
        let _ = write!(text, "{name:#}");
        return text.0;
    }
    if let Some(name) = cpp_demangle::Symbol::new(name).ok().filter(|_| is_cxx) {
        let done = name.structured_demangle(&mut text, &Default::default());
        if done.is_ok() || text.is_full() {
            return text.0;
        }
    }
    short(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_as_before_and_ends_at_a_limit() {
        let names = [
            ("_ZN6Buffer3pinEPv", "Buffer::pin(void*)"),
            ("_ZN4core3fmt5Write17h0123456789abcdefE", "core::fmt::Write"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_Z", "_Z"),
            ("main", "main"),
        ];
        for (mangled, name) in names {
            assert_eq!(demangled(mangled, None), name);
            for language in [
                None,
                Some(gimli::DW_LANG_Rust),
                Some(gimli::DW_LANG_C_plus_plus_14),
                Some(gimli::DW_LANG_C11),
            ] {
                let theirs = addr2line::demangle_auto(mangled.into(), language);
                assert_eq!(demangled(mangled, language), theirs, "{language:?}");
            }
        }
        // Each argument has the one before it twice.
        let doubled: String = (b'0'..=b'9')
            .chain(b'A'..=b'Z')
            .map(char::from)
            .map(|n| format!("S_IS{n}_S{n}_E"))
            .collect();
        let name = demangled(&format!("_Z1f1PIiiE{doubled}"), None);
        assert!(name.starts_with("f(P<int, int>, P<P<int, int>"), "{name}");
        assert_eq!(name.len(), LONGEST + "...".len());
        assert_eq!(
            short(&"\u{e9}".repeat(LONGEST)).chars().count(),
            LONGEST / 2 + 3
        );
    }
}
