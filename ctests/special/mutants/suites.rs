// SPDX-License-Identifier: MIT OR Apache-2.0
//! For "ctests/run cargo-mutants": suites of `ctests/manifest` over the library of this build, so
//! that they judge a mutant as the unit tests do. They are those that run on this machine, take a
//! few seconds, and need no optimised library. `make check` runs them over the final library.
//!
//! CHECK_TREE is the folder of the project in which `make all ctests` has run; the mutated source
//! is a copy.
use std::path::PathBuf;
use std::process::Command;

const SUITES: [&str; 12] = [
    "unwatched",
    "regions_ended",
    "starts_later",
    "callers",
    "loaded_by_dlopen",
    "plain_first",
    "shortages",
    "moved",
    "filters",
    "settings",
    "live_page",
    "prefault_kinds",
];

#[test]
fn suites_pass() {
    let tree = PathBuf::from(std::env::var_os("CHECK_TREE").expect("CHECK_TREE"));
    // Cargo builds no shared library for a test.
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "-q", "--lib"]);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(build.status().unwrap().success());
    let this = std::env::current_exe().unwrap();
    let library = this.ancestors().nth(2).unwrap().join("librdmamr.so");
    let results = this.with_extension("results");
    std::fs::create_dir_all(&results).unwrap();
    for name in SUITES {
        let mut suite = Command::new(tree.join("ctests/suite"));
        suite.args(["host", name]);
        suite
            .env("CHECK_LIBRARY", &library)
            .env("RESULTS", &results);
        assert!(suite.status().unwrap().success());
        let mut summary = Command::new(tree.join("ctests/summary"));
        summary.arg(results.join(format!("host.{name}.tap")));
        assert!(summary.status().unwrap().success(), "{name}");
    }
}
