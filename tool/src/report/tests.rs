// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::sample::{BEGAN, Sample, Writer, deregister, file, register};
use rdmamr_trace_format::{Call, call, how, kind};

pub const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

fn read(sample: &Sample) -> Report {
    let (_folder, path) = file(sample);
    Report::new(
        &Trace::open(&path).unwrap(),
        &path,
        &mut Resolver::default(),
    )
    .unwrap()
}

/// A process that has begun to write.
fn begun(command: &str) -> (Sample, Writer) {
    let (mut sample, mut one) = (Sample::default(), Writer::new(7));
    one.start(&mut sample, command);
    (sample, one)
}

/// A process that makes these calls, and ends after 10 s.
fn sample_of(calls: &[Call]) -> Sample {
    let (mut sample, mut one) = begun("program\0");
    one.calls(&mut sample, calls);
    one.end(&mut sample, 10 * S);
    sample
}

/// Its report.
pub fn report(calls: &[Call]) -> Report {
    read(&sample_of(calls))
}

/// The only one.
fn only<T>(list: &[T]) -> &T {
    assert_eq!(list.len(), 1);
    &list[0]
}

fn relaxed(at: u64, how: u8, addr: u64) -> Call {
    Call {
        call: call::REG_MR_RELAXED,
        how,
        ..register(at, 1, addr, 16)
    }
}

fn kept(at: u64, addr: u64) -> Call {
    Call {
        call: call::DEREG_MR_RELAXED,
        how: how::KEPT,
        ..deregister(at, 1, addr, 16)
    }
}

/// The cache deregisters the region.
fn ended(at: u64) -> Call {
    Call {
        call: call::CACHE,
        ..deregister(at, 1, 0x1000, 4096)
    }
}

fn pinned_at(report: &Report, time: u64) -> u64 {
    let mut points = report.pinned.points.iter().rev();
    points.find(|point| point.time_ns <= time).unwrap().bytes()
}

#[test]
fn pinned_memory_is_whole_pages_each_time() {
    let report = report(&[
        register(0, 1, 0x1ff0, 32),
        register(MS, 2, 0x1000, 4096),
        Call {
            access: 64,
            ..register(2 * MS, 3, 0, 1 << 30)
        },
        Call {
            call: call::REG_DMABUF_MR,
            ..register(2 * MS, 4, 0, 1 << 30)
        },
        deregister(3 * MS, 1, 0x1ff0, 32),
    ]);
    assert_eq!(
        (report.pinned.peak_bytes, report.pinned.peak_at_ns),
        (3 * 4096, MS + 10_000)
    );
    assert_eq!(report.pinned.end_bytes, 4096);
    assert_eq!(report.pinned.points.first().unwrap().plain_bytes, 12288);
    assert_eq!(report.pinned.points.last().unwrap().plain_bytes, 4096);
}

#[test]
fn a_fork_copies_what_one_process_has_pinned() {
    let copies = |length| {
        let report = report(&[
            register(0, 1, 0x10000, length),
            deregister(MS, 1, 0x10000, length),
        ]);
        let fact = tables::facts(&report)
            .into_iter()
            .find(|fact| fact.0 == "A fork copies");
        fact.map(|fact| fact.1)
    };
    assert!(copies(800 << 20).unwrap().starts_with("up to 800 MiB: "));
    assert_eq!(copies(1 << 20), None);
}

/// Memory of a GPU pins no page, and none of it comes back, also by libfabric's calls.
#[test]
fn memory_of_a_gpu_is_a_kind_of_its_own() {
    const LENGTH: u64 = 1 << 20;
    let gpu = |at, lkey, number| Call {
        call: number,
        how: how::GPU,
        reason: rdmamr_trace_format::unserved::DEVICE,
        ..register(at, lkey, 0x6000_0000_0000, LENGTH)
    };
    let mut calls = vec![
        register(0, 1, 0x1000, 4096),
        gpu(MS, 2, call::REG_MR),
        gpu(2 * MS, 3, call::REG_MR_RELAXED),
    ];
    for n in 0..4 {
        calls.push(gpu((3 + 2 * n) * MS, 4, call::FI_MR_REG));
        calls.push(Call {
            call: call::FI_CLOSE,
            how: how::FORWARDED,
            ..deregister((4 + 2 * n) * MS, 4, 0x6000_0000_0000, LENGTH)
        });
    }
    let report = report(&calls);
    assert_eq!(report.totals.gpu, 6);
    assert_eq!(report.totals.gpu_peak_bytes, 3 * LENGTH);
    assert_eq!(report.pinned.peak_bytes, 4096);
    let advice = &report.advice;
    assert_eq!(advice.fabric.registrations + advice.all.registrations, 0);
    let unserved: Vec<_> = report
        .advice
        .unserved
        .iter()
        .map(|of| (of.reason, of.registrations))
        .collect();
    assert_eq!(unserved, [(ranges::OF_GPU, 6)]);
    let sizes: Vec<_> = report
        .sizes
        .iter()
        .filter(|size| size.what == super::shape::What::Gpu)
        .map(|size| (size.from_bytes, size.calls))
        .collect();
    assert_eq!(sizes, [(LENGTH, 6)]);
    let caller = &report.callers[0];
    assert_eq!((caller.gpu_calls, caller.gpu_time_ns), (6, 60_000));
    let text = text::render(&report);
    assert!(text.contains("0 misses, 6 of a GPU's memory"), "{text}");
    assert!(
        text.contains("\nMemory of GPUs  3 MiB: at most, as dma-bufs\n"),
        "{text}"
    );
    let flame = flame::draw(&report).into_string();
    assert!(flame.contains("GPU memory: 60.0 us, 69.8 %"), "{flame}");
    let page = html::render(&report);
    assert!(page.contains("memory of a GPU"), "{page}");
    assert!(
        page.contains("<dt>Memory of GPUs</dt><dd><strong>3 MiB</strong>"),
        "{page}"
    );
}

