// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables of functions of this library's objects. Every slot has a function, since libfabric's
//! inline functions call most slots without a check for NULL.

use super::functions::*;
use core::ffi::{c_int, c_void};
use rdmamr_abi::libfabric::{fi_ops, fi_ops_eq, fi_ops_mr, fid};
use rdmamr_abi::libfabric_provider::domain_slots;
use rdmamr_fabric::object::Tables;

/// The table that every object has.
pub const fn object(
    close: unsafe extern "C" fn(*mut fid) -> c_int,
    bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
    control: unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int,
) -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close: Some(close),
        bind: Some(bind),
        control: Some(control),
        ops_open: Some(no_ops_open),
        tostr: Some(no_tostr),
        ops_set: Some(no_ops_set),
    }
}

/// The tables of all objects.
pub static TABLES: Tables = Tables {
    domain: object(domain_close, domain_bind, domain_control),
    domain_rest: domain_slots {
        size: size_of::<domain_slots>(),
        functions: [nothing; 11],
    },
    memory: fi_ops_mr {
        size: size_of::<fi_ops_mr>(),
        reg: Some(reg),
        regv: Some(regv),
        regattr: Some(regattr),
    },
    region: object(region_close, region_bind, region_control),
    queue: object(queue_close, no_bind, queue_control),
    queue_rest: fi_ops_eq {
        size: size_of::<fi_ops_eq>(),
        read: Some(queue_read),
        readerr: Some(queue_readerr),
        write: Some(queue_write),
        sread: Some(queue_sread),
        strerror: Some(queue_strerror),
    },
};
