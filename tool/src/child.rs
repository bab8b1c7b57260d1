// SPDX-License-Identifier: MIT OR Apache-2.0
//! A child process for what strangers made: a file that takes 4 GiB or a stack overflow to parse, a
//! file of proc(5) that does not answer. The child may grow, spin, abort or wait in the kernel where no
//! signal ends it. The parent waits a limited time, goes on with what the child has answered, and
//! leaves the child behind.
//!
//! A fork, not a new program: the child has the parent's open files and data, and runs one closure. The
//! closure may take questions from the parent, one after the other.

use crate::files::{of_system, result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getpid, getppid, getrlimit, kill_process,
    set_parent_process_death_signal, setrlimit, waitpid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long the end of a child that was killed is waited for.
const MOMENT: Duration = Duration::from_millis(20);
/// No more children are started while so many have been left behind and have not ended.
const MOST_LEFT: usize = 8;
/// The longest answer in bytes. A child that announces more has lost its mind.
const LONGEST: usize = 64 << 20;

/// The children that were killed and had not ended.
static LEFT: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// What a child may use.
pub struct Bounds {
    /// Bytes of address space beyond what the parent has; more by [`allow`].
    pub memory: u64,
    /// Seconds of processor time.
    pub seconds: u64,
}

/// A running child.
pub struct Child {
    pid: Pid,
    answers: File,
    /// What has arrived of the answers, and not been taken.
    arrived: Vec<u8>,
}

/// What a child has to say.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    Answer(Vec<u8>),
    /// The closure has returned, and all its answers were taken.
    Ended,
    /// Nothing has come within the limit.
    Late,
    /// The child ended before its closure did: at a limit, by an abort, by a panic.
    Died,
}

/// The child's way to its parent.
pub struct Answers(File);

impl Answers {
    /// The next question. The parent is gone if there is none.
    pub fn next(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let mut question = vec![0; u32::from_ne_bytes(length) as usize];
        self.0.read_exact(&mut question)?;
        Ok(question)
    }

    /// Sends an answer. If the parent is gone, the child ends (SIGPIPE, or the parent's death).
    pub fn send(&mut self, answer: &[u8]) -> io::Result<()> {
        // The end is an answer of no length, so each answer is one longer.
        self.0.write_all(&(answer.len() as u32 + 1).to_ne_bytes())?;
        self.0.write_all(answer)
    }
}