#[test]
fn slow_registrations_of_a_gpu_are_told_what_efa_wants() {
    let of = |how| {
        let slow = Call {
            how,
            duration: 1_500_000_000,
            ..register(0, 1, 0x1000, 4096)
        };
        report(&[slow]).advice.sentence
    };
    let words = "a GPU's memory took 1.50 s. On EFA (the driver efa) each takes longer";
    assert!(of(how::GPU).contains(words));
    assert!(!of(how::FORWARDED).contains("EFA"));
}

/// A region of a GPU's memory that the cache keeps pins no page either.
#[test]
fn kept_memory_of_a_gpu_is_not_pinned() {
    const LENGTH: u64 = 1 << 30;
    let of = |reason| {
        let served = |at, how| Call {
            how,
            reason,
            ..register(at, 1, 0x6000_0000_0000, LENGTH)
        };
        let report = report(&[served(0, how::MISS), served(MS, how::HIT)]);
        let large = report.advice.large.registrations;
        (
            report.pinned.peak_bytes,
            report.totals.gpu_peak_bytes,
            large,
        )
    };
    use rdmamr_trace_format::unserved;
    assert_eq!(of(unserved::DEVICE), (0, LENGTH, 0));
    assert_eq!(of(unserved::NONE), (LENGTH, 0, 1));
}

#[test]
fn a_slow_end_is_told() {
    let end = |at, lkey| Call {
        duration: 4_000_000_000,
        ..deregister(at, lkey, 0x1000, 4096)
    };
    let mut calls = vec![
        register(0, 1, 0x1000, 4096),
        register(MS, 2, 0x1000, 4096),
        register(MS, 3, 0x1000, 4096),
        end(2 * MS, 1),
        end(3 * MS, 2),
    ];
    let slow = report(&calls);
    assert_eq!(slow.totals.ending_deregistrations, 2);
    let words = "The end took 8.00 s: 2 deregistrations after the last registration";
    assert!(slow.advice.sentence.contains(words));
    calls.push(register(4 * S, 4, 0x1000, 4096));
    calls.push(kept(5 * S, 0x1000));
    let followed = report(&calls);
    assert_eq!(followed.totals.ending_ns, 0);
    assert!(!followed.advice.sentence.contains("The end took"));
}

#[test]
fn a_umem_is_told_from_a_region_of_the_same_numbers() {
    let umem = Call {
        call: call::MLX5DV_DEVX_UMEM_REG,
        how: how::PAST,
        ..register(0, 1, 0x8000, 8192)
    };
    let end = Call {
        call: call::MLX5DV_DEVX_UMEM_DEREG,
        how: how::PAST,
        ..deregister(2 * MS, 1, 0, 0)
    };
    let report = report(&[umem, register(MS, 1, 0x1000, 4096), end]);
    assert!(report.notes.is_empty());
    let totals = &report.totals;
    assert_eq!((totals.registrations, totals.past_registrations), (2, 1));
    assert_eq!((totals.leaked_regions, totals.leaked_bytes), (1, 4096));
    assert_eq!(
        (report.pinned.peak_bytes, report.pinned.end_bytes),
        (12288, 4096)
    );
    let sizes = report.sizes.iter();
    let ended = sizes.filter(|size| size.what == shape::What::Deregister);
    let lengths: Vec<_> = ended.map(|size| size.from_bytes).collect();
    assert_eq!(lengths, [8192]);
}

#[test]
fn the_cache_pins_until_it_says_otherwise() {
    let report = report(&[
        relaxed(0, how::MISS, 0x1010),
        relaxed(MS, how::HIT, 0x1010),
        kept(2 * MS, 0x1010),
        kept(3 * MS, 0x1010),
        ended(5 * S),
    ]);
    let at = |time| pinned_at(&report, time);
    assert_eq!((at(4 * S), at(6 * S)), (4096, 0));
    let pinned = &report.pinned;
    assert_eq!((pinned.peak_cache_bytes, pinned.end_bytes), (4096, 0));
    let of = &report.totals;
    let registered = (of.calls, of.registrations, of.hits, of.misses);
    assert_eq!(registered, (4, 2, 1, 1));
    let deregistered = (of.deregistrations, of.kept, of.cache_deregistrations);
    assert_eq!((deregistered, of.leaked_regions), ((2, 2, 1), 0));
}

