// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::loaded_files;
use core::ops::ControlFlow;

fn files() -> Vec<FileCode> {
    let mut files = Vec::new();
    loaded_files::each(|file| {
        files.push(FileCode::of(file));
        ControlFlow::Continue(())
    });
    files
}

/// The return addresses of this stack, from the function that calls this outwards.
#[inline(never)]
fn walk() -> Vec<u64> {
    let files = files();
    let file = |address| files.iter().find(|file| file.has(address));
    let mut memory = Reader::new();
    let mut at = Registers::here();
    let mut found = Vec::new();
    for _ in 0..200 {
        let rule = match file(at.code()) {
            Some(file) => file.rule(at.code()).unwrap_or(Rule::END),
            None => Rule::POINTERS,
        };
        match at.step(rule, &mut memory, |address| file(address).is_some()) {
            Some(next) => at = next,
            None => break,
        }
        found.push(at.return_address());
    }
    found
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_walk_meets_the_frames_that_std_meets_and_ends() {
    let ours = walk();
    let known = std::backtrace::Backtrace::force_capture().to_string();
    let frames = known.lines().filter(|line| line.contains(": ")).count();
    // std's own has some more at its beginning, and no frame for an inlined function.
    assert!(
        ours.len() >= 8 && ours.len() < 200,
        "{} and {frames}: {known}",
        ours.len()
    );
    let here = the_walk_meets_the_frames_that_std_meets_and_ends as *const () as u64;
    assert!((here..here + 4096).contains(&ours[0]), "{here:x} {ours:x?}");
    // The outermost is the start of a thread, in the C library.
    let start = files();
    let last = ours.last().copied().unwrap_or(0);
    assert!(start.iter().any(|file| file.has(last)), "{last:x}");
}

#[test]
fn a_rule_keeps_its_numbers() {
    for (end, bp) in [(8, 0), (-8, -16), (1 << 28, Rule::LOST), (-(1 << 29), 40)] {
        let rule = Rule::new(way::BY_BP, end, bp).unwrap();
        assert_eq!((rule.end() as i64, rule.bp()), (end, bp));
        assert_eq!(rule.number() & 15, way::BY_BP);
        assert_eq!(Rule::of(rule.number()), Some(rule));
    }
    assert_eq!(Rule::new(way::BY_SP, 1 << 29, 0), None);
    assert_eq!(Rule::of(0), None);
}

#[test]
fn a_frame_that_does_not_lie_above_ends_the_walk() {
    let words = [0u64, 1, 2, 3];
    let sp = words.as_ptr().expose_provenance() as u64;
    let at = Registers {
        ip: 1,
        sp,
        bp: sp,
        exact: false,
        off_chain: false,
    };
    let step = |rule| {
        let next = at.step(rule, &mut Reader::new(), |_| true)?;
        Some((next.ip, next.sp - sp))
    };
    let by_sp = |end| Rule::new(way::BY_SP, end, 0).unwrap();
    assert_eq!(step(by_sp(16)), Some((1, 16)));
    assert_eq!(step(by_sp(0)), None);
    assert_eq!(step(by_sp(-8)), None);
    // A return address of 0.
    assert_eq!(step(by_sp(8)), None);
    assert_eq!(step(by_sp(1 << 28)), None);
    assert_eq!(step(Rule::END), None);
}

#[test]
fn pointers_lead_to_code_only_and_up() {
    let mut words = [0u64; 8];
    let sp = words.as_mut_ptr().expose_provenance() as u64;
    let at = Registers {
        ip: 1,
        sp: sp + 16,
        bp: sp,
        exact: false,
        off_chain: false,
    };
    words[..4].copy_from_slice(&[sp + 16, 77, sp, 78]);
    std::hint::black_box(&words);
    let step = |at: Registers, code| at.step(Rule::POINTERS, &mut Reader::new(), |at| at == code);
    assert!(step(at, 0).is_none());
    // The first frame may lie elsewhere: another stack made the call.
    let at = step(at, 77).unwrap();
    assert_eq!((at.ip, at.bp, at.sp), (77, sp + 16, sp + 16));
    let at = step(at, 78).unwrap();
    assert_eq!((at.ip, at.bp), (78, sp));
    assert!(step(at, 77).is_none());
}

#[test]
fn fuzz_descriptions_of_frames() {
    // This program's own, as the linker has mapped it.
    let file = files()
        .into_iter()
        .find(|file| file.table.is_some())
        .unwrap();
    let (table, whole) = file.table.clone().unwrap();
    let address = walk as *const () as u64;
    // SAFETY: the linker has mapped these bytes readable, and the program stays loaded.
    let bytes = unsafe {
        let start = core::ptr::with_exposed_provenance::<u8>(whole.start as usize);
        core::slice::from_raw_parts(start, (whole.end - whole.start) as usize)
    };
    assert!(cfi::rule(bytes, whole.start, &table, address).is_some());
    let from = (table.start - whole.start) as usize;
    let part = &bytes[from..bytes.len().min(from + (1 << 14))];
    let table = table.start..(table.start + 4096).min(table.end);
    crate::fuzz_inputs::each(
        "fuzz_descriptions_of_frames",
        200,
        &[part],
        |input, random| {
            let mut input = input.to_vec();
            // The counts at the front stay what they are in most rounds.
            for _ in 0..random.below(40) {
                let at = random.below(input.len().max(1));
                if let Some(byte) = input.get_mut(at) {
                    *byte = random.next() as u8;
                }
            }
            let _ = cfi::rule(&input, table.start, &table, address);
        },
    );
}
