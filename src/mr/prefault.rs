// SPDX-License-Identifier: MIT OR Apache-2.0
//! Populating memory before it is registered, and telling people of registrations that take long.
//!
//! The kernel pins the pages of a registration one after the other, and what was never touched it has to find
//! and clear on the way: 1.2 us a page of 4 KiB, on one core. With `RDMAMR_PREFAULT=N` that is done before, by N
//! threads, with the same outcome: the pages are those that the pin would have made (`suitable.rs`), so that
//! nothing is different afterwards but the time. Whatever goes wrong is left to the registration itself.

mod populate;
mod suitable;

use super::Request;
use crate::config::{config, disabled};
use crate::log::{self, Level};
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use core::time::Duration;

/// From so many bytes on it is worth the looks and the threads.
const LEAST: usize = 16 << 20;

/// Registrations of more bytes than that come through [`around`]. Where it has nothing to do, none does.
static LARGE: AtomicUsize = AtomicUsize::new(LEAST - 1);

/// Whether a registration must go through [`around`].
#[inline(always)]
pub fn is_large(length: usize) -> bool {
    length > LARGE.load(Relaxed)
}

/// What is known of userfaultfd on the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// Nothing.
    Unknown,
    /// All of it is watched by the pool itself, so by no other, and none of its pages is protected.
    Own,
}

/// People hear of what takes longer, each time that it has.
const LONG: Duration = Duration::from_secs(1);

/// Registers, by `register`, memory that is large.
#[cold]
pub fn around<T>(request: &Request, watch: Watch, register: impl FnOnce() -> T) -> T {
    let threads = config().prefault;
    let told = log::wants(Level::Info);
    if disabled() || (threads == 0 && !told) {
        LARGE.store(usize::MAX, Relaxed);
        return register();
    }
    let start = now();
    let errno = errno::errno();
    let populated = if threads > 0 && suitable::is_suitable(request, watch) {
        populate::populate(request, threads, |share| tell(request, start, share))
    } else {
        0
    };
    let ready = now();
    errno::set_errno(errno);
    let result = register();
    let took = now().saturating_sub(start);
    if told && took >= LONG {
        let size = Bytes(request.length);
        let (took, before) = (took.as_secs_f64(), (ready - start).as_secs_f64());
        match populated {
            0 => log::line(
                Level::Info,
                format_args!("registering {size} took {took:.1} s"),
            ),
            threads => log::line(
                Level::Info,
                format_args!(
                    "registering {size} took {took:.1} s, {before:.1} s of them to populate it ({threads} threads)"
                ),
            ),
        }
    }
    result
}

/// Tells how far it has come: which share of the memory is there.
fn tell(request: &Request, start: Duration, share: f64) {
    let took = now().saturating_sub(start).as_secs_f64();
    let (size, percent) = (Bytes(request.length), (share * 100.0) as u32);
    let left = took / share - took;
    log::line(
        Level::Info,
        format_args!(
            "registering {size}: {percent} % of it populated, the rest in about {left:.1} s"
        ),
    );
}

/// The monotonic clock.
fn now() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A size, for people.
struct Bytes(usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 as f64 / f64::from(1 << 20) {
            mib if mib < 1024.0 => write!(f, "{mib:.0} MiB"),
            mib => write!(f, "{:.1} GiB", mib / 1024.0),
        }
    }
}

/// The pages that a range of addresses touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pages {
    start: usize,
    end: usize,
    /// The size of one.
    size: usize,
}

impl Pages {
    /// `None` where the range runs past the end of the address space.
    fn of(request: &Request) -> Option<Pages> {
        let size = crate::proc::page_size() as usize;
        let start = request.addr.addr();
        Some(Pages {
            start: start & !(size - 1),
            end: start
                .checked_add(request.length)?
                .checked_next_multiple_of(size)?,
            size,
        })
    }

    fn bytes(self) -> usize {
        self.end - self.start
    }

    fn count(self) -> usize {
        self.bytes() / self.size
    }

    /// Whether the pages are all there; false where that cannot be said.
    fn are_present(self) -> bool {
        let mut there = [0u8; populate::PIECE / 4096];
        let Some(there) = there.get_mut(..self.count()) else {
            return false;
        };
        // By number, here and in the threads: none of our own stand-ins is to hear of it.
        // SAFETY: there is a byte for each page.
        let failed = unsafe {
            libc::syscall(
                libc::SYS_mincore,
                self.start,
                self.bytes(),
                there.as_mut_ptr(),
            )
        } != 0;
        !failed && there.iter().all(|page| page & 1 == 1)
    }
}