impl Child {
    /// Starts a child that runs the closure and ends.
    pub fn start(bounds: &Bounds, work: impl FnOnce(&mut Answers)) -> io::Result<Child> {
        let end = Instant::now() + MOMENT;
        while left_behind() >= MOST_LEFT {
            if Instant::now() > end {
                return Err(io::Error::other("the processes asked before do not end"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let (answers, own) = socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
        let Some(pid) = fork()? else {
            drop(answers);
            let mut answers = Answers(own.into());
            // A panic must not unwind into the parent's code.
            let done = catch_unwind(AssertUnwindSafe(|| {
                close_all_but(vec![answers.0.as_raw_fd() as u32]);
                confine(bounds)?;
                work(&mut answers);
                answers.0.write_all(&[0; 4])
            }));
            // SAFETY: _exit(2) has no preconditions. It runs no destructor of the parent's.
            unsafe { libc::_exit(i32::from(!matches!(done, Ok(Ok(()))))) }
        };
        Ok(Child {
            pid,
            answers: answers.into(),
            arrived: Vec::new(),
        })
    }

    /// Asks the child, which may have died (EPIPE).
    pub fn ask(&self, question: &[u8]) -> io::Result<()> {
        let mut rest = &[&(question.len() as u32).to_ne_bytes(), question].concat()[..];
        while !rest.is_empty() {
            let sent = send(&self.answers, rest, SendFlags::NOSIGNAL)?;
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// Takes the next answer, for which it waits so long.
    pub fn receive(&mut self, limit: Duration) -> Received {
        let end = Instant::now() + limit;
        loop {
            if let Some((head, rest)) = self.arrived.split_first_chunk() {
                match (u32::from_ne_bytes(*head) as usize).checked_sub(1) {
                    None => return Received::Ended,
                    Some(length) if length > LONGEST => return Received::Died,
                    Some(length) if length <= rest.len() => {
                        let answer = rest[..length].to_vec();
                        self.arrived.drain(..head.len() + length);
                        return Received::Answer(answer);
                    }
                    Some(_) => {}
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).ok();
            match poll(
                &mut [PollFd::new(&self.answers, PollFlags::IN)],
                left.as_ref(),
            ) {
                Ok(0) => return Received::Late,
                Err(Errno::INTR) => continue,
                _ => {}
            }
            let mut part = [0; 1 << 16];
            match self.answers.read(&mut part) {
                Ok(0) | Err(_) => return Received::Died,
                Ok(read) => self.arrived.extend(&part[..read]),
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
        let end = Instant::now() + MOMENT;
        while !has_ended(self.pid) {
            if Instant::now() > end {
                LEFT.lock().unwrap().push(self.pid);
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Forks. `None` in the child, which ends with its parent.
pub fn fork() -> io::Result<Option<Pid>> {
    let own = getpid();
    // SAFETY: a child of this program runs its own code. If the parent has threads, the C library keeps
    // its allocator usable in the child.
    let child = Pid::from_raw(result(unsafe { libc::fork() })? as i32);
    if child.is_none() {
        let told = set_parent_process_death_signal(Some(Signal::KILL));
        if told.is_err() || getppid() != Some(own) {
            // SAFETY: _exit(2) has no preconditions.
            unsafe { libc::_exit(1) };
        }
    }
    Ok(child)
}

/// How many children have not ended although they were killed.
fn left_behind() -> usize {
    let mut left = LEFT.lock().unwrap();
    left.retain(|&pid| !has_ended(pid));
    left.len()
}

/// Whether a child has ended. Waits for nothing.
fn has_ended(child: Pid) -> bool {
    !matches!(waitpid(Some(child), WaitOptions::NOHANG), Ok(None))
}

/// Limits the child, and takes the parent's standard files from it: whoever reads them waits for the end of
/// all processes that have them, also of a child that is left behind.
fn confine(bounds: &Bounds) -> io::Result<()> {
    let nothing = of_system("/dev/null", true)?;
    dup2_stdin(&nothing)?;
    dup2_stdout(&nothing)?;
    dup2_stderr(&nothing)?;
    let pages = crate::files::read("/proc/self/statm").unwrap_or_default();
    let pages = pages
        .split(' ')
        .next()
        .and_then(|it| it.parse::<u64>().ok());
    let size = pages.unwrap_or(0) * rustix::param::page_size() as u64;
    limit_memory(size + bounds.memory)?;
    limit(Resource::Cpu, bounds.seconds)
}

/// Lets this process use so many bytes of address space, within the limit that it has.
fn limit_memory(most: u64) -> io::Result<()> {
    limit(Resource::As, most)?;
    // If the machine has no memory left, the kernel ends this process, not another.
    let _ = of_system("/proc/self/oom_score_adj", true).and_then(|mut it| it.write_all(b"1000"));
    no_core()
}

/// The same, and no more by [`allow`], in its children too.
pub fn limit_memory_for_good(most: u64) -> io::Result<()> {
    limit_memory(most)?;
    let current = getrlimit(Resource::As).current;
    let both = Rlimit {
        current,
        maximum: current,
    };
    Ok(setrlimit(Resource::As, both)?)
}

/// No signal has this process write a core file.
pub fn no_core() -> io::Result<()> {
    limit(Resource::Core, 0)
}

/// Closes the files from number 3 on, except these.
pub fn close_all_but(mut kept: Vec<u32>) {
    kept.retain(|&fd| fd > 2);
    kept.sort_unstable();
    let mut from = 3;
    for end in kept.into_iter().chain([u32::MAX]) {
        if end > from {
            // SAFETY: the callers have just been forked, and use no file but those that are kept.
            unsafe { libc::syscall(libc::SYS_close_range, from, end - 1, 0) };
        }
        from = end.saturating_add(1);
    }
}

/// Lets this child use so many bytes more.
pub fn allow(bytes: u64) -> io::Result<()> {
    let now = getrlimit(Resource::As).current;
    limit(Resource::As, now.unwrap_or(u64::MAX).saturating_add(bytes))
}

/// Sets a limit, within the one of the process.
fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let maximum = getrlimit(resource).maximum;
    let both = Rlimit {
        current: Some(maximum.map_or(most, |maximum| maximum.min(most))),
        maximum,
    };
    Ok(setrlimit(resource, both)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::resume_unwind;

    const BOUNDS: Bounds = Bounds {
        memory: 256 << 20,
        seconds: 1,
    };
    const LONG: Duration = Duration::from_secs(60);

    fn start(work: impl FnOnce(&mut Answers)) -> Child {
        Child::start(&BOUNDS, work).unwrap()
    }

    #[test]
    fn answers_arrive_whole_and_in_order() {
        let long = vec![7; 1 << 20];
        let mut child = start(|answers| {
            for answer in [b"".as_slice(), b"one", &long] {
                answers.send(answer).unwrap();
            }
        });
        for answer in [b"".as_slice(), b"one", &long] {
            assert_eq!(child.receive(LONG), Received::Answer(answer.to_vec()));
        }
        assert_eq!(child.receive(LONG), Received::Ended);
    }

    #[test]
    fn a_child_that_grows_spins_or_fails_dies_and_its_answers_stay() {
        fn deep(n: u64) -> u64 {
            std::hint::black_box([n; 64])[0] + if n == 0 { 0 } else { deep(n + 1) }
        }
        // A failed allocation and a panic!() may print a backtrace, by a lock that another test's thread had
        // at the fork.
        let grows = || {
            if Vec::<u8>::new().try_reserve_exact(1 << 30).is_err() {
                std::process::abort()
            }
        };
        let spins = || loop {
            std::hint::black_box(0);
        };
        let fails = || resume_unwind(Box::new("of the child"));
        let overflows = || assert_eq!(std::hint::black_box(deep(1)), 1);
        let works: [&dyn Fn(); 4] = [&grows, &spins, &fails, &overflows];
        for work in works {
            let mut child = start(|answers| {
                answers.send(b"before").unwrap();
                work();
            });
            assert_eq!(child.receive(LONG), Received::Answer(b"before".to_vec()));
            assert_eq!(child.receive(LONG), Received::Died);
        }
    }

    #[test]
    fn questions_are_answered_in_turn() {
        let mut child = start(|answers| {
            while let Ok(question) = answers.next() {
                assert_ne!(question, b"die");
                answers.send(&question).unwrap();
            }
        });
        for question in [b"".as_slice(), b"one", &[7; 1 << 20]] {
            child.ask(question).unwrap();
            assert_eq!(child.receive(LONG), Received::Answer(question.to_vec()));
        }
        child.ask(b"die").unwrap();
        assert_eq!(child.receive(LONG), Received::Died);
        assert!(child.ask(b"one").is_err());
    }

    #[test]
    fn nobody_waits_for_a_child_that_waits() {
        let mut child = start(|_| std::thread::sleep(LONG));
        let pid = child.pid;
        assert_eq!(child.receive(Duration::from_millis(10)), Received::Late);
        drop(child);
        let end = Instant::now() + LONG;
        while LEFT.lock().unwrap().contains(&pid) {
            assert!(Instant::now() < end);
            left_behind();
        }
    }
}
