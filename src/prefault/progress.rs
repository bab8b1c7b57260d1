// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of a registration that takes long: once a second its progress, and at its end the
//! time that it took; with `RDMAMR_PROGRESS=1`, a bar on a terminal. A separate thread writes the
//! report, so that a registration without helper threads has a report too.

use super::kind::Kind;
use super::pages::Pages;
use core::ffi::{c_int, c_void};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use core::time::Duration;
use rdmamr_stats::log::{self, Level};
use rdmamr_stats::text::Decimal;
use rdmamr_sys::clock;
use rdmamr_sys::futex;
use rdmamr_sys::helper_thread::{self, Ending};
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::proc;
use rdmamr_sys::standard_error;

/// The report begins after `LONG` ns, and a line is written each time that `LONG` ns have passed. A
/// bar is redrawn after `BAR` ns.
const LONG: u64 = SECOND;
const BAR: u64 = SECOND / 5;

/// After this many ns without progress, only the end is reported.
const STALLED: u64 = 600 * SECOND;

const SECOND: u64 = 1_000_000_000;

/// Whether a registration has a bar. There is only one terminal.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// The report of one registration.
pub struct Progress {
    telling: NonNull<Telling>,
    thread: Option<Ending>,
}

/// The state that both threads share. It has its own mapping, because a signal handler may leave
/// the registration by siglongjmp.
struct Telling {
    pages: Pages,
    /// Decides which pages count as populated.
    kind: Kind,
    start: u64,
    /// The percentage of pages that were present at the start.
    before: usize,
    /// 1 once the registration has returned. A futex.
    over: AtomicU32,
    /// Draw a bar instead of writing lines.
    bar: bool,
}

impl Progress {
    /// Starts the report of a registration that begins now, with a bar if one is wanted and there
    /// is a terminal.
    pub fn start(pages: Pages, kind: Option<Kind>, bar: bool) -> Option<Progress> {
        let bar = bar && standard_error::is_terminal();
        if !bar && !log::wants(Level::Info) {
            return None;
        }
        let memory = helper_thread::map(size_of::<Telling>())?;
        let telling = NonNull::new(memory.cast::<Telling>())?;
        let kind = kind.unwrap_or(Kind::Read);
        let content = Telling {
            pages,
            kind,
            start: clock::monotonic_by_kernel(),
            before: pages.percent_there(kind).unwrap_or(100),
            over: AtomicU32::new(0),
            bar,
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
        if took >= LONG {
            let size = Bytes(telling.pages.bytes());
            let (rate, _) = pace(telling.pages.bytes(), 0, 100, took);
            let took = seconds(took, 1);
            let huge = telling.percent_huge();
            log::line(
                Level::Info,
                format_args!(
                    "registering {size} took {took} s, {rate}, threads: {threads}, {huge} % in \
                     huge pages"
                ),
            );
        }
        // SAFETY: `start` mapped the state, and the thread has ended.
        unsafe { helper_thread::unmap(self.telling.as_ptr().cast(), size_of::<Telling>()) };
    }
}

extern "C" fn run(argument: *mut c_void) -> c_int {
    helper_thread::set_name(c"rdmamr-progress");
    // SAFETY: `start` passed the state, and `stop` keeps it mapped until this thread ends.
    let telling = unsafe { &*argument.cast::<Telling>() };
    let drawn = telling.bar && !DRAWN.swap(true, Relaxed);
    let (mut due, mut last, mut changed) = (LONG, 0, 0);
    // A registration that a signal handler has left by siglongjmp never ends.
    while telling.over.load(Acquire) == 0 && due - changed < STALLED {
        if telling.took() < due {
            telling.wait(due);
            continue;
        }
        let percent = telling.pages.percent_there(telling.kind).unwrap_or(0);
        if percent != last {
            (last, changed) = (percent, due);
        }
        telling.tell(percent, drawn);
        due += if drawn { BAR } else { LONG };
    }
    if drawn {
        if due > LONG {
            log::draw(format_args!("\r\x1b[K"));
        }
        DRAWN.store(false, Relaxed);
    }
    0
}

impl Telling {
    /// How long the registration has taken so far, in ns.
    fn took(&self) -> u64 {
        clock::monotonic_by_kernel().saturating_sub(self.start)
    }

