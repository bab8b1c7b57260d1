// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables of functions of this library's objects. Every slot has a function, since libfabric's
//! inline functions call most slots without a check for NULL.

use super::functions::*;
use super::traced;
use crate::abi::libfabric::{fi_ops, fi_ops_eq, fi_ops_mr, fid};
use crate::abi::libfabric_provider::domain_slots;
use crate::fabric::object::Tables;
use crate::trace;
use core::ffi::c_int;

/// The tables while the trace is off.
static PLAIN: Tables = with(
    fi_ops_mr {
        size: size_of::<fi_ops_mr>(),
        reg: Some(reg),
        regv: Some(regv),
        regattr: Some(regattr),
    },
    region_close,
);

/// The tables while the trace is on: these functions record registrations and closes.
static TRACED: Tables = with(
    fi_ops_mr {
        size: size_of::<fi_ops_mr>(),
        reg: Some(traced::reg),
        regv: Some(traced::regv),
        regattr: Some(traced::regattr),
    },
    traced::region_close,
);

/// The tables for an object that is opened now.
pub fn tables() -> &'static Tables {
    if trace::is_on() { &TRACED } else { &PLAIN }
}

const fn with(memory: fi_ops_mr, region_close: unsafe extern "C" fn(*mut fid) -> c_int) -> Tables {
    Tables {
        domain: fi_ops {
            size: size_of::<fi_ops>(),
            close: Some(domain_close),
            bind: Some(domain_bind),
            control: Some(domain_control),
            ops_open: Some(no_ops_open),
            tostr: Some(no_tostr),
            ops_set: Some(no_ops_set),
        },
        domain_rest: domain_slots {
            size: size_of::<domain_slots>(),
            av_open: nothing,
            cq_open: nothing,
            endpoint: nothing,
            scalable_ep: nothing,
            cntr_open: nothing,
            poll_open: nothing,
            stx_ctx: nothing,
            srx_ctx: nothing,
            query_atomic: nothing,
            query_collective: nothing,
            endpoint2: nothing,
        },
        memory,
        region: fi_ops {
            size: size_of::<fi_ops>(),
            close: Some(region_close),
            bind: Some(region_bind),
            control: Some(region_control),
            ops_open: Some(no_ops_open),
            tostr: Some(no_tostr),
            ops_set: Some(no_ops_set),
        },
        queue: fi_ops {
            size: size_of::<fi_ops>(),
            close: Some(queue_close),
            bind: Some(no_bind),
            control: Some(queue_control),
            ops_open: Some(no_ops_open),
            tostr: Some(no_tostr),
            ops_set: Some(no_ops_set),
        },
        queue_rest: fi_ops_eq {
            size: size_of::<fi_ops_eq>(),
            read: Some(queue_read),
            readerr: Some(queue_readerr),
            write: Some(queue_write),
            sread: Some(queue_sread),
            strerror: Some(queue_strerror),
        },
    }
}
