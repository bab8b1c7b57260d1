// SPDX-License-Identifier: MIT OR Apache-2.0
//! The call stacks of a trace: [`kind::STACK`](rdmamr_trace_format::kind::STACK).

use super::Located;

/// The most frames of a stack; no writer has as many.
const MOST_FRAMES: usize = 256;

/// The frames of a call stack beyond the caller, the innermost first.
#[derive(Hash, PartialEq, Eq)]
pub struct Stack {
    /// The places of return addresses.
    pub native: Vec<Located>,
    pub python: Vec<PythonFrame>,
}

/// A frame of Python.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct PythonFrame {
    pub line: u32,
    pub function: String,
    pub file: String,
}

impl PythonFrame {
    fn parse(line: &str) -> Option<PythonFrame> {
        let mut parts = line.splitn(3, ' ');
        Some(PythonFrame {
            line: parts.next()?.parse().ok()?,
            function: parts.next()?.to_string(),
            file: parts.next()?.to_string(),
        })
    }
}

impl Stack {
    pub fn parse(bytes: &[u8], locate: impl Fn(u64) -> Located) -> Option<Stack> {
        // The caller has the number.
        let (_, bytes) = bytes.split_at_checked(4)?;
        let (frames, bytes) = bytes.split_first_chunk()?;
        let frames = u32::from_le_bytes(*frames) as usize;
        let (addresses, text) = bytes.split_at_checked(frames.checked_mul(8)?)?;
        let addresses = addresses.chunks_exact(8).map(<[u8; 8]>::try_from);
        let addresses = addresses.flatten().map(u64::from_le_bytes);
        let text = String::from_utf8_lossy(text);
        let python = text.lines().filter_map(PythonFrame::parse);
        // The first is the caller.
        let beyond = addresses.take(MOST_FRAMES).skip(1);
        Some(Stack {
            native: beyond.map(locate).collect(),
            python: python.take(MOST_FRAMES).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_read_and_a_damaged_one_is_not() {
        let mut bytes = [7u32, 2].map(u32::to_le_bytes).concat();
        bytes.extend([0x10u64, 0x20].map(u64::to_le_bytes).concat());
        bytes.extend(b"12 Ring.send /a folder/ring.py\nnonsense\n0 <module> run.py\n");
        let parse = |bytes: &[u8]| Stack::parse(bytes, |address| (Some(3), address));
        let stack = parse(&bytes).unwrap();
        assert_eq!(stack.native, [(Some(3), 0x20)]);
        let frame = |line, function: &str, file: &str| PythonFrame {
            line,
            function: function.to_string(),
            file: file.to_string(),
        };
        let expected = [
            frame(12, "Ring.send", "/a folder/ring.py"),
            frame(0, "<module>", "run.py"),
        ];
        assert_eq!(stack.python, expected);
        for length in 0..24 {
            assert!(parse(&bytes[..length]).is_none(), "{length}");
        }
        bytes[4..8].fill(0xff);
        assert!(parse(&bytes).is_none());
    }
}