#[test]
fn an_lkey_may_come_back_before_the_cache_has_said_so() {
    let calls = [
        relaxed(0, how::MISS, 0x1000),
        kept(MS, 0x1000),
        relaxed(2 * MS, how::MISS, 0x1000),
        ended(3 * MS),
        kept(4 * MS, 0x1000),
        ended(5 * MS),
    ];
    let (held, gone) = (report(&calls[..4]), report(&calls));
    let left = |of: &Report| (of.pinned.end_bytes, of.totals.leaked_regions);
    assert_eq!((left(&held), left(&gone)), ((4096, 1), (0, 0)));
    assert_eq!((held.pinned.peak_bytes, gone.notes.len()), (4096, 0));
}

#[test]
fn a_region_that_is_shared_is_left_by_the_one_who_never_let_go() {
    let by = |caller, call| Call { caller, ..call };
    let report = report(&[
        by(0xA, relaxed(0, how::MISS, 0x1000)),
        by(0xB, relaxed(MS, how::HIT, 0x1010)),
        by(0xC, relaxed(2 * MS, how::HIT, 0x1020)),
        kept(3 * MS, 0x1000),
        kept(4 * MS, 0x1020),
    ]);
    let leak = only(&report.leaks);
    assert_eq!(
        (
            leak.caller.frame.offset,
            leak.regions,
            leak.bytes,
            leak.ended
        ),
        (0xB, 1, 16, true)
    );
}

#[test]
fn a_call_that_fails_changes_nothing() {
    let report = report(&[
        register(0, 1, 0x1000, 4096),
        Call {
            errno: 22,
            how: 0,
            ..deregister(MS, 1, 0x1000, 4096)
        },
        Call {
            errno: 12,
            how: 0,
            ..register(2 * MS, 0, 0x5000, 4096)
        },
    ]);
    assert_eq!(
        (
            report.pinned.end_bytes,
            report.totals.leaked_regions,
            report.totals.failed
        ),
        (4096, 1, 2)
    );
    assert_eq!(
        (report.totals.registrations, report.totals.deregistrations),
        (1, 0)
    );
    assert!(report.again.is_empty());
    assert_eq!(report.sizes.len(), 1);
}

