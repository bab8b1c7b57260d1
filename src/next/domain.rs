// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device and the protection domain that a call names.
//!
//! # Safety
//! **Live handle:** a [`Context`] or a [`Pd`] comes from a pointer whose caller promised `from_c`
//! that the object exists. The caller keeps the object alive while the value is in use.

use core::ffi::c_void;
use core::hint::black_box;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use rdmamr_abi::rdma_core::*;

/// An open device.
#[derive(Clone, Copy)]
pub struct Context(NonNull<ibv_context>);

// SAFETY: libibverbs lets threads use a context at the same time.
unsafe impl Sync for Context {}

impl Context {
    /// The device that C names. `None` for a null pointer.
    ///
    /// # Safety
    /// A pointer that is not null points to a context that libibverbs made and that is not closed.
    pub unsafe fn from_c(context: *mut ibv_context) -> Option<Context> {
        NonNull::new(context).map(Context)
    }

    /// The device at the end of a `verbs_context`. The word before the device has the size of the
    /// whole structure.
    ///
    /// # Safety
    /// The pointer is NULL, or points to a `verbs_context` that libibverbs made and that is not
    /// closed.
    #[cold]
    pub unsafe fn from_verbs_context(start: *mut c_void) -> Option<Context> {
        const FEWEST: usize = CREATE_CQ_EX_BEFORE_CONTEXT;
        const MOST: usize = 600;
        let start = NonNull::new(start)?;
        // `black_box` prevents unrolling: sixty copies of the step are as much code as a whole
        // module.
        let mut places = (FEWEST..black_box(MOST)).step_by(size_of::<usize>());
        let context = places.find(|&before| {
            let place = start.as_ptr().wrapping_byte_add(before - SZ_BEFORE_CONTEXT);
            // SAFETY: every `verbs_context` has more than FEWEST bytes before its end, and the
            // search ends where its own `sz` is.
            let size = unsafe { place.cast::<usize>().read() };
            size == before + size_of::<ibv_context>()
        })?;
        NonNull::new(start.as_ptr().wrapping_byte_add(context).cast()).map(Context)
    }

    /// As C sees it.
    pub fn as_ptr(self) -> *mut ibv_context {
        self.0.as_ptr()
    }

    /// The address that identifies the device.
    pub fn address(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// The device's uverbs descriptor. `None` if the library may not use one: the provider works
    /// without the kernel, or libibverbs did not make the context.
    pub fn fd(self) -> Option<i32> {
        // SAFETY: live handle: the context is open, by `from_c` or because a live domain points to
        // it.
        let context = unsafe { self.0.as_ref() };
        let (fd, abi) = (context.cmd_fd, context.abi_compat);
        (fd >= 0 && abi.addr() == usize::MAX).then_some(fd)
    }

    fn device(self) -> Option<&'static ibv_device> {
        // SAFETY: live handle: the context is open, by `from_c` or because a live domain points to
        // it.
        let device = unsafe { self.0.as_ref() }.device;
        // SAFETY: libibverbs keeps the `ibv_device` of an open context until the context is closed.
        unsafe { device.as_ref() }
    }

    /// The kernel's name of the device, up to the first 0. Zeros if it has none.
    pub fn name(self) -> [u8; 64] {
        let name = self.device().map_or([0; 64], |device| device.name);
        let length = name.iter().position(|&byte| byte == 0).unwrap_or(0);
        core::array::from_fn(|n| if n < length { name[n] as u8 } else { 0 })
    }

    /// The address of `create_cq_ex`, a function of the libibverbs that opened the device: unlike
    /// other operations, libibverbs sets this one in each context after the provider has set its
    /// own. `None` if libibverbs did not make the context, or had no such function yet.
    pub fn create_cq_ex(self) -> Option<NonZeroUsize> {
        const LARGEST: usize = 1 << 12;
        // SAFETY: live handle: the context is open, by `from_c` or because a live domain points to
        // it.
        if unsafe { self.0.as_ref() }.abi_compat.addr() != usize::MAX {
            return None;
        }
        let before = |bytes| {
            let place = self.0.as_ptr().cast::<usize>().wrapping_byte_sub(bytes);
            // SAFETY: by `abi_compat` the context is part of a `verbs_context`. `sz` lies before
            // the context in every version of that structure, and the function does if the
            // structure is large enough.
            unsafe { place.read() }
        };
        let larger = size_of::<ibv_context>() + CREATE_CQ_EX_BEFORE_CONTEXT..LARGEST;
        if !larger.contains(&before(SZ_BEFORE_CONTEXT)) {
            return None;
        }
        NonZeroUsize::new(before(CREATE_CQ_EX_BEFORE_CONTEXT))
    }
}

/// A protection domain.
#[derive(Clone, Copy)]
pub struct Pd(NonNull<ibv_pd>);

// SAFETY: libibverbs lets threads use a protection domain at the same time.
unsafe impl Sync for Pd {}

impl Pd {
    /// The domain that C names. `None` for a null pointer.
    ///
    /// # Safety
    /// A pointer that is not null points to a protection domain that libibverbs made and that is
    /// not deallocated.
    pub unsafe fn from_c(pd: *mut ibv_pd) -> Option<Pd> {
        NonNull::new(pd).map(Pd)
    }

    /// As C sees it.
    pub fn as_ptr(self) -> *mut ibv_pd {
        self.0.as_ptr()
    }

    /// The address by which regions name the domain.
    pub fn address(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// The kernel's handle of the domain. A parent domain has the handle of the domain that it was
    /// made from.
    pub fn handle(self) -> u32 {
        // SAFETY: live handle: the domain exists, by `from_c`.
        unsafe { (*self.as_ptr()).handle }
    }

    /// The domain's device.
    #[inline(always)]
    pub fn device(self) -> Option<Context> {
        // SAFETY: live handle: the domain exists, and its device stays open as long as the domain
        // exists.
        unsafe { Context::from_c(self.context()) }
    }

    /// The kind of network that the domain's device is on, `enum ibv_transport_type`.
    pub fn transport(self) -> Option<i32> {
        Some(self.device()?.device()?.transport_type)
    }

    /// The domain's device, as C sees it.
    pub fn context(self) -> *mut ibv_context {
        // SAFETY: live handle: the domain exists, by `from_c`.
        unsafe { (*self.as_ptr()).context }
    }
}
