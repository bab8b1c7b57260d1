// SPDX-License-Identifier: MIT OR Apache-2.0
//! The number of mappings that a process may have.

use super::check::Check;
use crate::files::read;

/// The kernel's default.
const DEFAULT: u64 = 65530;

/// Checks vm.max_map_count. The default is enough unless a program registers tens of thousands of
/// regions.
pub fn check() -> Check {
    const SUBJECT: &str = "mappings";
    let Some(most) = read("/proc/sys/vm/max_map_count").and_then(|count| count.parse::<u64>().ok())
    else {
        return Check::warning(SUBJECT, "vm.max_map_count cannot be read");
    };
    let found = format!("vm.max_map_count is {most}");
    if most >= DEFAULT {
        return Check::ok(SUBJECT, found);
    }
    Check::warning(SUBJECT, found)
        .meaning(
            "Watching a relaxed region, and MADV_DONTFORK after ibv_fork_init, split VMAs, up to two a region. \
             The library takes at most half of the mappings that are left, and keeps no region beyond that; at the \
             limit a registration after ibv_fork_init fails with ENOMEM.",
        )
        .fix("sysctl -w vm.max_map_count=262144")
}
