// SPDX-License-Identifier: MIT OR Apache-2.0
//! A function of another library.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::num::NonZeroUsize;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The function at an address.
///
/// # Safety
/// `F` is a function pointer type, and that of the function there. (Of data it may be a reference.)
#[inline(always)]
pub unsafe fn typed<F: Copy>(address: NonZeroUsize) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let pointer = with_exposed_provenance::<c_void>(address.get());
    // SAFETY: this function's contract.
    unsafe { core::mem::transmute_copy(&pointer) }
}

/// A function of another library, once a lookup has found it.
pub struct Function<F> {
    address: AtomicUsize,
    signature: PhantomData<F>,
}

impl<F: Copy> Function<F> {
    /// A function that no lookup has found yet.
    ///
    /// # Safety
    /// `F` is a function pointer type, and `set` gets only addresses of functions of this type.
    pub const unsafe fn new() -> Self {
        Function {
            address: AtomicUsize::new(0),
            signature: PhantomData,
        }
    }

    /// The function, if a lookup has found it.
    #[inline(always)]
    pub fn get(&self) -> Option<F> {
        let address = NonZeroUsize::new(self.address.load(Relaxed));
        // SAFETY: `new` was promised that a function of type `F` is at this address.
        address.map(|address| unsafe { typed(address) })
    }

    /// Records the result of a lookup.
    pub fn set(&self, address: Option<NonZeroUsize>) {
        self.address
            .store(address.map_or(0, NonZeroUsize::get), Relaxed);
    }
}