#[test]
fn failures_are_counted_by_call_and_error_with_a_reason() {
    let (mut sample, mut one) = begun("program\0");
    one.block(&mut sample, kind::REASON, b"\x05\0\0\0no more memory");
    let failed = |at, errno, reason| Call {
        errno,
        reason,
        how: 0,
        ..register(at, 0, 0, 4096)
    };
    one.calls(
        &mut sample,
        &[failed(0, 14, 0), failed(1, 12, 0), failed(2, 12, 5)],
    );
    one.calls(
        &mut sample,
        &[Call {
            call: call::FI_MR_REG,
            ..failed(3, 266, 9)
        }],
    );
    let report = read(&sample);
    let seen: Vec<_> = report
        .failures
        .iter()
        .map(|failure| {
            (
                failure.call,
                failure.name.as_str(),
                failure.count,
                failure.example.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("ibv_reg_mr", "ENOMEM", 2, Some("no more memory")),
            ("ibv_reg_mr", "EFAULT", 1, None),
            ("fi_mr_reg", "FI_ENOKEY", 1, None)
        ]
    );
}

/// Five pairs of the same range, one every 2 s.
fn pairs(access: u32) -> Vec<Call> {
    (0..5)
        .flat_map(|n| {
            [
                Call {
                    access,
                    ..register(n * 2 * S, 1, 0x1800, 4096)
                },
                deregister(n * 2 * S + MS, 1, 0x1800, 4096),
            ]
        })
        .collect()
}

/// The same calls, a hundred times as long.
fn slow(calls: Vec<Call>) -> Vec<Call> {
    let slow = |call: Call| Call {
        duration: 100 * call.duration,
        ..call
    };
    calls.into_iter().map(slow).collect()
}

/// The registrations that came back, by `--cache=all`.
fn back(calls: &[Call]) -> u64 {
    report(calls).advice.all.registrations
}

#[test]
fn all_come_back_but_the_first_two() {
    let report = report(&slow(pairs(1)));
    let again = only(&report.again);
    assert_eq!((again.registrations, again.time_ns), (3, 3 * 1_400_000));
    let advice = &report.advice;
    let bounds = [&advice.local, &advice.all].map(|of| (of.registrations, of.most_ns));
    assert_eq!(bounds, [(3, 4_200_000); 2]);
    assert!(
        advice.sentence.contains(
            "deregistrations took 4.20 ms (60.0 % of the time in calls), and no cache saves more."
        ),
        "{}",
        advice.sentence
    );
}

/// The time of the calls is in the bound, not that of as many medians; an outlier counts as a median.
#[test]
fn the_bound_has_each_call_and_of_an_outlier_the_median() {
    let mut calls = pairs(1);
    calls[6].duration = 30_000;
    calls[8].duration = 1_000_000;
    let report = report(&calls);
    let local = &report.advice.local;
    assert_eq!(local.most_ns, 10_000 + 30_000 + 10_000 + 3 * 4_000);
    assert_eq!((local.outliers, local.outlier_ns), (1, 990_000));
}

#[test]
fn a_trial_and_what_compares_it_are_the_next_commands() {
    let hour = Call {
        duration: 1_000_000_000,
        ..register(0, 1, 0x1800, 4096)
    };
    let long: Vec<_> = (0..4)
        .flat_map(|n| {
            let at = BEGAN + n * 2 * S;
            [
                Call { time: at, ..hour },
                deregister(n * 2 * S + S + MS, 1, 0x1800, 4096),
            ]
        })
        .collect();
    let named = |name: &str| {
        let (folder, trace) = file(&sample_of(&long));
        let path = folder.path().join(name);
        std::fs::rename(trace, &path).unwrap();
        let report = Report::new(
            &Trace::open(&path).unwrap(),
            &path,
            &mut Resolver::default(),
        )
        .unwrap();
        assert!(text::render(&report).contains("\n  rdmamr run --cache=local --trace "));
        let folder = format!("{}/", folder.path().display());
        report.advice.next.join("\n").replace(&folder, "")
    };
    assert_eq!(
        named("app"),
        "rdmamr run --cache=local --trace trial.trace -- program\nrdmamr report --diff app trial.trace"
    );
    assert_eq!(
        named("trial.trace"),
        "rdmamr run --cache=local --trace again.trace -- program\n\
         rdmamr report --diff trial.trace again.trace"
    );
}

#[test]
fn the_library_says_which_registrations_the_cache_does_not_serve() {
    use rdmamr_trace_format::unserved;
    let reasons = [unserved::FORK, unserved::FORK, unserved::ADDRESS];
    let mut calls = pairs(1);
    for (call, reason) in calls.iter_mut().step_by(2).zip(reasons) {
        call.reason = reason;
    }
    let advice = report(&calls).advice;
    let counts: Vec<_> = advice.unserved.iter().map(|of| of.registrations).collect();
    assert_eq!((advice.all.registrations, counts), (0, vec![2, 1]));
    for words in [
        "some registrations: 2 because ibv_fork_init",
        "; 1 because remote peers address",
    ] {
        assert!(advice.sentence.contains(words), "{}", advice.sentence);
    }
}

#[test]
fn a_region_serves_exactly_its_domain_pages_and_access() {
    let of = |n: u64, access, addr, length| {
        let call = Call {
            access,
            ..register(n * MS, 1, addr, length)
        };
        [call, deregister(n * MS + MS / 2, 1, addr, length)]
    };
    for access in [1, 3] {
        let whole = |n| of(n, access, 0x1000, 0x4000);
        let twice = || (0..2).flat_map(whole);
        let third = |calls: [Call; 2]| back(&twice().chain(calls).collect::<Vec<_>>());
        assert_eq!(third(whole(2)), 1);
        assert_eq!(third(of(2, access, 0x2000, 100)), 0, "a part");
        assert_eq!(third(of(2, access & !1, 0x1000, 0x4000)), 0, "less access");
        let other = whole(2).map(|call| Call { pd: 0xDEF, ..call });
        assert_eq!(third(other), 0, "another domain");
    }
}

/// Shorter registrations from one page come back with a longer one, as the library's rule says.
#[test]
fn a_shorter_range_of_the_same_start_makes_its_region_the_first_time() {
    let of = |n: u64, length| {
        [
            Call {
                access: 3,
                ..register(n * MS, 1, 0x1000, length)
            },
            deregister(n * MS + MS / 2, 1, 0x1000, length),
        ]
    };
    let calls = [of(0, 8192), of(1, 4096), of(2, 4096)].concat();
    assert_eq!(back(&calls), 1);
}

/// Earlier releases recorded the cache's settings, and changes of memory.
#[test]
fn what_earlier_releases_recorded_is_skipped() {
    let (mut sample, mut one) = begun("program\0");
    for kind in [6, 7] {
        one.block(&mut sample, kind, &[0xff; 48]);
    }
    let mut calls = pairs(1);
    calls.push(Call {
        call: call::CHANGE,
        how: how::NONE,
        ..register(3 * S, 0, 0, 1 << 40)
    });
    one.calls(&mut sample, &calls);
    one.end(&mut sample, 10 * S);
    let report = read(&sample);
    assert_eq!((report.totals.calls, report.notes.len()), (10, 0));
    assert_eq!(report.advice.all.registrations, 3);
}

#[test]
fn shares_are_of_the_time_of_all_threads() {
    let calls: Vec<_> = (0..8u32)
        .flat_map(|thread| {
            let of_thread = move |call| Call { thread, ..call };
            let addr = 0x10_000 * u64::from(thread + 1);
            let first = register(0, thread, addr, 4096);
            let last = deregister(5 * S, thread, addr, 4096);
            [of_thread(first), of_thread(last)]
        })
        .collect();
    let totals = report(&calls).totals;
    // The process runs for 10 s; its main thread is 7. The others have calls over 5 s.
    assert_eq!((totals.run_ns, totals.threads), (10 * S, 8));
    assert_eq!(totals.thread_ns, 10 * S + 7 * (5 * S + 4_000));
}

#[test]
fn what_comes_again_is_told_by_its_caller() {
    let calls: Vec<_> = (0..30u64)
        .flat_map(|n| {
            let (addr, length) = (0x10_000 * (n % 3), 4096 << (n % 3));
            [
                register(2 * n * MS, 1, addr, length),
                deregister((2 * n + 1) * MS, 1, addr, length),
            ]
        })
        .collect();
    let report = report(&slow(calls));
    let again = only(&report.again);
    assert_eq!((again.registrations, again.time_ns), (24, 24 * 1_400_000));
    assert_eq!((again.smallest_bytes, again.largest_bytes), (4096, 16_384));
}

#[test]
fn remotely_accessible_regions_come_back_to_all_alone() {
    let advice = report(&slow(pairs(2))).advice;
    assert_eq!(
        (advice.local.registrations, advice.all.registrations),
        (0, 3)
    );
    let said = "`--cache=local` leaves remotely accessible regions alone and saves at most 0 ns";
    assert!(advice.sentence.contains(said), "{}", advice.sentence);
    assert!(
        advice
            .sentence
            .contains("an rkey stays valid after ibv_dereg_mr")
    );
}

#[test]
fn libfabric_has_flags_and_advice_of_its_own() {
    let once = Call {
        call: call::FI_MR_REG,
        access: 0x3000,
        ..register(0, 1, 0x1000, 4096)
    };
    let calls = [
        once,
        Call {
            call: call::FI_CLOSE,
            ..deregister(MS, 1, 0x1000, 4096)
        },
        Call {
            time: once.time + 2 * MS,
            ..once
        },
    ];
    let mut calls = calls.map(|call| Call {
        duration: 100_000_000,
        ..call
    });
    calls[1].time += S;
    calls[2].time += S;
    let report = report(&calls);
    let again = &report.again[0];
    assert_eq!(
        (again.access.as_str(), again.remote),
        ("FI_REMOTE_READ|FI_REMOTE_WRITE", true)
    );
    let advice = &report.advice;
    assert_eq!(
        (advice.all.registrations, advice.fabric.registrations),
        (0, 1)
    );
    assert!(
        advice
            .verdict
            .line
            .contains("`RDMAMR_FABRIC_CACHE=1` saves at most 100 ms"),
        "{}",
        advice.verdict.line
    );
    assert_eq!(
        advice.next[..1],
        ["env RDMAMR_FABRIC_CACHE=1 rdmamr run --trace trial.trace -- program"]
    );
}

#[test]
fn nothing_of_a_process_stays_after_its_end() {
    const LENGTH: u64 = 1 << 20;
    let mut sample = Sample::default();
    for pid in [7, 8] {
        let from = u64::from(pid - 7) * 5 * S;
        let mut calls = vec![Call {
            how: how::GPU,
            ..register(from, 9, 0x6000_0000_0000, LENGTH)
        }];
        for n in 0..3 {
            calls.push(register(from + (2 * n + 1) * MS, 1, 0x1000, 4096));
            calls.push(deregister(from + (2 * n + 2) * MS, 1, 0x1000, 4096));
        }
        let mut one = Writer::new(pid);
        one.start(&mut sample, "program\0");
        one.calls(&mut sample, &calls);
        one.end(&mut sample, from + S);
    }
    let report = read(&sample);
    assert_eq!(report.totals.gpu_peak_bytes, LENGTH);
    assert_eq!(report.advice.local.registrations, 2);
}

#[test]
fn a_region_is_registered_again_in_place() {
    let again = Call {
        call: call::REREG_MR,
        pd: 0xDEF,
        length: 8192,
        ..register(MS, 1, 0x1000, 0)
    };
    let moved = report(&[register(0, 1, 0x1000, 4096), again]);
    assert_eq!(
        (
            moved.pinned.end_bytes,
            moved.totals.leaked_regions,
            moved.totals.leaked_bytes
        ),
        (8192, 1, 8192)
    );
    let gone = report(&[
        register(0, 1, 0x1000, 4096),
        again,
        Call {
            pd: 0xDEF,
            ..deregister(2 * MS, 1, 0x1000, 8192)
        },
    ]);
    assert_eq!((gone.pinned.end_bytes, gone.totals.leaked_regions), (0, 0));
}

#[test]
fn any_number_of_regions_may_move_to_another_domain() {
    const MANY: u64 = 20_000;
    let first = |n| register(n * 20_000, n as u32, n << 12, 4096);
    let moved = |n| Call {
        call: call::REREG_MR,
        pd: 0xDEF,
        ..register((MANY + n) * 20_000, n as u32, n << 12, 4096)
    };
    let gone = |n| Call {
        pd: 0xDEF,
        ..deregister((2 * MANY + n) * 20_000, n as u32, n << 12, 4096)
    };
    let calls: Vec<_> = (0..MANY)
        .map(first)
        .chain((0..MANY).map(moved))
        .chain((0..MANY).map(gone))
        .collect();
    let report = report(&calls);
    assert_eq!(
        (report.pinned.peak_bytes, report.pinned.end_bytes),
        (MANY * 4096, 0)
    );
    assert_eq!((report.totals.leaked_regions, report.notes.len()), (0, 0));
}

#[test]
fn each_of_many_holders_lets_go_of_its_own() {
    const MANY: u64 = 20_000;
    let held = |n: u64| Call {
        caller: 0x1000 + n % 2,
        ..relaxed(n * 20_000, if n == 0 { how::MISS } else { how::HIT }, n)
    };
    // The regions of the second caller are never deregistered.
    let let_go = |n| kept((MANY + n) * 20_000, n);
    let calls: Vec<_> = (0..MANY)
        .map(held)
        .chain((0..MANY).step_by(2).map(let_go))
        .collect();
    let report = report(&calls);
    let leak = only(&report.leaks);
    assert_eq!((leak.caller.frame.offset, leak.regions), (0x1001, MANY / 2));
}

#[test]
fn a_killed_process_has_left_no_region() {
    let (mut sample, mut one) = begun("program\0");
    one.calls(
        &mut sample,
        &[register(0, 1, 0x1000, 4096), deregister(MS, 9, 0, 0)],
    );
    let report = read(&sample);
    let totals = &report.totals;
    assert_eq!((totals.leaked_regions, totals.leaks_known), (0, false));
    assert_eq!((totals.cut_off_regions, report.leaks[0].ended), (1, false));
    let troubles = tables::troubles(&report);
    let cut_off = only(&troubles);
    assert_eq!(cut_off.heading, "Cut off: 1 region, 4 KiB");
    one.dropped = 2;
    one.calls(&mut sample, &[register(2 * MS, 2, 0x2000, 4096)]);
    let report = read(&sample);
    assert!(!report.totals.leaks_known && report.leaks.is_empty());
    assert_eq!(report.totals.dropped, 2);
    for (note, words) in report.notes.iter().zip([
        "2 calls are not in the trace",
        "Process 7 has not ended in order",
        "1 hit or deregistration of regions whose",
    ]) {
        assert!(note.starts_with(words), "{note}");
    }
}

#[test]
fn what_a_process_leaves_is_pinned_until_it_ends() {
    let mut sample = Sample::default();
    let (mut one, mut two) = (Writer::new(7), Writer::new(8));
    one.start(&mut sample, "first\0");
    one.calls(&mut sample, &[register(0, 1, 0, 4096)]);
    one.end(&mut sample, 4 * S);
    two.start(&mut sample, "second\0");
    two.calls(&mut sample, &[register(2 * S, 1, 0, 8192)]);
    two.calls(&mut sample, &[register(6 * S, 2, 0, 8192)]);
    two.end(&mut sample, 10 * S);
    let report = read(&sample);
    let at = |time| pinned_at(&report, time);
    assert_eq!(
        [at(S), at(3 * S), at(5 * S), at(7 * S)],
        [4096, 12288, 8192, 16384]
    );
    assert_eq!(
        (report.pinned.end_bytes, report.totals.leaked_regions),
        (16384, 3)
    );
}

#[test]
fn callers_add_up_and_are_listed_by_their_time() {
    let calls: Vec<_> = (0..150u64)
        .map(|n| Call {
            caller: 0x1000 + n % 120,
            duration: (n % 120 + 1) as u32 * 100,
            ..register(n * MS, n as u32, 0, 1)
        })
        .collect();
    let report = report(&calls);
    assert_eq!((report.totals.callers, report.callers.len()), (120, 100));
    assert_eq!(
        (
            report.callers[0].caller.frame.offset,
            report.callers[0].time_ns
        ),
        (0x1077, 12_000)
    );
    assert_eq!(report.callers[0].caller.frame.place(), "0x1077");
    let twice = report
        .callers
        .iter()
        .find(|row| row.caller.frame.offset == 0x101d)
        .unwrap();
    assert_eq!(
        (twice.calls, twice.time_ns, twice.longest_ns),
        (2, 6_000, 3_000)
    );
}

#[test]
fn quantiles_are_right_to_two_percent() {
    let mut durations = durations::Durations::default();
    (1..=100_000).for_each(|ns| durations.add(ns));
    for (part, exact) in [(0.5, 50_000.0), (0.99, 99_000.0), (1.0, 100_000.0)] {
        let found = durations.quantile(part) as f64;
        assert!((found / exact - 1.0).abs() < 0.02, "{part}: {found}");
    }
    let mut same = durations::Durations::default();
    (0..10).for_each(|_| same.add(u32::MAX));
    assert_eq!(
        (same.quantile(0.5), same.quantile(0.99)),
        (u64::from(u32::MAX), u64::from(u32::MAX))
    );
}

/// A trace with markup, control characters and long words in every text field.
fn hostile() -> Sample {
    let long = "long".repeat(100);
    let (mut sample, mut one) = begun(&format!("<b>bold</b>\0\x1b[31m\"'&\0{long}\0"));
    one.block(
        &mut sample,
        kind::MODULES,
        b"1000 2000 1000 /x/<script>y</script>/<img src=z>\n",
    );
    one.block(
        &mut sample,
        kind::REASON,
        b"\x01\0\0\0</td><script src=https://example.org/>\n\x07 and so on",
    );
    let failed = Call {
        errno: 12,
        reason: 1,
        how: 0,
        ..register(0, 0, 0, 4096)
    };
    one.calls(&mut sample, &[failed, register(MS, 1, 0x1000, 4096)]);
    one.calls(&mut sample, &pairs(7));
    sample
}

#[test]
fn nothing_of_the_trace_is_markup() {
    let page = html::render(&read(&hostile()));
    let page = page.replace("<wbr>", "");
    for tag in ["<b>", "<script", "<img", "<link", "<iframe", "<object"] {
        assert!(!page.contains(tag), "{tag}");
    }
    assert!(page.contains("&lt;b&gt;bold&lt;/b&gt;"));
    // The reason contains an address; the page shows it only as text.
    assert_eq!(
        page.matches("http").count(),
        2,
        "the reason's, and the policy's http-equiv"
    );
    for attribute in [" src=", " href=", "url(", "@import"] {
        let of_the_trace = page.matches("src=z&gt;").count() + page.matches("src=https").count();
        let expected = if attribute == " src=" {
            of_the_trace
        } else {
            0
        };
        assert_eq!(page.matches(attribute).count(), expected, "{attribute}");
    }
}

#[test]
fn two_runs_of_anything_are_compared() {
    let nothing = report(&[]);
    let reports = [read(&hostile()), nothing, report(&pairs(7))];
    for before in &reports {
        for after in &reports {
            let diff = diff::Diff::new(before, after);
            let (page, text) = (html::compare(&diff), text::compare(&diff));
            assert!(
                !page.contains("<script") && !page.contains("<img"),
                "{page}"
            );
            assert!(!page.contains("NaN") && !text.contains("NaN"));
            assert!(
                text.lines().all(|line| line.chars().count() <= 80),
                "{text}"
            );
        }
    }
}

#[test]
fn text_fits_80_columns_and_controls_no_terminal() {
    for sample in [hostile(), begun("").0] {
        let text = text::render(&read(&sample));
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
    }
}

#[test]
fn nothing_of_the_trace_turns_or_controls_text() {
    let (sample, _) = begun("\u{9b}31m\u{202e}exe.\u{2066}\u{feff}\x7f\x1b[2J\0");
    let report = read(&sample);
    let (json, page) = (json::render(&report).unwrap(), html::render(&report));
    for text in [&text::render(&report), &json, &page] {
        let found = text
            .chars()
            .find(|&c| !"\n\t".contains(c) && units::controls(c));
        assert_eq!(found, None);
    }
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        json["processes"][0]["command"][0],
        "\u{9b}31m\u{202e}exe.\u{2066}\u{feff}\x7f\x1b[2J"
    );
}

