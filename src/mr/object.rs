// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `struct ibv_mr` that a program gets, and the fields that libibverbs and the providers expect
//! after it.
//!
//! Programs and libraries use our objects without calling us: `ibv_bind_mw` of mlx5 and irdma reads
//! the provider's own fields, and an `ibv_dereg_mr` that a program took from libibverbs with dlsym
//! frees the object. Each object that a plain call returns is therefore memory of the C library. Each
//! object holds a real handle of the kernel, and has a layout that is valid for every provider at once.
//! (A relaxed call returns the object in a slot of the cache, which no provider may free.)

use super::access::Access;
use super::request::Request;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::*};
use rdmamr_abi::rdma_core::*;
use rdmamr_abi::uapi::ib_uverbs_reg_mr_resp;
use rdmamr_next::{Context, Maker, Pd};

/// The memory of an `ibv_mr` of ours.
#[repr(C)]
struct Layout {
    /// The part that libibverbs reads.
    verbs: verbs_mr,
    /// mlx5 (`alloc_flags`) and irdma (`acc_flags`) read the access flags here, to refuse binding a
    /// window to a zero-based region.
    provider_access: u32,
    /// [`IS_CACHED`] or 0. The object has the size of the largest provider object: cxgb4 has 16 bytes
    /// from the access flags on, which nothing reads.
    mark: u32,
    /// For an object that stands for a cached region: the address of the cache's own object.
    cached: usize,
}
const _: () = assert!(size_of::<Layout>() == 72 && offset_of!(Layout, provider_access) == 56);

/// `verbs_mr.mr_type` of an object of ours without a registered region, or whose region a thread is
/// deregistering. libibverbs counts its types from 0. The public fields keep their values, just as
/// memory that libibverbs had freed would.
const RETIRED: u32 = 0x5245_5449;

/// Marks an object that stands for one use of a cached region, in `verbs_mr.access`, at the
/// bits that no access flag has. `mr_type` stays that of an ordinary region, since `ibv_bind_mw` of
/// mlx5 and irdma refuses every other type.
const CACHED: u32 = 0x8009_5400;
const NO_ACCESS_FLAG: u32 = 0xc00f_fc00;

/// Marks the same object, in `Layout::mark`. A provider may leave `verbs_mr.access` unwritten (regions of device
/// memory), so the mark there is not enough.
const IS_CACHED: u32 = 0x504f_4f4c;

/// An object of ours, with or without a region.
#[derive(Clone, Copy)]
pub struct Object(NonNull<Layout>);

impl Object {
    /// Allocates an object, which the caller fills. `None` if memory is exhausted.
    #[inline(always)]
    pub fn allocate() -> Option<Object> {
        // SAFETY: malloc has no preconditions.
        NonNull::new(unsafe { libc::malloc(size_of::<Layout>()) }.cast()).map(Object)
    }

    pub fn address(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    pub fn as_ptr(self) -> *mut ibv_mr {
        self.0.as_ptr().cast()
    }

    /// Describes the region that the kernel has just registered.
    pub fn fill(self, pd: Pd, request: &Request, answer: &ib_uverbs_reg_mr_resp) {
        let public = ibv_mr {
            context: pd.context(),
            // The program's own pointer, even if it names a parent domain: ibv_bind_mw compares it.
            pd: pd.as_ptr(),
            addr: request.addr,
            length: request.length,
            handle: answer.mr_handle,
            lkey: answer.lkey,
            rkey: answer.rkey,
        };
        self.write(public, request.access, None);
    }

    /// Makes the object stand for one use of a cached region.
    pub fn stand_for(self, access: Access, region: Mr) {
        self.write(region.read(), access, Some(region));
    }

    #[inline(always)]
    fn write(self, ibv_mr: ibv_mr, access: Access, cached: Option<Mr>) {
        let access = access.bits();
        let (marked, mark) = match cached {
            Some(_) => (access & !NO_ACCESS_FLAG | CACHED, IS_CACHED),
            None => (access, 0),
        };
        let layout = Layout {
            verbs: verbs_mr {
                ibv_mr,
                mr_type: IBV_MR_TYPE_MR,
                access: marked,
            },
            provider_access: access,
            mark,
            cached: cached.map_or(0, Mr::address),
        };
        // SAFETY: `allocate` made this memory, and the program has not got it yet.
        unsafe { self.0.write(layout) };
    }

    /// The cache's own object for this use.
    pub fn cached(self) -> usize {
        // SAFETY: `Mr::is_stand_in` was true of this object, so `stand_for` has filled it.
        unsafe { (*self.0.as_ptr()).cached }
    }

    /// Frees the object. The mark of [`Mr::retire`] stays in the memory: until the memory is
    /// allocated again, it tells a second `ibv_dereg_mr` of the region from the first.
    ///
    /// # Safety
    /// The object's region is deregistered or was never registered, and only the caller has the
    /// object.
    #[inline(always)]
    pub unsafe fn free(self) {
        // SAFETY: `allocate` made this memory, and the caller gives up its last use.
        unsafe { libc::free(self.0.as_ptr().cast()) };
    }
}

/// An `ibv_mr` that the program passes in, made by us or by a provider.
#[derive(Clone, Copy)]
pub struct Mr(NonNull<verbs_mr>);

// SAFETY: libibverbs lets any thread use a region, and an `Mr` is only its address.
unsafe impl Send for Mr {}

impl Mr {
    /// The region behind a C pointer; `None` for a null pointer.
    ///
    /// # Safety
    /// A non-null `mr` is a live memory region of libibverbs or of this library, or a region of
    /// this library that was deregistered through this library. Every provider's object begins with
    /// a `verbs_mr`.
    pub unsafe fn from_c(mr: *mut ibv_mr) -> Option<Mr> {
        NonNull::new(mr.cast()).map(Mr)
    }

