// SPDX-License-Identifier: MIT OR Apache-2.0
//! Links the static library that is installed in `RDMAMR_LIBDIR` (/usr/local/lib).

fn main() {
    println!("cargo::rerun-if-env-changed=RDMAMR_LIBDIR");
    let directory = std::env::var("RDMAMR_LIBDIR").unwrap_or("/usr/local/lib".into());
    println!("cargo::rustc-link-search=native={directory}");
    println!("cargo::rustc-link-lib=static=rdmamr");
}
