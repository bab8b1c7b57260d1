// SPDX-License-Identifier: MIT OR Apache-2.0
//! Callers: turns an address in a file into a function and a line of source, as far as the file has
//! symbols or debug information.
use super::names::{Answer, LONGEST, Modules, Name, Names};
use super::units::{name_of, plural};
use crate::trace::{Located, Trace};
use serde::Serialize;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

/// The most frames that text shows beyond the caller.
const SHOWN: usize = 6;

/// The origin of a call.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Caller {
    #[serde(flatten)]
    pub frame: Frame,
    /// The frames beyond the caller, outwards, as far as the trace has them.
    pub stack: Vec<Frame>,
}

impl Caller {
    /// The frame by which people know the caller: the nearest one of Python, if there is one, since
    /// the module in C that it called is the same for all.
    pub fn leads(&self) -> &Frame {
        let python = self.stack.iter().find(|frame| frame.is_python);
        python.unwrap_or(&self.frame)
    }

    /// The name of the frame that leads, with its line in Python.
    pub fn title(&self) -> String {
        match self.leads() {
            python if python.is_python => python.words(),
            native => native.name(),
        }
    }

    /// The nearest frames beyond the caller, in words: if some have a line, only these, since the
    /// others are foreign code. `None` without a stack.
    pub fn beyond(&self) -> Option<String> {
        let has_lines = self.stack.iter().any(|frame| frame.source.is_some());
        let led = self.leads();
        let chosen =
            |frame: &&Frame| (frame.source.is_some() || !has_lines) && !std::ptr::eq(*frame, led);
        let mut names = self.stack.iter().filter(chosen).map(Frame::words);
        let mut shown: Vec<String> = names.by_ref().take(SHOWN).collect();
        if names.next().is_some() {
            shown.push("...".to_string());
        }
        (!shown.is_empty()).then(|| shown.join(" < "))
    }
}

/// A place in a program: of a call, or of the function around it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Frame {
    /// The file that contains the code; `None` if the trace has no file for the address.
    pub module: Option<String>,
    /// The call's return address, in the file's own terms.
    pub offset: u64,
    /// The function's name from debug information, or `symbol+0x12` from symbols alone.
    pub function: Option<String>,
    /// `file:line`.
    pub source: Option<String>,
    #[serde(skip)]
    pub is_python: bool,
}

impl Frame {
    /// `module+0x12`, without the module's folder.
    pub fn place(&self) -> String {
        match &self.module {
            Some(module) => format!("{}+{:#x}", name_of(module), self.offset),
            None if self.offset == 0 => "not known".to_string(),
            None => format!("{:#x}", self.offset),
        }
    }

    /// Whether the line is in a header with inline functions through which programs call: the caller
    /// is then the function around the inline function.
    fn is_of_header(&self) -> bool {
        let line = self.source.as_deref().unwrap_or_default();
        let headers = ["infiniband/verbs.h:", "rdma/fabric.h:", "rdma/fi_domain.h:"];
        headers.iter().any(|header| line.contains(header))
    }

    /// The function, or else the place.
    pub fn name(&self) -> String {
        self.function.clone().unwrap_or_else(|| self.place())
    }

    /// The name, and the line if there is one, with the name of its file but not of its folder.
    pub fn words(&self) -> String {
        let line = self.source.as_deref().map(name_of);
        line.map_or(self.name(), |line| format!("{} {line}", self.name()))
    }
}

/// The most bytes of names that callers of a report get, which a report keeps.
const MOST_NAMES: usize = 256 << 20;

/// Why a file has no names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// It cannot be read.
    Unreadable,
    Elsewhere,
    /// Reading it takes too much memory or time.
    TooMuch,
}

/// The names of callers, as far as they are known.
pub struct Resolver {
    names: Names,
    known: HashMap<(String, u64), Vec<Name>>,
    nameless: HashMap<String, Why>,
    /// Bytes of names that may still be given out.
    left: usize,
    /// Files that changed after the trace had begun: their lines may differ from the code that ran.
    changed: Vec<String>,
}

