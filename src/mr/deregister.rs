// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deregistering, ibv_dereg_mr(3): ours by our own kernel call, all others by libibverbs.

use super::devices::Device;
use super::object::{Mr, Object};
use super::rows::Claim;
use super::state::{self, State};
use super::{Access, Context, Error, count_vanished, fork, put_away, require};
use crate::abi::rdma_core::ibv_mr;
use crate::config::disabled;
use crate::stats::Counter;
use crate::trace::{self, format::how};
use crate::uverbs::context::Facts;
use crate::uverbs::{Uverbs, mr};
use crate::{next, thread};
use errno::Errno;

/// Deregisters a region. After an error it is still registered, and still the program's.
pub fn deregister(mr: Mr) -> Result<(), Error> {
    match claim(mr)? {
        Some(claimed) => claimed.deregister(),
        None => pass_on(mr),
    }
}

/// A region of ours that is the caller's alone.
pub struct Claimed {
    pub state: &'static State,
    pub device: &'static Device,
    pub mr: Mr,
}

/// Claims a region if it is ours. `None` if it is not, or cannot be told: then it is libibverbs' to judge.
#[inline(always)]
pub fn claim(mr: Mr) -> Result<Option<Claimed>, Error> {
    if !disabled()
        // In a forked child nothing is ours that the parent registered.
        && let Some(state) = state::existing()
        && let public = mr.read()
        && let Some(device) = state.devices.get(public.context.expose_provenance())
    {
        let (handle, object) = (public.handle, mr.address());
        match device
            .rows
            .claim(handle, object, public.lkey, || mr.retire())
        {
            Claim::Ours => {
                return Ok(Some(Claimed { state, device, mr }));
            }
            Claim::Gone => return Err(Error::Gone),
            Claim::NotOurs if mr.is_retired() => return Err(Error::Gone),
            // The handle is a foreign region's now.
            Claim::NotOurs if device.rows.forget(handle) => count_vanished(state, 1),
            Claim::NotOurs => {}
        }
    }
    if mr.is_retired() {
        return Err(Error::Gone);
    }
    Ok(None)
}

impl Claimed {
    /// Puts the region back.
    pub fn restore(self) {
        self.mr.unretire();
        let handle = self.mr.read().handle;
        self.device.rows.restore(handle, self.mr.address());
    }

    fn deregister(self) -> Result<(), Error> {
        // Of now, not of the registration: ibv_rereg_mr moves a region.
        let was = self.mr.read();
        let access = Access::from_bits_retain(self.mr.access());
        if let Err(errno) = self.ask_kernel(&was) {
            self.restore();
            return Err(Error::Kernel(errno));
        }
        let thread = thread::number();
        let counters = &self.state.counters;
        counters.add(thread, Counter::DeregKernel, 1);
        if let Some(object) = Object::at(self.mr.address()) {
            put_away(self.state, thread, object);
        }
        if !access.on_demand() {
            fork::dofork(was.addr, was.length);
        }
        Ok(())
    }

    #[inline(always)]
    fn ask_kernel(&self, was: &ibv_mr) -> Result<(), Errno> {
        // SAFETY: the device of a region that exists, which must be open.
        let context = unsafe { Context::from_c(was.context) }.ok_or(Errno(libc::EINVAL))?;
        let fd = context.fd().ok_or(Errno(libc::EBADF))?;
        let (result, learned) = mr::deregister(&Uverbs, fd, self.device.facts(), was.handle);
        if learned != Facts::empty() {
            self.device.add_facts(learned);
        }
        match result {
            // The device is gone, and the region with it.
            Err(Errno(libc::EIO)) if next::allows_disassociated_destroy() => Ok(()),
            result => result,
        }
    }
}

fn pass_on(mr: Mr) -> Result<(), Error> {
    let next = require(&next::DEREG_MR)?;
    // SAFETY: the program's own region, to the function that it meant.
    match unsafe { next(mr.as_ptr()) } {
        0 => {
            let counters = &state::current().counters;
            counters.add(thread::number(), Counter::DeregNext, 1);
            trace::note(how::PASSED_ON);
            Ok(())
        }
        errno => Err(Error::Next(Errno(errno))),
    }
}
