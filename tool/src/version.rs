// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr --version`: the versions of all layers of a registration. `doctor` judges them.

use crate::doctor::rdma_core;
use crate::files::kernel_release;
use crate::library;
use crate::report::units::shown;
use crate::verbs::{Loaded, Verbs};
use anyhow::Result;
use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;

/// The program, the library, rdma-core and the kernel, a line each. Each begins with its name.
pub fn lines() -> String {
    let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
    let library = library()
        .unwrap_or_else(|error| format!("not found: {}", first_line(format!("{error:#}"))));
    let rdma_core = match Verbs::load() {
        Ok(verbs) => rdma_core::found(&verbs).0,
        Err(error) => format!("not found: {error}"),
    };
    format!(
        "rdmamr {}\nlibrdmamr {library}\nrdma-core {rdma_core}\nLinux {}\n",
        env!("CARGO_PKG_VERSION"),
        kernel_release()
    )
}

/// The version that the library itself states, which `run` would preload, and its path.
fn library() -> Result<String> {
    type Version = unsafe extern "C" fn() -> *const c_char;
    let found = library::find()?;
    let loaded = Loaded::open(&CString::new(found.path.as_os_str().as_bytes())?)?;
    // SAFETY: the function has this type in rdmamr.h.
    let version = unsafe { loaded.function::<Version>(c"rdmamr_version") }?;
    // SAFETY: the function has no preconditions.
    let version = unsafe { version() };
    // SAFETY: it returns a constant string.
    let version = unsafe { CStr::from_ptr(version) };
    let path = shown(&found.path);
    Ok(format!("{} ({path})", version.to_string_lossy()))
}
