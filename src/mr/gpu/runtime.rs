// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library of a GPU's runtime.

use core::ffi::CStr;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use rdmamr_sys::loaded_files::Object;

/// The library of this name, if the program has loaded it. The program keeps it loaded as long as it
/// has memory of the GPU. `last` is where it was found last, so that /proc need not be read.
#[inline(never)]
pub fn find(name: &'static CStr, stem: &[u8], last: &AtomicUsize) -> Option<Object> {
    let known = NonZeroUsize::new(last.load(Relaxed)).and_then(Object::with);
    known.filter(|known| known.is_called(name)).or_else(|| {
        let found = Object::named(name, stem, &|_| true).ok()??;
        last.store(found.start, Relaxed);
        Some(found)
    })
}

/// Declares functions of a runtime's library. `None` if this version of the library lacks the function.
macro_rules! calls {
    ($runtime:ident: $( fn $name:ident($($arg:ident: $type:ty),*) = $symbol:literal; )*) => {
        impl $runtime {
            $( fn $name(&self, $($arg: $type),*) -> Option<c_int> {
                type Call = unsafe extern "C" fn($($type),*) -> c_int;
                // SAFETY: the library's header declares the function so.
                let call: Call = unsafe { self.0.function($symbol) }?;
                // SAFETY: the callers pass pointers to what the function writes; it takes any
                // address and any number.
                Some(unsafe { call($($arg),*) })
            } )*
        }
    };
}
pub(super) use calls;