impl Resolver {
    pub fn new(modules: Modules) -> Resolver {
        Resolver {
            names: Names::new(modules),
            known: HashMap::default(),
            nameless: HashMap::default(),
            left: MOST_NAMES,
            changed: Vec::new(),
        }
    }

    /// The functions at a place of a process.
    pub fn at(&mut self, trace: &Trace, process: u32, (file, offset): Located) -> Vec<Frame> {
        let module = file.map(|file| trace.paths[file as usize].as_str());
        self.resolve(module, offset, trace.processes[process as usize].process)
    }

    /// The functions at an address: the inlined ones, the innermost first, then the one around them.
    /// There is at least one. `began` is when the process began, CLOCK_REALTIME in ns.
    fn resolve(&mut self, module: Option<&str>, offset: u64, began: u64) -> Vec<Frame> {
        let unnamed = Frame {
            module: module.map(str::to_string),
            offset,
            ..Frame::default()
        };
        let names = module.map(|path| self.names(path, offset, began));
        let mut found: Vec<Frame> = Vec::new();
        for Name { function, source } in names.unwrap_or_default() {
            // Programs call through inline functions of these headers.
            if found.last().is_some_and(|inner| inner.is_of_header()) {
                found.pop();
            }
            found.push(Frame {
                function,
                source,
                ..unnamed.clone()
            });
        }
        if found.is_empty() {
            found.push(unnamed);
        }
        found
    }

    /// Finds the names at the places of a stack, with one question for each file.
    pub fn prepare(&mut self, trace: &Trace, process: u32, places: &[Located]) {
        let mut files: HashMap<u32, Vec<u64>> = HashMap::default();
        for (file, offset) in places {
            let offsets = file.map(|file| files.entry(file).or_default());
            offsets.into_iter().for_each(|it| it.push(*offset));
        }
        for (file, offsets) in files {
            let path = &trace.paths[file as usize];
            self.find(path, &offsets, trace.processes[process as usize].process);
        }
    }

    /// The names at a return address in a file; none if the file has none.
    fn names(&mut self, path: &str, offset: u64, began: u64) -> Vec<Name> {
        self.find(path, &[offset], began);
        let place = (path.to_owned(), offset);
        let names = self.known.get(&place).cloned().unwrap_or_default();
        let bytes = |name: &Name| name.bytes() + path.len();
        match self.left.checked_sub(names.iter().map(bytes).sum()) {
            Some(left) => self.left = left,
            None => {
                self.nameless.insert(place.0, Why::TooMuch);
                return Vec::new();
            }
        }
        names
    }

    /// Asks for the names that are not known yet.
    fn find(&mut self, path: &str, offsets: &[u64], began: u64) {
        if path.len() > LONGEST || self.nameless.contains_key(path) {
            return;
        }
        let place = |&offset: &u64| (path.to_owned(), offset);
        let is_unknown = |offset: &u64| !self.known.contains_key(&place(offset));
        let offsets: Vec<u64> = offsets.iter().copied().filter(is_unknown).collect();
        if offsets.is_empty() {
            return;
        }
        let began = SystemTime::UNIX_EPOCH + Duration::from_nanos(began);
        let why = match self.names.at(path, offsets.clone(), began) {
            Some(Answer::Names(names, is_newer)) => {
                if is_newer && !self.changed.iter().any(|it| it == path) {
                    self.changed.push(path.to_owned());
                }
                self.known.extend(offsets.iter().map(place).zip(names));
                return;
            }
            Some(Answer::Unreadable) => Why::Unreadable,
            Some(Answer::Elsewhere) => Why::Elsewhere,
            None => Why::TooMuch,
        };
        self.nameless.insert(path.to_owned(), why);
    }

