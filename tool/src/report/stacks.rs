// SPDX-License-Identifier: MIT OR Apache-2.0
//! Callers with their call stacks: the functions at a stack's places, and Python's frames among them.
use super::callers::{Caller, Frame};
use super::units::name_of;
use crate::trace::{Located, PythonFrame, Stack};

/// The name of the function that runs Python's code, without the endings of its variants, and the
/// files that usually contain it: part of the function often has no symbol.
const INTERPRETER: &str = "_PyEval_EvalFrame";
const FILES: [&str; 2] = ["libpython3", "python3"];

impl Caller {
    /// The caller with the frames of a stack. `at` are the functions at the caller's address, the
    /// innermost inlined one first, and `frames` has those at an address. Python's frames replace the
    /// frames of the interpreter that runs them, and all frames outside of it.
    pub fn new(
        at: Vec<Frame>,
        beyond: Option<&Stack>,
        frames: impl FnMut(Located) -> Vec<Frame>,
    ) -> Caller {
        let mut stack = at;
        let frame = stack.remove(0);
        if let Some(beyond) = beyond {
            let native = beyond.native.iter().copied().flat_map(frames);
            let is_native = |frame: &Frame| beyond.python.is_empty() || !is_interpreter(frame);
            stack.extend(native.take_while(is_native));
            stack.extend(beyond.python.iter().map(of_python));
        }
        Caller { frame, stack }
    }
}

fn is_interpreter(frame: &Frame) -> bool {
    let file = frame.module.as_deref().map_or("", name_of);
    let function = frame.function.as_deref().unwrap_or_default();
    FILES.iter().any(|name| file.starts_with(name)) || function.starts_with(INTERPRETER)
}

fn of_python(frame: &PythonFrame) -> Frame {
    Frame {
        function: Some(frame.function.clone()),
        source: Some(format!("{}:{}", frame.file, frame.line)),
        is_python: true,
        ..Frame::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::callers::Resolver;
    use crate::report::shape::Report;
    use crate::sample::{Sample, Writer, file, register};
    use crate::trace::Trace;
    use rdmamr_trace_format::kind;

    fn named(name: &str) -> Frame {
        Frame {
            function: Some(name.to_string()),
            ..Frame::default()
        }
    }

    fn places(python: Vec<PythonFrame>) -> Stack {
        let native = [3, 2, 1, 0].map(|offset| (None, offset)).to_vec();
        Stack { native, python }
    }

    fn names(places: &Stack, functions: [&str; 4]) -> Vec<String> {
        let frames = |(_, offset): (_, u64)| vec![named(functions[offset as usize])];
        let caller = Caller::new(vec![named("wrapper")], Some(places), frames);
        caller.stack.iter().map(|frame| frame.words()).collect()
    }

    #[test]
    fn frames_of_python_take_the_place_of_the_interpreter() {
        let functions = ["main", "run", "_PyEval_EvalFrameDefault+0x7", "call_c"];
        let send = PythonFrame {
            line: 5,
            function: "send".to_string(),
            file: "/folder/ring.py".to_string(),
        };
        let python = places(vec![send]);
        assert_eq!(names(&python, functions), ["call_c", "send ring.py:5"]);
        let native = places(Vec::new());
        let all = ["call_c", functions[2], "run", "main"];
        assert_eq!(names(&native, functions), all);
        // If the function has no name, the file identifies it.
        let frames = |(_, offset)| {
            let module = [
                "/lib/app",
                "/lib/app",
                "/lib/libpython3.11.so.1",
                "/lib/ffi.so",
            ][offset as usize];
            vec![Frame {
                module: Some(module.to_string()),
                ..Frame::default()
            }]
        };
        let caller = Caller::new(vec![named("wrapper")], Some(&python), frames);
        assert_eq!(caller.stack.len(), 2);
    }

    #[test]
    fn inlined_functions_are_frames_of_the_stack() {
        let at = ["wrapper", "leaks"].map(named).to_vec();
        let frames = |(_, offset): (Option<u32>, u64)| match offset {
            3 => ["inner", "outer"].map(named).to_vec(),
            _ => vec![named("main")],
        };
        let caller = Caller::new(at.clone(), Some(&places(Vec::new())), frames);
        assert_eq!(caller.frame.name(), "wrapper");
        let beyond = "leaks < inner < outer < main < main < main";
        assert_eq!(caller.beyond().as_deref(), Some(beyond));
        // Also of a call without a stack in the trace.
        let caller = Caller::new(at, None, frames);
        assert_eq!(caller.beyond().as_deref(), Some("leaks"));
    }

    #[test]
    fn callers_are_told_apart_by_their_stacks() {
        let stack = |number: u32, addresses: &[u64]| {
            let head = [number, addresses.len() as u32]
                .map(u32::to_le_bytes)
                .concat();
            let addresses: Vec<u8> = addresses.iter().flat_map(|at| at.to_le_bytes()).collect();
            [head, addresses].concat()
        };
        let mut sample = Sample::default();
        let mut writer = Writer::new(7);
        writer.start(&mut sample, "./app");
        writer.block(&mut sample, kind::STACK, &stack(9, &[0x1000, 0x2000]));
        writer.block(&mut sample, kind::STACK, &stack(4, &[0x1000, 0x3000]));
        // The same as the first.
        writer.block(&mut sample, kind::STACK, &stack(5, &[0x1000, 0x2000]));
        let calls: Vec<_> = (1..=4)
            .map(|n| register(n * 100_000, n as u32, n << 16, 4096))
            .collect();
        writer.calls_with_stacks(&mut sample, &calls, &[9, 4, 5, 0]);
        writer.end(&mut sample, 1_000_000);
        let (_folder, path) = file(&sample);
        let report = Report::new(
            &Trace::open(&path).unwrap(),
            &path,
            &mut Resolver::default(),
        )
        .unwrap();
        assert_eq!(report.totals.calls_with_stack, 3);
        let mut found: Vec<_> = report
            .callers
            .iter()
            .map(|row| (row.calls, row.caller.beyond()))
            .collect();
        found.sort();
        let beyond = |name: &str| Some(name.to_string());
        assert_eq!(
            found,
            [(1, None), (1, beyond("0x3000")), (2, beyond("0x2000"))]
        );
    }
}
