// SPDX-License-Identifier: MIT OR Apache-2.0
//! libFuzzer over a fuzz target: the compiler counts the places that the target reaches, and inputs
//! that reach new ones are stored and mutated further. `ctests/fuzz/targets` builds for it.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use super::Random;
// The linker drops the crate unless something names it.
use libfuzzer_sys as _;

type Target<'a> = dyn FnMut(&[u8], &mut Random) + 'a;

thread_local! {
    static TARGET: RefCell<Option<*mut Target<'static>>> = const { RefCell::new(None) };
}

unsafe extern "C" {
    /// LLVM's libFuzzer, "Using libFuzzer as a library".
    fn LLVMFuzzerRunDriver(
        argc: *mut c_int,
        argv: *mut *mut *mut c_char,
        one: extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
}

// A panic that leaves this function ends the process by SIGABRT, which libFuzzer catches to write
// the input.
extern "C" fn one(input: *const u8, length: usize) -> c_int {
    let target = TARGET.with_borrow(|target| target.unwrap());
    let input = match length {
        0 => &[],
        // SAFETY: libFuzzer passes a readable buffer of this length.
        _ => unsafe { std::slice::from_raw_parts(input, length) },
    };
    // The target's random numbers depend on the input: the same input does the same again.
    let mut seed = DefaultHasher::new();
    input.hash(&mut seed);
    // SAFETY: `run` keeps the target until the driver has returned, and calls come one by one.
    let target = unsafe { &mut *target };
    target(input, &mut Random::new(seed.finish()));
    0
}

/// libfuzzer-sys refers to this, for programs whose driver is given no function.
#[unsafe(no_mangle)]
extern "C" fn rust_fuzzer_test_input() -> c_int {
    unreachable!()
}

/// Runs the target of FUZZ_TARGET, with FUZZ_FOLDER for what is found, and libFuzzer's arguments of
/// FUZZ_ARGUMENTS. The samples are the first of the corpus. It does not return: libFuzzer exits.
pub fn run(name: &str, samples: &[&[u8]], target: &mut Target) {
    if std::env::var("FUZZ_TARGET").as_deref() != Ok(name) {
        return;
    }
    let folder = PathBuf::from(std::env::var("FUZZ_FOLDER").expect("FUZZ_FOLDER"));
    for (number, sample) in samples.iter().enumerate() {
        std::fs::write(folder.join(format!("sample{number}")), sample).unwrap();
    }
    let arguments = std::env::var("FUZZ_ARGUMENTS").unwrap_or_default();
    // What libFuzzer runs when it starts itself again.
    let itself = std::env::var("FUZZ_SELF").unwrap_or_else(|_| name.to_string());
    let arguments: Vec<CString> = [itself.as_str(), folder.to_str().unwrap()]
        .into_iter()
        .chain(arguments.split_whitespace())
        .map(|argument| CString::new(argument).unwrap())
        .collect();
    let mut argv: Vec<*mut c_char> = arguments
        .iter()
        .map(|one| one.as_ptr().cast_mut())
        .collect();
    let mut argc = argv.len() as c_int;
    argv.push(std::ptr::null_mut());
    let target: *mut Target = target;
    // SAFETY: only the lifetime changes, and nothing uses the pointer after `run`.
    let target = unsafe { std::mem::transmute::<*mut Target, *mut Target<'static>>(target) };
    TARGET.set(Some(target));
    // SAFETY: argc and argv are a program's, ended by a null pointer, and live until exit.
    let status = unsafe { LLVMFuzzerRunDriver(&mut argc, &mut argv.as_mut_ptr(), one) };
    std::process::exit(status);
}