#[test]
fn json_has_the_shape_that_the_manual_says() {
    let json: serde_json::Value =
        serde_json::from_str(&json::render(&read(&hostile())).unwrap()).unwrap();
    assert_eq!(json["version"], 3);
    assert_eq!(json["totals"]["failed"], 1);
    assert_eq!(json["processes"][0]["command"][0], "<b>bold</b>");
    let manual = include_str!("../../../man/rdmamr_trace.5.scd");
    let mut names = Vec::new();
    fields(&json, &mut names);
    let diff = diff::Diff::new(&read(&hostile()), &report(&pairs(1)));
    fields(&serde_json::to_value(&diff).unwrap(), &mut names);
    for name in names {
        assert!(
            manual.contains(&name.replace('_', "\\_")) || manual.contains(&name),
            "{name} is not in the manual"
        );
    }
}

/// The names of all fields.
fn fields(value: &serde_json::Value, names: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(object) => object.iter().for_each(|(name, value)| {
            names.push(name.clone());
            fields(value, names);
        }),
        serde_json::Value::Array(array) => array.iter().for_each(|value| fields(value, names)),
        _ => {}
    }
}

#[test]
fn a_trace_with_any_wrong_byte_is_reported_or_refused() {
    let sample = hostile();
    for at in 0..sample.0.len() {
        let mut bytes = sample.0.clone();
        bytes[at] = [0x00, 0x7f, 0xff][at % 3];
        let (_folder, path) = file(&Sample(bytes));
        if let Ok(report) = Trace::open(&path)
            .and_then(|trace| Report::new(&trace, &path, &mut Resolver::default()))
        {
            text::render(&report);
            html::render(&report);
        }
    }
}

