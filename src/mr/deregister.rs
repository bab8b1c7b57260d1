// SPDX-License-Identifier: MIT OR Apache-2.0
//! ibv_dereg_mr(3): our regions by our own kernel call, all others by libibverbs.

use super::access::Access;
use super::devices::{self, Device};
use super::fork;
use super::object::Mr;
use super::outcome::{Error, How};
use super::require::{done, require};
use core::ffi::c_int;
use errno::Errno;
use rdmamr_next::{self as next, Context, Maker};
use rdmamr_stats::{self as stats, counter};
use rdmamr_sys::{probe, thread};
use rdmamr_uverbs::{Uverbs, mr};

/// Deregisters a region. After an error the region is still registered and still the program's.
pub fn deregister(mr: Mr) -> Result<How, Error> {
    match claim(mr)? {
        Some(claimed) => claimed.deregister(),
        None => forward(mr),
    }
}

/// A region of ours that this caller alone has claimed.
pub struct Claimed {
    pub device: &'static Device,
    pub mr: Mr,
}

/// Claims a region of ours. `None` if the region is not ours or the table cannot tell: then
/// libibverbs decides.
#[inline(always)]
pub fn claim(mr: Mr) -> Result<Option<Claimed>, Error> {
    let public = mr.read();
    // A forked child has no state of its own here: regions that the parent registered are not ours.
    if let Some(device) = devices::of_context(public.context.expose_provenance()) {
        let (handle, object) = (public.handle, mr.address());
        let rows = &device.rows;
        if rows.claim(handle, object, public.lkey, || mr.retire()) {
            return Ok(Some(Claimed { device, mr }));
        }
        if !mr.is_retired() && !mr.may_lack_handle() {
            // The handle now belongs to a foreign region.
            rows.forget(handle);
        }
    }
    if mr.is_retired() {
        return Err(Error::Gone);
    }
    Ok(None)
}

impl Claimed {
    /// Undoes the claim.
    pub fn restore(self) {
        self.mr.unretire();
        let handle = self.mr.read().handle;
        self.device.rows.restore(handle, self.mr.address());
    }

    fn deregister(self) -> Result<How, Error> {
        // Read the range now: ibv_rereg_mr may have moved the region since its registration.
        let was = self.mr.read();
        let access = Access::from_bits_retain(self.mr.access());
        // SAFETY: the region is live, so its device is open.
        let context = unsafe { Context::from_c(was.context) };
        if let Err(errno) = self.ask_kernel(context, was.handle) {
            self.restore();
            return Err(Error::Kernel(errno));
        }
        let thread = thread::number();
        probe!("dereg", was.addr.addr() as u64, was.length as u64);
        stats::counters().add(thread, counter!(dereg_kernel), 1);
        // SAFETY: the region has ended, and this thread has claimed it.
        unsafe { self.mr.object().free() };
        if let Some(context) = context.filter(|_| !access.on_demand()) {
            fork::dofork(context, was.addr, was.length);
        }
        Ok(How::Kernel)
    }

    #[inline(always)]
    fn ask_kernel(&self, context: Option<Context>, handle: u32) -> Result<(), Errno> {
        let context = context.ok_or(Errno(libc::EINVAL))?;
        let fd = context.fd().ok_or(Errno(libc::EBADF))?;
        match mr::deregister(&Uverbs, fd, self.device.facts.get(), handle) {
            // The device is gone, and the region with it.
            Err(Errno(libc::EIO)) if next::allows_disassociated_destroy(Maker::of(context)) => {
                Ok(())
            }
            result => result,
        }
    }
}

/// A provider deregisters a region by `dereg`, which returns 0 or an errno. A region of ours that
/// ends this way has ended elsewhere. Its row is emptied before the kernel may give its handle to
/// another region.
pub fn around_bypassed_deregister(mr: Mr, dereg: impl FnOnce() -> c_int) -> c_int {
    let public = mr.read();
    let (handle, object) = (public.handle, mr.address());
    let ours = devices::of_context(public.context.expose_provenance())
        .filter(|device| device.rows.claim(handle, object, public.lkey, || ()));
    let errno = dereg();
    match ours {
        Some(device) if errno == 0 => device.rows.count_ended_elsewhere(),
        Some(device) => device.rows.restore(handle, object),
        None => {}
    }
    errno
}

fn forward(mr: Mr) -> Result<How, Error> {
    let next = require(&next::DEREG_MR, mr.maker())?;
    let _uncancelled = thread::uncancelled();
    // SAFETY: `mr` is live (`Mr::from_c`), and `next` is libibverbs' `ibv_dereg_mr`.
    done(unsafe { next(mr.as_ptr()) })?;
    stats::counters().count(counter!(dereg_next));
    Ok(How::Forwarded)
}
