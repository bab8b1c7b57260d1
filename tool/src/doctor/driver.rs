// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the library registers on a device, by the library's own probe and its own table.

use super::check::Check;
use crate::verbs::Context;
use rdmamr_uverbs::context::identify;
use rdmamr_uverbs::driver::Way;
use rdmamr_uverbs::kernel::Uverbs;

/// Probes as the library does.
pub fn check(device: &str, context: &Context) -> Check {
    const SUBJECT: &str = "driver";
    let facts = match identify(&Uverbs, context.fd()) {
        Ok(facts) => facts,
        Err(error) => {
            let check = Check::failure(SUBJECT, format!("the driver cannot be queried: {error}"))
                .meaning("A seccomp filter refuses ioctl(2) on the device, or the device is gone.");
            return check.of(device);
        }
    };
    let name = facts.driver().map_or("unknown", |driver| driver.name);
    let check = match (facts.why_forwarded(), facts.driver()) {
        (None, Some(driver)) => {
            let private = match driver.private_in {
                0 => String::new(),
                bytes => format!(", with {bytes} private bytes"),
            };
            let empty = match driver.way {
                Way::DirectUnlessEmpty => "; empty ranges are left to libibverbs",
                _ => "",
            };
            let way = format!("its own ioctl{private}{empty} ({})", driver.why);
            Check::ok(SUBJECT, format!("{name}: the library registers by {way}"))
        }
        (why, _) => {
            let why = why.unwrap_or("it is unknown");
            Check::warning(SUBJECT, format!("{name}: libibverbs registers: {why}")).meaning(
                "The library counts and traces registrations on this device, but caches none.",
            )
        }
    };
    check.of(device)
}
