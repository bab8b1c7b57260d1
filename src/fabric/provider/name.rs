// SPDX-License-Identifier: MIT OR Apache-2.0
//! The name of the provider.

use core::ffi::CStr;

/// The name of the provider and of its fabric.
pub const NAME: &CStr = c"rdmamr";