    /// The gaps and doubts in the names, in sentences.
    pub fn notes(&self) -> Vec<String> {
        let newer = self.changed.iter().map(|path| {
            format!("{path} was written after the trace had begun: functions and lines in it may be wrong.")
        });
        let without = |why| {
            let of = self.nameless.iter().filter(move |(_, it)| **it == why);
            let first = of.clone().map(|(path, _)| path).min()?;
            Some(match of.count() as u64 - 1 {
                0 => first.clone(),
                more => format!("{first} and {}", plural(more, "other file", "other files")),
            })
        };
        let too_much = without(Why::TooMuch).map(|files| {
            format!("No functions and lines from {files}: reading took too much memory or time.")
        });
        let elsewhere = without(Why::Elsewhere).map(|files| {
            format!(
                "No functions and lines from {files}: not on a file system of this machine. --modules=any reads \
                 files anywhere."
            )
        });
        newer.chain(too_much).chain(elsewhere).collect()
    }
}

impl Default for Resolver {
    fn default() -> Resolver {
        Resolver::new(Modules::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::symbols::Symbols;
    use std::path::Path;
    use std::process::Command;

    fn run(command: &str, arguments: &[&str]) -> String {
        let output = Command::new(command)
            .args(arguments)
            .output()
            .expect(command);
        assert!(output.status.success(), "{command}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[inline(never)]
    fn looked_up() -> u32 {
        line!()
    }

    #[test]
    fn a_function_of_rust_has_its_name_and_line() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = std::env::current_exe().unwrap().display().to_string();
        let first = maps.lines().find(|line| line.ends_with(&path)).unwrap();
        let bias = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
        let offset = looked_up as *const () as u64 - bias + 1;
        let callers = Resolver::default().resolve(Some(&path), offset, u64::MAX);
        let caller = callers.last().unwrap();
        let function = caller.function.as_deref().unwrap();
        assert!(
            function.ends_with("callers::tests::looked_up"),
            "{function}"
        );
        let source = caller.source.as_deref().unwrap();
        let (file, line) = source.rsplit_once(':').unwrap();
        assert!(file.ends_with("src/report/callers.rs"), "{file}");
        // The compiler chooses to which of the three lines the first instruction belongs.
        assert!(
            line.parse::<u32>().unwrap().abs_diff(looked_up()) <= 1,
            "{line}"
        );
    }

    #[test]
    fn debug_information_is_found_by_the_number_of_the_build() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../ctests/tool/callers.c");
        let (whole, stripped) = (path("whole"), path("stripped"));
        run(
            "cc",
            &["-g", "-Wl,--build-id=0xabcdef0123", source, "-o", &whole],
        );
        std::fs::create_dir_all(path(".build-id/ab")).unwrap();
        let debug = path(".build-id/ab/cdef0123.debug");
        run("objcopy", &["--only-keep-debug", &whole, &debug]);
        run("strip", &[&whole, "-o", &stripped]);
        let read =
            |path: &str, folder: &Path| Symbols::read(Path::new(path), folder, None).unwrap().0;
        let main = run("nm", &[&whole]);
        let main = main
            .lines()
            .find_map(|line| line.strip_suffix(" T main"))
            .unwrap();
        let offset = u64::from_str_radix(main, 16).unwrap() + 5;
        for (path, folder, has_lines) in [
            (&whole, Path::new("/nowhere"), true),
            (&stripped, folder.path(), true),
            (&stripped, Path::new("/nowhere"), false),
        ] {
            let symbols = read(path, folder);
            let mut frames = symbols.frames(offset).unwrap();
            assert_eq!(frames.next().unwrap().is_some(), has_lines, "{path}");
        }
        let mut resolver = Resolver::default();
        let mut only = |path: &str, offset| {
            let frames = resolver.resolve(Some(path), offset, u64::MAX);
            assert_eq!(frames.len(), 1, "{frames:?}");
            frames[0].clone()
        };
        assert_eq!(only(&whole, offset).function.as_deref(), Some("main"));
        assert_eq!(only(&stripped, offset).function, None);
        assert_eq!(only("linux-vdso.so.1", 5).place(), "linux-vdso.so.1+0x5");
    }

    /// The wrapper of ibv_reg_mr says nothing of who leaks.
    #[test]
    fn the_function_around_inlined_ones_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(path("cxx.cc"), CXX).unwrap();
        run(
            "c++",
            &[
                "-g",
                "-O1",
                "-shared",
                "-fPIC",
                &path("cxx.cc"),
                "-o",
                &path("cxx.so"),
            ],
        );
        std::fs::write(path("rust.rs"), RUST).unwrap();
        run(
            "rustc",
            &[
                "-g",
                "-O",
                "--crate-type=cdylib",
                &path("rust.rs"),
                "-o",
                &path("rust.so"),
            ],
        );
        for (file, inner) in [
            ("cxx.so", "Buffer::pin(void*)"),
            ("rust.so", "rust::Buffer::pin"),
        ] {
            let file = path(file);
            let names = run("nm", &[&file]);
            let leaks = names.lines().find_map(|line| line.strip_suffix(" T leaks"));
            let leaks = u64::from_str_radix(leaks.unwrap(), 16).unwrap();
            let mut resolver = Resolver::default();
            let mut at = |offset| resolver.resolve(Some(&file), leaks + offset, u64::MAX);
            let frames = (1..64).map(&mut at).find(|frames| frames.len() > 1);
            let names: Vec<_> = frames.unwrap().iter().map(Frame::name).collect();
            // The atomic store of Rust is inlined too.
            let outer = names.len() - 2;
            assert_eq!(names[outer..], [inner, "leaks"], "{file}");
        }
    }

    const CXX: &str = "void *volatile pinned;
struct Buffer {
    __attribute__((always_inline)) inline void pin(void *at) { pinned = at; }
};
extern \"C\" void leaks(void *at)
{
    Buffer buffer;
    buffer.pin(at);
}
";
    const RUST: &str = "use std::sync::atomic::{AtomicUsize, Ordering};
#[no_mangle]
pub static PINNED: AtomicUsize = AtomicUsize::new(0);
pub struct Buffer;
impl Buffer {
    #[inline(always)]
    fn pin(&self, at: usize) {
        PINNED.store(at, Ordering::SeqCst);
    }
}
#[no_mangle]
pub extern \"C\" fn leaks(at: usize) {
    Buffer.pin(at);
}
";

