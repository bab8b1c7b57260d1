// SPDX-License-Identifier: MIT OR Apache-2.0
//! The request of a call: memory to be registered, or a change of a region.

use super::access::Access;
use core::ffi::{c_int, c_void};
use rdmamr_abi::rdma_core::ibv_pd;

/// Memory to be registered.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub addr: *mut c_void,
    pub length: usize,
    /// The address at which remote peers access `addr`.
    pub iova: u64,
    pub access: Access,
}

impl Request {
    /// A request for memory that remote peers access at the memory's own address.
    #[inline(always)]
    pub fn at_address(addr: *mut c_void, length: usize, access: Access) -> Request {
        Request::new(addr, length, addr.addr() as u64, access)
    }

    #[inline(always)]
    pub fn new(addr: *mut c_void, length: usize, iova: u64, access: Access) -> Request {
        Request {
            addr,
            length,
            iova,
            access,
        }
    }
}

/// The changes that a program asks for, ibv_rereg_mr(3).
pub struct Reregistration {
    pub flags: c_int,
    pub pd: *mut ibv_pd,
    /// The memory and the access.
    pub request: Request,
}