    pub fn address(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    pub fn as_ptr(self) -> *mut ibv_mr {
        self.0.as_ptr().cast()
    }

    /// The public fields.
    pub fn read(self) -> ibv_mr {
        // SAFETY: `from_c` was promised a live region or an object of ours.
        unsafe { (*self.0.as_ptr()).ibv_mr }
    }

    /// The library that made the region's device.
    pub fn maker(self) -> Maker {
        // SAFETY: the context of a live region stays open as long as the region exists.
        Maker::of(unsafe { Context::from_c(self.read().context) })
    }

    /// The access flags of the registration, as libibverbs knows them.
    pub fn access(self) -> u32 {
        let access = self.marked().load(Relaxed);
        if access & NO_ACCESS_FLAG == CACHED {
            access & !NO_ACCESS_FLAG
        } else {
            access
        }
    }

    /// `verbs_mr.access`, which may have a mark.
    fn marked(&self) -> &AtomicU32 {
        self.word(offset_of!(verbs_mr, access))
    }

    fn mr_type(&self) -> &AtomicU32 {
        self.word(offset_of!(verbs_mr, mr_type))
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        let word = self.0.as_ptr().wrapping_byte_add(offset).cast();
        // SAFETY: `from_c` was promised a live region or an object of ours, and the word is in it
        // or in the same heap. Other code writes these fields without an atomic only when it makes
        // the object, before other threads can read it.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// Whether the region may have no handle of the kernel: mlx5 answers `ibv_alloc_null_mr` itself,
    /// and leaves the handle 0, which is another region's.
    pub fn may_lack_handle(self) -> bool {
        self.mr_type().load(Relaxed) == IBV_MR_TYPE_NULL_MR
    }

    /// Whether the region is of a dma-buf, which no range of addresses stands for.
    pub fn is_of_dmabuf(self) -> bool {
        self.mr_type().load(Relaxed) == IBV_MR_TYPE_DMABUF_MR
    }

    /// Whether the object is ours and its region is deregistered, or is being deregistered.
    pub fn is_retired(self) -> bool {
        self.mr_type().load(Relaxed) == RETIRED
    }

    /// The object of a region of ours.
    pub(super) fn object(self) -> Object {
        Object(self.0.cast())
    }

    /// Marks a region of ours as deregistered.
    pub fn retire(self) {
        self.mr_type().store(RETIRED, Relaxed);
    }

    /// Removes the mark of [`Mr::retire`] and of [`Mr::claim_cached`].
    pub fn unretire(self) {
        self.mr_type().store(IBV_MR_TYPE_MR, Release);
    }

    /// Whether the object stands for one use of a cached region.
    pub fn is_stand_in(self) -> bool {
        self.mr_type().load(Relaxed) == IBV_MR_TYPE_MR
            && self.marked().load(Relaxed) & NO_ACCESS_FLAG == CACHED
            // If the mark in `access` is garbage of a provider's smaller object, this word is the C
            // library's, which follows the object in the heap.
            && self.word(offset_of!(Layout, mark)).load(Relaxed) == IS_CACHED
    }

    /// The cache's own object, if this one stands for a use of a cached region.
    pub fn cached(self) -> Option<usize> {
        self.is_stand_in().then(|| self.object().cached())
    }

    /// Claims the object if it stands for a use of a cached region. Of two threads only one
    /// succeeds.
    pub fn claim_cached(self) -> Option<Object> {
        if !self.is_stand_in() {
            return None;
        }
        let kind = self.mr_type();
        let claimed = kind.compare_exchange(IBV_MR_TYPE_MR, RETIRED, AcqRel, Relaxed);
        claimed.is_ok().then(|| self.object())
    }

    /// Makes a claimed object an ordinary region, which has the kernel's handle to itself.
    pub fn become_ordinary(self) {
        self.marked().store(self.access(), Relaxed);
        self.unretire();
    }
}