#[test]
fn a_trace_of_next_to_nothing_has_a_page_and_a_text() {
    let (nothing, _) = begun("");
    let (mut instant, mut one) = begun("a\0");
    let call = Call {
        duration: 0,
        ..register(0, 1, 0, 0)
    };
    one.calls(&mut instant, &[call]);
    for sample in [nothing, instant] {
        let report = read(&sample);
        assert!(text::render(&report).contains("\nWhy\n"));
        let page = html::render(&report);
        assert_eq!(page.matches("<svg ").count(), 4);
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }
}

#[test]
fn a_bar_for_each_size_and_the_longest_fills_its_row() {
    for count in [1, 2, 8] {
        let calls: Vec<Call> = (0..count)
            .map(|n| register(n * MS, n as u32 + 1, n << 30, 4096 << n))
            .collect();
        let sizes = report(&calls).sizes;
        let plot = plots::by_size(&sizes).into_string();
        let bars = plot
            .matches("class=\"plain\" style=\"width:100.00%\"")
            .count();
        // In the plot of registrations and in that of their time.
        assert_eq!(bars as u64, 2 * count, "{plot}");
    }
}

/// The report of ranks that spend `times`, in us, in calls.
fn job(times: &[u32]) -> Report {
    let mut sample = Sample::default();
    for (rank, time) in times.iter().enumerate() {
        let mut one = Writer::new(7 + rank as u32);
        one.start(&mut sample, "program\0");
        let place = [&(rank as u32).to_le_bytes()[..], b"node"].concat();
        one.block(&mut sample, kind::PLACE, &place);
        let call = Call {
            duration: time * 1000,
            ..register(MS, 1, 0x1000, 4096)
        };
        one.calls(&mut sample, &[call]);
        one.end(&mut sample, S);
    }
    read(&sample)
}

