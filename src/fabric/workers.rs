// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registrations in the background: a few threads, which come as they are needed and go when they have had
//! nothing to do for a while.

use super::errors::{self, Failure, refused};
use super::{Queue, Region, background};
use crate::abi::libfabric::FI_ECANCELED;
use crate::explain::{self, Reason};
use crate::log::{self, Level};
use crate::mr::{Error, state};
use crate::process::PerProcess;
use crate::stats::Counter;
use crate::thread;
use crate::trace::format::how;
use crate::trace::{self, Began, Left};
use core::time::Duration;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// How many threads there are at most. Registering is mostly the kernel's work on the pages, of which more
/// threads do more at once; but they share the lock of the address space.
const MOST: usize = 4;

/// How long a thread waits for another registration before it ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// A registration to be made.
pub struct Job {
    /// The function that the application called.
    pub call: &'static str,
    pub region: &'static Region,
    /// It has promised room for the event.
    pub queue: &'static Queue,
    /// The call for the trace, if that is on.
    pub left: Option<Left>,
    pub register: Box<dyn Fn(&'static Region) -> Result<(), Failure> + Send>,
}

#[derive(Default)]
struct Work {
    jobs: VecDeque<Job>,
    /// The regions that are being registered, by address.
    running: Vec<usize>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct Workers {
    work: Mutex<Work>,
    wake: Condvar,
    done: Condvar,
}

static WORKERS: PerProcess<Workers> = PerProcess::new();

unsafe extern "C" fn forget() {
    WORKERS.forget();
}

fn workers() -> &'static Workers {
    WORKERS.get_or_make(Box::default, forget)
}

/// Has a region registered in the background, and its event put into the queue.
pub fn submit(job: Job) {
    let workers = workers();
    let mut work = workers.lock();
    work.jobs.push_back(job);
    let needed = work.jobs.len() > work.idle && work.threads < MOST;
    work.threads += usize::from(needed);
    drop(work);
    workers.wake.notify_one();
    if needed && !start(workers) {
        let mut work = workers.lock();
        work.threads -= 1;
        // Without any thread the caller does it. It stays as asked: the event comes by the queue.
        while work.threads == 0
            && let Some(job) = work.jobs.pop_front()
        {
            work = workers.run(work, job);
        }
    }
}

const CANCELLED: Failure = refused(FI_ECANCELED, "fi_close() came before it was begun");

impl Job {
    fn reason(&self, failure: &Failure) -> Reason {
        Reason {
            call: self.call,
            error: failure.error,
            subject: failure.subject,
        }
    }

    /// Writes the call down, with what came of it: nobody can have closed the region yet.
    fn write_down(&self, began: Option<Began>, result: Result<(), Failure>) {
        let (Some(began), Some(left)) = (began, self.left) else {
            return;
        };
        let mut record = left.record;
        match result {
            Ok(()) => self.region.describe(&mut record, how::HIT),
            Err(failure) => {
                record.errno = errors::code(failure.error) as u16;
                explain::remember(self.reason(&failure));
            }
        }
        began.write(record, left.caller, explain::last_as_text);
    }
}

/// Ends a region's registration before it has begun, or waits for its end. The event that was promised does
/// not come, or has come already.
pub fn cancel(region: &Region) {
    let workers = workers();
    let address = region.address();
    let mut work = workers.lock();
    let waiting = work.jobs.iter();
    if let Some(at) = waiting
        .map(|job| job.region.address())
        .position(|at| at == address)
    {
        let job = work.jobs.remove(at);
        drop(work);
        if let Some(job) = job {
            region.has_failed();
            job.queue.release();
            job.write_down(trace::begin(), Err(CANCELLED));
        }
        return;
    }
    while work.running.contains(&address) {
        work = workers
            .done
            .wait(work)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

/// Starts a thread.
fn start(workers: &'static Workers) -> bool {
    let started = background::start("rdmamr-register", move || workers.work());
    if !started {
        log::line(
            Level::Warn,
            format_args!("no thread for registrations in the background"),
        );
    }
    started
}

impl Workers {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does.
    fn work(&'static self) {
        let mut work = self.lock();
        loop {
            if let Some(job) = work.jobs.pop_front() {
                work = self.run(work, job);
                continue;
            }
            work.idle += 1;
            let (back, timeout) = self
                .wake
                .wait_timeout(work, PATIENCE)
                .unwrap_or_else(PoisonError::into_inner);
            work = back;
            work.idle -= 1;
            if timeout.timed_out() && work.jobs.is_empty() {
                work.threads -= 1;
                return;
            }
        }
    }

    /// Makes a registration, with the work unlocked.
    fn run<'a>(&'a self, mut work: MutexGuard<'a, Work>, job: Job) -> MutexGuard<'a, Work> {
        let address = job.region.address();
        work.running.push(address);
        drop(work);
        let began = job.left.and_then(|_| trace::begin());
        let result = catch_unwind(AssertUnwindSafe(|| (job.register)(job.region)));
        let result = result.unwrap_or(Err(Failure::from(Error::Panic)));
        job.write_down(began, result);
        let context = job.region.context();
        match result {
            Ok(()) => job.queue.completed(address, context),
            Err(failure) => {
                let reason = job.reason(&failure);
                let counters = &state::current().counters;
                counters.add(thread::number(), Counter::RegFailed, 1);
                log::line(Level::Warn, format_args!("{reason}"));
                job.region.has_failed();
                job.queue.failed(address, context, &reason);
            }
        }
        let mut work = self.lock();
        work.running.retain(|&other| other != address);
        self.done.notify_all();
        work
    }
}
