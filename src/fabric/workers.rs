// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registrations in the background. A few threads make them. A thread starts with a registration, and
//! ends when none waits.

use super::background::{self, Background};
use super::errors::{self, Failure, Result};
use super::object::lock;
use super::queue::Queue;
use super::refusals::CANCELLED;
use super::region::Region;
use rdmamr_cache::dispatch;
use rdmamr_mr::How;
use rdmamr_mr::explain::{self, Reason};
use rdmamr_stats::log::{self, Level};
use rdmamr_stats::{self as stats, counter};
use rdmamr_sys::process::PerProcess;
use rdmamr_trace::{self as trace, Began, Pending};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The largest number of threads. Registering is mostly the kernel's work on pages, and more
/// threads do more of it at once. But all threads share the lock of the address space.
const MOST: usize = 4;

/// A registration to be made.
pub struct Job {
    /// The function that the application called.
    pub call: &'static str,
    pub region: &'static Region,
    /// The queue of the domain. It has promised room for the event.
    pub queue: &'static Queue,
    /// The trace's record of the call, if the trace is on.
    pub pending: Option<Pending>,
    pub register: Box<dyn Fn(&'static Region) -> Result<How> + Send>,
}

#[derive(Default)]
struct Work {
    jobs: VecDeque<Job>,
    /// The regions that threads are registering, by address.
    running: Vec<usize>,
    threads: usize,
}

#[derive(Default)]
struct Workers {
    work: Mutex<Work>,
    done: Condvar,
}

static WORKERS: PerProcess<Workers> = PerProcess::new();

fn workers() -> &'static Workers {
    WORKERS.get_or_make(Box::default)
}

/// Registers a region in the background. The event of the registration goes into the queue.
pub fn submit(job: Job) {
    let workers = workers();
    let mut work = lock(&workers.work);
    if work.jobs.try_reserve(1).is_err() {
        drop(workers.run(work, job));
        return;
    }
    work.jobs.push_back(job);
    if work.threads == MOST {
        return;
    }
    work.threads += 1;
    drop(work);
    if !background::start(&THREAD) {
        let why = "no thread for registrations in the background";
        log::line(Level::Warn, format_args!("{why}"));
        let mut work = lock(&workers.work);
        work.threads -= 1;
        // If no thread exists, the caller registers. The registration stays asynchronous to the
        // application: its event still comes through the queue.
        while work.threads == 0 {
            let Some(job) = work.jobs.pop_front() else {
                break;
            };
            work = workers.run(work, job);
        }
    }
}

impl Job {
    fn reason(&self, failure: &Failure) -> Reason {
        Reason {
            call: self.call,
            error: failure.error,
            subject: failure.subject,
        }
    }

    /// Makes the registration, and reports it.
    fn make(&self) {
        let began = self.pending.and_then(|_| trace::begin());
        let result = catch_unwind(AssertUnwindSafe(|| (self.register)(self.region)));
        let result = result.unwrap_or_else(|_| Err(dispatch::panicked().into()));
        self.write_down(began, result);
        match result {
            Ok(_) => self.queue.report(self.region, None),
            Err(failure) => {
                let reason = self.reason(&failure);
                stats::counters().count(counter!(reg_failed));
                log::line(Level::Warn, format_args!("{reason}"));
                self.region.has_failed();
                self.queue.report(self.region, Some(&reason));
            }
        }
    }

    /// Writes the call and its result to the trace. The region cannot have been closed yet.
    fn write_down(&self, began: Option<Began>, result: Result<How>) {
        let (Some(began), Some(pending)) = (began, self.pending) else {
            return;
        };
        let mut record = pending.record;
        match result {
            Ok(how) => self.region.describe_record(&mut record, how),
            Err(failure) => {
                record.errno = errors::code(failure.error) as u16;
                explain::remember(self.reason(&failure));
            }
        }
        began.write(record, pending.caller, explain::last_as_text);
    }
}

/// Cancels a region's registration before it has begun, or waits until it has ended. When this
/// returns, the promised event has come already or will never come.
pub fn cancel(region: &Region) {
    let workers = workers();
    let address = region.address();
    let mut work = lock(&workers.work);
    let mut waiting = work.jobs.iter().map(|job| job.region.address());
    let waiting = waiting.position(|at| at == address);
    if let Some(job) = waiting.and_then(|at| work.jobs.remove(at)) {
        drop(work);
        region.has_failed();
        job.queue.release();
        job.write_down(trace::begin(), Err(CANCELLED.into()));
        return;
    }
    while work.running.contains(&address) {
        let waited = workers.done.wait(work);
        work = waited.unwrap_or_else(PoisonError::into_inner);
    }
}

static THREAD: Background = Background {
    name: c"rdmamr-register",
    work: || workers().work(),
};

impl Workers {
    /// The main loop of a thread.
    fn work(&'static self) {
        let mut work = lock(&self.work);
        while let Some(job) = work.jobs.pop_front() {
            work = self.run(work, job);
        }
        work.threads -= 1;
    }

    /// Makes a registration. `work` is unlocked meanwhile.
    fn run<'a>(&'a self, mut work: MutexGuard<'a, Work>, job: Job) -> MutexGuard<'a, Work> {
        let address = job.region.address();
        work.running.push(address);
        drop(work);
        // Whatever panics, the thread goes on, and the close of the region does not wait for ever.
        if catch_unwind(AssertUnwindSafe(|| job.make())).is_err() {
            dispatch::panicked();
        }
        let mut work = lock(&self.work);
        work.running.retain(|&other| other != address);
        self.done.notify_all();
        work
    }
}
