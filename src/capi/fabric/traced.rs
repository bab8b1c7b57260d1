// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the trace records calls of libfabric's family.

use crate::capi::ret;
use core::ffi::c_int;
use rdmamr_mr::explain::last_as_text;
use rdmamr_sys::caller::Caller;
use rdmamr_trace::format::Call;
use rdmamr_trace::{self as trace, Pending};

/// The record of a call that begins now, if the trace is on.
pub fn begin(call: u8, caller: Caller) -> Option<Pending> {
    let began = ret::always(None, trace::begin)?;
    let record = Call {
        call,
        ..trace::NOTHING
    };
    Some(Pending {
        began,
        record,
        caller,
    })
}

/// Writes the record of a call that is about to return, and returns its result.
pub fn end(pending: Option<Pending>, result: c_int) -> c_int {
    ret::always((), || {
        if let Some(mut pending) = pending {
            pending.record.errno = -result as u16;
            pending.write(last_as_text);
        }
    });
    result
}
