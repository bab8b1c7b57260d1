// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registering, fi_mr_reg(3) and its two siblings.

use super::access::{self, Rights};
use super::attributes::{Buffer, Buffers, MR_KEY, MR_OFFSET, Wish};
use super::domain::{Bound, Domain};
use super::errors::{Failure, invalid, refused};
use super::region::{Piece, Pieces, Plan, Region};
use super::workers::{self, Job};
use crate::abi::libfabric::*;
use crate::abi::rdma_core::ibv_mr;
use crate::explain::Subject;
use crate::mr::{Access, Request};
use crate::proc;
use crate::relaxed::{self, beside_plain};
use crate::trace;
use crate::trace::format::how;

/// What a region is registered as.
struct Registration {
    buffers: Buffers,
    rights: Rights,
    /// The base address for peers that the application chose.
    placed: Option<u64>,
}

/// Where the application wants the region: it must be there before an event can say that it is registered.
pub struct Publish(*mut *mut fid_mr);

impl Publish {
    /// # Safety
    /// The place is the application's, until the registration has completed.
    pub unsafe fn to(place: *mut *mut fid_mr) -> Publish {
        Publish(place)
    }

    fn region(&self, region: &Region) {
        // SAFETY: the word of `to`.
        unsafe { self.0.write(region.as_ptr()) };
    }
}

/// Registers memory.
///
/// Not inlined, but all that it calls is inlined into it, once: three copies, one for each of C's calls,
/// were 47 KiB of code.
#[inline(never)]
pub fn register(
    call: &'static str,
    domain: &'static Domain,
    buffers: Buffers,
    wish: &Wish,
    publish: &Publish,
) -> Result<(), Failure> {
    let rights = access::map(wish.access, domain.is_iwarp())?;
    let table_key = key(domain, wish)?;
    let length = buffers.length();
    let registration = Registration {
        placed: placed(domain, wish, &buffers, length)?,
        rights,
        buffers,
    };
    let plan = Plan {
        context: wish.context,
        table_key,
        is_placed: registration.placed.is_some(),
        base: registration.base(domain),
        length,
        ..domain.plan()
    };
    if plan.base.checked_add(length).is_none() {
        return Err(invalid(
            "the region's addresses run past the end of the address space",
        ));
    }
    let region = domain.open_region(&plan)?;
    let result = complete_or_submit(call, domain, region, registration, publish);
    if result.is_err() {
        domain.keys.remove(region);
        domain.close_region(region);
    }
    result
}

#[inline(always)]
fn complete_or_submit(
    call: &'static str,
    domain: &'static Domain,
    region: &'static Region,
    registration: Registration,
    publish: &Publish,
) -> Result<(), Failure> {
    if let (Some(key), false) = (region.table_key, region.is_placed) {
        domain.keys.reserve(key, region)?;
    }
    let queue = match domain.queue() {
        None => {
            complete(domain, region, &registration)?;
            publish.region(region);
            return Ok(());
        }
        Some(queue) => queue,
    };
    match queue {
        Bound::Own(queue) if !region.is_placed => {
            queue.promise()?;
            publish.region(region);
            workers::submit(Job {
                call,
                region,
                queue,
                left: trace::take_left(),
                register: Box::new(move |region| complete(domain, region, &registration)),
            });
            Ok(())
        }
        // What is placed replaces others, and so is done when the call returns.
        Bound::Own(queue) => {
            queue.promise()?;
            complete(domain, region, &registration).inspect_err(|_| queue.release())?;
            publish.region(region);
            // Whoever reads the event may close the region.
            trace::describe(|record| region.describe(record, how::HIT));
            queue.completed(region.address(), region.context());
            Ok(())
        }
        Bound::Foreign(queue) => {
            complete(domain, region, &registration)?;
            publish.region(region);
            trace::describe(|record| region.describe(record, how::HIT));
            queue
                .completed(region.as_ptr(), region.context())
                .inspect_err(|_| {
                    // The kernel has just made them; what it does not end stays with the domain.
                    if let Some(pieces) = region.replace() {
                        Pieces::Many(pieces).end();
                    }
                })
        }
    }
}

/// The key of the application's, if the domain has such.
#[inline(always)]
fn key(domain: &Domain, wish: &Wish) -> Result<Option<u64>, Failure> {
    if wish.flags & !(MR_KEY | MR_OFFSET) != 0 {
        return Err(refused(
            FI_EBADFLAGS,
            "a flag that is not supported: of fi_mr_reg's there are RDMAMR_MR_KEY and RDMAMR_MR_OFFSET",
        ));
    }
    if domain.mode().provider_keys {
        if wish.flags & MR_KEY != 0 {
            return Err(refused(
                FI_EBADFLAGS,
                "FI_MR_KEY on a domain whose keys are the provider's",
            ));
        }
        return Ok(None);
    }
    if wish.requested_key > domain.mode().last_key {
        return Err(refused(
            FI_EKEYREJECTED,
            "the requested key is larger than the domain's keys can be",
        ));
    }
    Ok(Some(wish.requested_key))
}

