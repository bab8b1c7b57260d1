// SPDX-License-Identifier: MIT OR Apache-2.0
//! Predictions: the rules of the cache, one test a rule.
use super::*;
use crate::sample::{BEGAN, Sample, Writer, deregister, file, register};
use rdmamr_trace_format::{Call, cache, call, kind, unserved};

const S: u64 = 1_000_000_000;
const LOCAL: u64 = 60_000;
const REMOTE: u64 = 1_000;

/// The cache's settings: flags, times, most regions, most bytes.
type Facts = [u64; 5];
const FACTS: Facts = [0, LOCAL, REMOTE, 16_384, 1 << 40];

/// The report of a process with those settings, and with memory whose regions do not stay in the
/// cache.
fn report(facts: Facts, unkept: &[(u64, u64)], calls: &[Call]) -> Report {
    let mut sample = Sample::default();
    let mut one = Writer::new(7);
    one.start(&mut sample, "program\0");
    one.block(
        &mut sample,
        kind::CACHE,
        &facts.map(u64::to_le_bytes).concat(),
    );
    let mut list = BEGAN.to_le_bytes().to_vec();
    for range in unkept {
        list.extend(range.0.to_le_bytes());
        list.extend(range.1.to_le_bytes());
    }
    one.block(&mut sample, kind::UNKEPT, &list);
    one.calls(&mut sample, calls);
    one.end(&mut sample, 100 * S);
    let (_folder, path) = file(&sample);
    Report::new(&Trace::open(&path).unwrap(), &path).unwrap()
}

/// A registration for half a second, and its deregistration; `verdict` is one of [`unserved`].
fn pair(at: u64, verdict: u32, change: impl Fn(Call) -> Call) -> [Call; 2] {
    let reason = |call| Call {
        reason: verdict,
        ..call
    };
    [
        change(reason(register(at, 1, 0x10_000, 0x4000))),
        change(deregister(at + S / 2, 1, 0x10_000, 0x4000)),
    ]
}

fn hits(report: &Report) -> u64 {
    report.advice.all.hits
}

#[test]
fn a_program_with_fork_protection_is_promised_nothing() {
    let calls: Vec<_> = (0..5)
        .flat_map(|n| pair(n * S, unserved::FORK, |call| call))
        .collect();
    let report = report(FACTS, &[], &calls);
    assert_eq!((hits(&report), report.advice.all.saved_ns), (0, 0));
    let [unserved] = &report.advice.unserved[..] else {
        panic!("one reason")
    };
    assert_eq!((unserved.registrations, unserved.time_ns), (5, 50_000));
    let sentence = &report.advice.sentence;
    assert!(
        sentence.starts_with("`--cache=all` would have saved nothing. The cache does not serve 5 plain registrations: ibv_fork_init"),
        "{sentence}"
    );
}

#[test]
fn what_is_served_and_what_is_not_are_counted_apart() {
    let mut calls: Vec<_> = (0..4)
        .flat_map(|n| pair(n * S, unserved::NONE, |call| call))
        .collect();
    calls.extend((4..6).flat_map(|n| pair(n * S, unserved::ADDRESS, |call| call)));
    calls.extend((6..7).flat_map(|n| pair(n * S, unserved::CHILD, |call| call)));
    let report = report(FACTS, &[], &calls);
    assert_eq!(hits(&report), 2);
    let counts: Vec<_> = report
        .advice
        .unserved
        .iter()
        .map(|of| of.registrations)
        .collect();
    assert_eq!(counts, [2, 1]);
    assert!(
        report
            .advice
            .sentence
            .contains("2 because remote peers address"),
        "{}",
        report.advice.sentence
    );
}

#[test]
fn without_a_watch_nothing_is_served() {
    let calls: Vec<_> = (0..3)
        .flat_map(|n| pair(n * S, unserved::NONE, |call| call))
        .collect();
    let refused = report(
        [cache::CANNOT_WATCH, LOCAL, REMOTE, 10, 1 << 30],
        &[],
        &calls,
    );
    assert_eq!(hits(&refused), 0);
    assert!(
        refused
            .advice
            .sentence
            .contains("userfaultfd(2) is refused")
    );
}

