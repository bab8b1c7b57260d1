// SPDX-License-Identifier: MIT OR Apache-2.0
//! Questions about the processes and the folders of others, whose answer may never come: a process can
//! hold its mmap lock, or have its arguments in a file of a file system of its own. So a child asks
//! them (`child.rs`), one after the other. The parent waits a limited time for each answer, and a
//! limited time for all answers about a user.
//!
//! A child that waits in the kernel can outlive this program. Its name says about whom it asks, and a
//! later run counts it as a wait for that user. So such children are few, however often the tool runs.

use super::pages::user_in;
use crate::child::{Bounds, Child, Received};
use crate::files::named::me;
use crate::files::value_in;
use rustix::process::Signal;
use rustix::thread::set_name;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// How long an answer is waited for.
const LIMIT: Duration = Duration::from_secs(1);
/// How long all answers about the processes of a user are waited for: four that do not come.
const OF_USER: Duration = Duration::from_secs(4);
/// How long a question that had no answer is not asked again.
const PAUSE: Duration = Duration::from_secs(60);
const BOUNDS: Bounds = Bounds {
    memory: 256 << 20,
    seconds: 600,
};

/// The user and the process that a question is about. The process is 0 if it is about folders.
pub type About = (u32, u32);

/// What the waits so far have come to.
#[derive(Default)]
pub struct Patience {
    /// The questions that had no answer, and since when.
    late: HashMap<About, Instant>,
    /// How long this sample has waited for answers about each user.
    spent: HashMap<u32, Duration>,
}

impl Patience {
    /// At the begin of a sample. `left` is what the children ask about that are left behind.
    pub fn renew(&mut self, left: Vec<About>) {
        self.spent.clear();
        self.late.retain(|_, since| since.elapsed() < PAUSE);
        let unlisted = self.late.keys().filter(|about| !left.contains(about));
        for about in left.iter().chain(unlisted) {
            Self::spend(&mut self.spent, *about, LIMIT);
        }
        let now = Instant::now();
        self.late.extend(left.into_iter().map(|about| (about, now)));
    }

    /// Whether this question had no answer.
    pub fn is_late(&self, about: &About) -> bool {
        self.late.contains_key(about)
    }

    /// How long an answer is waited for.
    fn limit(&self, (user, process): About) -> Duration {
        let spent = self.spent.get(&user).filter(|_| process != 0);
        LIMIT.min(OF_USER.saturating_sub(spent.copied().unwrap_or_default()))
    }

    /// Counts a wait. That for a user's folders leaves the time for his processes.
    fn spend(spent: &mut HashMap<u32, Duration>, (user, process): About, time: Duration) {
        if process != 0 {
            *spent.entry(user).or_default() += time;
        }
    }

    /// The answers to these questions; `None` where none came, and where none was waited for. `answer`
    /// runs in a child.
    pub fn ask<Q, A: Serialize + DeserializeOwned>(
        &mut self,
        questions: &[Q],
        about: impl Fn(&Q) -> About,
        answer: impl Fn(&Q) -> A,
    ) -> Vec<Option<A>> {
        let mut answers: Vec<Option<A>> = questions.iter().map(|_| None).collect();
        let about = |n: usize| about(&questions[n]);
        let mut open: VecDeque<usize> = (0..questions.len()).collect();
        open.retain(|&n| !self.is_late(&about(n)) && !self.limit(about(n)).is_zero());
        let mut asking = None;
        while let Some(&n) = open.front() {
            let began = Instant::now();
            let started = asking.take().map_or_else(
                || {
                    Child::start(&BOUNDS, |to_parent| {
                        for &n in &open {
                            call_itself(about(n));
                            let answer = serde_json::to_vec(&answer(&questions[n]));
                            let sent = to_parent.send(&answer.unwrap_or_default());
                            if sent.is_err() {
                                return;
                            }
                        }
                    })
                },
                Ok,
            );
            let Ok(mut child) = started else { break };
            let received = child.receive(self.limit(about(n)));
            open.pop_front();
            Self::spend(&mut self.spent, about(n), began.elapsed());
            if let Received::Answer(bytes) = received {
                answers[n] = serde_json::from_slice(&bytes).ok();
                if !self.limit(about(n)).is_zero() {
                    asking = Some(child);
                    continue;
                }
            } else {
                self.late.insert(about(n), Instant::now());
            }
            // The others come before this user, and this user if there is time left.
            let (mut rest, of_user): (VecDeque<_>, VecDeque<_>) =
                open.into_iter().partition(|&of| about(of).0 != about(n).0);
            if !self.limit(about(n)).is_zero() {
                rest.extend(of_user);
            }
            open = rest;
        }
        answers
    }
}

