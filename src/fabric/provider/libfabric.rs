// SPDX-License-Identifier: MIT OR Apache-2.0
//! The libfabric that has loaded the provider: its version and its allocation functions.

use core::ffi::CStr;
use rdmamr_abi::libfabric_provider::fi_info;
use rdmamr_sys::loaded_files::Object;

/// The newest libfabric whose structures are known to begin like those in `rdmamr_abi`.
const NEWEST: u32 = 2 << 16 | 6;

/// The oldest libfabric whose core sets `fi_fabric_attr.api_version`.
const OLDEST: u32 = 1 << 16 | 5;

/// The version of the interface to serve. `None` if libfabric is older than `OLDEST` or of a later
/// major version: such a libfabric gets no provider. If an application asks a newer libfabric for a
/// later interface than `NEWEST`, libfabric itself does not offer the provider.
pub fn serves() -> Option<u32> {
    // SAFETY: `fi_version` has this signature.
    let version: unsafe extern "C" fn() -> u32 = unsafe { function(c"fi_version") }?;
    // SAFETY: `fi_version` is libfabric's function.
    let version = unsafe { version() };
    (version >= OLDEST && version >> 16 <= NEWEST >> 16).then_some(version.min(NEWEST))
}

/// Looks up a function of libfabric.
///
/// # Safety
/// `F` is the type of the function.
unsafe fn function<F: Copy>(name: &'static CStr) -> Option<F> {
    let libfabric = Object::named(c"libfabric.so.1", b"libfabric.so.1", &|_| true).ok()??;
    // SAFETY: this function's contract.
    unsafe { libfabric.function(name) }
}

/// Allocates a `struct fi_info` with all its parts, in the sizes of this libfabric. Its strings
/// come from malloc. libfabric frees it.
pub fn allocate() -> Option<*mut fi_info> {
    type Duplicate = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
    // SAFETY: `fi_dupinfo` has this signature.
    let duplicate: Duplicate = unsafe { function(c"fi_dupinfo") }?;
    // SAFETY: `fi_dupinfo` is libfabric's function. It makes an empty info from NULL.
    let info = unsafe { duplicate(core::ptr::null()) };
    (!info.is_null()).then_some(info)
}

/// Frees a list that `allocate` made.
pub fn free(info: *mut fi_info) {
    type Free = unsafe extern "C" fn(*mut fi_info);
    // SAFETY: `fi_freeinfo` has this signature.
    if let Some(free) = unsafe { function::<Free>(c"fi_freeinfo") } {
        // SAFETY: `fi_freeinfo` is libfabric's function; `info` is NULL or came from
        // `allocate`.
        unsafe { free(info) };
    }
}