#[test]
fn shared_memory_is_not_kept() {
    let calls: Vec<_> = (0..4)
        .flat_map(|n| pair(n * S, unserved::NONE, |call| call))
        .collect();
    assert_eq!(hits(&report(FACTS, &[(0x13_000, 0x20_000)], &calls)), 0);
    assert_eq!(
        hits(&report(
            FACTS,
            &[(0x14_000, 0x20_000), (0, 0x10_000)],
            &calls
        )),
        2
    );
}

#[test]
fn age_ends_what_peers_reach_after_a_second_and_other_regions_later() {
    let remote = |call: Call| Call { access: 3, ..call };
    let calls = |every: u64, change: fn(Call) -> Call| -> Vec<Call> {
        (0..4)
            .flat_map(|n| pair(n * every, unserved::NONE, change))
            .collect()
    };
    assert_eq!(hits(&report(FACTS, &[], &calls(S, remote))), 2);
    assert_eq!(hits(&report(FACTS, &[], &calls(2 * S, remote))), 0);
    assert_eq!(hits(&report(FACTS, &[], &calls(2 * S, |call| call))), 2);
    let settings = [0, 1_000, 5_000, 16_384, 1 << 40];
    assert_eq!(hits(&report(settings, &[], &calls(2 * S, remote))), 2);
    assert_eq!(hits(&report(settings, &[], &calls(2 * S, |call| call))), 0);
}

#[test]
fn a_larger_region_serves_only_local_access_without_a_limit_on_pinned_memory() {
    let part = |call: Call| Call {
        addr: 0x12_000,
        length: 100,
        ..call
    };
    let calls = |access: u32| -> Vec<Call> {
        let with = move |call: Call| Call { access, ..call };
        let whole = (0..2).flat_map(|n| pair(n * S, unserved::NONE, with));
        whole
            .chain(pair(2 * S, unserved::NONE, move |call| part(with(call))))
            .collect()
    };
    let all = [cache::PINS_ALL, LOCAL, REMOTE, 16_384, 1 << 40];
    assert_eq!(hits(&report(all, &[], &calls(1))), 1);
    assert_eq!(hits(&report(FACTS, &[], &calls(1))), 0);
    assert_eq!(hits(&report(all, &[], &calls(3))), 0);
}

#[test]
fn the_limits_on_what_is_idle_end_the_oldest() {
    // Two alternating ranges, of which one fits into the cache. A range whose region was evicted
    // unused counts as new again, and so the other range has a hit now and then.
    let other = |call: Call| Call {
        addr: 0x90_000,
        ..call
    };
    let calls: Vec<_> = (0..5)
        .flat_map(|n| {
            pair(2 * n * S, unserved::NONE, |call| call)
                .into_iter()
                .chain(pair((2 * n + 1) * S, unserved::NONE, other))
        })
        .collect();
    assert_eq!(hits(&report(FACTS, &[], &calls)), 6);
    assert_eq!(
        hits(&report([0, LOCAL, REMOTE, 1, 1 << 40], &[], &calls)),
        2
    );
    assert_eq!(
        hits(&report([0, LOCAL, REMOTE, 100, 0x4000], &[], &calls)),
        2
    );
    assert_eq!(
        hits(&report([0, LOCAL, REMOTE, 100, 0x8000], &[], &calls)),
        6
    );
}

#[test]
fn fresh_keys_keep_remote_regions_from_being_served() {
    let calls: Vec<_> = (0..4)
        .flat_map(|n| pair(n * S, unserved::NONE, |call| Call { access: 3, ..call }))
        .collect();
    assert_eq!(
        hits(&report(
            [cache::FRESH_KEYS, LOCAL, REMOTE, 10, 1 << 30],
            &[],
            &calls
        )),
        0
    );
    assert_eq!(hits(&report(FACTS, &[], &calls)), 2);
}

/// A change of memory, as the library records it.
fn change(at: u64, addr: u64, length: u64) -> Call {
    Call {
        call: call::CHANGE,
        duration: 0,
        ..register(at, 0, addr, length)
    }
}