/// The base address of the application's, if it gives one.
#[inline(always)]
fn placed(
    domain: &Domain,
    wish: &Wish,
    buffers: &Buffers,
    length: u64,
) -> Result<Option<u64>, Failure> {
    if wish.flags & MR_OFFSET == 0 {
        return if wish.offset == 0 {
            Ok(None)
        } else {
            Err(invalid("the offset must be 0 without FI_MR_OFFSET"))
        };
    }
    if wish.offset.checked_add(length).is_none() {
        return Err(invalid(
            "the offset and the length run past the end of the addresses",
        ));
    }
    let device_must = domain.mode().provider_keys && matches!(buffers, Buffers::One(_));
    if let Buffers::One(buffer) = buffers
        && device_must
        && !in_step(buffer, wish.offset)
    {
        return Err(invalid(
            "FI_MR_OFFSET with the provider's keys: the offset and the buffer must lie alike in their pages",
        ));
    }
    if device_must && domain.is_iwarp() {
        return Err(refused(
            FI_ENOSYS,
            "FI_MR_OFFSET with the provider's keys: an iWARP device has a buffer at its own address",
        ));
    }
    Ok(Some(wish.offset))
}

/// Whether a device can have a buffer at an address: the kernel registers whole pages.
fn in_step(buffer: &Buffer, address: u64) -> bool {
    let page = proc::page_size();
    buffer.addr.addr() as u64 % page == address % page
}

impl Registration {
    /// Where the region begins for its peers.
    #[inline(always)]
    fn base(&self, domain: &Domain) -> u64 {
        match (self.placed, &self.buffers) {
            (Some(offset), _) => offset,
            (None, _) if !domain.mode().virtual_addresses => 0,
            (None, Buffers::One(buffer)) => buffer.addr.addr() as u64,
            (None, Buffers::Many(buffers)) => buffers
                .first()
                .map_or(0, |buffer| buffer.addr.addr() as u64),
        }
    }
}

/// Registers the memory of a region that is under way. After an error nothing is registered.
fn complete(domain: &Domain, region: &Region, registration: &Registration) -> Result<(), Failure> {
    let rights = &registration.rights;
    // What replaces it must be able to end it, which the pool does in its own time.
    let pooled = domain.mode().relaxed && registration.placed.is_none();
    let pieces = match &registration.buffers {
        Buffers::One(buffer) => {
            let at = registration.placed;
            let at = at.filter(|&at| in_step(buffer, at) && !domain.is_iwarp());
            Pieces::One(pin(domain, buffer, rights, at, pooled)?)
        }
        Buffers::Many(buffers) => Pieces::Many(pin_all(domain, buffers, rights, pooled)?),
    };
    region.fill(pieces);
    if !region.is_placed {
        region.is_now_registered();
        return Ok(());
    }
    match domain.keys.place(region) {
        Ok(replaced) => {
            Pieces::Many(replaced).end();
            Ok(())
        }
        Err(failure) => {
            region.empty();
            Err(failure)
        }
    }
}

fn pin_all(
    domain: &Domain,
    buffers: &[Buffer],
    rights: &Rights,
    pooled: bool,
) -> Result<Vec<Piece>, Failure> {
    let mut pieces = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        match pin_one_of_many(domain, buffer, rights, pooled) {
            Ok(piece) => pieces.push(piece),
            Err(failure) => {
                let before = pieces.iter().map(Piece::pinned).sum();
                Pieces::Many(pieces).end();
                return Err(failure.beside(before));
            }
        }
    }
    Ok(pieces)
}

#[inline(never)]
fn pin_one_of_many(
    domain: &Domain,
    buffer: &Buffer,
    rights: &Rights,
    pooled: bool,
) -> Result<Piece, Failure> {
    pin(domain, buffer, rights, None, pooled)
}

/// Registers a buffer. `at` is where the device is to have it for peers, if that matters; `pooled` whether
/// the pool may serve it.
#[inline(always)]
fn pin(
    domain: &Domain,
    buffer: &Buffer,
    rights: &Rights,
    at: Option<u64>,
    pooled: bool,
) -> Result<Piece, Failure> {
    let own = buffer.addr.addr() as u64;
    let mode = domain.mode();
    let remote = match at {
        Some(at) => at,
        // The pool's regions have their own addresses, and siw gives every region its own: a table translates
        // the peers'.
        None if mode.virtual_addresses || mode.relaxed || domain.is_iwarp() => own,
        // From 0 on, as near as the kernel allows: it registers whole pages.
        None => own % proc::page_size(),
    };
    let all = rights.local | rights.remote;
    // What no peer may reach is nowhere for them.
    if remote == own || rights.remote.is_empty() {
        return Ok(Piece::new(pin_at(domain, buffer, all, own, pooled)?, own));
    }
    if !rights.is_local {
        return Ok(Piece::new(
            pin_at(domain, buffer, all, remote, false)?,
            remote,
        ));
    }
    let local = pin_at(domain, buffer, rights.local, own, pooled)?;
    match pin_at(domain, buffer, rights.remote, remote, false) {
        Ok(for_peers) => Ok(Piece::pair(local, for_peers, remote)),
        Err(failure) => {
            let piece = Piece::new(local, own);
            let before = piece.pinned();
            Pieces::One(piece).end();
            Err(failure.beside(before))
        }
    }
}

/// One registration of the kernel.
#[inline(always)]
fn pin_at(
    domain: &Domain,
    buffer: &Buffer,
    access: Access,
    iova: u64,
    pooled: bool,
) -> Result<*mut ibv_mr, Failure> {
    let mode = domain.mode();
    let access = if mode.on_demand {
        access | Access::ON_DEMAND
    } else {
        access
    };
    let request = Request {
        iova,
        ..Request::at_address(buffer.addr, buffer.length, access)
    };
    let registered = if pooled {
        match relaxed::hit(domain.pd(), buffer.addr.addr(), buffer.length, access) {
            Ok(mr) => Ok(mr),
            Err(miss) => relaxed::register(domain.pd(), &request, miss, false),
        }
    } else {
        beside_plain::register(domain.pd(), &request)
    };
    registered.map_err(|error| Failure {
        error,
        subject: Subject::Memory(request),
    })
}
