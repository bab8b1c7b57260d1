// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of a GPU's runtime.

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
