// SPDX-License-Identifier: MIT OR Apache-2.0
//! The description of frames in a file, `.eh_frame` of the Linux Standard Base, chapter 10.6, and
//! DWARF 4, chapter 6.4: as much of it as compilers use for the registers that a step needs.

use super::rule::{Rule, way};
use core::ops::Range;

/// The processor's numbers in DWARF.
const BP: u64 = 6;
const SP: u64 = 7;
const RETURN: u64 = 16;

/// Bytes that are read from the front; `at` is the address of the next.
#[derive(Clone, Copy)]
struct Bytes<'a> {
    rest: &'a [u8],
    at: u64,
}

impl<'a> Bytes<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        self.at += N as u64;
        Some(*taken)
    }
    fn u8(&mut self) -> Option<u8> {
        Some(self.take::<1>()?[0])
    }
    fn u16(&mut self) -> Option<u64> {
        Some(u16::from_le_bytes(self.take()?).into())
    }
    fn u32(&mut self) -> Option<u64> {
        Some(u32::from_le_bytes(self.take()?).into())
    }
    fn i32(&mut self) -> Option<i64> {
        Some(i32::from_le_bytes(self.take()?).into())
    }
    fn skip(&mut self, bytes: u64) -> Option<Bytes<'a>> {
        let (skipped, rest) = self.rest.split_at_checked(usize::try_from(bytes).ok()?)?;
        let before = Bytes {
            rest: skipped,
            at: self.at,
        };
        self.rest = rest;
        self.at += bytes;
        Some(before)
    }
    /// A number in groups of seven bits, and how many bits the groups have.
    #[inline(never)]
    fn groups(&mut self) -> Option<(u64, u32)> {
        let (mut number, mut bits) = (0, 0);
        while bits < 63 {
            let byte = self.u8()?;
            number |= u64::from(byte & 127) << bits;
            bits += 7;
            if byte & 128 == 0 {
                return Some((number, bits));
            }
        }
        None
    }
    fn unsigned(&mut self) -> Option<u64> {
        Some(self.groups()?.0)
    }
    fn signed(&mut self) -> Option<i64> {
        let (number, bits) = self.groups()?;
        let unused = 64 - bits;
        Some((number << unused) as i64 >> unused)
    }
    /// A pointer as `DW_EH_PE_...` encodes it: absolute, or relative to its own address.
    fn pointer(&mut self, encoding: u8) -> Option<u64> {
        let here = self.at;
        let number = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => u64::from_le_bytes(self.take()?),
            0x01 => self.unsigned()?,
            0x02 => self.u16()?,
            0x03 => self.u32()?,
            0x0a => i64::from(i16::from_le_bytes(self.take()?)) as u64,
            0x0b => self.i32()? as u64,
            _ => return None,
        };
        match encoding & 0x70 {
            0x00 => Some(number),
            0x10 => Some(here.wrapping_add(number)),
            _ => None,
        }
    }
    /// The content of an entry, which begins with its length.
    fn entry(&mut self) -> Option<Bytes<'a>> {
        let length = self.u32()?;
        (length != 0 && length < 0xffff_fff0).then(|| self.skip(length))?
    }
}

/// The entry's address for the last function that begins at `address` or before.
fn find(mut table: Bytes, address: u64) -> Option<u64> {
    let base = table.at;
    let [version, pointer, count, entry] = table.take()?;
    // All linkers write a count of 4 bytes, and a sorted table that is relative to its own start.
    if (version, count, entry) != (1, 0x03, 0x3b) {
        return None;
    }
    table.pointer(pointer)?;
    let count = table.u32()? as usize;
    let rows = table.rest.get(..count.checked_mul(8)?)?;
    let number = |row: usize, at: usize| {
        let bytes = rows.get(row * 8 + at..)?.first_chunk()?;
        Some(base.wrapping_add(i64::from(i32::from_le_bytes(*bytes)) as u64))
    };
    let (mut after, mut end) = (0, count);
    while after < end {
        let middle = after.midpoint(end);
        if number(middle, 0)? <= address {
            after = middle + 1;
        } else {
            end = middle;
        }
    }
    number(after.checked_sub(1)?, 4)
}

/// The data that the entries of functions share.
struct Common<'a> {
    code_unit: u64,
    data_unit: i64,
    /// The encoding of addresses.
    encoding: u8,
    /// The entries have a length of further data.
    has_length: bool,
    is_signal: bool,
    program: Bytes<'a>,
}

