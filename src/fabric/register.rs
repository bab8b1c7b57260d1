// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registering calls: fi_mr_reg(3) and its two siblings. [`register`] is one pipeline: the
//! arguments, the region, the kernel registrations, the report. [`hit`] is the short path, in which
//! nanoseconds count.

use super::access::{self, Rights};
use super::attributes::{Buffer, MR_KEY, MR_OFFSET, Wish, check_flags};
use super::domain::Domain;
use super::errors::{Failure, Result, ensure};
use super::piece::{Piece, end_all};
use super::refusals::*;
use super::region::{Plan, Region};
use super::workers::{self, Job};
use core::ffi::c_void;
use core::sync::atomic::Ordering::Relaxed;
use rdmamr_abi::libfabric::*;
use rdmamr_cache::dispatch::{self, Mr};
use rdmamr_mr::explain::Subject;
use rdmamr_mr::{Access, Error, How, Registered, Request};
use rdmamr_next::Pd;
use rdmamr_sys::pages::page_size;
use rdmamr_trace::Pending;

/// Registers memory that the cache already has, on a domain that is fast, without flags. In every
/// other case it returns `None`, and the caller takes the long path, [`register`].
///
/// The arguments and the result fit into registers. A `Result` with a `Failure` would pass through
/// memory.
#[allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "the context is stored, and nothing here reads through it"
)]
#[inline(always)]
pub fn hit(
    domain: &'static Domain,
    addr: usize,
    length: usize,
    access: u64,
    context: *mut c_void,
) -> Option<&'static Region> {
    if !domain.fast.load(Relaxed) || domain.process.check().is_err() {
        return None;
    }
    let (local, remote) = access::flags_of(access, false)?;
    let access = (local | remote) & domain.granted;
    let mr = dispatch::hit_relaxed(domain.pd, addr, length, access)?;
    // SAFETY: `hit_relaxed` has just returned this registration.
    let served = unsafe { Mr::from_c(mr) }?;
    let public = served.read();
    let plan = Plan {
        table_key: None,
        is_placed: false,
        base: public.addr.addr() as u64,
        length: public.length as u64,
    };
    let Some(region) = domain.open_region(context, plan) else {
        return without_memory(served);
    };
    region.serve(served, &public);
    Some(region)
}

/// Gives the registration back. The long path reports that no memory is left for the region.
#[cold]
#[inline(never)]
fn without_memory(served: Mr) -> Option<&'static Region> {
    dispatch::release_relaxed(served);
    None
}

/// Registers memory, at least one buffer. `publish` writes the region to the application's
/// variable, which must hold the region before an event can report the registration. If this
/// function fails, it has not called `publish`. `pending` is the trace's record of the call, if the
/// trace is on; a registration in the background takes the record.
///
/// This function is not inlined, but every function that it calls is inlined into it, once. Three
/// inlined copies, one for each of C's calls, were 47 KiB of code.
#[inline(never)]
pub fn register(
    call: &'static str,
    domain: &'static Domain,
    (buffers, wish): (Vec<Buffer>, Wish),
    publish: &dyn Fn(*mut fid_mr),
    pending: &mut Option<Pending>,
) -> Result<()> {
    let rights = access::map(wish.access, domain.iwarp, domain.granted)?;
    let table_key = table_key(domain, &wish)?;
    let is_placed = wish.flags & MR_OFFSET != 0;
    let base = if is_placed {
        wish.offset
    } else if domain.mode.virtual_addresses {
        buffers[0].addr.addr() as u64
    } else {
        0
    };
    let length = buffers.iter().map(|buffer| buffer.length as u64).sum();
    ensure(base.checked_add(length).is_some(), REGION_PAST_END)?;
    check_offset(domain, &wish, &buffers)?;
    let plan = Plan {
        table_key,
        is_placed,
        base,
        length,
    };
    let opened = domain.open_region(wish.context, plan);
    let region = opened.ok_or(Error::Memory)?;
    let memory = (buffers, rights);
    let complete_or_submit = || -> Result<()> {
        if let (Some(key), false) = (table_key, is_placed) {
            domain.keys.reserve(key, region)?;
        }
        let queue = domain.queue();
        if let Some(queue) = queue {
            queue.promise()?;
            // A placed region replaces others, so it must be registered when the call returns.
            if !is_placed {
                publish(region.as_ptr());
                workers::submit(Job {
                    call,
                    region,
                    queue,
                    pending: pending.take(),
                    register: Box::new(move |region| complete(domain, region, &memory)),
                });
                return Ok(());
            }
        }
        let how = complete(domain, region, &memory).inspect_err(|_| {
            if let Some(queue) = queue {
                queue.release();
            }
        })?;
        publish(region.as_ptr());
        // A thread that reads the event may close the region, so the record is written first.
        if let Some(pending) = pending {
            region.describe_record(&mut pending.record, how);
            pending.done();
        }
        if let Some(queue) = queue {
            queue.report(region, None);
        }
        Ok(())
    };
    complete_or_submit().inspect_err(|_| {
        domain.keys.remove(region);
        domain.close_region(region);
    })
}

/// The key in the domain's table, if the device does not choose the keys.
#[inline(always)]
fn table_key(domain: &Domain, wish: &Wish) -> Result<Option<u64>> {
    check_flags(wish.flags)?;
    let mode = &domain.mode;
    if mode.provider_keys {
        ensure(wish.flags & MR_KEY == 0, NOT_YOUR_KEYS)?;
        return Ok(None);
    }
    if mode.by_flags && wish.flags & MR_KEY == 0 {
        return domain.keys.unused(mode.last_key).map(Some);
    }
    ensure(wish.requested_key <= mode.last_key, KEY_TOO_LARGE)?;
    Ok(Some(wish.requested_key))
}

