// SPDX-License-Identifier: MIT OR Apache-2.0
//! Populating memory while it is being registered, and telling people of registrations that take long.
//!
//! The kernel pins the pages of a registration one after the other, and what was never touched it has to find
//! and clear on the way: 1 us a page of 4 KiB, on one core. With `RDMAMR_PREFAULT=N` others help: while the
//! kernel pins from the start on, N - 1 threads populate from the end on (`team.rs`). The pages are those that
//! the pin would have made (`suitable.rs`), so that nothing is different afterwards but the time. Whatever goes
//! wrong is left to the registration itself.
//!
//! Beside the registration, not before it: then its own thread makes the pages that it needs next, and pins them
//! at once. To populate all of 1 GiB by two threads and then to pin it took a sixth longer.

mod suitable;
mod team;

use super::Request;
use crate::config::{config, disabled};
use crate::log::{self, Level};
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use core::time::Duration;
use team::Team;

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
    if disabled() || (threads < 2 && !told) {
        LARGE.store(usize::MAX, Relaxed);
        return register();
    }
    let start = now();
    let errno = errno::errno();
    let pages = Pages::of(request).filter(|_| threads > 1);
    let pages = pages.filter(|&pages| suitable::is_suitable(request, pages, watch));
    let team = pages.and_then(|pages| Team::start(pages, threads - 1, start));
    errno::set_errno(errno);
    let result = register();
    let errno = errno::errno();
    let threads = 1 + team.map_or(0, Team::stop);
    errno::set_errno(errno);
    let took = now().saturating_sub(start);
    if took >= LONG {
        let (size, took) = (Bytes(request.length), took.as_secs_f64());
        log::line(
            Level::Info,
            format_args!("registering {size} took {took:.1} s, threads: {threads}"),
        );
    }
    result
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

    /// The page of that number.
    fn page(self, number: usize) -> Pages {
        let start = self.start + number * self.size;
        let end = start + self.size;
        Pages { start, end, ..self }
    }

    /// Whether the pages are all there; false where that cannot be said.
    fn are_present(self) -> bool {
        let mut there = [0u8; team::PIECE / 4096];
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
