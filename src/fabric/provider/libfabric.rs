// SPDX-License-Identifier: MIT OR Apache-2.0
//! The libfabric that has loaded the provider: which version it is, and its own allocation.

use crate::abi::libfabric_provider::fi_info;
use crate::next;
use core::ffi::CStr;

/// The newest libfabric whose structures are known to begin as ours do.
const NEWEST: u32 = 2 << 16 | 6;

/// The oldest whose core sets `fi_fabric_attr.api_version`.
const OLDEST: u32 = 1 << 16 | 5;

/// The version of the interface to serve. `None` with a libfabric that is older or of a later major
/// version: the provider stays out of its way. Applications that ask a newer libfabric for more than
/// we know are not offered the provider, by libfabric itself.
pub fn serves() -> Option<u32> {
    let version: unsafe extern "C" fn() -> u32 = function(c"fi_version")?;
    // SAFETY: libfabric's own function, of that signature.
    let version = unsafe { version() };
    (version >= OLDEST && version >> 16 <= NEWEST >> 16).then_some(version.min(NEWEST))
}

/// A function of libfabric's.
fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let address = next::find_in(c"libfabric.so.1", name)?;
    let pointer = core::ptr::with_exposed_provenance::<u8>(address.get());
    // SAFETY: a function pointer of that size; the callers know its signature.
    Some(unsafe { core::mem::transmute_copy(&pointer) })
}

/// A `struct fi_info` with all its parts, as large as this libfabric has them. Its strings are malloc's, and
/// it is libfabric's to free.
pub fn allocate() -> Option<*mut fi_info> {
    let duplicate: unsafe extern "C" fn(*const fi_info) -> *mut fi_info = function(c"fi_dupinfo")?;
    // SAFETY: libfabric's own function: of nothing it makes an empty one.
    let info = unsafe { duplicate(core::ptr::null()) };
    (!info.is_null()).then_some(info)
}

/// Gives back a list of `allocate`.
pub fn free(info: *mut fi_info) {
    if let Some(free) = function::<unsafe extern "C" fn(*mut fi_info)>(c"fi_freeinfo") {
        // SAFETY: libfabric's own function, and what it has allocated, or null.
        unsafe { free(info) };
    }
}
