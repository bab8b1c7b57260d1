// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `struct ibv_mr` that a program gets, and what libibverbs and the providers expect behind it.
//!
//! Programs and libraries reach our objects past us: `ibv_bind_mw` of mlx5 and irdma reads the provider's
//! own fields, and an `ibv_dereg_mr` that was taken from libibverbs by handle frees the object. So each
//! is memory of the C library, holds a real handle of the kernel, and is laid out to be valid for every
//! provider at once.

use super::{Access, Pd, Request};
use crate::abi::rdma_core::*;
use crate::abi::uapi::ib_uverbs_reg_mr_resp;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// What is behind an `ibv_mr` of ours.
#[repr(C)]
struct Layout {
    /// What libibverbs reads.
    verbs: verbs_mr,
    /// Where mlx5 (`alloc_flags`) and irdma (`acc_flags`) look for the access flags, to refuse binding a
    /// window to a zero-based region.
    provider_access: u32,
    /// As large as the largest that exists: cxgb4 has 16 bytes here, from the access flags on, which nobody
    /// reads.
    provider: u32,
    /// Of an object that stands for a region of the pool: the address of the pool's own object.
    pooled: usize,
}
const _: () =
    assert!(size_of::<Layout>() == 72 && core::mem::offset_of!(Layout, provider_access) == 56);

/// `verbs_mr.mr_type` of an object of ours whose region is not registered, or is just being deregistered.
/// libibverbs counts its types from 0. The public fields stay as they were, as they would in memory that
/// libibverbs had freed.
const RETIRED: u32 = 0x5245_5449;

/// `verbs_mr.mr_type` of an object that stands for one use of a region of the pool. That it is no type of
/// libibverbs' also keeps an `ibv_dereg_mr` that was taken from it by handle from giving the memory back to
/// children: that is for the pool to do, when the region ends.
const POOLED: u32 = 0x504f_4f4c;

/// An object that is a region of ours, or was, or will be.
#[derive(Clone, Copy)]
pub struct Object(NonNull<Layout>);

impl Object {
    /// A new one, zeroed; `None` where there is no memory.
    pub fn allocate() -> Option<Object> {
        // SAFETY: calloc has no conditions.
        NonNull::new(unsafe { libc::calloc(1, size_of::<Layout>()) }.cast()).map(Object)
    }

    /// The object at an address that was one's.
    pub fn at(address: usize) -> Option<Object> {
        NonNull::new(with_exposed_provenance_mut(address)).map(Object)
    }

    /// Its address.
    pub fn address(self) -> usize {
        self.0.expose_provenance().get()
    }

    /// As C sees it.
    pub fn as_ptr(self) -> *mut ibv_mr {
        self.0.as_ptr().cast()
    }

    /// Makes it the region that the kernel has just registered.
    pub fn fill(self, pd: Pd, request: &Request, answer: &ib_uverbs_reg_mr_resp) {
        let access = request.access.bits();
        let layout = Layout {
            verbs: verbs_mr {
                ibv_mr: ibv_mr {
                    context: pd.context(),
                    // The program's pointer, also where it is a parent domain: ibv_bind_mw compares it.
                    pd: pd.as_ptr(),
                    addr: request.addr,
                    length: request.length,
                    handle: answer.mr_handle,
                    lkey: answer.lkey,
                    rkey: answer.rkey,
                },
                mr_type: IBV_MR_TYPE_MR,
                access,
            },
            provider_access: access,
            provider: 0,
            pooled: 0,
        };
        // SAFETY: memory of `allocate` that no region uses: the program has not got it yet, or has let go
        // of it by deregistering.
        unsafe { self.0.write(layout) };
    }

    /// Makes it stand for the use of a region that the pool has just given out.
    pub fn stand_for(self, access: Access, region: Mr) {
        let access = access.bits();
        let layout = Layout {
            verbs: verbs_mr {
                ibv_mr: region.read(),
                mr_type: POOLED,
                access,
            },
            provider_access: access,
            provider: 0,
            pooled: region.address(),
        };
        // SAFETY: as in `fill`.
        unsafe { self.0.write(layout) };
    }

    /// The pool's object that it stands for.
    pub fn pooled(self) -> usize {
        // SAFETY: one that was made by `stand_for`, by the word of `Mr::claim_pooled`.
        unsafe { (*self.0.as_ptr()).pooled }
    }

    /// Makes it the region that another object is, which is not one from now on.
    pub fn take_over(self, other: Object) {
        // SAFETY: both are memory of `allocate`; the caller has claimed the one and just made the other.
        unsafe { self.0.copy_from_nonoverlapping(other.0, 1) };
    }

    /// Frees it.
    ///
    /// # Safety
    /// Its region is deregistered, and it does not wait to be used again.
    pub unsafe fn free(self) {
        // SAFETY: memory of `allocate`, and by the caller's word the last use of it.
        unsafe { libc::free(self.0.as_ptr().cast()) };
    }
}

/// An `ibv_mr` that a program hands in, ours or a provider's.
#[derive(Clone, Copy)]
pub struct Mr(NonNull<verbs_mr>);

impl Mr {
    /// The region that C names; `None` for a null pointer.
    ///
    /// # Safety
    /// What is not null is a memory region that libibverbs or this library made and that is not
    /// deregistered, or was made by this library and deregistered through it. Every provider's object
    /// begins with a `verbs_mr`.
    pub unsafe fn from_c(mr: *mut ibv_mr) -> Option<Mr> {
        NonNull::new(mr.cast()).map(Mr)
    }

    /// Its address.
    pub fn address(self) -> usize {
        self.0.expose_provenance().get()
    }

    /// As C sees it.
    pub fn as_ptr(self) -> *mut ibv_mr {
        self.0.as_ptr().cast()
    }

    /// The public part.
    pub fn read(self) -> ibv_mr {
        // SAFETY: a region that exists, or an object of ours, by `from_c`.
        unsafe { (*self.0.as_ptr()).ibv_mr }
    }

    /// The access flags of its registration, as far as libibverbs knows.
    pub fn access(self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.0.as_ptr()).access }
    }

    fn mr_type(&self) -> &AtomicU32 {
        let offset = core::mem::offset_of!(verbs_mr, mr_type);
        let mr_type = self.0.as_ptr().wrapping_byte_add(offset).cast();
        // SAFETY: as above. Others write it only when they make the object, before it has other readers.
        unsafe { AtomicU32::from_ptr(mr_type) }
    }

    /// Whether it is one of ours that is deregistered, or just being.
    pub fn is_retired(self) -> bool {
        self.mr_type().load(Relaxed) == RETIRED
    }

    /// Marks a region of ours as deregistered.
    pub fn retire(self) {
        self.mr_type().store(RETIRED, Relaxed);
    }

    /// Takes the mark back.
    pub fn unretire(self) {
        self.mr_type().store(IBV_MR_TYPE_MR, Relaxed);
    }

    /// Whether it stands for a use of a region of the pool.
    #[inline(always)]
    pub fn is_pooled(self) -> bool {
        self.mr_type().load(Relaxed) == POOLED
    }

    /// Takes it from the program, if it stands for a use of a region of the pool. Of two threads one succeeds.
    pub fn claim_pooled(self) -> Option<Object> {
        self.mr_type()
            .compare_exchange(POOLED, RETIRED, AcqRel, Relaxed)
            .ok()?;
        Object::at(self.address())
    }

    /// Gives it back.
    pub fn restore_pooled(self) {
        self.mr_type().store(POOLED, Release);
    }
}