    #[test]
    fn the_text_prefers_frames_with_a_line() {
        let frame = |name: &str, source: Option<&str>| Frame {
            function: Some(name.to_string()),
            source: source.map(str::to_string),
            ..Frame::default()
        };
        let mut caller = Caller::default();
        assert_eq!(caller.beyond(), None);
        caller.stack = vec![frame("ffi_call+0x5", None), frame("start+0x1", None)];
        assert_eq!(caller.beyond().unwrap(), "ffi_call+0x5 < start+0x1");
        caller.stack.push(frame("send", Some("/folder/ring.py:5")));
        assert_eq!(caller.beyond().unwrap(), "send ring.py:5");
        caller.stack = vec![frame("f", None); SHOWN + 1];
        assert!(caller.beyond().unwrap().ends_with("f < ..."));
        // A line of Python leads, and the others follow.
        caller.frame = frame("reg_mr+0x9", None);
        let python = |name, source| Frame {
            is_python: true,
            ..frame(name, Some(source))
        };
        caller.stack = vec![
            frame("ffi_call+0x5", None),
            python("put", "/srv/kv.py:88"),
            python("main", "/srv/kv.py:5"),
        ];
        assert_eq!(caller.title(), "put kv.py:88");
        assert_eq!(super::super::text::who(&caller), "put kv.py:88  reg_mr+0x9");
        assert_eq!(caller.beyond().unwrap(), "main kv.py:5");
    }

    #[test]
    fn a_file_that_is_newer_than_the_trace_is_named() {
        let path = std::env::current_exe().unwrap().display().to_string();
        let mut resolver = Resolver::default();
        resolver.resolve(Some(&path), 1, 0);
        resolver.resolve(Some(&path), 2, 0);
        assert_eq!(resolver.changed, [path]);
    }
}