impl<'a> Common<'a> {
    fn read(mut bytes: Bytes<'a>) -> Option<Common<'a>> {
        let mut content = bytes.entry()?;
        if content.u32()? != 0 {
            return None;
        }
        let version = content.u8()?;
        let end = content.rest.iter().position(|&byte| byte == 0)?;
        let words = content.skip(end as u64)?.rest;
        content.u8()?;
        let code_unit = content.unsigned()?;
        let data_unit = content.signed()?;
        let register = match version {
            1 => content.u8()?.into(),
            _ => content.unsigned()?,
        };
        let mut common = Common {
            code_unit,
            data_unit,
            encoding: 0,
            has_length: false,
            is_signal: false,
            program: content,
        };
        if register != RETURN {
            return None;
        }
        if let Some((b'z', words)) = words.split_first() {
            common.has_length = true;
            let length = content.unsigned()?;
            let mut data = content.skip(length)?;
            for word in words {
                match word {
                    b'R' => common.encoding = data.u8()?,
                    b'L' => _ = data.u8()?,
                    b'S' => common.is_signal = true,
                    b'P' => {
                        let encoding = data.u8()?;
                        data.pointer(encoding & 0x0f)?;
                    }
                    _ => return None,
                }
            }
        } else if !words.is_empty() {
            return None;
        }
        common.program = content;
        Some(common)
    }
}

/// The place of a register of the caller.
#[derive(Clone, Copy, PartialEq)]
enum Saved {
    Kept,
    /// At this distance from the frame's end.
    At(i64),
    /// At the frame pointer.
    AtBp,
    Undefined,
    Unknown,
}

/// The end of a frame: a register and a distance, or a value in memory at this distance from the
/// frame pointer.
#[derive(Clone, Copy)]
enum End {
    By(u64, i64),
    InMemory(i64),
    Unknown,
}

#[derive(Clone, Copy)]
struct Row {
    end: End,
    bp: Saved,
    return_address: Saved,
}

impl Row {
    const EMPTY: Row = Row {
        end: End::Unknown,
        bp: Saved::Kept,
        return_address: Saved::Unknown,
    };

    fn set(&mut self, register: u64, saved: Saved) {
        match register {
            BP => self.bp = saved,
            RETURN => self.return_address = saved,
            _ => {}
        }
    }

    fn set_distance(&mut self, distance: i64) {
        if let End::By(_, before) = &mut self.end {
            *before = distance;
        }
    }

