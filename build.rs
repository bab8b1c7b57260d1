// SPDX-License-Identifier: MIT OR Apache-2.0
//! Linker arguments of the shared library: its soname, the version nodes of its symbols, and lld.
use std::{env, path::PathBuf, process::Command};

const MAP: &str = "src/capi/librdmamr.map";
/// Symbols without a node that rustc does not know of.
const WEAK: &str = "src/capi/weak.map";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={MAP}");
    println!("cargo::rerun-if-changed={WEAK}");
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    for arg in [
        "-Wl,-soname,librdmamr.so.1".to_owned(),
        format!("-Wl,--version-script={root}/{MAP}"),
        format!("-Wl,--version-script={root}/{WEAK}"),
        // nodelete: after a dlclose, programs still have addresses of this library's functions, and
        // threads may still run in it.
        "-Wl,-z,relro,-z,now,-z,defs,-z,nodelete".to_owned(),
    ] {
        println!("cargo::rustc-cdylib-link-arg={arg}");
    }
    // GNU ld refuses a second version script beside the script that rustc writes; lld merges both.
    // If rustc does not already use lld, use the lld that rustup ships, else the system's lld.
    if let Some(dir) = rustup_lld() {
        println!("cargo::rustc-cdylib-link-arg=-B{}", dir.display());
    }
    println!("cargo::rustc-cdylib-link-arg=-fuse-ld=lld");
}

fn rustup_lld() -> Option<PathBuf> {
    let out = Command::new(env::var_os("RUSTC")?)
        .args(["--print", "sysroot"])
        .output()
        .ok()?;
    let sysroot = PathBuf::from(String::from_utf8(out.stdout).ok()?.trim());
    let dir = sysroot
        .join("lib/rustlib")
        .join(env::var_os("HOST")?)
        .join("bin/gcc-ld");
    dir.join("ld.lld").exists().then_some(dir)
}
