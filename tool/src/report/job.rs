// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the processes of a job have in common: one line for what is equal, and the command that
//! starts the job anew, by the launchers that people use.
use super::shape::{ProcessTotals, Ranks};
use super::units::{self, count, time};
use std::collections::HashMap;

/// The names of launchers.
const MPIRUN: &[&str] = &["mpirun", "mpiexec", "orterun", "prterun"];
const SRUN: &[&str] = &["srun"];
#[rustfmt::skip]
const TORCHRUN: &[&str] = &["torchrun", "torch.distributed.run", "torch.distributed.launch"];
/// Stands for words that differ.
const DIFFERS: &str = "...";

/// Processes of one program.
pub struct Group<'a> {
    pub command: Vec<String>,
    pub processes: Vec<&'a ProcessTotals>,
}

/// The processes by their program, in their order.
pub fn groups(processes: &[ProcessTotals]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = Vec::new();
    let mut places = HashMap::new();
    for process in processes {
        let new = groups.len();
        let place = match process.command.first() {
            Some(program) => *places.entry((program, process.calls > 0)).or_insert(new),
            None => new,
        };
        if place == new {
            groups.push(Group {
                command: process.command.clone(),
                processes: Vec::new(),
            });
        }
        let group = &mut groups[place];
        group.command = common(&group.command, &process.command);
        group.processes.push(process);
    }
    groups
}

/// The words of two command lines, with dots in the place of those that differ.
fn common(one: &[String], other: &[String]) -> Vec<String> {
    let differs = || DIFFERS.to_string();
    let both = |(one, other): (&String, &String)| {
        if one == other {
            return one.clone();
        }
        let names = one.split_once('=').zip(other.split_once('='));
        match names {
            Some(((name, _), (same, _))) if name == same => format!("{name}={DIFFERS}"),
            _ => differs(),
        }
    };
    let mut words: Vec<String> = one.iter().zip(other).map(both).collect();
    if one.len() != other.len() && words.last() != Some(&differs()) {
        words.push(differs());
    }
    words
}

impl Group<'_> {
    /// The command line in words.
    pub fn line(&self) -> String {
        let words = match self.command.is_empty() {
            true => "(its command line is not in the trace)".to_string(),
            false => self.command.join(" "),
        };
        match self.processes.len() {
            1 => words,
            all => format!("{words} ({} processes)", count(all as u64)),
        }
    }

    /// When its processes ran, and for how long.
    pub fn facts(&self) -> String {
        let all = || self.processes.iter();
        let runs = || all().map(|process| process.run_ns);
        let (shortest, longest) = (runs().min().unwrap_or(0), runs().max().unwrap_or(0));
        let (shortest, longest) = (time(shortest), time(longest));
        let (who, ran) = match self.processes[..] {
            [one] => (format!("pid {}, ", one.pid), longest),
            _ => (String::new(), format!("{shortest} to {longest}")),
        };
        let at_least = match all().all(|process| process.ended) {
            true => "",
            false => " at least",
        };
        let in_calls = all().map(|process| process.time_ns);
        format!(
            "{who}{}, ran {ran}{at_least}, {}, {} in them, ",
            self.processes[0].started,
            units::plural(all().map(|process| process.calls).sum(), "call", "calls"),
            time(in_calls.fold(0, u64::saturating_add))
        )
    }

    /// Whether they have ended in order, in words.
    pub fn end(&self) -> String {
        let all = || self.processes.iter();
        let killed = all().filter(|process| !process.ended && !process.stopped);
        match (killed.count(), self.processes.len()) {
            (0, 1) if self.processes[0].stopped => {
                "recorded until it was stopped, and ran on".to_string()
            }
            (0, _) => "ended in order".to_string(),
            (_, 1) => "has NOT ended in order".to_string(),
            (killed, all) => format!("{killed} of {all} have NOT ended in order"),
        }
    }

    pub fn ended(&self) -> bool {
        let mut all = self.processes.iter();
        all.all(|process| process.ended || process.stopped)
    }
}

/// The number of ranks of a job.
pub fn of_ranks(ranks: &Ranks) -> usize {
    ranks.list.iter().filter(|rank| rank.rank.is_some()).count()
}

/// A command line, as a shell reads it.
fn words(command: &[String]) -> String {
    let words: Vec<_> = command.iter().map(units::quoted).collect();
    match words.is_empty() {
        true => "program".to_string(),
        false => words.join(" "),
    }
}

