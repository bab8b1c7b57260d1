// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of the cache's start in a process. On the machine of the trace this program does what
//! the start consists of, and measures it: a userfaultfd, two threads, and memory for the table of
//! regions.
use super::shape::ProcessTotals;
use crate::files;
use crate::userfaultfd;
use std::time::Instant;

/// How often the start is measured.
const TIMES: usize = 20;
/// The threads that the cache starts, and the bytes of its table that the first regions touch.
const THREADS: usize = 2;
const TABLE: usize = 256 << 10;
/// On another machine: as many times as long as userfaultfd(2) takes to watch a region.
const WATCHES: u64 = 200;

/// The cost of the start, in all processes of a trace together.
#[derive(Clone, Copy)]
pub struct Start {
    pub ns: u64,
    pub measured: bool,
}

impl Start {
    /// `watch` is how long userfaultfd(2) takes to watch a region in these processes.
    pub fn of(processes: &[ProcessTotals], watch: u64) -> Start {
        let here = files::read("/proc/sys/kernel/hostname");
        let is_here = here.is_some() && processes.iter().all(|process| process.host == here);
        let measured = is_here.then(measure).flatten();
        let one = measured.unwrap_or(WATCHES * watch);
        // Where several threads register, a second one waits for the start.
        let threads = processes.iter().map(|process| process.threads.min(2));
        Start {
            ns: one * threads.sum::<u64>(),
            measured: measured.is_some(),
        }
    }
}

/// The shortest of several starts, in ns: other load only adds to it. `None` if userfaultfd(2) is
/// refused.
fn measure() -> Option<u64> {
    (0..TIMES).map(|_| once()).min().flatten()
}

fn once() -> Option<u64> {
    let began = Instant::now();
    userfaultfd::open(userfaultfd::EVENTS).ok()?;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| ());
        }
        std::hint::black_box(vec![1u8; TABLE]);
        // The cache does not wait for its threads either.
        Some(began.elapsed().as_nanos() as u64)
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::report::advice::WATCH_NS;

    pub fn process(host: Option<String>, threads: u64, line: &str) -> ProcessTotals {
        ProcessTotals {
            pid: 7,
            host,
            rank: None,
            command: line.split(' ').map(String::from).collect(),
            started: String::new(),
            run_ns: 0,
            thread_ns: 0,
            calls: 0,
            failed: 0,
            time_ns: 0,
            threads,
            dropped: 0,
            ended: true,
            stopped: false,
        }
    }

    #[test]
    fn the_start_is_measured_on_the_machine_of_the_trace_alone() {
        let here = files::read("/proc/sys/kernel/hostname");
        let far = Some("another host".to_string());
        let foreign = Start::of(
            &[process(far.clone(), 1, "a"), process(far, 5, "a")],
            WATCH_NS,
        );
        assert_eq!((foreign.ns, foreign.measured), (900_000, false));
        let both = [process(here.clone(), 1, "a"), process(None, 1, "a")];
        assert!(!Start::of(&both, WATCH_NS).measured);
        // A container may refuse userfaultfd.
        let Some(_) = measure() else { return };
        let own = Start::of(&[process(here, 1, "a")], WATCH_NS);
        assert!(own.measured && own.ns > 1_000, "{}", own.ns);
    }
}
