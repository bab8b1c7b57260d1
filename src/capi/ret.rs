// SPDX-License-Identifier: MIT OR Apache-2.0
//! The frame of every exported function: the boundary that no panic crosses, and the return
//! convention of the function's family.
//!
//! In each `extern "C"` body under `capi/` what may panic runs inside a function of this file
//! (`ctests/packages/boundary.py` checks this rule). A panic disables the library for good: from then
//! on the library forwards every call, and the cache hands out no region again.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use errno::{Errno, set_errno};
use rdmamr_abi::rdma_core::ibv_mr;
use rdmamr_cache::dispatch;
use rdmamr_fabric::errors::{self, Failure};
use rdmamr_mr::explain::{self, Reason, Subject};
use rdmamr_mr::mlx5::Umem;
use rdmamr_mr::{Error, Registered};
use rdmamr_stats::log::{self, Level};
use rdmamr_stats::{self as stats, Counter};
use rdmamr_sys::caller::Caller;
use rdmamr_trace as trace;
use rdmamr_trace::format::{Call, call};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An exported function, as the reason of its failure describes it: its name, its object, and the
/// counter of failures, if the statistics count them. Made only when a call fails.
pub type Entry = (&'static str, Subject, Option<Counter>);

/// The function with this number of `trace::format::call`.
#[inline(always)]
pub fn entry(call: u8, subject: Subject, counter: Option<Counter>) -> Entry {
    (call::NAMES[usize::from(call)], subject, counter)
}

fn set_errno_of(error: Error) -> c_int {
    set_errno(Errno(error.errno()));
    error.errno()
}

/// The convention of calls that make an object, for a failure: NULL and errno.
pub fn null_and_errno<T>(error: Error) -> *mut T {
    set_errno_of(error);
    null_mut()
}

/// The convention of a registration: the region, or NULL and errno.
#[inline(always)]
pub fn as_region(outcome: Result<Registered, Error>) -> *mut ibv_mr {
    outcome.map_or_else(null_and_errno, |registered| registered.mr)
}

/// The convention of a registration by libmlx5: the umem, or NULL and errno.
pub fn as_umem(outcome: Result<Umem, Error>) -> *mut c_void {
    outcome.map_or_else(null_and_errno, Umem::as_ptr)
}

/// The convention of most other calls: 0, or a positive errno. The call sets errno too, as the
/// wrappers of the kernel's calls do.
#[inline(always)]
pub fn as_errno<T>(outcome: Result<T, Error>) -> c_int {
    outcome.map_or_else(set_errno_of, |_| 0)
}

/// Runs the body of a function: stops a panic, and stores the reason of a failure.
#[inline(always)]
pub fn run<T>(
    entry: impl FnOnce() -> Entry,
    body: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let outcome = guard(body).unwrap_or_else(Err);
    if let Err(error) = outcome {
        // To put the reason in words, the memory and the limits of the process are read, which may panic.
        let _ = guard(|| failed(entry(), error));
    }
    outcome
}

/// As [`run`], for a function that the trace records. `record` runs before the body, and what it
/// returns makes the record of the outcome, after the reason of a failure has been stored. A record
/// that panics leaves the outcome as it is.
#[inline(always)]
pub fn traced<T, R: FnOnce(&Result<T, Error>) -> Call>(
    entry: impl FnOnce() -> Entry,
    (caller, record): (Caller, impl FnOnce() -> R),
    body: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let began = guard(|| trace::begin().map(|began| (began, record()))).unwrap_or_default();
    let outcome = run(entry, body);
    if let Some((began, record)) = began {
        let _ = guard(|| began.write(record(&outcome), caller, explain::last_as_text));
    }
    outcome
}

/// Runs the body of a function of the libfabric family, which returns 0 or more, or a negative
/// FI_E... code.
#[inline(always)]
pub fn code<T: From<i8> + TryFrom<i32>>(
    name: &'static str,
    counter: Option<Counter>,
    body: impl FnOnce() -> Result<T, Failure>,
) -> T {
    // Only the failure itself knows its subject.
    let subject = Cell::new(Subject::Other);
    let entry = || (name, subject.get(), counter);
    let body = || {
        body().map_err(|failure| {
            subject.set(failure.subject);
            failure.error
        })
    };
    let outcome = run(entry, body);
    outcome.unwrap_or_else(|error| T::try_from(-errors::code(error)).unwrap_or(T::from(-1)))
}

/// Runs the body of a function of the libfabric family, which returns 0 or a negative FI_E... code.
#[inline(always)]
pub fn done(name: &'static str, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    code(name, None, || body().map(|()| 0))
}

/// Runs the body of a function that cannot report a failure. After a panic C gets `otherwise`.
#[inline(always)]
pub fn always<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    guard(body).unwrap_or(otherwise)
}

/// The panic boundary.
#[inline(always)]
fn guard<T>(body: impl FnOnce() -> T) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(body)).map_err(|_| dispatch::panicked())
}

/// Counts a failure, and stores its reason.
#[cold]
fn failed((call, subject, counter): Entry, error: Error) {
    let reason = Reason {
        call,
        error,
        subject,
    };
    if let Some(counter) = counter {
        stats::counters().count(counter);
    }
    explain::remember(reason);
    log::line(Level::Warn, format_args!("{reason}"));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rdmamr_config::disabled;

    #[test]
    #[cfg_attr(miri, ignore = "forks")]
    fn a_panic_becomes_an_error_and_disables_the_library() {
        // In a child: the other tests need the library.
        // SAFETY: the child runs only the code below, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let failed = c_int::from(!every_panic_is_stopped());
            // SAFETY: the call does not return.
            unsafe { libc::_exit(failed) };
        }
        assert!(child > 0);
        let mut status = -1;
        // SAFETY: local argument.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    fn every_panic_is_stopped() -> bool {
        std::panic::set_hook(Box::new(|_| {}));
        let entry = || ("call", Subject::Other, None);
        let was_enabled = !disabled();
        set_errno(Errno(0));
        let region = as_region(run(entry, || panic!()));
        let no_region = region.is_null() && errno::errno().0 == libc::ENOMEM;
        trace::turn_on();
        let early = |outcome: Result<(), Error>| {
            let record = || -> fn(&Result<(), Error>) -> Call { panic!() };
            as_errno(traced(|| panic!(), (Caller::UNKNOWN, record), || outcome))
        };
        let late = |outcome: Result<(), Error>| {
            let record = || |_: &_| -> Call { panic!() };
            as_errno(traced(|| panic!(), (Caller::UNKNOWN, record), || outcome))
        };
        was_enabled
            && no_region
            && disabled()
            && as_errno::<()>(run(entry, || panic!())) == libc::ENOMEM
            && code::<c_int>("call", None, || panic!()) == -libc::ENOMEM
            && always(7, || panic!()) == 7
            && [early(Err(Error::Memory)), late(Err(Error::Memory))] == [libc::ENOMEM; 2]
            && [early(Ok(())), late(Ok(()))] == [0; 2]
    }
}