    fn rule(&self) -> Option<Rule> {
        match self.return_address {
            Saved::Undefined => return Some(Rule::END),
            Saved::At(-8) => {}
            _ => return None,
        }
        let bp = match self.bp {
            Saved::Kept => 0,
            Saved::At(offset) => offset,
            // Any number but 0 and LOST: a rule of this way has one place only.
            Saved::AtBp => -16,
            Saved::Undefined | Saved::Unknown => Rule::LOST,
        };
        match self.end {
            End::By(SP, distance) if self.bp != Saved::AtBp => Rule::new(way::BY_SP, distance, bp),
            End::By(BP, distance) if self.bp != Saved::AtBp => Rule::new(way::BY_BP, distance, bp),
            End::InMemory(distance) if self.bp == Saved::AtBp => {
                Rule::new(way::ALIGNED, distance, bp)
            }
            _ => None,
        }
    }
}

/// An expression `*(bp + n)`, or `bp + n` without `deref`.
fn of_bp(mut expression: Bytes, deref: bool) -> Option<i64> {
    const BREG_BP: u8 = 0x70 + BP as u8;
    const DEREF: u8 = 0x06;
    (expression.u8()? == BREG_BP).then_some(())?;
    let offset = expression.signed()?;
    let rest: &[u8] = if deref { &[DEREF] } else { &[] };
    (expression.rest == rest).then_some(offset)
}

/// The operands that follow an instruction's byte.
#[derive(Clone, Copy, PartialEq)]
enum Operands {
    None,
    Advance(u8),
    Address,
    Number,
    Signed,
    Block,
    Register,
    RegisterNumber,
    RegisterSigned,
    RegisterBlock,
}

/// The operands of the instructions that are numbered from 0.
const OPERANDS: [Operands; 0x17] = {
    use Operands::*;
    [
        None,
        Address,
        Advance(1),
        Advance(2),
        Advance(4),
        RegisterNumber,
        Register,
        Register,
        Register,
        RegisterNumber,
        None,
        None,
        RegisterNumber,
        Register,
        Number,
        Block,
        RegisterBlock,
        RegisterSigned,
        RegisterSigned,
        Signed,
        RegisterNumber,
        RegisterSigned,
        RegisterBlock,
    ]
};
const SIZE_OF_ARGUMENTS: u8 = 0x2e;

/// Runs a program from `start` up to the row of `address`.
#[inline(never)]
fn run(common: &Common, mut program: Bytes, initial: Row, start: u64, address: u64) -> Option<Row> {
    use Operands::*;
    let mut row = initial;
    let mut remembered = [Row::EMPTY; 8];
    let mut depth = 0usize;
    let mut at = start;
    while !program.rest.is_empty() {
        let code = program.u8()?;
        let low = u64::from(code & 0x3f);
        // The three instructions with an operand in their own byte are treated as those that they
        // abbreviate.
        let (code, operands, mut register) = match code >> 6 {
            1 => (0x02, None, 0),
            2 => (0x05, Number, low),
            3 => (0x06, None, low),
            _ if code == SIZE_OF_ARGUMENTS => (code, Number, 0),
            _ => (code, *OPERANDS.get(usize::from(code))?, 0),
        };
        if matches!(
            operands,
            Register | RegisterNumber | RegisterSigned | RegisterBlock
        ) {
            register = program.unsigned()?;
        }
        let number = match operands {
            Number | RegisterNumber | Block | RegisterBlock => program.unsigned()? as i64,
            Signed | RegisterSigned => program.signed()?,
            Address => program.pointer(common.encoding)? as i64,
            Advance(1) => program.u8()?.into(),
            Advance(2) => program.u16()? as i64,
            Advance(_) => program.u32()? as i64,
            None => low as i64,
            Register => 0,
        };
        let block = match operands {
            Block | RegisterBlock => program.skip(number as u64)?,
            _ => Bytes { rest: &[], at: 0 },
        };
        let scaled = number.wrapping_mul(common.data_unit);
        match code {
            0x01..=0x04 => {
                at = match code {
                    0x01 => number as u64,
                    _ => at.wrapping_add((number as u64).wrapping_mul(common.code_unit)),
                };
                if at > address {
                    break;
                }
            }
            0x05 | 0x11 => row.set(register, Saved::At(scaled)),
            0x06 => restore(&mut row, &initial, register),
            0x07 => row.set(register, Saved::Undefined),
            0x08 => row.set(register, Saved::Kept),
            0x09 | 0x14..=0x16 => row.set(register, Saved::Unknown),
            0x0a => {
                *remembered.get_mut(depth)? = row;
                depth += 1;
            }
            0x0b => {
                depth = depth.checked_sub(1)?;
                row = *remembered.get(depth)?;
            }
            0x0c => row.end = End::By(register, number),
            0x0d => {
                row.end = match row.end {
                    End::By(_, distance) => End::By(register, distance),
                    _ => return Option::None,
                };
            }
            0x0e => row.set_distance(number),
            0x0f => row.end = of_bp(block, true).map_or(End::Unknown, End::InMemory),
            0x10 => {
                let at_bp = of_bp(block, false) == Some(0);
                row.set(register, if at_bp { Saved::AtBp } else { Saved::Unknown });
            }
            0x12 => row.end = End::By(register, scaled),
            0x13 => row.set_distance(scaled),
            _ => {}
        }
    }
    Some(row)
}

fn restore(row: &mut Row, initial: &Row, register: u64) {
    match register {
        BP => row.bp = initial.bp,
        RETURN => row.return_address = initial.return_address,
        _ => {}
    }
}

/// The rule for an address, from the mapping at `start` that has the table and the entries.
pub fn rule(mapping: &[u8], start: u64, table: &Range<u64>, address: u64) -> Option<Rule> {
    let at = |place: u64| {
        let offset = usize::try_from(place.checked_sub(start)?).ok()?;
        Some(Bytes {
            rest: mapping.get(offset..)?,
            at: place,
        })
    };
    let mut rows = at(table.start)?;
    let rows = rows.skip(table.end - table.start)?;
    let Some(place) = find(rows, address) else {
        return Some(Rule::POINTERS);
    };
    let mut content = at(place)?.entry()?;
    let here = content.at;
    let common = Common::read(at(here.checked_sub(content.u32()?)?)?)?;
    let begin = content.pointer(common.encoding)?;
    let length = content.pointer(common.encoding & 0x0f)?;
    if address.wrapping_sub(begin) >= length {
        return Some(Rule::POINTERS);
    }
    if common.is_signal {
        return Some(Rule::SIGNAL);
    }
    if common.has_length {
        let length = content.unsigned()?;
        content.skip(length)?;
    }
    let initial = run(&common, common.program, Row::EMPTY, begin, u64::MAX)?;
    run(&common, content, initial, begin, address)?.rule()
}
