// SPDX-License-Identifier: MIT OR Apache-2.0
//! A step from a frame to its caller's, as one number.

/// How to get from a frame to its caller's, for one address of code. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule(u64);

/// The ways of [`Rule`]; the numbers' order has no meaning.
pub mod way {
    /// This frame is the outermost.
    pub const END: u64 = 1;
    /// The frame ends at a distance in bytes from the stack pointer, or from the frame pointer.
    pub const BY_SP: u64 = 2;
    pub const BY_BP: u64 = 3;
    /// Its end is in memory, below the frame pointer: the function has aligned its frame.
    pub const ALIGNED: u64 = 4;
    /// The kernel has saved on the stack the registers of the code that a signal interrupted.
    pub const SIGNAL: u64 = 5;
    /// The code has no description.
    pub const POINTERS: u64 = 6;
}

impl Rule {
    /// The outermost frame.
    pub const END: Rule = Rule(way::END);
    pub const SIGNAL: Rule = Rule(way::SIGNAL);
    /// A frame of code without a description.
    pub const POINTERS: Rule = Rule(way::POINTERS);
    const BITS: u32 = 30;
    const MASK: u64 = (1 << Rule::BITS) - 1;
    /// Stands for a frame pointer that the function does not preserve.
    pub const LOST: i64 = 1;

    /// `None` if a number is too large.
    pub fn new(way: u64, end: i64, bp: i64) -> Option<Rule> {
        let pack = |number: i64| {
            let packed = number as u64 & Rule::MASK;
            (unpack(packed) == number).then_some(packed)
        };
        Some(Rule(way | pack(end)? << 4 | pack(bp)? << (4 + Rule::BITS)))
    }

    /// The rule that [`Rule::number`] gave.
    pub fn of(number: u64) -> Option<Rule> {
        (number != 0).then_some(Rule(number))
    }

    /// The rule as a number. Never 0.
    pub fn number(self) -> u64 {
        self.0
    }

    pub fn way(self) -> u64 {
        self.0 & 15
    }

    pub fn end(self) -> u64 {
        unpack(self.0 >> 4 & Rule::MASK) as u64
    }

    /// The offset of the caller's frame pointer from the end of the frame; 0: it is in its
    /// register.
    pub fn bp(self) -> i64 {
        unpack(self.0 >> (4 + Rule::BITS))
    }

    /// Whether the frame outside of this one was interrupted by a signal.
    pub fn is_signal(self) -> bool {
        self == Rule::SIGNAL
    }
}

fn unpack(packed: u64) -> i64 {
    (packed << (64 - Rule::BITS)) as i64 >> (64 - Rule::BITS)
}
