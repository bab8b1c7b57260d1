// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instructions of BPF, as many as the programs need, with labels for jumps.
//!
//! The set: <https://docs.kernel.org/bpf/standardization/instruction-set.html>.

/// An instruction, as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    code: u8,
    /// The destination in the lower half, the source in the upper.
    registers: u8,
    offset: i16,
    value: i32,
}

/// r0 is the result, r1 to r5 are arguments; a call keeps r6 to r9.
pub type Register = u8;

/// How much is loaded. The rest of the register becomes 0.
#[derive(Clone, Copy)]
pub enum Size {
    U16 = 0x69,
    U32 = 0x61,
    U64 = 0x79,
}

/// What is calculated in a register.
#[derive(Clone, Copy)]
pub enum Alu {
    Add = 0x00,
    Or = 0x40,
    And = 0x50,
    ShiftLeft = 0x60,
    Set = 0xb0,
}

/// The condition of a jump, of a register and a number.
#[derive(Clone, Copy)]
pub enum If {
    Equal = 0x15,
    NotEqual = 0x55,
    /// With a sign.
    Less = 0xc5,
}

/// A sequence of instructions.
#[derive(Default)]
pub struct Code {
    instructions: Vec<Instruction>,
    /// The jumps that lead to labels further down.
    jumps: Vec<(usize, &'static str)>,
}

impl Code {
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, value: i32) {
        self.instructions.push(Instruction {
            code,
            registers: from << 4 | to,
            offset,
            value,
        });
    }

    pub fn load(&mut self, size: Size, to: Register, from: Register, offset: i16) {
        self.push(size as u8, to, from, offset, 0);
    }

    pub fn store(&mut self, to: Register, offset: i16, from: Register) {
        self.push(0x7b, to, from, offset, 0);
    }

    /// Adds to the number in memory, and sets the register to the old one. That orders the addition
    /// after all before it and before all after it, on arm64 too.
    pub fn fetch_add(&mut self, to: Register, offset: i16, from: Register) {
        self.push(0xdb, to, from, offset, 1);
    }

    /// Calculates with a number.
    pub fn alu(&mut self, operation: Alu, to: Register, value: i32) {
        self.push(operation as u8 | 0x07, to, 0, 0, value);
    }

    /// Calculates with another register.
    pub fn alu_by(&mut self, operation: Alu, to: Register, from: Register) {
        self.push(operation as u8 | 0x0f, to, from, 0, 0);
    }

    pub fn call(&mut self, helper: i32) {
        self.push(0x85, 0, 0, 0, helper);
    }

    /// The address of the only element of the array that has this file.
    pub fn address_of_element(&mut self, to: Register, array: i32) {
        self.push(0x18, to, 2, 0, array);
        self.push(0, 0, 0, 0, 0);
    }

    /// The address of a variable of the kernel, by its number in BTF.
    pub fn address_of_variable(&mut self, to: Register, id: u32) {
        self.push(0x18, to, 3, 0, id as i32);
        self.push(0, 0, 0, 0, 0);
    }

    fn jump_by(&mut self, code: u8, to: Register, from: Register, value: i32, label: &'static str) {
        self.jumps.push((self.instructions.len(), label));
        self.push(code, to, from, 0, value);
    }

    pub fn jump(&mut self, label: &'static str) {
        self.jump_by(0x05, 0, 0, 0, label);
    }

    pub fn jump_if(&mut self, condition: If, register: Register, value: i32, label: &'static str) {
        self.jump_by(condition as u8, register, 0, value, label);
    }

    /// Jumps if two registers are equal.
    pub fn jump_if_same(&mut self, one: Register, other: Register, label: &'static str) {
        self.jump_by(0x1d, one, other, 0, label);
    }

    /// The jumps to this label so far lead here.
    pub fn label(&mut self, label: &'static str) {
        let here = self.instructions.len();
        for &(at, _) in self.jumps.iter().filter(|jump| jump.1 == label) {
            self.instructions[at].offset = (here - at - 1) as i16;
        }
        self.jumps.retain(|jump| jump.1 != label);
    }

    /// The end of a program, with a label.
    pub fn end(&mut self, label: &'static str) {
        self.label(label);
        self.alu(Alu::Set, 0, 0);
        self.push(0x95, 0, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_leads_to_its_label() {
        let mut code = Code::default();
        code.jump_if(If::Equal, 1, 0, "out");
        code.address_of_element(2, 7);
        code.jump("out");
        code.label("nowhere");
        code.alu(Alu::Set, 1, 1);
        code.end("out");
        let offsets: Vec<i16> = code.instructions().iter().map(|it| it.offset).collect();
        assert_eq!(offsets, [4, 0, 0, 1, 0, 0, 0]);
        assert!(code.jumps.is_empty());
    }
}