#[test]
fn the_slowest_rank_comes_first() {
    let report = job(&[10, 40, 10]);
    let order: Vec<_> = report.ranks.list.iter().map(|rank| rank.rank).collect();
    assert_eq!(order, [Some(1), Some(0), Some(2)]);
    assert_eq!(
        (report.ranks.mean_ns, report.ranks.imbalance),
        (20_000, 1.0)
    );
    assert_eq!(report.ranks.list[0].host.as_deref(), Some("node"));
    assert_eq!(report.ranks.list[0].peak_bytes, 4096);
    assert_eq!(report.lanes.len(), 3);
    assert_eq!(report.lanes[1].busy_ns.iter().sum::<u64>(), 40_000);
}

#[test]
fn the_page_of_many_ranks_and_long_names_stays_small() {
    let mut sample = Sample::default();
    for pid in 0..100 {
        let mut one = Writer::new(pid);
        one.start(&mut sample, &"long".repeat(10_000));
        let calls: Vec<_> = (0..400)
            .map(|n| Call {
                duration: 1_000 + (n * 7919 % 1000) as u32,
                caller: 0x1000 + n % 150,
                ..register(n * MS, n as u32, n << 20, 1 << (n % 40))
            })
            .collect();
        one.calls(&mut sample, &calls);
    }
    let page = html::render(&read(&sample));
    assert!(page.len() < 2_000_000, "{}", page.len());
}

