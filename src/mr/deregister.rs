// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deregistering, ibv_dereg_mr(3): ours by our own kernel call, all others by libibverbs.

use super::object::{Mr, Object};
use super::table::{Claim, Name, Region};
use super::{Access, Context, Error, count_vanished, fork, put_away};
use crate::config::disabled;
use crate::process::{self, Process};
use crate::stats::Counter;
use crate::uverbs::context::{Facts, identify};
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
    pub process: &'static Process,
    pub mr: Mr,
    pub name: Name,
    pub region: Region,
}

/// Claims a region if it is ours. `None` if it is not, or cannot be told: then it is libibverbs' to judge.
pub fn claim(mr: Mr) -> Result<Option<Claimed>, Error> {
    // In a forked child nothing is ours that the parent registered.
    let Some(process) = process::existing() else {
        return Ok(None);
    };
    if disabled() || thread::is_inside() {
        return Ok(None);
    }
    let name = mr.name();
    let found = process
        .table
        .claim(name, mr.address(), mr.read().lkey, |_| mr.retire());
    match found {
        Claim::Ours(region) => Ok(Some(Claimed {
            process,
            mr,
            name,
            region,
        })),
        _ if mr.is_retired() => Err(Error::Gone),
        Claim::Foreign => Ok(None),
        Claim::InPlaceOf(vanished) => {
            count_vanished(process, vanished);
            Ok(None)
        }
    }
}

impl Claimed {
    /// Puts the region back, as it is or as it is by now.
    pub fn restore(self) {
        self.mr.unretire();
        self.process.table.restore(self.name, self.region);
    }

    fn deregister(self) -> Result<(), Error> {
        if let Err(errno) = self.ask_kernel() {
            self.restore();
            return Err(Error::Kernel(errno));
        }
        let Claimed {
            process,
            mr,
            region,
            ..
        } = self;
        process.counters.add(Counter::DeregKernel, 1);
        process
            .counters
            .add(Counter::BytesEnded, region.length as u64);
        // Of now, not of the registration: ibv_rereg_mr moves a region. And before the object is put away.
        let (was, access) = (mr.read(), Access::from_bits_retain(mr.access()));
        if let Some(object) = Object::at(region.object) {
            put_away(process, object);
        }
        if !access.on_demand() {
            fork::dofork(was.addr, was.length);
        }
        Ok(())
    }

    fn ask_kernel(&self) -> Result<(), Errno> {
        let context = self.mr.read().context;
        // SAFETY: the device of a region that exists, which must be open.
        let context = unsafe { Context::from_c(context) }.ok_or(Errno(libc::EINVAL))?;
        let fd = context.fd().ok_or(Errno(libc::EBADF))?;
        let facts = match self.process.contexts.get(context.address()) {
            Some(facts) => facts,
            // More devices are open than are remembered.
            None => identify(&Uverbs, fd)?,
        };
        let (result, learned) = mr::deregister(&Uverbs, fd, facts, self.name.handle);
        if learned != Facts::empty() {
            self.process.contexts.add(context.address(), learned);
        }
        match result {
            // The device is gone, and the region with it.
            Err(Errno(libc::EIO)) if next::allows_disassociated_destroy() => Ok(()),
            result => result,
        }
    }
}

fn pass_on(mr: Mr) -> Result<(), Error> {
    let next = next::DEREG_MR.get();
    let next = next.ok_or(Error::NoNext(next::DEREG_MR.name()))?;
    // SAFETY: the program's own region, to the function that it meant.
    match unsafe { next(mr.as_ptr()) } {
        0 => {
            process::current().counters.add(Counter::DeregNext, 1);
            Ok(())
        }
        errno => Err(Error::Next(Errno(errno))),
    }
}
