// SPDX-License-Identifier: MIT OR Apache-2.0
//! Questions about the processes and the folders of others, whose answer may never come: a process can
//! hold its mmap lock, or have its arguments in a file of a file system of its own. So a child asks
//! them (`child.rs`), one after the other. The parent waits a short time for each answer. Then it waits a
//! long time for those that have not come, a limited time for all about a user, and a limited time for
//! all. So whoever answers at once is shown, whatever the others do.
//!
//! A child that waits in the kernel can outlive this program. Its name says about whom it asks, and a
//! later run counts it as a wait for that user. So such children are few, however often the tool runs.

use crate::child::{Bounds, Child, Received};
use crate::files::named::me;
use crate::files::{processes, read, user_in, value_in};
use rustix::process::Signal;
use rustix::thread::set_name;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// How long an answer is waited for at first: that of nearly everybody has come by then.
const SHORT: Duration = Duration::from_millis(50);
/// How long all first answers about the processes of a user are waited for in vain.
const SHORT_OF_USER: Duration = Duration::from_millis(250);
/// How long an answer is waited for that has not come at first.
const LIMIT: Duration = Duration::from_secs(1);
/// How long all such answers about the processes of a user are waited for: four that do not come.
const OF_USER: Duration = Duration::from_secs(4);
/// How long a sample waits in vain in each of the two rounds, whoever is asked about.
const OF_ALL: Duration = Duration::from_secs(5);
/// No more folders are asked for while so many children of all runs are left behind: few enough that
/// children can be started that ask about processes.
const MOST_LEFT: usize = 6;
/// How long a question that had no answer is not asked again.
const PAUSE: Duration = Duration::from_secs(60);
const BOUNDS: Bounds = Bounds {
    memory: 256 << 20,
    seconds: 600,
};

/// The user and the process that a question is about. The process is 0 if it is about the user's folders.
pub type About = (u32, u32);
/// Numbers from here on stand for no process, but for a folder of all users.
pub const OF_ALL_USERS: u32 = u32::MAX - 15;

fn is_of_folder((_, process): About) -> bool {
    process == 0 || process >= OF_ALL_USERS
}

/// How long is waited for an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// For everybody a short time.
    First,
    /// For those who had no answer then a long time.
    Second,
}

/// The waits of a round.
#[derive(Default)]
struct Spent {
    of_user: HashMap<u32, Duration>,
    of_all: Duration,
}

impl Spent {
    /// Counts a wait. That for a user's folders leaves the time for his processes.
    fn add(&mut self, about: About, time: Duration) {
        let (user, _) = about;
        self.of_all += time;
        if !is_of_folder(about) {
            *self.of_user.entry(user).or_default() += time;
        }
    }
}

/// What the waits so far have come to.
#[derive(Default)]
pub struct Patience {
    /// The questions that had no answer, and since when.
    late: HashMap<About, Instant>,
    /// How long this sample has waited in vain, in the two rounds.
    spent: [Spent; 2],
    /// How many children of all runs are left behind.
    left: usize,
    /// The questions of this sample that were not waited for, and whether they had no answer at first.
    skipped: HashMap<About, bool>,
    /// Why no child could be started in this sample.
    refused: Option<String>,
}

impl Patience {
    /// At the begin of a sample. `left` is what the children ask about that are left behind.
    pub fn renew(&mut self, left: Vec<About>) {
        self.spent = Default::default();
        self.skipped.clear();
        self.refused = None;
        self.left = left.len();
        self.late.retain(|_, since| since.elapsed() < PAUSE);
        let unlisted = self.late.keys().filter(|about| !left.contains(about));
        for about in left.iter().chain(unlisted) {
            self.spent[Round::Second as usize].add(*about, LIMIT);
        }
        self.spent[Round::Second as usize].of_all = Duration::ZERO;
        let now = Instant::now();
        self.late.extend(left.into_iter().map(|about| (about, now)));
    }

    /// Whether this question had no answer.
    pub fn is_late(&self, about: &About) -> bool {
        self.late.contains_key(about) || self.skipped.get(about) == Some(&true)
    }