    /// Waits for the end of the registration, or until this many ns after its start.
    fn wait(&self, until: u64) {
        let nanoseconds = until.saturating_sub(self.took());
        futex::wait(&self.over, 0, Some(Duration::from_nanos(nanoseconds)));
    }

    /// Reports the progress of the registration. Pages that were present before the start do not
    /// show whether they are pinned.
    fn tell(&self, percent: usize, drawn: bool) {
        let (size, took) = (Bytes(self.pages.bytes()), self.took());
        if percent <= self.before {
            if drawn {
                let took = seconds(took, 0);
                log::draw(format_args!("\rregistering {size}, {took} s\x1b[K"));
            }
            return;
        }
        let (rate, left) = pace(self.pages.bytes(), self.before, percent, took);
        let left = seconds(left, 1);
        if drawn {
            const FULL: &str = "####################";
            let done = percent * FULL.len() / 100;
            let (bar, width) = (&FULL[..done.min(FULL.len())], FULL.len());
            log::draw(format_args!(
                "\rregistering {size} [{bar:-<width$}] {percent:3} %  {rate}  {left} s left\x1b[K"
            ));
            return;
        }
        log::line(
            Level::Info,
            format_args!(
                "registering {size}: {percent} % of it populated, {rate}, the rest in about {left} s"
            ),
        );
    }

    /// The percentage of the memory that is in huge pages. A mapping that reaches beyond the memory
    /// counts in full.
    fn percent_huge(&self) -> u64 {
        let range = PageRange::new(self.pages.start as u64, self.pages.end as u64);
        let huge = proc::huge_bytes(range).unwrap_or(0);
        (huge * 100 / range.bytes()).min(100)
    }
}

/// The rate at which memory was populated in `took` ns, and the ns that the rest will take. `before`
/// and `now` are percentages of the memory; `now` is the larger one.
fn pace(bytes: usize, before: usize, now: usize, took: u64) -> (Rate, u64) {
    let (took, done) = (took.max(1), (now - before) as u64);
    let populated = bytes as u128 * u128::from(done) / 100;
    let rate = populated * u128::from(SECOND) / u128::from(took);
    (Rate(rate as u64), took * (100 - now) as u64 / done)
}

/// A time in ns, printed as seconds.
fn seconds(time: u64, decimals: usize) -> Decimal {
    Decimal {
        value: time,
        unit: SECOND,
        decimals,
    }
}

/// A size, printed for people.
struct Bytes(usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |unit, decimals| Decimal {
            value: self.0 as u64,
            unit,
            decimals,
        };
        match self.0 {
            0..0x4000_0000 => write!(f, "{} MiB", size(1 << 20, 0)),
            _ => write!(f, "{} GiB", size(1 << 30, 1)),
        }
    }
}

/// Bytes a second, printed for people.
struct Rate(u64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = Decimal {
            value: self.0,
            unit: 1 << 30,
            decimals: 2,
        };
        write!(f, "{rate} GiB/s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_in_proportion() {
        let (rate, left) = pace(10_000_000, 10, 40, SECOND / 2);
        assert_eq!((rate.0, left), (6_000_000, SECOND));
        assert_eq!(pace(10_000_000, 0, 100, 2 * SECOND).1, 0);
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(Bytes(16 << 20).to_string(), "16 MiB");
        assert_eq!(Bytes(4 << 30).to_string(), "4.0 GiB");
        assert_eq!(Rate(3 << 29).to_string(), "1.50 GiB/s");
    }
}
