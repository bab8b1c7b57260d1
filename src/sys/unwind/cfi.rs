// SPDX-License-Identifier: MIT OR Apache-2.0
//! The description of frames in a file, `.eh_frame` of the Linux Standard Base, chapter 10.6, and
//! DWARF 4, chapter 6.4: as much of it as compilers use for the registers that a step needs.

use super::{Rule, way};
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
    fn unsigned(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..63).step_by(7) {
            let byte = self.u8()?;
            number |= u64::from(byte & 127) << shift;
            if byte & 128 == 0 {
                return Some(number);
            }
        }
        None
    }
    fn signed(&mut self) -> Option<i64> {
        let mut number = 0;
        for shift in (0..63).step_by(7) {
            let byte = self.u8()?;
            number |= i64::from(byte & 127) << shift;
            if byte & 128 == 0 {
                let unused = 64 - 7 - shift;
                return Some(number << unused >> unused);
            }
        }
        None
    }
    /// A pointer as `DW_EH_PE_...` encodes it: absolute, or from where it stands.
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
    /// The content of an entry, whose length stands first.
    fn entry(&mut self) -> Option<Bytes<'a>> {
        let length = self.u32()?;
        (length != 0 && length < 0xffff_fff0).then(|| self.skip(length))?
    }
}

/// The entry's address for the last function that begins at `address` or before.
fn find(mut table: Bytes, address: u64) -> Option<u64> {
    let base = table.at;
    let [version, pointer, count, entry] = table.take()?;
    // What all linkers write: a count of 4 bytes, and a sorted table from its own start.
    if (version, count, entry) != (1, 0x03, 0x3b) {
        return None;
    }
    table.pointer(pointer)?;
    let count = table.u32()? as usize;
    let (rows, _) = table.rest.as_chunks::<8>();
    let number = |row: &[u8; 8], at: usize| {
        let bytes = [row[at], row[at + 1], row[at + 2], row[at + 3]];
        base.wrapping_add(i64::from(i32::from_le_bytes(bytes)) as u64)
    };
    let rows = rows.get(..count)?;
    let after = rows.partition_point(|row| number(row, 0) <= address);
    Some(number(rows.get(after.checked_sub(1)?)?, 4))
}

/// What entries of functions share.
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

/// Where a register of the caller is.
#[derive(Clone, Copy, PartialEq)]
enum Saved {
    Kept,
    /// So far from the frame's end.
    At(i64),
    /// At the frame pointer.
    AtBp,
    Undefined,
    Unknown,
}

/// The end of a frame: a register and a distance, or what is in memory so far from the frame
/// pointer.
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

/// Runs a program from `start` up to the row of `address`.
fn run(
    common: &Common,
    mut program: Bytes,
    initial: Option<Row>,
    start: u64,
    address: u64,
) -> Option<Row> {
    let initial_row = initial.unwrap_or(Row::EMPTY);
    let mut row = initial_row;
    let mut remembered = [Row::EMPTY; 8];
    let mut depth = 0usize;
    let mut at = start;
    while !program.rest.is_empty() {
        let code = program.u8()?;
        let low = u64::from(code & 0x3f);
        let factored = |number: u64| (number as i64).wrapping_mul(common.data_unit);
        let mut advance = None;
        match (code & 0xc0, code) {
            (0x40, _) => advance = Some(low),
            (0x80, _) => row.set(low, Saved::At(factored(program.unsigned()?))),
            (0xc0, _) => restore(&mut row, &initial_row, low),
            (_, 0x00) => {}
            (_, 0x01) => {
                at = program.pointer(common.encoding)?;
                advance = Some(0);
            }
            (_, 0x02) => advance = Some(program.u8()?.into()),
            (_, 0x03) => advance = Some(program.u16()?),
            (_, 0x04) => advance = Some(program.u32()?),
            (_, 0x05) => {
                let register = program.unsigned()?;
                row.set(register, Saved::At(factored(program.unsigned()?)));
            }
            (_, 0x06) => restore(&mut row, &initial_row, program.unsigned()?),
            (_, 0x07) => row.set(program.unsigned()?, Saved::Undefined),
            (_, 0x08) => row.set(program.unsigned()?, Saved::Kept),
            (_, 0x09 | 0x14) => {
                let register = program.unsigned()?;
                program.unsigned()?;
                row.set(register, Saved::Unknown);
            }
            (_, 0x0a) => {
                *remembered.get_mut(depth)? = row;
                depth += 1;
            }
            (_, 0x0b) => {
                depth = depth.checked_sub(1)?;
                row = *remembered.get(depth)?;
            }
            (_, 0x0c) => {
                let register = program.unsigned()?;
                row.end = End::By(register, program.unsigned()? as i64);
            }
            (_, 0x0d) => {
                let register = program.unsigned()?;
                row.end = match row.end {
                    End::By(_, distance) => End::By(register, distance),
                    _ => return None,
                };
            }
            (_, 0x0e) => row.set_distance(program.unsigned()? as i64),
            (_, 0x0f) => {
                let length = program.unsigned()?;
                let expression = program.skip(length)?;
                row.end = of_bp(expression, true).map_or(End::Unknown, End::InMemory);
            }
            (_, 0x10) => {
                let register = program.unsigned()?;
                let length = program.unsigned()?;
                let at_bp = of_bp(program.skip(length)?, false) == Some(0);
                let saved = if at_bp { Saved::AtBp } else { Saved::Unknown };
                row.set(register, saved);
            }
            (_, 0x11) => {
                let register = program.unsigned()?;
                let offset = program.signed()?.wrapping_mul(common.data_unit);
                row.set(register, Saved::At(offset));
            }
            (_, 0x12) => {
                let register = program.unsigned()?;
                let distance = program.signed()?.wrapping_mul(common.data_unit);
                row.end = End::By(register, distance);
            }
            (_, 0x13) => row.set_distance(program.signed()?.wrapping_mul(common.data_unit)),
            (_, 0x15) => {
                let register = program.unsigned()?;
                program.signed()?;
                row.set(register, Saved::Unknown);
            }
            (_, 0x16) => {
                let register = program.unsigned()?;
                let length = program.unsigned()?;
                program.skip(length)?;
                row.set(register, Saved::Unknown);
            }
            (_, 0x2e) => _ = program.unsigned()?,
            _ => return None,
        }
        if let Some(units) = advance {
            at = at.wrapping_add(units.wrapping_mul(common.code_unit));
            if at > address {
                break;
            }
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
    let initial = run(&common, common.program, None, begin, u64::MAX)?;
    run(&common, content, Some(initial), begin, address)?.rule()
}
