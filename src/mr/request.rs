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
        let iova = addr.addr() as u64;
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
    pub addr: *mut c_void,
    pub length: usize,
    pub access: Access,
}

impl Reregistration {
    /// Whether `ibv_rereg_mr` of libibverbs asks the provider: it refuses other arguments itself
    /// (libibverbs/verbs.c).
    pub fn is_accepted(&self) -> bool {
        const TRANSLATION: c_int = 1;
        const ACCESS: c_int = 4;
        const ALL: c_int = 7;
        let moves = self.flags & TRANSLATION != 0;
        self.flags & !ALL == 0
            && !(moves && (self.length == 0 || self.addr.is_null()))
            && (self.flags & ACCESS != 0 || self.access.is_empty())
    }
}
