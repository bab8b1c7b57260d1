// SPDX-License-Identifier: MIT OR Apache-2.0
//! The relaxed calls, ibv_reg_mr_relaxed(3), and the libfabric domains that use the cache. If the
//! cache cannot serve a call, the caller gets a plain region.

use crate::admission::Unserved;
use crate::dispatch::register::{register_rarely, retried};
use crate::life::hit::{Answer, hit};
use crate::life::miss;
use errno::errno;
use rdmamr_abi::rdma_core::ibv_mr;
use rdmamr_mr::gpu;
use rdmamr_mr::{Access, Error, How, Registered, Request};
use rdmamr_next::Pd;
use rdmamr_stats::{self as stats, counter};

/// Registers memory for a relaxed call.
#[inline(always)]
pub fn register_relaxed(pd: Pd, request: &Request) -> Result<Registered, Error> {
    let addr = request.addr.addr();
    let answer = hit(pd, addr, request.length, request.access, false);
    match answer.region() {
        Some(mr) => Ok(Registered::by(How::Hit, mr)),
        None => register_missed(pd, request, answer),
    }
}

#[cold]
fn register_missed(pd: Pd, request: &Request, answer: Answer) -> Result<Registered, Error> {
    match miss::register(pd, request, answer, false) {
        Ok(registered) => Ok(registered),
        Err(Unserved::Because(reason)) => {
            stats::counters().count(reason);
            register_rarely(pd, request)
        }
        // The miss has restored errno.
        Err(Unserved::Failed(error)) => {
            retried(pd, request, gpu::instead(pd, request, error, errno()))
                .inspect(|_| stats::counters().count(counter!(bypassed_memory)))
        }
    }
}

/// Returns a cached region that serves, if there is one. The caller does not need the reason for a
/// miss.
#[inline(always)]
pub fn hit_relaxed(pd: Pd, addr: usize, length: usize, access: Access) -> Option<*mut ibv_mr> {
    hit(pd, addr, length, access, false).region()
}
