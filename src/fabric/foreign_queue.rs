// SPDX-License-Identifier: MIT OR Apache-2.0
//! Another provider's event queue. It gets events of success only: some providers would deliver an
//! error event as a plain event of 48 bytes. A domain that is bound to such a queue therefore
//! registers in the calling thread, and writes an event only if the registration succeeded.

use super::errors::{Failure, ensure};
use super::refusals::*;
use core::ffi::c_void;
use core::ptr::{null_mut, with_exposed_provenance_mut};
use errno::Errno;
use rdmamr_abi::libfabric::*;
use rdmamr_mr::Error;

/// The queue, by address.
pub struct ForeignQueue(usize);

impl ForeignQueue {
    /// Tests that the queue accepts events: writes one and reads it back at once. The verbs
    /// provider's queue accepts none without FI_WRITE, and no call tells whether it was opened with
    /// that flag.
    ///
    /// # Safety
    /// `eq` is an open queue, and stays open as long as a domain is bound to it.
    pub unsafe fn try_out(eq: *mut fid_eq) -> Result<ForeignQueue, Failure> {
        let queue = ForeignQueue(eq.expose_provenance());
        let probe = eq.cast::<fid>();
        ensure(queue.read(FI_PEEK)?.is_none(), FOREIGN_NOT_EMPTY)?;
        queue.write(FI_NOTIFY, probe, null_mut())?;
        let event = queue.read(FI_PEEK)?;
        let same = event.is_some_and(|event| event.fid == probe);
        ensure(same, FOREIGN_ONE_WAY)?;
        queue.read(0).map(|_| queue)
    }

    fn eq(&self) -> *mut fid_eq {
        with_exposed_provenance_mut(self.0)
    }

    fn ops(&self) -> Result<&fi_ops_eq, Failure> {
        // SAFETY: the caller of `try_out` promised an open queue, which the bound domain keeps
        // open.
        let ops = unsafe { (*self.eq()).ops };
        // SAFETY: an open queue's table is valid or NULL.
        unsafe { ops.as_ref() }.ok_or(FOREIGN_NO_TABLE.into())
    }

    /// Reads the next event as the event of a registration. `None` if the queue is empty. For an
    /// event of another kind, the entry proves only that the event is not the expected one.
    fn read(&self, flags: u64) -> Result<Option<fi_eq_entry>, Failure> {
        let read = self.ops()?.read.ok_or(FOREIGN_NO_FUNCTION)?;
        let mut event = 0;
        let mut room = [0u64; 512 / 8];
        let (out, size) = (room.as_mut_ptr().cast(), size_of_val(&room));
        // SAFETY: `read` is the open queue's function, and `room` has `size` bytes.
        let got = unsafe { read(self.eq(), &mut event, out, size, flags) };
        match i32::try_from(got).unwrap_or(0) {
            code if code == -FI_EAGAIN => Ok(None),
            code if code == -FI_EAVAIL => Err(FOREIGN_ERROR.into()),
            code if code < 0 => Err(failed(code)),
            _ => Ok(Some(fi_eq_entry {
                fid: with_exposed_provenance_mut(room[0] as usize),
                context: with_exposed_provenance_mut(room[1] as usize),
                data: room[2],
            })),
        }
    }

    fn write(&self, event: u32, fid: *mut fid, context: *mut c_void) -> Result<(), Failure> {
        let write = self.ops()?.write.ok_or(FOREIGN_NO_FUNCTION)?;
        let entry = fi_eq_entry {
            fid,
            context,
            data: 0,
        };
        let size = size_of::<fi_eq_entry>();
        // SAFETY: `write` is the open queue's function, and `entry` has `size` bytes.
        match unsafe { write(self.eq(), event, (&raw const entry).cast(), size, 0) } {
            wrote if wrote == size as isize => Ok(()),
            wrote if wrote < 0 => Err(failed(i32::try_from(wrote).unwrap_or(-FI_EOTHER))),
            _ => Err(FOREIGN_PARTLY.into()),
        }
    }

    /// Writes the event of a completed registration.
    pub fn completed(&self, region: *mut fid_mr, context: *mut c_void) -> Result<(), Failure> {
        self.write(FI_MR_COMPLETE, region.cast(), context)
    }
}

/// Translates another provider's error code.
fn failed(code: i32) -> Failure {
    match -code {
        FI_EINVAL => FOREIGN_TAKES_NONE.into(),
        FI_ENOSYS => FOREIGN_NO_FUNCTION.into(),
        other => Failure::from(Error::Next(Errno(other))),
    }
}