    /// What was not asked in this sample, in sentences.
    pub fn notes(&self) -> Vec<String> {
        if let Some(why) = &self.refused {
            let left = self.left;
            let who = format!("{left} processes of this and earlier runs wait in the kernel");
            return vec![format!("{who}, so nobody could be asked: {why}")];
        }
        let skipped = |is_folder: bool| {
            let of_kind = self.skipped.iter();
            let of_kind = of_kind.filter(move |(about, _)| is_of_folder(**about) == is_folder);
            of_kind.filter(move |(_, missed)| !is_folder || !**missed)
        };
        let mut notes = Vec::new();
        match skipped(true).count() {
            0 => {}
            users => {
                let why = match self.left {
                    left if left >= MOST_LEFT => {
                        format!("{left} processes of this and earlier runs wait for such folders")
                    }
                    _ => "those of others do not answer".into(),
                };
                notes.push(format!("not asked: the folders of {users} users, as {why}"));
            }
        }
        match skipped(false).count() {
            0 => {}
            processes => notes.push(format!(
                "not waited for: {processes} processes, as too many do not answer"
            )),
        }
        notes
    }

    /// How long an answer is waited for; nothing if it is not asked for.
    fn limit(&self, round: Round, about: About) -> Duration {
        let (user, process) = about;
        if process == 0 && self.left >= MOST_LEFT && !is_trusted(user) {
            return Duration::ZERO;
        }
        let spent = &self.spent[round as usize];
        let of_user = spent.of_user.get(&user).filter(|_| process != 0);
        let of_user = of_user.copied().unwrap_or_default();
        let (most, most_of_user) = match round {
            Round::First => (SHORT, SHORT_OF_USER),
            Round::Second => (LIMIT, OF_USER),
        };
        let limit = most
            .min(most_of_user.saturating_sub(of_user))
            .min(OF_ALL.saturating_sub(spent.of_all));
        // Less than that tells nothing about who is asked.
        if limit < SHORT { Duration::ZERO } else { limit }
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
        let mut open: Vec<usize> = (0..questions.len()).collect();
        open.retain(|&n| !self.late.contains_key(&about(n)));
        let mut missed = HashSet::new();
        for round in [Round::First, Round::Second] {
            let mut late: HashMap<u32, usize> = HashMap::new();
            let late_now = missed.iter().map(|&n| about(n));
            for (user, _) in self.late.keys().copied().chain(late_now) {
                *late.entry(user).or_default() += 1;
            }
            open.sort_by_key(|&n| {
                let (user, _) = about(n);
                let late = late.get(&user).copied().unwrap_or_default();
                (!is_trusted(user), late, missed.contains(&n))
            });
            let each = |n: usize| serde_json::to_vec(&answer(&questions[n])).unwrap_or_default();
            open = self.round(round, open, &about, each, |n, answer| match answer {
                Some(bytes) => answers[n] = serde_json::from_slice(&bytes).ok(),
                None => drop(missed.insert(n)),
            });
        }
        let skipped = open.iter().map(|n| (about(*n), missed.contains(n)));
        self.skipped.extend(skipped);
        answers
    }

