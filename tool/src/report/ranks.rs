// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ranks of a job: the sums over the processes of each, and how far the slowest is from the
//! others. A process without a rank counts by itself.
use super::replay::ProcessCounts;
use super::shape::{Rank, Ranks};
use crate::lists::entry;
use crate::trace::Process;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// `counts` are those of `processes`.
pub fn ranks(processes: &[Process], counts: &[ProcessCounts]) -> Ranks {
    let mut list = Vec::new();
    for (process, counts) in processes.iter().zip(counts) {
        // A launcher that preloads the library registers nothing itself.
        if counts.tally.calls == 0 {
            continue;
        }
        let is_it = |rank: &Rank| {
            rank.rank.is_some() && rank.rank == process.rank && rank.host == process.host
        };
        let new = || Rank {
            rank: process.rank,
            host: process.host.clone(),
            ..Rank::default()
        };
        let rank = entry(&mut list, is_it, new);
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