/// Each of these would take minutes if a call took time for each of the others.
#[test]
fn holders_of_one_key_and_keys_that_were_chosen_take_no_more_time_each() {
    const MANY: u64 = 1 << 16;
    let of_one = |at, how, call| Call {
        how,
        call,
        ..register(at, 1, 0x1000, 4096)
    };
    let hits = (0..MANY).map(|n| of_one(n, how::HIT, call::REG_MR));
    let again = (MANY..2 * MANY).map(|n| of_one(n, how::KERNEL, call::REREG_MR));
    let report = report(&hits.chain(again).collect::<Vec<_>>());
    assert_eq!(report.totals.calls, 2 * MANY);
    // The hash of rustc-hash, which the report had, is the same for all of them.
    const FACTOR: u64 = 0xf135_7aea_2e62_a9c5;
    let chosen = |n: u64| Call {
        pd: n.wrapping_mul(FACTOR).wrapping_neg(),
        ..register(n, n as u32, 0x1000, 4096)
    };
    let chosen: Vec<_> = (0..2 * MANY).map(|n| chosen(n % MANY)).collect();
    assert_eq!(self::report(&chosen).totals.registrations, 2 * MANY);
}

#[test]
fn calls_over_time_and_by_latency_add_up() {
    let calls: Vec<_> = (0..1000u64)
        .map(|n| Call {
            duration: (n + 1) as u32 * 10,
            ..register(n * MS, n as u32, 0, 1)
        })
        .collect();
    let report = report(&calls);
    let moments = &report.activity.moments;
    assert_eq!(moments.iter().map(|moment| moment.calls).sum::<u64>(), 1000);
    assert_eq!(moments.last().unwrap().longest_ns, 10_000);
    let latencies: Vec<_> = report
        .latencies
        .iter()
        .map(|row| (row.from_ns, row.calls))
        .collect();
    assert_eq!(latencies.iter().map(|row| row.1).sum::<u64>(), 1000);
    // 10, 20 to 40, 50 to 90 ns and so on; a class at an edge may belong to either side.
    let from: Vec<_> = latencies.iter().map(|row| row.0).collect();
    assert_eq!(
        from,
        [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000][..from.len()]
    );
    assert!(latencies[8].1.abs_diff(500) < 20, "{latencies:?}");
}

/// A trace whose content is arbitrary after its beginning.
#[test]
fn fuzz_trace() {
    let (mut plain, mut one) = begun("program\0--option\0");
    one.calls(&mut plain, &pairs(7));
    one.end(&mut plain, 10 * S);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let samples: [&[u8]; 2] = [&hostile().0, &plain.0];
    crate::fuzz_inputs::each("fuzz_trace", 30, &samples, |input, random| {
        std::fs::write(&path, input).unwrap();
        let Ok(trace) = Trace::open(&path) else {
            return;
        };
        let Ok(report) = Report::new(&trace, &path, &mut Resolver::default()) else {
            return;
        };
        let text = text::render(&report);
        assert!(!text.chars().any(|c| c != '\n' && units::controls(c)));
        // The rest takes a hundred times as long.
        if random.below(16) != 0 {
            return;
        }
        perfetto::write(
            &trace,
            &report,
            &mut Resolver::default(),
            &mut std::io::sink(),
        )
        .unwrap();
        let json = json::render(&report).unwrap();
        serde_json::from_str::<serde_json::Value>(&json).unwrap();
        let page = html::render(&report);
        for tag in ["<b>", "<script", "<img", "<iframe"] {
            assert!(!page.contains(tag), "{tag}");
        }
    });
}