/// Has this process's name say about whom it asks.
fn call_itself((user, process): About) {
    if let Ok(name) = CString::new(format!("{user:x}:{process:x}")) {
        let _ = set_name(&name);
    }
}

/// What a process asks about, by its `/proc/PID/status`, if it is a child that this run or an earlier
/// one has left behind.
pub fn left_behind(status: &str) -> Option<About> {
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let value = |name| value_in(status, name);
    let (user, process) = value("Name")?.split_once(':')?;
    let about = (number(user)? as u32, number(process)? as u32);
    // Other users can have such a name too, and a child of another run may still be waited for.
    let is_mine = user_in(status)? == me();
    let was_killed = number(value("SigPnd")?)? >> (Signal::KILL.as_raw() - 1) & 1 == 1;
    (is_mine && was_killed && !value("State")?.starts_with('Z')).then_some(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A question: the user, the process, and whether it has an answer.
    type Question = (u32, u32, bool);

    fn ask(patience: &mut Patience, questions: &[Question]) -> Vec<Option<u32>> {
        let about = |&(user, process, _): &Question| (user, process);
        let answer = |&(_, process, answers): &Question| {
            if !answers {
                std::thread::sleep(Duration::from_secs(600));
            }
            process
        };
        patience.ask(questions, about, answer)
    }

    #[test]
    fn a_question_without_an_answer_delays_the_others_and_spoils_none() {
        let questions = [
            (7, 1, true),
            (7, 2, false),
            (7, 3, true),
            (8, 4, true),
            (9, 5, true),
        ];
        let answers = [Some(1), None, Some(3), Some(4), Some(5)];
        let mut patience = Patience::default();
        assert_eq!(ask(&mut patience, &questions), answers);
        assert!(patience.is_late(&(7, 2)) && !patience.is_late(&(7, 3)));
    }

    #[test]
    fn a_child_that_was_killed_and_waits_counts_as_a_wait() {
        let status = |name: &str, state: &str, pending: &str| {
            let me = me();
            let lines = format!("Name:\t{name}\nState:\t{state}\nUid:\t{me}\t{me}\t{me}\t{me}\n");
            left_behind(&format!("{lines}SigPnd:\t{pending}\n"))
        };
        let (name, killed) = ("3e8:1267", "0000000000000100");
        assert_eq!(status(name, "D (disk sleep)", killed), Some((1000, 0x1267)));
        assert_eq!(status(name, "R (running)", "0000000000000000"), None);
        assert_eq!(status(name, "Z (zombie)", killed), None);
        assert_eq!(status("rdmamr", "D (disk sleep)", killed), None);
        let mut patience = Patience::default();
        patience.renew(vec![(7, 1), (7, 2), (7, 3), (7, 4), (8, 0)]);
        let questions = [(7, 5, true), (8, 6, true)];
        assert_eq!(ask(&mut patience, &questions), [None, Some(6)]);
    }

    #[test]
    fn a_user_has_a_limited_time() {
        let mut questions: Vec<Question> = (1..100).map(|n| (7, n, false)).collect();
        questions.push((8, 100, true));
        let mut patience = Patience::default();
        for _ in 0..2 {
            patience.renew(Vec::new());
            let answers = ask(&mut patience, &questions);
            assert_eq!(answers.last(), Some(&Some(100)));
            assert_eq!(patience.late.len(), 4, "neither more, nor more later");
        }
    }
}
