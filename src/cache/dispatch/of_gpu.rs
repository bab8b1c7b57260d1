// SPDX-License-Identifier: MIT OR Apache-2.0
//! `RDMAMR_CACHE` on memory of a GPU. No memory call and no userfaultfd tells that the memory was freed
//! and allocated again. But CUDA numbers its allocations and uses no number twice. So a kept region
//! serves a registration only if CUDA says, at this registration, that the memory lies in the
//! allocation in which the region was made. If it does not, the old region ends.
//!
//! As with other memory, the first registration is plain. A region without remote access is of the
//! whole allocation, and serves all registrations in it at once: a model's tensors lie in a few
//! allocations, and no peer can use such a region's key. With `RDMAMR_GPU=whole` that holds for remote
//! access too, which opens the allocation to every peer that has one key of it.

use crate::admission::{self, Unserved};
use crate::instance::existing;
use crate::life::hit::hit_by;
use crate::life::{miss, owners};
use crate::region::slot::{Domain, LookupKey, range};
use crate::released::{self, RELEASED};
use rdmamr_config::{Gpu, config};
use rdmamr_mr::gpu::{self, Allocation};
use rdmamr_mr::{How, Mr, Registered, Request};
use rdmamr_next::Pd;
use rdmamr_policy::{OF_GPU, is_remote};
use rdmamr_stats::{Counter, counter};
use rdmamr_sys::pages::PageRange;

/// The key of the region that serves a request in an allocation.
fn key(pd: Pd, request: &Request, allocation: Allocation) -> Option<LookupKey> {
    let access = request.access.bits();
    let is_exact = is_remote(access) && config().gpu != Gpu::Whole;
    let pages = PageRange::around(request.addr.addr() as u64, request.length as u64)?;
    Some(LookupKey {
        domain: Domain::of(pd),
        page_range: if is_exact { pages } else { allocation.pages },
        access: access | OF_GPU,
        spare: 0,
        exclusive: is_exact,
        allocation: allocation.id,
    })
}

fn allocation(request: &Request) -> Option<Allocation> {
    gpu::allocation(request.addr.addr() as u64, request.length as u64)
}

fn remembered(key: &LookupKey) -> rdmamr_policy::Range {
    range(key.domain.pd, key.page_range, key.access)
}

/// Whether the cached region that this object stands for is of a GPU's memory. For the trace.
#[cold]
pub fn is_of_gpu(mr: Mr) -> bool {
    mr.cached().is_some_and(owners::is_of_gpu)
}

/// A plain registration of a GPU's memory has succeeded: the next one that the same region would serve
/// comes back.
#[cold]
#[inline(never)]
pub fn remember(pd: Pd, request: &Request) {
    if admission::of_call(config().cache_mode, request).is_err() {
        return;
    }
    let key = allocation(request).and_then(|allocation| key(pd, request, allocation));
    if let Some(key) = key {
        released::add(&remembered(&key));
    }
}

/// Registers memory that may be a GPU's. `None` if it is not, or if nothing tells its allocations
/// apart. An error is the reason why the cache does not serve the call.
#[cold]
#[inline(never)]
pub fn serve(pd: Pd, request: &Request) -> Option<Result<Registered, Counter>> {
    let key = key(pd, request, allocation(request)?)?;
    let (addr, length) = (request.addr.addr() as u64, request.length as u64);
    let hit = existing().and_then(|cache| hit_by(cache, &key, addr, length).region());
    if let Some(mr) = hit {
        return Some(Ok(Registered::by(How::Hit, mr)));
    }
    let range = remembered(&key);
    if !RELEASED.comes_back(&range) {
        released::add(&range);
        return Some(Err(counter!(bypassed_first)));
    }
    let made = miss::register_of_gpu(pd, request, &key).map_err(Unserved::counter);
    if made.is_err_and(|reason| reason != counter!(bypassed_busy)) {
        RELEASED.give_up(&range);
    }
    Some(made)
}