/// Refuses a base address that the application chose and the domain cannot have.
#[inline(always)]
fn check_offset(domain: &Domain, wish: &Wish, buffers: &[Buffer]) -> Result<()> {
    if wish.flags & MR_OFFSET == 0 {
        return ensure(
            domain.mode.by_flags || wish.offset == 0,
            OFFSET_WITHOUT_FLAG,
        );
    }
    // With the provider's keys the device itself must have the buffer at that address.
    if let [buffer] = buffers {
        if domain.mode.provider_keys {
            ensure(in_step(buffer, wish.offset), OFFSET_IN_PAGE)?;
            ensure(!domain.is_at_own_address(), OFFSET_IWARP)?;
        }
    }
    Ok(())
}

/// Whether a device can place a buffer at `address`: the kernel registers whole pages.
fn in_step(buffer: &Buffer, address: u64) -> bool {
    let page = page_size();
    buffer.addr.addr() as u64 % page == address % page
}

/// Registers the memory of a region in the state `UnderWay`. After an error nothing is registered.
/// Returns the way in which the last registration was done.
fn complete(
    domain: &Domain,
    region: &Region,
    (buffers, rights): &(Vec<Buffer>, Rights),
) -> Result<How> {
    // The cache does not serve placed regions: a region that replaces a placed one must end the old
    // registration at once, and the cache may end a registration later.
    let cached = domain.mode.cached && !region.plan.is_placed;
    let pinning = Pinning {
        domain,
        rights,
        cached,
    };
    let at = region.plan.is_placed.then_some(region.plan.base);
    let can_be = |&at: &u64| match &buffers[..] {
        [buffer] => in_step(buffer, at) && !domain.is_at_own_address(),
        _ => false,
    };
    let pieces = pinning.pin_all(buffers, at.filter(can_be))?;
    let how = pieces.last().map_or(How::Kernel, |last| last.how);
    region.fill(pieces);
    if region.plan.is_placed {
        let placed = domain.keys.place(region);
        end_all(&mut placed.inspect_err(|_| region.empty())?);
    } else {
        region.is_now_registered();
    }
    Ok(how)
}

/// Ends the registrations that a call had made before it failed.
fn ended(pieces: &mut [Piece], failure: Failure) -> Failure {
    let before = pieces.iter().map(Piece::pinned).sum();
    end_all(pieces);
    failure.beside(before)
}

/// How the buffers of a region are registered.
struct Pinning<'a> {
    domain: &'a Domain,
    rights: &'a Rights,
    /// The cache may serve them.
    cached: bool,
}

impl Pinning<'_> {
    /// Registers the buffers. `at` is the device's address for remote use, if the only buffer needs
    /// a specific one.
    fn pin_all(&self, buffers: &[Buffer], at: Option<u64>) -> Result<Vec<Piece>> {
        let mut pieces = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            match self.pin(buffer, at) {
                Ok(piece) => pieces.push(piece),
                Err(failure) => return Err(ended(&mut pieces, failure)),
            }
        }
        Ok(pieces)
    }

    /// Registers a buffer.
    #[inline(always)]
    fn pin(&self, buffer: &Buffer, at: Option<u64>) -> Result<Piece> {
        let (rights, mode) = (self.rights, &self.domain.mode);
        let addr = buffer.addr.addr() as u64;
        let remote = match at {
            Some(at) => at,
            // The cache and siw have every registration at the buffer's address, and rxe every one
            // that pages on demand. A table translates the addresses that remote peers use.
            None if mode.virtual_addresses || mode.cached || self.domain.is_at_own_address() => {
                addr
            }
            // As near to 0 as the kernel allows: it registers whole pages.
            None => addr % page_size(),
        };
        // A buffer that is not remotely accessible needs no address for remote use.
        let one_address = remote == addr || rights.remote.is_empty();
        let is_pair = !one_address && rights.is_local;
        let (access, iova) = match (one_address, is_pair) {
            (true, _) => (rights.local | rights.remote, addr),
            (_, true) => (rights.local, addr),
            _ => (rights.local | rights.remote, remote),
        };
        // The only inlined copy of the path to the kernel.
        let (mr, how) = self.ask(buffer, access, iova, |pd, request| {
            if self.cached && iova == addr {
                dispatch::register_relaxed(pd, request)
            } else {
                dispatch::register(pd, request)
            }
        })?;
        let piece = Piece {
            mr,
            for_remote: None,
            remote: iova,
            how,
        };
        if !is_pair {
            return Ok(piece);
        }
        match self.ask(buffer, rights.remote, remote, dispatch::register_rarely) {
            Ok((second, _)) => Ok(Piece {
                for_remote: Some(second),
                remote,
                ..piece
            }),
            Err(failure) => Err(ended(&mut [piece], failure)),
        }
    }

    /// Makes one kernel registration.
    #[inline(always)]
    fn ask(
        &self,
        buffer: &Buffer,
        access: Access,
        iova: u64,
        register: impl FnOnce(Pd, &Request) -> Result<Registered, Error>,
    ) -> Result<(Mr, How)> {
        let on_demand = match self.domain.mode.on_demand {
            true => Access::ON_DEMAND,
            false => Access::empty(),
        };
        let request = Request::new(buffer.addr, buffer.length, iova, access | on_demand);
        let pd = self.domain.pd;
        let registered = register(pd, &request).map_err(|error| Failure {
            error,
            subject: Subject::of_memory(pd, request),
        })?;
        // SAFETY: `register` has just returned this registration.
        let mr = unsafe { Mr::from_c(registered.mr) }.ok_or(Error::Memory)?;
        Ok((mr, registered.how))
    }
}
