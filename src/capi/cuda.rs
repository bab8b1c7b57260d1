// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of CUDA and HIP that pin memory of the process: `cudaHostRegister`, `cuMemHostRegister`
//! and `hipHostRegister`. The GPU's driver populates that memory on one thread, as a registration
//! does. With `RDMAMR_PREFAULT` the threads of `prefault/` populate it before. Without it the calls
//! are only passed on.
//!
//! # Safety
//! **Same contract**: each function passes its arguments, unchanged, to the next function of its name,
//! whose contract the C caller keeps.

use super::ret;
use core::cell::Cell;
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::num::NonZeroUsize;
use rdmamr_mr::around_host_register;
use rdmamr_sys::caller::Caller;
use rdmamr_sys::function::Function;
use rdmamr_sys::loaded_files::Object;
use rdmamr_sys::symbols::{Scope, find_each};
use rdmamr_sys::thread;

type HostRegister = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;

/// `cudaErrorUnknown`, `CUDA_ERROR_UNKNOWN` and `hipErrorUnknown`: no loaded library has the function
/// that the program has called, which cannot be.
const UNKNOWN: c_int = 999;

/// `cudaHostRegisterIoMemory`, `CU_MEMHOSTREGISTER_IOMEMORY` and `hipHostRegisterIoMemory`: a device's
/// memory, which has no pages.
const IO_MEMORY: c_uint = 4;
/// `cudaHostRegisterReadOnly` and `CU_MEMHOSTREGISTER_READ_ONLY`. To HIP on an AMD GPU the same bit is
/// `hipExtHostRegisterCoarseGrained`, and the GPU may write.
const READ_ONLY: c_uint = 8;

/// The libraries, and how their files' names begin. Wheels bring copies under names of their own.
const FILES: [(&CStr, &[u8]); 3] = [
    (c"libcudart.so.13", b"libcudart"),
    (c"libcuda.so.1", b"libcuda.so"),
    (c"libamdhip64.so.7", b"libamdhip64"),
];

/// The next function of that name. A program that loaded the GPU's library by dlopen(3) has it in a scope
/// of its own, which "next" does not reach. Of several such libraries it is the one that the caller's
/// file needs. `last` is where it was found last: a plug-in may have been unloaded with its library since,
/// and another one may bring its own.
#[cold]
#[inline(never)]
fn next(
    name: &'static CStr,
    last: &Function<HostRegister>,
    caller: Caller,
) -> Option<HostRegister> {
    let caller = NonZeroUsize::new(caller.address()).and_then(Object::with);
    let needed = |file: &Object| caller.is_some_and(|caller| caller.needs(file));
    let is_right = |function: &HostRegister| {
        let address = NonZeroUsize::new(*function as usize);
        let file = address.and_then(Object::with);
        file.is_some_and(|file| needed(&file) && file.find(name, None) == address)
    };
    last.get().filter(is_right).or_else(|| {
        let found = [true, false].iter().find_map(|&only_needed| {
            FILES.iter().find_map(|(soname, stem)| {
                let is_right = |file: &Object| !only_needed || needed(file);
                let file = Object::named(soname, stem, &is_right).ok()??;
                file.find(name, None)
            })
        });
        last.set(found);
        last.get()
    })
}

fn register(
    next: Option<HostRegister>,
    read_only: c_uint,
    (addr, size, flags): (*mut c_void, usize, c_uint),
) -> c_int {
    let Some(next) = next else {
        return UNKNOWN;
    };
    let answer = Cell::new(None);
    let _uncancelled = thread::uncancelled();
    let call = || {
        // SAFETY: same contract.
        answer.set(Some(unsafe { next(addr, size, flags) }));
    };
    let (has_pages, writes) = (flags & IO_MEMORY == 0, flags & read_only == 0);
    ret::always((), || {
        around_host_register(addr.addr(), size, has_pages, writes, call);
    });
    // After a panic before the call.
    // SAFETY: same contract.
    answer
        .get()
        .unwrap_or_else(|| unsafe { next(addr, size, flags) })
}

/// Takes over calls, and declares `find_next`, which looks up the next functions if the program was
/// started with the GPU's libraries. The last word of a row is the flag by which the GPU only reads.
macro_rules! host_register {
    ($( $symbol:ident, $name:literal, $next:ident, $read_only:expr; )*) => {
        $(
            // SAFETY: cuda.h, cuda_runtime_api.h and hip_runtime_api.h declare the function so.
            static $next: Function<HostRegister> = unsafe { Function::new() };

            #[cfg_attr(not(test), unsafe(no_mangle))]
            unsafe extern "C" fn $symbol(addr: *mut c_void, size: usize, flags: c_uint) -> c_int {
                // SAFETY: as above.
                static LAST: Function<HostRegister> = unsafe { Function::new() };
                let caller = match $next.get() {
                    Some(_) => Caller::UNKNOWN,
                    None => Caller::of_caller(),
                };
                let search = || ret::always(None, || next($name, &LAST, caller));
                register($next.get().or_else(search), $read_only, (addr, size, flags))
            }
        )*
        pub fn find_next() {
            let mut found = find_each(Scope::Next, [$( ($name, None) ),*]).into_iter();
            $( $next.set(found.next().flatten()); )*
        }
    };
}

host_register! {
    cudaHostRegister, c"cudaHostRegister", RUNTIME, READ_ONLY;
    cuMemHostRegister, c"cuMemHostRegister", DRIVER, READ_ONLY;
    cuMemHostRegister_v2, c"cuMemHostRegister_v2", DRIVER_2, READ_ONLY;
    hipHostRegister, c"hipHostRegister", HIP, 0;
}