    /// Asks these questions, and returns those that are neither answered nor late. `took` takes each
    /// answer, or that there is none.
    fn round(
        &mut self,
        round: Round,
        open: Vec<usize>,
        about: &impl Fn(usize) -> About,
        answer: impl Fn(usize) -> Vec<u8>,
        mut took: impl FnMut(usize, Option<Vec<u8>>),
    ) -> Vec<usize> {
        let (mut open, mut rest) = (VecDeque::from(open), Vec::new());
        let mut asking: Option<Child> = None;
        loop {
            let is_asked = |n: &usize| !self.limit(round, about(*n)).is_zero();
            // The child asks all that was open when it began, so it ends if it must not.
            if asking.is_none() || open.front().is_some_and(|n| !is_asked(n)) {
                asking = None;
                let (asked, not): (VecDeque<_>, VecDeque<_>) = open.into_iter().partition(is_asked);
                open = asked;
                rest.extend(not);
            }
            let Some(&n) = open.front() else { break };
            let started = asking.take().map_or_else(
                || {
                    Child::start(&BOUNDS, |to_parent| {
                        for &n in &open {
                            call_itself(about(n));
                            if to_parent.send(&answer(n)).is_err() {
                                return;
                            }
                        }
                    })
                },
                Ok,
            );
            let mut child = match started {
                Ok(child) => child,
                Err(error) => {
                    self.refused = Some(error.to_string());
                    self.left = count_left();
                    break;
                }
            };
            let began = Instant::now();
            let received = child.receive(self.limit(round, about(n)));
            open.pop_front();
            if let Received::Answer(bytes) = received {
                took(n, Some(bytes));
                let beyond = began.elapsed().saturating_sub(SHORT);
                self.spent[round as usize].add(about(n), beyond);
                asking = Some(child);
                continue;
            }
            drop(child);
            self.spent[round as usize].add(about(n), began.elapsed());
            took(n, None);
            let left = self.left;
            if is_of_folder(about(n)) {
                self.left = count_left();
            }
            // Another child would be left behind too.
            if round == Round::Second || self.left > left {
                self.late.insert(about(n), Instant::now());
            } else {
                rest.push(n);
            }
            // The others come before this user.
            let (mut others, of_user): (VecDeque<_>, VecDeque<_>) =
                open.into_iter().partition(|&of| about(of).0 != about(n).0);
            others.extend(of_user);
            open = others;
        }
        rest.extend(open);
        rest
    }
}

/// Whether this is root or who runs this, neither of whom delays it on purpose.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == me()
}

/// How many children of all runs are left behind.
fn count_left() -> usize {
    let status = |pid| read(format!("/proc/{pid}/status"));
    let left = processes().filter_map(|pid| left_behind(&status(pid)?));
    left.count()
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
        let questions = [(7, 5, true), (7, 6, false), (8, 7, true)];
        let began = Instant::now();
        assert_eq!(ask(&mut patience, &questions), [Some(5), None, Some(7)]);
        assert!(began.elapsed() < LIMIT, "user 7 has had his time");
        assert!(patience.is_late(&(7, 6)) && !patience.late.contains_key(&(7, 6)));
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

    #[test]
    fn all_users_have_a_limited_time() {
        let mut questions: Vec<Question> = (1..=5).map(|user| (user, user, false)).collect();
        questions.extend((11..=20).map(|user| (user, user, false)));
        questions.push((30, 30, true));
        let mut patience = Patience::default();
        let began = Instant::now();
        let answers = ask(&mut patience, &questions);
        // The first round adds 15 short waits, and the ends of the children some more.
        assert!(began.elapsed() < OF_ALL + Duration::from_secs(3));
        assert_eq!(answers.last(), Some(&Some(30)));
        assert!(
            questions[..15]
                .iter()
                .all(|it| patience.is_late(&(it.0, it.1)))
        );
        let late = patience.late.len();
        let note = format!(
            "not waited for: {} processes, as too many do not answer",
            15 - late
        );
        assert!((4..=6).contains(&late) && patience.notes() == [note]);
    }

    #[test]
    fn answers_use_up_no_time() {
        let questions: Vec<Question> = (1..2000).map(|n| (7, n, true)).collect();
        let mut patience = Patience::default();
        let about = |&(user, process, _): &Question| (user, process);
        let answer = |&(_, process, _): &Question| {
            std::thread::sleep(Duration::from_millis(3));
            process
        };
        // They take longer than the time of a user.
        let answers = patience.ask(&questions, about, answer);
        assert!(answers.iter().all(Option::is_some));
        assert!(patience.notes().is_empty());
    }

    #[test]
    fn folders_are_not_asked_while_many_children_are_left() {
        let other = me() + 1;
        let left = (0..MOST_LEFT as u32).map(|n| (other + 1 + n, 0)).collect();
        let questions = [
            (other, 0, true),
            (0, 0, true),
            (me(), 0, true),
            (other, 9, true),
        ];
        let mut patience = Patience::default();
        patience.renew(left);
        let answers = ask(&mut patience, &questions);
        assert_eq!(answers, [None, Some(0), Some(0), Some(9)]);
        assert!(!patience.is_late(&(other, 0)), "nobody is accused");
        let why = "6 processes of this and earlier runs wait for such folders";
        let note = format!("not asked: the folders of 1 users, as {why}");
        assert_eq!(patience.notes(), [note]);
    }
}
