// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deregistering, ibv_dereg_mr(3): ours by our own kernel call, all others by libibverbs.

use super::object::{Mr, Object};
use super::table::{Claim, Region};
use super::{Access, Context, Error, count_vanished, fork};
use crate::abi::rdma_core::IBV_MR_TYPE_MR;
use crate::config::disabled;
use crate::process::{self, Process};
use crate::stats::Counter;
use crate::uverbs::context::Facts;
use crate::uverbs::{Uverbs, mr};
use crate::{next, thread};
use errno::Errno;

/// Deregisters a region. After an error it is still registered, and still the program's.
pub fn deregister(mr: Mr) -> Result<(), Error> {
    // In a forked child there is nothing of ours: a parent's region is libibverbs' to judge, as without us.
    let Some(process) = process::existing() else {
        return pass_on(mr);
    };
    if disabled() || thread::is_inside() {
        return pass_on(mr);
    }
    match process.table.claim(mr.address(), || mr.identity()) {
        Claim::Ours(region) => deregister_ours(process, mr, region),
        Claim::Gone => Err(Error::Gone),
        Claim::Foreign => pass_on(mr),
        Claim::Vanished(region) => {
            count_vanished(process, region);
            pass_on(mr)
        }
    }
}

fn deregister_ours(process: &Process, mr: Mr, region: Region) -> Result<(), Error> {
    // Of now, not of the registration: ibv_rereg_mr moves a region.
    let verbs = mr.read();
    if let Err(errno) = ask_kernel(process, verbs.ibv_mr.context, region) {
        process.table.restore(mr.address(), region);
        return Err(Error::Kernel(errno));
    }
    process.counters.add(Counter::DeregKernel, 1);
    process
        .counters
        .add(Counter::BytesEnded, region.length as u64);
    for unneeded in process
        .table
        .retire(mr.address(), region)
        .filter_map(Object::at)
    {
        // SAFETY: the table has just given it back.
        unsafe { unneeded.free() };
    }
    let access = Access::from_bits_retain(verbs.access);
    if verbs.mr_type == IBV_MR_TYPE_MR && !access.on_demand() {
        fork::dofork(verbs.ibv_mr.addr, verbs.ibv_mr.length);
    }
    Ok(())
}

fn ask_kernel(
    process: &Process,
    context: *mut crate::abi::rdma_core::ibv_context,
    region: Region,
) -> Result<(), Errno> {
    // SAFETY: the device of a live region, which must be open.
    let context = unsafe { Context::from_c(context) }.ok_or(Errno(libc::EINVAL))?;
    let fd = context.fd().ok_or(Errno(libc::EBADF))?;
    let facts = match process.contexts.get(context.address()) {
        Some(facts) => facts,
        // More devices are open than are remembered.
        None => crate::uverbs::context::identify(&Uverbs, fd)?,
    };
    let (result, learned) = mr::deregister(&Uverbs, fd, facts, region.identity.handle);
    if learned != Facts::empty() {
        process.contexts.add(context.address(), learned);
    }
    match result {
        // The device is gone, and the region with it.
        Err(Errno(libc::EIO)) if next::allows_disassociated_destroy() => Ok(()),
        result => result,
    }
}

fn pass_on(mr: Mr) -> Result<(), Error> {
    let next = next::DEREG_MR
        .get()
        .ok_or(Error::NoNext(next::DEREG_MR.name()))?;
    // SAFETY: the program's own region, to the function that it meant.
    match unsafe { next(mr.as_ptr()) } {
        0 => {
            if let Some(process) = process::current() {
                process.counters.add(Counter::DeregNext, 1);
            }
            Ok(())
        }
        errno => Err(Error::Next(Errno(errno))),
    }
}
