// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the service `rdmamr fence` runs, and what a hit saves by it.

use super::check::Check;
use crate::fence::{self, Absent};
use crate::userfaultfd;
use std::os::fd::AsRawFd;
use std::time::Instant;

const SUBJECT: &str = "fence";
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
const ROUNDS: u32 = 2000;

pub fn check() -> Check {
    let cost = cost().map_or_else(String::new, |ns| format!(" (about {ns} ns here)"));
    match fence::service_answers() {
        Ok(()) => Check::ok(SUBJECT, "the service rdmamr fence runs").meaning(format!(
            "A hit of a program with threads reads counters, and makes no system call{cost}."
        )),
        Err(Absent::NotRunning) => {
            let check = Check::ok(SUBJECT, "the service rdmamr fence does not run");
            let asks = format!(
                "Each hit of a program with threads asks the kernel by a system call{cost}"
            );
            match fence::lacks() {
                Some(what) => check.meaning(format!(
                    "{asks}. The service would save it, but this kernel lacks {what}."
                )),
                None => check
                    .meaning(format!("{asks}, which the service saves."))
                    .fix("systemctl enable --now rdmamr-fence (or: rdmamr fence)"),
            }
        }
        Err(Absent::Refused(why)) => {
            Check::warning(SUBJECT, format!("the service rdmamr fence: {why}"))
                .meaning("Each hit of a program with threads asks the kernel by a system call.")
        }
    }
}

/// How long the system call takes that asks whether a change is in flight.
fn cost() -> Option<u128> {
    let (watch, _) = userfaultfd::open(0).ok()?;
    let began = Instant::now();
    for _ in 0..ROUNDS {
        let mut nothing = [0u64; 3];
        // SAFETY: the structure is the one of UFFDIO_WRITEPROTECT, and names no memory.
        unsafe { libc::ioctl(watch.as_raw_fd(), UFFDIO_WRITEPROTECT, nothing.as_mut_ptr()) };
    }
    Some(began.elapsed().as_nanos() / u128::from(ROUNDS))
}