/// The commands that run the busiest program with `run`: of a job one for each launcher.
pub fn commands(processes: &[ProcessTotals], ranks: &Ranks, run: &str) -> Vec<String> {
    let of_ranks = of_ranks(ranks);
    if of_ranks < 2 {
        let busiest = processes.iter().max_by_key(|process| process.time_ns);
        let program = words(busiest.map_or(&[], |busiest| &busiest.command));
        return vec![format!("{run} {program}")];
    }
    let groups = groups(processes);
    let in_calls = |group: &&Group| group.processes.iter().map(|of| of.time_ns).sum::<u64>();
    let Some(group) = groups.iter().max_by_key(in_calls) else {
        return Vec::new();
    };
    let program = words(&group.command);
    let first = group.command.first().map_or("", String::as_str);
    let is_python =
        program != units::program(&group.command) && units::name_of(first).starts_with("python");
    let line = |launcher: String| format!("{launcher} {run} {program}");
    // Each launcher's line, by the launcher's names.
    let mut all = vec![
        (MPIRUN, line(format!("mpirun -np {of_ranks}"))),
        (SRUN, line(format!("srun -n {of_ranks}"))),
    ];
    if is_python {
        let each = (of_ranks as u64).checked_div(ranks.hosts).unwrap_or(1);
        let (nodes, each) = (ranks.hosts.max(1), each.max(1));
        let options = format!("--nnodes={nodes} --nproc-per-node={each} --no-python");
        all.push((TORCHRUN, line(format!("torchrun {options}"))));
    }
    // A launcher that runs under the library itself is in the trace, and registers nothing.
    let launchers = processes.iter().filter(|process| process.calls == 0);
    let launchers: Vec<String> = launchers.map(|of| units::program(&of.command)).collect();
    let is_known = |names: &[&str]| launchers.iter().any(|of| names.contains(&of.as_str()));
    let known = all.iter().position(|(names, _)| is_known(names));
    match known {
        Some(at) => vec![all.swap_remove(at).1],
        None => all.into_iter().map(|(_, line)| line).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::shape::Rank;

    fn process(line: &str, calls: u64) -> ProcessTotals {
        ProcessTotals {
            pid: 7,
            host: None,
            rank: None,
            command: line.split(' ').map(String::from).collect(),
            started: String::new(),
            run_ns: 0,
            thread_ns: 0,
            calls,
            failed: 0,
            time_ns: calls,
            threads: 1,
            dropped: 0,
            ended: true,
            stopped: false,
        }
    }

    fn ranks(count: u32, hosts: u64) -> Ranks {
        let rank = |rank| Rank {
            rank: Some(rank),
            ..Rank::default()
        };
        Ranks {
            hosts,
            list: (0..count).map(rank).collect(),
            ..Ranks::default()
        }
    }

    #[test]
    fn one_line_for_what_is_equal() {
        let processes = [
            process("./app --port=5001 -n 3 a", 5),
            process("./app --port=5002 -n 3 b", 6),
            process("./other", 7),
        ];
        let groups = groups(&processes);
        let lines: Vec<_> = groups.iter().map(Group::line).collect();
        assert_eq!(
            lines,
            ["./app --port=... -n 3 ... (2 processes)", "./other"]
        );
        assert!(
            groups[0].facts().contains("11 calls"),
            "{}",
            groups[0].facts()
        );
        let shorter = common(&["a".into(), "b".into()], &["a".into()]);
        assert_eq!(shorter, ["a", "..."]);
    }

    /// To look at each group for each process would take minutes.
    #[test]
    fn many_programs_take_no_more_time_each() {
        const MANY: u64 = 1 << 18;
        let processes: Vec<_> = (0..MANY).map(|n| process(&format!("./{n}"), n)).collect();
        assert_eq!(groups(&processes).len(), MANY as usize);
    }

    #[test]
    fn a_job_is_started_by_its_launcher() {
        let run = "rdmamr run --cache=all --";
        let mut processes = vec![
            process("python3 train.py --port 1", 5),
            process("python3 train.py --port 2", 5),
        ];
        let found = commands(&processes, &ranks(4, 2), run);
        assert_eq!(
            found,
            [
                "mpirun -np 4 rdmamr run --cache=all -- python3 train.py --port ...",
                "srun -n 4 rdmamr run --cache=all -- python3 train.py --port ...",
                "torchrun --nnodes=2 --nproc-per-node=2 --no-python rdmamr run --cache=all -- python3 train.py \
                 --port ..."
            ]
        );
        processes.push(process("python3 /usr/bin/torchrun train.py", 0));
        let found = commands(&processes, &ranks(4, 2), run);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("torchrun "), "{found:?}");
        processes[1].time_ns = 6;
        let one = "rdmamr run --cache=all -- python3 train.py --port 2";
        assert_eq!(commands(&processes, &ranks(1, 1), run), [one]);
        // The trace may lack the blocks that have the command lines.
        processes.iter_mut().for_each(|of| of.command.clear());
        let found = commands(&processes, &ranks(2, 1), run);
        assert_eq!(found[0], "mpirun -np 2 rdmamr run --cache=all -- program");
        let others = [process("./app", 1), process("mpiexec -n 2", 0)];
        assert_eq!(
            commands(&others, &ranks(2, 0), run),
            ["mpirun -np 2 rdmamr run --cache=all -- ./app"]
        );
    }
}
