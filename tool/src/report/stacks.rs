// SPDX-License-Identifier: MIT OR Apache-2.0
//! Call stacks: each once, whatever number the processes gave it, and the frames of one as places
//! in files.
use super::callers::{Caller, Frame};
use crate::trace::{PythonFrame, Trace};
use rustc_hash::FxHashMap;

/// The most different stacks of a report.
const MOST: usize = 1 << 14;
/// How the function that runs Python's code is called, with its variants, and the file that it
/// usually is in: part of the function often has no symbol.
const INTERPRETER: &str = "_PyEval_EvalFrame";
const FILES: [&str; 2] = ["libpython3", "python3"];

/// The frames of a stack beyond the caller.
#[derive(Default, Hash, PartialEq, Eq)]
struct Places {
    native: Vec<(Option<u32>, u64)>,
    python: Vec<PythonFrame>,
}

/// The different stacks of a trace, numbered from 1.
#[derive(Default)]
pub struct Stacks {
    list: Vec<std::rc::Rc<Places>>,
    numbers: FxHashMap<std::rc::Rc<Places>, u32>,
    /// By process and its own number.
    known: FxHashMap<(u32, u32), u32>,
}

impl Stacks {
    /// The number of no stack.
    pub const NONE: u32 = 0;

    /// The number of a process's stack; [`Stacks::NONE`] if the trace has none.
    pub fn number(&mut self, trace: &Trace, process: u32, number: u32) -> u32 {
        if number == 0 {
            return Stacks::NONE;
        }
        if let Some(&known) = self.known.get(&(process, number)) {
            return known;
        }
        let new = self.add(trace, process, number);
        if self.known.len() < MOST {
            self.known.insert((process, number), new);
        }
        new
    }

    fn add(&mut self, trace: &Trace, process: u32, number: u32) -> u32 {
        let Some(stack) = trace.stack(process, number) else {
            return Stacks::NONE;
        };
        // The first is the caller.
        let beyond = stack.addresses.iter().skip(1);
        let place = |&address: &u64| match trace.locate(process, stack.modules, address) {
            Some((path, offset)) => (Some(path), offset),
            None => (None, address),
        };
        let places = std::rc::Rc::new(Places {
            native: beyond.map(place).collect(),
            python: stack.python,
        });
        if let Some(&known) = self.numbers.get(&places) {
            return known;
        }
        if self.list.len() >= MOST {
            return Stacks::NONE;
        }
        self.list.push(places.clone());
        let number = self.list.len() as u32;
        self.numbers.insert(places, number);
        number
    }

    /// The caller with the frames of a stack. Python's frames stand in the place of the interpreter
    /// that runs them, and of all that is outside of it.
    pub fn caller(
        &self,
        place: Frame,
        number: u32,
        mut frame: impl FnMut(Option<u32>, u64) -> Frame,
    ) -> Caller {
        let mut stack = Vec::new();
        if let Some(places) = (number as usize)
            .checked_sub(1)
            .and_then(|at| self.list.get(at))
        {
            let native = places.native.iter();
            let native = native.map(|&(path, offset)| frame(path, offset));
            let is_native = |frame: &Frame| places.python.is_empty() || !is_interpreter(frame);
            stack.extend(native.take_while(is_native));
            stack.extend(places.python.iter().map(of_python));
        }
        Caller { place, stack }
    }
}

fn is_interpreter(frame: &Frame) -> bool {
    let file = frame.module.as_deref().unwrap_or_default();
    let file = file.rsplit('/').next().unwrap_or_default();
    let function = frame.function.as_deref().unwrap_or_default();
    FILES.iter().any(|name| file.starts_with(name)) || function.starts_with(INTERPRETER)
}

fn of_python(frame: &PythonFrame) -> Frame {
    Frame {
        module: None,
        offset: 0,
        function: Some(frame.function.clone()),
        source: Some(format!("{}:{}", frame.file, frame.line)),
    }
}
