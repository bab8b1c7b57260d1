// SPDX-License-Identifier: MIT OR Apache-2.0
//! Huge pages: with them a large registration costs a fiftieth.

use super::check::Check;
use crate::files::{field, read};

/// Checks the huge pages that are set aside.
pub fn check() -> Check {
    const SUBJECT: &str = "hugepages";
    let number = |name| {
        field("/proc/meminfo", name).and_then(|value| value.split(' ').next()?.parse::<u64>().ok())
    };
    let size = field("/proc/meminfo", "Hugepagesize").unwrap_or_else(|| "2048 kB".into());
    match (number("HugePages_Total"), number("HugePages_Free")) {
        (Some(0), _) => Check::ok(
            SUBJECT,
            format!("none set aside (of {size}); only programs that ask for them need them"),
        ),
        (Some(total), Some(0)) => {
            Check::warning(SUBJECT, format!("all {total} (of {size}) are in use"))
                .meaning("A program that asks for more falls back to small pages, or fails.")
                .fix(format!("sysctl -w vm.nr_hugepages={}", 2 * total))
        }
        (Some(total), Some(free)) => {
            Check::ok(SUBJECT, format!("{free} of {total} (of {size}) are free"))
        }
        _ => Check::ok(SUBJECT, "this kernel has none"),
    }
}

/// Checks the huge pages that the kernel makes by itself.
pub fn check_transparent() -> Check {
    const SUBJECT: &str = "transparent hugepages";
    let Some(modes) = read("/sys/kernel/mm/transparent_hugepage/enabled") else {
        return Check::ok(SUBJECT, "this kernel has none");
    };
    // "always [madvise] never"
    let mode = modes.split(['[', ']']).nth(1).unwrap_or(&modes);
    if mode != "never" {
        return Check::ok(SUBJECT, mode);
    }
    Check::warning(SUBJECT, "never")
        .meaning("Large registrations pin small pages one by one, which takes up to fifty times as long.")
        .fix("echo madvise >/sys/kernel/mm/transparent_hugepage/enabled")
}
