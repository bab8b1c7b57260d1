// SPDX-License-Identifier: MIT OR Apache-2.0
//! How an interposed call of the C library finds and calls the next function of the same name.

use super::ret;

/// Declares the next functions, and `find_next`, which looks up all of them when the library is
/// loaded.
macro_rules! next {
    ($( $name:ident = $symbol:literal: $type:ty; )*) => {
        $( static $name: ::rdmamr_sys::function::Function<$type> =
            // SAFETY: the signature is that of the manual page.
            unsafe { ::rdmamr_sys::function::Function::new() }; )*
        pub fn find_next() {
            use ::rdmamr_sys::symbols::{Scope, find_each};
            let mut found = find_each(Scope::Next, [$( ($symbol, None) ),*]).into_iter();
            $( $name.set(found.next().flatten()); )*
        }
    };
}

/// Calls the next function if it is known, else makes the system call with the same arguments.
macro_rules! call_next {
    ($next:ident($($arg:expr),*), $number:ident) => {
        match $next.get() {
            // SAFETY: same contract: the arguments are the caller's, or name a part of what the caller named.
            Some(next) => unsafe { next($($arg),*) },
            // SAFETY: as above.
            None => (unsafe { libc::syscall(libc::$number, $($arg),*) }) as _,
        }
    };
}

/// Calls the next function between two reports to the cache, one before and one after the call. The
/// next function is called exactly once, whether or not a report fails.
#[inline(always)]
pub fn around<C, R>(
    before: impl FnOnce() -> C,
    call: impl FnOnce() -> R,
    after: impl FnOnce(C, &R),
) -> R {
    let changing = ret::always(None, || Some(before()));
    let result = call();
    ret::always((), || {
        if let Some(changing) = changing {
            after(changing, &result);
        }
    });
    result
}

/// Calls the next function. `changing` reports the change that the call makes; the change is over
/// when the call has returned.
#[inline(always)]
pub fn during<C, R>(changing: impl FnOnce() -> C, call: impl FnOnce() -> R) -> R {
    around(changing, call, |changing, _| drop(changing))
}

pub(super) use {call_next, next};
