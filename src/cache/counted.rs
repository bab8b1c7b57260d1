// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory calls under way that are counted: those whose range is not noted (`noted.rs`), and those
//! that take long. Meanwhile no memory is watched anew, and no region is kept.

use core::sync::atomic::{Ordering::SeqCst, fence};
use rdmamr_sys::process::CallsUnderWay;

/// The calls. If a signal handler leaves one by siglongjmp(3), the count stays, and the cache keeps no
/// further region.
pub static CALLS: CallsUnderWay = CallsUnderWay::new();

/// Whether a call is counted (docs/proof.md, W5). Asked once a region is linked, before it is watched
/// and pinned: a change that takes effect after the pin is counted here, or is noted, or has
/// invalidated the region. (A call on much memory also holds the kernel's mmap lock, for which the
/// watch would have to wait, and a plain registration need not.)
pub fn is_any() -> bool {
    fence(SeqCst);
    !CALLS.is_none()
}
