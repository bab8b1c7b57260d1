// SPDX-License-Identifier: MIT OR Apache-2.0
//! The libfabric that has loaded the provider: its version and its allocation functions.

use rdmamr_abi::libfabric_provider::fi_info;
use rdmamr_next as next;

/// The newest libfabric whose structures are known to begin like those in `rdmamr_abi`.
const NEWEST: u32 = 2 << 16 | 6;

/// The oldest libfabric whose core sets `fi_fabric_attr.api_version`.
const OLDEST: u32 = 1 << 16 | 5;

/// The version of the interface to serve. `None` if libfabric is older than `OLDEST` or of a later
/// major version: such a libfabric gets no provider. If an application asks a newer libfabric for a
/// later interface than `NEWEST`, libfabric itself does not offer the provider.
pub fn serves() -> Option<u32> {
    // SAFETY: libfabric's function may be called at any time.
    let version = unsafe { next::FI_VERSION.get()?() };
    (version >= OLDEST && version >> 16 <= NEWEST >> 16).then_some(version.min(NEWEST))
}

/// Allocates a `struct fi_info` with all its parts, in the sizes of this libfabric. Its strings
/// come from malloc. libfabric frees it.
pub fn allocate() -> Option<*mut fi_info> {
    // SAFETY: libfabric's function makes an empty info from NULL.
    let info = unsafe { next::FI_DUPINFO.get()?(core::ptr::null()) };
    (!info.is_null()).then_some(info)
}

/// Frees a list that `allocate` made.
pub fn free(info: *mut fi_info) {
    if let Some(free) = next::FI_FREEINFO.get() {
        // SAFETY: `info` is NULL or came from `allocate`.
        unsafe { free(info) };
    }
}
