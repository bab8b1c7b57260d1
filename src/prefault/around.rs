// SPDX-License-Identifier: MIT OR Apache-2.0
//! The call around a registration of much memory: starts the helper threads and the report, and
//! ends them with the registration.

use super::pages::Pin;
use super::progress::Progress;
use super::suitable;
use super::team::Team;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use rdmamr_stats::log::{self, Level};
use rdmamr_sys::pages::PageRange;

/// From this many bytes on, the checks and the threads pay off.
const LEAST: usize = 16 << 20;

/// Registrations of more bytes than this go through [`around`]. If `around` has no work in this
/// process, it raises the limit so that no registration goes through it.
static LARGE: AtomicUsize = AtomicUsize::new(LEAST - 1);

/// Whether a registration must go through [`around`].
#[inline(always)]
pub fn is_large(length: usize) -> bool {
    length > LARGE.load(Relaxed)
}

/// Runs `register` for large memory, with helper threads and a report where they apply. `threads`
/// is how many threads populate memory, the registering thread included (`RDMAMR_PREFAULT`).
/// `progress`: lines of progress are written also below `RDMAMR_LOG=info` (`RDMAMR_PROGRESS`).
#[cold]
pub fn around<T>(pin: Pin, threads: usize, progress: bool, register: impl FnOnce() -> T) -> T {
    let told = log::wants(Level::Info) || progress;
    if threads < 2 && !told {
        LARGE.store(usize::MAX, Relaxed);
        return register();
    }
    let errno = errno::errno();
    let pages = PageRange::around(pin.addr as u64, pin.length as u64);
    let found = pages
        .filter(|_| threads > 1)
        .and_then(|pages| suitable::find(&pin, pages));
    let progress = pages
        .filter(|_| told)
        .and_then(|pages| Progress::start(pages, found.map(|found| found.kind)));
    let both = pages.zip(found);
    let is_first = pin.by_gpu;
    let mut team = both.and_then(|(pages, found)| Team::start(pages, found, threads - 1, is_first));
    let mut helpers = 0;
    if let Some(team) = team.take_if(|_| is_first) {
        team.join_in();
        helpers = team.stop();
    }
    errno::set_errno(errno);
    let result = register();
    let errno = errno::errno();
    let threads = 1 + helpers + team.map_or(0, Team::stop);
    if let Some(progress) = progress {
        progress.stop(threads);
    }
    errno::set_errno(errno);
    result
}

#[cfg(test)]
mod tests {
    use super::super::pages::tests::{Memory, pin};
    use super::*;

    #[test]
    fn what_is_registered_keeps_its_result_and_errno() {
        let memory = Memory::new(LEAST);
        let pin = pin(memory.pages().start as usize, LEAST);
        errno::set_errno(errno::Errno(libc::EXDEV));
        let result = around(pin, 2, false, || {
            let before = errno::errno().0;
            errno::set_errno(errno::Errno(libc::ENOENT));
            before
        });
        assert_eq!((result, errno::errno().0), (libc::EXDEV, libc::ENOENT));
    }
}
