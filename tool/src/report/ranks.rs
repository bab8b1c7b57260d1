// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ranks of a job: the sums over the processes of each, and how far the slowest is from the
//! others. A process without a rank counts by itself.
use super::replay::ProcessCounts;
use super::shape::{Rank, Ranks};
use crate::trace::Process;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::collections::HashMap;

/// `counts` are those of `processes`.
pub fn ranks(processes: &[Process], counts: &[ProcessCounts]) -> Ranks {
    let mut list: Vec<Rank> = Vec::new();
    let mut places = HashMap::new();
    for (process, counts) in processes.iter().zip(counts) {
        // A launcher that preloads the library registers nothing itself.
        if counts.tally.calls == 0 {
            continue;
        }
        let new = list.len();
        let place = match process.rank {
            Some(rank) => *places.entry((rank, &process.host)).or_insert(new),
            None => new,
        };
        if place == new {
            list.push(Rank {
                rank: process.rank,
                host: process.host.clone(),
                ..Rank::default()
            });
        }
        let rank = &mut list[place];
        rank.pids.push(process.pid);
        rank.calls += counts.tally.calls;
        rank.failed += counts.tally.failed;
        rank.registrations += counts.registrations;
        rank.hits += counts.hits;
        rank.time_ns += counts.tally.time;
        rank.longest_ns = rank.longest_ns.max(counts.tally.longest.into());
        rank.peak_bytes = rank.peak_bytes.max(counts.peak);
        rank.run_ns = rank.run_ns.max(process.end - process.begin);
    }
    list.sort_by_key(|rank| (Reverse(rank.time_ns), rank.rank, rank.host.clone()));
    let mean_ns = list.iter().map(|rank| rank.time_ns).sum::<u64>() / (list.len() as u64).max(1);
    let hosts: BTreeSet<_> = list.iter().filter_map(|rank| rank.host.as_ref()).collect();
    Ranks {
        hosts: hosts.len() as u64,
        mean_ns,
        imbalance: match (list.first(), mean_ns) {
            (Some(slowest), 1..) => slowest.time_ns as f64 / mean_ns as f64 - 1.0,
            _ => 0.0,
        },
        list,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(rank: Option<u32>, host: &str) -> Process {
        let mut process = Process::default();
        (process.rank, process.host) = (rank, Some(host.into()));
        process
    }

    fn list(processes: &[Process]) -> Vec<Rank> {
        let mut counts = ProcessCounts::default();
        counts.tally.calls = 1;
        ranks(processes, &vec![counts; processes.len()]).list
    }

    #[test]
    fn a_rank_has_all_its_processes_and_no_others() {
        let processes = [
            process(Some(1), "a"),
            process(None, "a"),
            process(Some(1), "b"),
            process(None, "a"),
            process(Some(1), "a"),
        ];
        let list = list(&processes);
        let mut found: Vec<_> = list.iter().map(|of| (of.rank, of.calls)).collect();
        found.sort_unstable();
        assert_eq!(found, [(None, 1), (None, 1), (Some(1), 1), (Some(1), 2)]);
    }

    /// To look at each rank for each process would take minutes.
    #[test]
    fn many_ranks_take_no_more_time_each() {
        const MANY: u32 = 1 << 19;
        let processes: Vec<_> = (0..MANY).map(|rank| process(Some(rank), "")).collect();
        assert_eq!(list(&processes).len(), MANY as usize);
    }
}
