// SPDX-License-Identifier: MIT OR Apache-2.0
//! Return conventions as types, and the boundary that no panic crosses.

use crate::abi::rdma_core::ibv_mr;
use crate::config::disable_for_good;
use crate::explain::{Reason, Subject};
use crate::fabric::errors::{self, Failure};
use crate::log::{self, Level};
use crate::mr::{Error, state};
use crate::stats::Counter;
use crate::{explain, thread};
use core::cell::Cell;
use core::ffi::c_int;
use core::ptr::null_mut;
use errno::{Errno, set_errno};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The call, for the reason that is kept when it fails; described only then.
#[derive(Clone, Copy)]
pub struct Call {
    pub name: &'static str,
    pub subject: Subject,
    /// What a failure counts as, if it is counted.
    pub counter: Option<Counter>,
}

/// A registration: the region, or NULL and errno.
#[inline(always)]
pub fn region(
    call: impl FnOnce() -> Call,
    body: impl FnOnce() -> Result<*mut ibv_mr, Error>,
) -> *mut ibv_mr {
    run(call, body).unwrap_or_else(|error| {
        set_errno(Errno(error.errno()));
        null_mut()
    })
}

/// Most of the others: 0, or an errno that is positive. errno is set as well, as the kernel's own wrappers
/// leave it.
#[inline(always)]
pub fn status(call: impl FnOnce() -> Call, body: impl FnOnce() -> Result<(), Error>) -> c_int {
    match run(call, body) {
        Ok(()) => 0,
        Err(error) => {
            set_errno(Errno(error.errno()));
            error.errno()
        }
    }
}

/// `ibv_rereg_mr`: its own code, of which -1 means that nothing was changed; errno has the reason.
#[inline(always)]
pub fn rereg_code(
    call: impl FnOnce() -> Call,
    body: impl FnOnce() -> Result<c_int, Error>,
) -> c_int {
    /// `IBV_REREG_MR_ERR_INPUT`.
    const UNCHANGED: c_int = -1;
    run(call, body).unwrap_or_else(|error| {
        set_errno(Errno(error.errno()));
        UNCHANGED
    })
}

/// The libfabric family: 0 or more, or a negative FI_E... .
#[inline(always)]
pub fn code<T: From<i8> + TryFrom<i32>>(
    name: &'static str,
    counter: Option<Counter>,
    body: impl FnOnce() -> Result<T, Failure>,
) -> T {
    // Of a failure its subject is known only then.
    let subject = Cell::new(Subject::Other);
    let call = || Call {
        name,
        subject: subject.get(),
        counter,
    };
    let result = run(call, || {
        body().map_err(|failure| {
            subject.set(failure.subject);
            failure.error
        })
    });
    result.unwrap_or_else(|error| T::try_from(-errors::code(error)).unwrap_or(T::from(-1)))
}

/// Runs the body, stops a panic, and keeps the reason of a failure.
#[inline(always)]
fn run<T>(
    call: impl FnOnce() -> Call,
    body: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(failed(call(), error)),
        Err(_) => {
            disable_for_good();
            log::line(
                Level::Error,
                format_args!(
                    "the library has failed in itself; from now on it passes everything on"
                ),
            );
            Err(failed(call(), Error::Panic))
        }
    }
}

#[cold]
fn failed(call: Call, error: Error) -> Error {
    let reason = Reason {
        call: call.name,
        error,
        subject: call.subject,
    };
    if let Some(counter) = call.counter {
        let counters = &state::current().counters;
        counters.add(thread::number(), counter, 1);
    }
    explain::remember(reason);
    if log::wants(Level::Warn) {
        log::always(format_args!("{reason}"));
    }
    error
}