#[test]
fn memory_that_changes_is_not_served_again() {
    let calls = |changed: Call| -> Vec<Call> {
        let first = pair(0, unserved::NONE, |call| call);
        let kept = pair(2 * S, unserved::NONE, |call| call);
        let last = pair(4 * S, unserved::NONE, |call| call);
        let before = first.into_iter().chain(kept);
        before.chain([changed]).chain(last).collect()
    };
    let all = |addr, length, at| {
        let report = report(FACTS, &[], &calls(change(2 * S + at, addr, length)));
        (report.advice.all.hits, report.advice.all.changes)
    };
    let idle = S;
    assert_eq!(all(0x13_fff, 1, idle), (0, 1));
    assert_eq!(all(0, 0x10_001, idle), (0, 1));
    assert_eq!(all(0, 0x10_000, idle), (1, 0));
    assert_eq!(all(0x14_000, 0x1000, idle), (1, 0));
    let in_use = S / 4;
    assert_eq!(all(0x10_000, 0x1000, in_use), (0, 1));
    assert_eq!(all(0x14_000, 0x1000, in_use), (1, 0));
}

#[test]
fn a_cache_that_costs_more_than_it_saves_is_advised_against() {
    let calls = |duration| -> Vec<Call> {
        let with = move |call| Call { duration, ..call };
        (0..90)
            .flat_map(|n| pair(n * S, unserved::NONE, with))
            .collect()
    };
    let cheap = report(FACTS, &[], &calls(100)).advice;
    assert!(cheap.all.saved_ns < 0 && cheap.command.is_none());
    assert!(
        cheap
            .sentence
            .starts_with("Leave the cache off: `--cache=all` would have cost"),
        "{}",
        cheap.sentence
    );
    let dear = report(FACTS, &[], &calls(100_000)).advice;
    assert!(dear.all.saved_ns > 0, "{}", dear.sentence);
    assert_eq!(
        dear.command.as_deref(),
        Some("rdmamr run --cache=local -- program")
    );
}

#[test]
fn what_the_cache_takes_is_said() {
    let remote = |call: Call| Call {
        access: 3,
        duration: 1_000_000,
        ..call
    };
    let calls: Vec<_> = (0..90)
        .flat_map(|n| pair(n * S, unserved::NONE, remote))
        .collect();
    let advice = report(FACTS, &[], &calls).advice;
    assert_eq!(advice.all.idle_bytes, 0x4000);
    for words in [
        "Up to 16 KiB would have stayed pinned",
        "an rkey stays valid after ibv_dereg_mr",
    ] {
        assert!(advice.sentence.contains(words), "{}", advice.sentence);
    }
}

#[test]
fn shares_are_of_the_time_of_all_threads() {
    let calls: Vec<_> = (0..8u32)
        .flat_map(|thread| {
            let of_thread = move |call| Call { thread, ..call };
            let addr = 0x10_000 * u64::from(thread + 1);
            let first = register(0, thread, addr, 4096);
            let last = deregister(50 * S, thread, addr, 4096);
            [of_thread(first), of_thread(last)]
        })
        .collect();
    let totals = report(FACTS, &[], &calls).totals;
    // The process runs for 100 s; its main thread is 7. The others have calls over 50 s.
    assert_eq!((totals.run_ns, totals.threads), (100 * S, 8));
    assert_eq!(totals.thread_ns, 100 * S + 7 * (50 * S + 4_000));
}

#[test]
fn a_range_that_comes_once_costs_nothing() {
    let calls: Vec<_> = (0..50)
        .flat_map(|n| {
            let elsewhere = move |call: Call| Call {
                addr: 0x10_000 * (n + 1),
                ..call
            };
            pair(n * S, unserved::NONE, elsewhere)
        })
        .collect();
    let all = report(FACTS, &[], &calls).advice.all;
    assert_eq!((all.hits, all.misses, all.saved_ns), (0, 0, 0));
}

#[test]
fn memory_that_is_mapped_anew_each_time_comes_for_the_first_time() {
    let calls: Vec<_> = (0..50)
        .flat_map(|n| {
            let [begin, end] = pair(n * S, unserved::NONE, |call| call);
            [
                begin,
                end,
                change(n * S + S / 2 + 100_000, 0x10_000, 0x4000),
            ]
        })
        .collect();
    let all = report(FACTS, &[], &calls).advice.all;
    assert_eq!((all.hits, all.misses, all.saved_ns), (0, 0, 0));
}
