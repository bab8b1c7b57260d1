// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues: libibverbs makes them, and the library looks at a call only if it fails. For many
//! programs a queue is the first memory that the kernel refuses to pin.

use super::memlock::Limits;
use super::outcome::Error;
use super::require::require;
use core::fmt::{self, Write};
use errno::{Errno, errno};
use rdmamr_next::{Context, Maker, Next};
use rdmamr_sys::{proc, thread};
use rdmamr_uverbs::Uverbs;
use rdmamr_uverbs::context::identify;
use rdmamr_uverbs::driver::Driver;

/// Has libibverbs make a queue, by its function `next`. The result is that of `call`, except an error
/// in place of NULL if the errno is one that limits of the process explain. A program may try a
/// device's other limits out, so the library says nothing about them.
pub fn make<F: Copy, T>(
    next: &Next<F>,
    device: Option<Context>,
    call: impl FnOnce(F) -> *mut T,
) -> Result<*mut T, Error> {
    let next = require(next, Maker::of(device))?;
    let _uncancelled = thread::uncancelled();
    let queue = call(next);
    match errno() {
        errno @ Errno(libc::ENOMEM | libc::EAGAIN) if queue.is_null() => Err(Error::Next(errno)),
        _ => Ok(queue),
    }
}

/// The driver of the device on which a queue failed, if known. No registration may have asked for it
/// yet.
pub fn driver(device: Option<Context>) -> Option<&'static Driver> {
    identify(&Uverbs, device?.fd()?).ok()?.driver()
}

/// A queue of 64 Ki entries of 1 KiB, in KiB. If the limit leaves that much, it is not likely the
/// cause.
const LARGE_KIB: u64 = 64 << 10;

/// Writes the cause of ENOMEM.
pub fn no_memory(driver: Option<&'static Driver>, out: &mut dyn Write) -> fmt::Result {
    /// A queue's own, and those that the C library needs for it.
    const MAPPINGS: u64 = 8;
    if let Some([count, _, most]) =
        proc::mappings().filter(|[count, _, most]| count + MAPPINGS > *most)
    {
        return write!(
            out,
            "likely the limit on mappings: the process has {count} of {most} (vm.max_map_count)"
        );
    }
    let (limits, name) = (Limits::read(), driver.map_or("", |driver| driver.name));
    match driver {
        Some(driver) if !driver.pins_queues() => write!(
            out,
            "RLIMIT_MEMLOCK is not the cause: the kernel's {name} driver allocates the queue itself; not known: what ran out"
        ),
        Some(_) if limits.leave_less_than(LARGE_KIB) => {
            write!(out, "likely RLIMIT_MEMLOCK: {name} queues are pinned, and ")?;
            limits.write_pinned(out)
        }
        _ => limits.write(out),
    }
}
