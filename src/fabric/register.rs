// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registering calls: fi_mr_reg(3) and its two siblings.

use super::access::{self, Rights};
use super::attributes::{Buffer, Buffers, MR_KEY, MR_OFFSET, Wish};
use super::domain::{Bound, Domain};
use super::errors::{Failure, invalid, may_allocate, refused};
use super::region::{Piece, Pieces, Plan, Region};
use super::workers::{self, Job};
use crate::abi::libfabric::*;
use crate::dispatch;
use crate::mr::explain::Subject;
use crate::mr::{Access, Error, How, Registered, Request};
use crate::sys::pages::page_size;
use crate::trace::Pending;

/// The terms of a registration.
struct Terms {
    buffers: Buffers,
    rights: Rights,
    /// The base address for peers, if the application chose one.
    placed: Option<u64>,
}

/// The application's variable for the new region. It must hold the region before an event can
/// report the registration.
pub struct Publish(*mut *mut fid_mr);

impl Publish {
    /// # Safety
    /// `place` stays writable until the registration has completed.
    pub unsafe fn to(place: *mut *mut fid_mr) -> Publish {
        Publish(place)
    }

    fn region(&self, region: &Region) {
        // SAFETY: the caller of `to` promised that the variable stays writable.
        unsafe { self.0.write(region.as_ptr()) };
    }
}

/// Registers memory. `pending` is the trace's record of the call, if the trace is on; a
/// registration in the background takes the record.
///
/// This function is not inlined, but every function that it calls is inlined into it, once. Three
/// inlined copies, one for each of C's calls, were 47 KiB of code.
#[inline(never)]
pub fn register(
    call: &'static str,
    domain: &'static Domain,
    buffers: Buffers,
    wish: &Wish,
    publish: &Publish,
    pending: &mut Option<Pending>,
) -> Result<(), Failure> {
    may_allocate()?;
    let rights = access::map(wish.access, domain.is_iwarp())?;
    let table_key = key(domain, wish)?;
    let length = buffers.length();
    let registration = Terms {
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
    let result = complete_or_submit(call, domain, region, registration, publish, pending);
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
    registration: Terms,
    publish: &Publish,
    pending: &mut Option<Pending>,
) -> Result<(), Failure> {
    if let (Some(key), false) = (region.table_key, region.is_placed) {
        domain.keys.reserve(key, region)?;
    }
    let queue = match domain.queue() {
        None => {
            let how = complete(domain, region, &registration)?;
            publish.region(region);
            region.describe(pending, how);
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
                pending: pending.take(),
                register: Box::new(move |region| complete(domain, region, &registration)),
            });
            Ok(())
        }
        // A placed region replaces others, so it must be registered when the call returns.
        Bound::Own(queue) => {
            queue.promise()?;
            let how = complete(domain, region, &registration).inspect_err(|_| queue.release())?;
            publish.region(region);
            // A thread that reads the event may close the region, so the record is written first.
            region.describe(pending, how);
            queue.completed(region.address(), region.context());
            Ok(())
        }
        Bound::Foreign(queue) => {
            let how = complete(domain, region, &registration)?;
            publish.region(region);
            region.describe(pending, how);
            queue
                .completed(region.as_ptr(), region.context())
                .inspect_err(|_| {
                    // The kernel has just made these registrations. If it refuses to end one, the
                    // domain keeps it.
                    if let Some(pieces) = region.replace() {
                        Pieces::Many(pieces).end();
                    }
                })
        }
    }
}

/// The key that the application chose, if the domain has such keys.
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

/// The base address that the application chose, if there is one.
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

/// Whether a device can have a buffer at `address`: the kernel registers whole pages.
fn in_step(buffer: &Buffer, address: u64) -> bool {
    let page = page_size();
    buffer.addr.addr() as u64 % page == address % page
}

