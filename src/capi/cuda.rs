// SPDX-License-Identifier: MIT OR Apache-2.0
//! CUDA's calls that pin memory of the process, `cudaHostRegister` and `cuMemHostRegister`. CUDA's
//! driver populates that memory on one thread, as a registration does. With `RDMAMR_PREFAULT` the
//! threads of `prefault/` populate it before. Without it the calls are only passed on.
//!
//! # Safety
//! **Same contract**: each function passes its arguments, unchanged, to the next function of its name,
//! whose contract the C caller keeps.

#![cfg_attr(test, allow(dead_code, reason = "unit tests stand in for nothing"))]

use super::ret;
use core::cell::Cell;
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::num::NonZeroUsize;
use rdmamr_mr::around_host_register;
use rdmamr_sys::caller::Caller;
use rdmamr_sys::loaded_files::Object;
use rdmamr_sys::symbols::{self, Function, Scope};
use rdmamr_sys::thread;

type HostRegister = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;

/// `cudaErrorUnknown` and `CUDA_ERROR_UNKNOWN`: no loaded library has the function that the program
/// has called, which cannot be.
const UNKNOWN: c_int = 999;

/// `cudaHostRegisterIoMemory` and `CU_MEMHOSTREGISTER_IOMEMORY`: a device's memory, which has no pages.
const IO_MEMORY: c_uint = 4;
/// `cudaHostRegisterReadOnly` and `CU_MEMHOSTREGISTER_READ_ONLY`.
const READ_ONLY: c_uint = 8;

/// CUDA's libraries, and how their files' names begin. Wheels bring copies under names of their own.
const FILES: [(&CStr, &[u8]); 2] = [
    (c"libcudart.so.13", b"libcudart"),
    (c"libcuda.so.1", b"libcuda.so"),
];

/// The next function of that name. A program that loaded CUDA's library by dlopen(3) has it in a scope
/// of its own, which "next" does not reach. Of several such libraries it is the one that the caller's
/// file needs.
#[cold]
#[inline(never)]
fn next(
    name: &'static CStr,
    known: &Function<HostRegister>,
    caller: Caller,
) -> Option<HostRegister> {
    known.get().or_else(|| {
        let caller = NonZeroUsize::new(caller.address()).and_then(Object::with);
        let needed = |file: &Object| caller.is_some_and(|caller| caller.needs(file));
        let found = [true, false].iter().find_map(|&only_needed| {
            FILES.iter().find_map(|(soname, stem)| {
                let is_right = |file: &Object| !only_needed || needed(file);
                let file = Object::named(soname, stem, &is_right).ok()??;
                file.find(name, None)
            })
        });
        known.set(found);
        known.get()
    })
}

fn register(next: Option<HostRegister>, addr: *mut c_void, size: usize, flags: c_uint) -> c_int {
    let Some(next) = next else {
        return UNKNOWN;
    };
    let answer = Cell::new(None);
    let _uncancelled = thread::uncancelled();
    let call = || {
        // SAFETY: same contract.
        answer.set(Some(unsafe { next(addr, size, flags) }));
    };
    ret::always((), || {
        around_host_register(
            addr.addr(),
            size,
            flags & IO_MEMORY == 0,
            flags & READ_ONLY == 0,
            call,
        );
    });
    // After a panic before the call.
    // SAFETY: same contract.
    answer
        .get()
        .unwrap_or_else(|| unsafe { next(addr, size, flags) })
}

/// Takes over a call of CUDA.
macro_rules! host_register {
    ($symbol:ident, $name:literal, $next:ident) => {
        // SAFETY: cuda.h and cuda_runtime_api.h declare the function so.
        static $next: Function<HostRegister> = unsafe { Function::new() };

        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $symbol(addr: *mut c_void, size: usize, flags: c_uint) -> c_int {
            let caller = match $next.get() {
                Some(_) => Caller::UNKNOWN,
                None => Caller::of_caller(),
            };
            let next = ret::always(None, || next($name, &$next, caller));
            register(next, addr, size, flags)
        }
    };
}

host_register!(cudaHostRegister, c"cudaHostRegister", RUNTIME);
host_register!(cuMemHostRegister, c"cuMemHostRegister", DRIVER);
host_register!(cuMemHostRegister_v2, c"cuMemHostRegister_v2", DRIVER_2);

/// Looks up the next functions, if the program was started with CUDA's libraries.
pub fn find_next() {
    let next = |name| symbols::find(Scope::Next, name, None);
    RUNTIME.set(next(c"cudaHostRegister"));
    DRIVER.set(next(c"cuMemHostRegister"));
    DRIVER_2.set(next(c"cuMemHostRegister_v2"));
}
