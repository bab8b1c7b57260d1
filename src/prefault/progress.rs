// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of a registration that takes long: once a second a line with its progress, and at its
//! end the time that it took. A separate thread writes the report, so that a registration without
//! helper threads has a report too.

use super::kind::Kind;
use super::pages::percent_there;
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::*};
use core::time::Duration;
use rdmamr_stats::log;
use rdmamr_stats::text::Decimal;
use rdmamr_sys::helper_thread::{self, Ending};
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::{clock, futex, proc};

/// A line is written each time that this many ns have passed.
const SECOND: u64 = 1_000_000_000;

/// After this many ns only the end is reported: a registration that a signal handler has left by
/// siglongjmp never ends.
const LONGEST: u64 = 3600 * SECOND;

/// The report of one registration.
pub struct Progress {
    telling: NonNull<Telling>,
    thread: Option<Ending>,
}

/// The state that both threads share. It has its own mapping, because a signal handler may leave
/// the registration by siglongjmp.
struct Telling {
    pages: PageRange,
    /// Decides which pages count as populated.
    kind: Kind,
    start: u64,
    /// The percentage of pages that were present at the start.
    before: u64,
    /// 1 once the registration has returned. A futex.
    over: AtomicU32,
}

impl Progress {
    /// Starts the report of a registration that begins now.
    pub fn start(pages: PageRange, kind: Option<Kind>) -> Option<Progress> {
        let memory = helper_thread::map(size_of::<Telling>())?;
        let telling = NonNull::new(memory.cast::<Telling>())?;
        let kind = kind.unwrap_or(Kind::Read);
        let content = Telling {
            pages,
            kind,
            start: clock::monotonic_by_kernel(),
            before: percent_there(pages, kind).unwrap_or(100),
            over: AtomicU32::new(0),
        };
        // SAFETY: the new mapping is large enough and page-aligned.
        unsafe { telling.write(content) };
        // SAFETY: `run` keeps the rules of `helper_thread`, and `stop` unmaps the state only after
        // the thread has ended.
        let thread = unsafe { helper_thread::start_ending(run, memory) };
        Some(Progress { telling, thread })
    }

    /// Ends the report of a registration that this many threads have made.
    pub fn stop(self, threads: usize) {
        // SAFETY: `start` wrote the state, and only the end of this function unmaps it.
        let telling = unsafe { self.telling.as_ref() };
        let took = telling.took();
        telling.over.store(1, Release);
        futex::wake(&telling.over, 1);
        if let Some(thread) = self.thread {
            thread.join();
        }
        if took >= SECOND {
            let size = size(telling.pages.bytes());
            let (rate, _) = pace(telling.pages.bytes(), 0, 100, took);
            let (took, huge) = (seconds(took), telling.percent_huge());
            log::always(format_args!(
                "registering {size} GiB took {took} s, {rate} GiB/s, threads: {threads}, {huge} % in huge pages"
            ));
        }
        // SAFETY: `start` mapped the state, and the thread has ended.
        unsafe { helper_thread::unmap(self.telling.as_ptr().cast(), size_of::<Telling>()) };
    }
}

extern "C" fn run(argument: *mut c_void) -> c_int {
    helper_thread::set_name(c"rdmamr-progress");
    // SAFETY: `start` passed the state, and `stop` keeps it mapped until this thread ends.
    let telling = unsafe { &*argument.cast::<Telling>() };
    let mut due = SECOND;
    while telling.over.load(Acquire) == 0 && due < LONGEST {
        let took = telling.took();
        if took < due {
            futex::wait(&telling.over, 0, Some(Duration::from_nanos(due - took)));
            continue;
        }
        let percent = percent_there(telling.pages, telling.kind).unwrap_or(0);
        // Pages that were present before the start do not show whether they are pinned.
        if percent > telling.before {
            let bytes = telling.pages.bytes();
            let (rate, left) = pace(bytes, telling.before, percent, took);
            let (size, left) = (size(bytes), seconds(left));
            log::always(format_args!(
                "registering {size} GiB: {percent} % of it populated, {rate} GiB/s, the rest in about {left} s"
            ));
        }
        due += SECOND;
    }
    0
}

impl Telling {
    /// How long the registration has taken so far, in ns.
    fn took(&self) -> u64 {
        clock::monotonic_by_kernel().saturating_sub(self.start)
    }

    /// The percentage of the memory that is in huge pages. A mapping that reaches beyond the memory
    /// counts in full.
    fn percent_huge(&self) -> u64 {
        let huge = proc::huge_bytes(self.pages).unwrap_or(0);
        (huge * 100 / self.pages.bytes()).min(100)
    }
}

/// The rate in GiB/s at which memory was populated in `took` ns, and the ns that the rest will take.
/// `before` and `now` are percentages of the memory; `now` is the larger one.
fn pace(bytes: u64, before: u64, now: u64, took: u64) -> (Decimal, u64) {
    let (took, done) = (took.max(1), now - before);
    let populated = u128::from(bytes) * u128::from(done) / 100;
    let rate = size((populated * u128::from(SECOND) / u128::from(took)) as u64);
    (rate, took * (100 - now) / done)
}

/// A number of bytes, printed as GiB.
fn size(value: u64) -> Decimal {
    let (unit, decimals) = (1 << 30, 2);
    Decimal {
        value,
        unit,
        decimals,
    }
}

/// A time in ns, printed as seconds.
fn seconds(value: u64) -> Decimal {
    let (unit, decimals) = (SECOND, 1);
    Decimal {
        value,
        unit,
        decimals,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_in_proportion() {
        let (rate, left) = pace(10_000_000, 10, 40, SECOND / 2);
        assert_eq!((rate.value, left), (6_000_000, SECOND));
        assert_eq!(pace(10_000_000, 0, 100, 2 * SECOND).1, 0);
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(size(16 << 20).to_string(), "0.02");
        assert_eq!(size(4 << 30).to_string(), "4.00");
    }
}