impl Terms {
    /// The address at which the region begins for its peers.
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

/// Registers the memory of a region in the state `UnderWay`. After an error nothing is registered.
/// Returns the way in which the last registration was done.
fn complete(domain: &Domain, region: &Region, registration: &Terms) -> Result<How, Failure> {
    let rights = &registration.rights;
    // The cache does not serve placed regions: a region that replaces a placed one must end the old
    // registration at once, and the cache ends registrations in its own time.
    let cached = domain.mode().cached && registration.placed.is_none();
    let pieces = match &registration.buffers {
        Buffers::One(buffer) => {
            let at = registration.placed;
            let at = at.filter(|&at| in_step(buffer, at) && !domain.is_iwarp());
            Pieces::One(pin(domain, buffer, rights, at, cached)?)
        }
        Buffers::Many(buffers) => Pieces::Many(pin_all(domain, buffers, rights, cached)?),
    };
    let how = pieces.how();
    region.fill(pieces);
    if !region.is_placed {
        region.is_now_registered();
        return Ok(how);
    }
    match domain.keys.place(region) {
        Ok(replaced) => {
            Pieces::Many(replaced).end();
            Ok(how)
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
    cached: bool,
) -> Result<Vec<Piece>, Failure> {
    let mut pieces = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        match pin_one_of_many(domain, buffer, rights, cached) {
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
    cached: bool,
) -> Result<Piece, Failure> {
    pin(domain, buffer, rights, None, cached)
}

/// Registers a buffer. `at` is the device's address for peers, if the caller needs a certain one.
/// `cached` says whether the cache may serve the buffer.
#[inline(always)]
fn pin(
    domain: &Domain,
    buffer: &Buffer,
    rights: &Rights,
    at: Option<u64>,
    cached: bool,
) -> Result<Piece, Failure> {
    let own = buffer.addr.addr() as u64;
    let mode = domain.mode();
    let remote = match at {
        Some(at) => at,
        // The cache's registrations have the buffer's own address, and siw gives every registration
        // the buffer's own address. A table translates the addresses that peers use.
        None if mode.virtual_addresses || mode.cached || domain.is_iwarp() => own,
        // As near to 0 as the kernel allows: it registers whole pages.
        None => own % page_size(),
    };
    // A buffer that peers may not reach needs no address for them.
    let is_own = remote == own || rights.remote.is_empty();
    let is_pair = !is_own && rights.is_local;
    let (access, iova) = match (is_own, is_pair) {
        (true, _) => (rights.local | rights.remote, own),
        (_, true) => (rights.local, own),
        _ => (rights.local | rights.remote, remote),
    };
    // The one inlined copy of the way to the kernel.
    let first = pin_at(domain, buffer, access, iova, cached && iova == own)?;
    if !is_pair {
        return Ok(Piece::new(first, iova));
    }
    match pin_for_peers(domain, buffer, rights.remote, remote) {
        Ok(for_peers) => Ok(Piece::pair(first, for_peers, remote)),
        Err(failure) => {
            let piece = Piece::new(first, own);
            let before = piece.pinned();
            Pieces::One(piece).end();
            Err(failure.beside(before))
        }
    }
}

/// Makes one kernel registration.
#[inline(always)]
fn pin_at(
    domain: &Domain,
    buffer: &Buffer,
    access: Access,
    iova: u64,
    cached: bool,
) -> Result<Registered, Failure> {
    let request = request(domain, buffer, access, iova);
    let registered = if cached {
        dispatch::register_relaxed(domain.pd(), &request)
    } else {
        dispatch::register(domain.pd(), &request)
    };
    registered.map_err(|error| failure(error, request))
}

/// Makes the second registration of a buffer that has another address for its peers.
#[inline(never)]
fn pin_for_peers(
    domain: &Domain,
    buffer: &Buffer,
    access: Access,
    iova: u64,
) -> Result<Registered, Failure> {
    let request = request(domain, buffer, access, iova);
    dispatch::register_rarely(domain.pd(), &request).map_err(|error| failure(error, request))
}

fn request(domain: &Domain, buffer: &Buffer, access: Access, iova: u64) -> Request {
    let access = if domain.mode().on_demand {
        access | Access::ON_DEMAND
    } else {
        access
    };
    Request {
        iova,
        ..Request::at_address(buffer.addr, buffer.length, access)
    }
}

fn failure(error: Error, request: Request) -> Failure {
    Failure {
        error,
        subject: Subject::Memory(request),
    }
}
