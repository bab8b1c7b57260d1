// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;
use crate::sample::{BEGAN, Sample, Writer, deregister, file, register};
use rdmamr_trace_format::call;
use std::os::unix::fs::PermissionsExt;

impl Trace {
    /// The trace in one file.
    pub fn open(path: &Path) -> Result<Trace> {
        Trace::of(&[path.to_path_buf()])
    }
}

fn open(sample: &Sample) -> Result<Trace> {
    let (_folder, path) = file(sample);
    Trace::open(&path)
}

/// The number and the lkey of each call, in order.
fn seen(trace: &Trace) -> Vec<(u8, u32)> {
    let mut seen = Vec::new();
    trace
        .calls(|event| seen.push((event.call.call, event.call.lkey)))
        .unwrap();
    seen
}

fn refused(sample: &[u8]) -> String {
    open(&Sample(sample.to_vec()))
        .err()
        .expect("it is refused")
        .root_cause()
        .to_string()
}

#[test]
fn a_process_says_who_it_is() {
    let mut sample = Sample::default();
    let mut one = Writer::new(7);
    one.start(&mut sample, "a\0b c\0\0");
    one.dropped = 3;
    one.end(&mut sample, 5_000);
    Writer::new(8).start(&mut sample, "other\0");
    let trace = open(&sample).unwrap();
    let [one, two] = &trace.processes[..] else {
        panic!("two processes")
    };
    assert_eq!(
        (one.pid, one.ended, one.dropped, one.page),
        (7, true, 3, 4096)
    );
    assert_eq!((one.begin, one.end), (BEGAN, BEGAN + 5_000));
    assert_eq!(one.command, ["a", "b c", ""]);
    assert_eq!((two.pid, two.ended), (8, false));
    assert!(trace.damage.is_empty());
}

/// `rdmamr run` says as many calls as the report counts.
#[test]
fn what_the_cache_deregisters_is_no_call_of_the_program() {
    let mut sample = Sample::default();
    let mut one = Writer::new(7);
    one.start(&mut sample, "a\0");
    let cache = Call {
        call: call::CACHE,
        ..deregister(2, 1, 0x1000, 4096)
    };
    let calls = [register(0, 1, 0x1000, 4096), deregister(1, 1, 0x1000, 4096)];
    one.calls(&mut sample, &[calls[0], calls[1], cache]);
    assert_eq!(open(&sample).unwrap().count(), (2, 0));
}

#[test]
fn processes_beyond_the_most_are_left_out_and_counted() {
    let mut sample = Sample::default();
    let mut first = Writer::new(0);
    first.start(&mut sample, "a\0");
    for pid in 1..MOST_PROCESSES as u32 + 2 {
        Writer::new(pid).start(&mut sample, "");
    }
    first.end(&mut sample, 5_000);
    let trace = open(&sample).unwrap();
    assert_eq!(trace.processes.len(), MOST_PROCESSES);
    assert!(trace.processes[0].ended);
    let others = "The report leaves out 2 blocks of processes beyond the first 65536.";
    assert_eq!(trace.damage, [others]);
}

#[test]
fn a_process_says_where_it_runs() {
    let mut sample = Sample::default();
    for (pid, rank) in [(7u32, 3u32), (8, NO_RANK)] {
        let mut one = Writer::new(pid);
        one.start(&mut sample, "a\0");
        one.block(
            &mut sample,
            kind::PLACE,
            &[&rank.to_le_bytes()[..], b"node1"].concat(),
        );
    }
    Writer::new(9).start(&mut sample, "of an earlier release\0");
    let trace = open(&sample).unwrap();
    let places: Vec<_> = trace
        .processes
        .iter()
        .map(|process| (process.host.as_deref(), process.rank))
        .collect();
    assert_eq!(
        places,
        [
            (Some("node1"), Some(3)),
            (Some("node1"), None),
            (None, None)
        ]
    );
}

#[test]
fn a_key_is_let_go_before_it_is_given_again() {
    let mut sample = Sample::default();
    let mut one = Writer::new(7);
    one.start(&mut sample, "a\0");
    // One thread registers from 90 us on and gets the key that another thread releases from 95 us
    // on.
    one.calls(&mut sample, &[register(90_000, 5, 0x2000, 1)]);
    one.calls(
        &mut sample,
        &[register(0, 5, 0x1000, 1), deregister(95_000, 5, 0x1000, 1)],
    );
    let seen = seen(&open(&sample).unwrap());
    assert_eq!(
        seen,
        [(call::REG_MR, 5), (call::DEREG_MR, 5), (call::REG_MR, 5)]
    );
}

#[test]
fn calls_of_all_blocks_come_in_order() {
    let mut sample = Sample::default();
    let mut one = Writer::new(7);
    one.start(&mut sample, "a\0");
    // More than one run in a block, concurrent threads, and the last block the earliest.
    for thread in [3u64, 1, 2, 0] {
        let calls: Vec<_> = (0..10_000)
            .map(|n| register((thread % 3) * 1_000_000 + n * 700 + thread, n as u32, 0, 1))
            .collect();
        one.calls(&mut sample, &calls);
    }
    let trace = open(&sample).unwrap();
    let mut last = 0;
    let mut calls = 0;
    trace
        .calls(|event| {
            assert!(event.effect >= last);
            last = event.effect;
            calls += 1;
        })
        .unwrap();
    assert_eq!(calls, 40_000);
}

#[test]
fn what_a_later_version_adds_is_skipped() {
    let mut sample = Sample::default();
    let mut one = Writer::new(7);
    one.longer = 16;
    one.start(&mut sample, "a\0");
    one.block(&mut sample, 99, b"what is this?");
    one.calls(&mut sample, &[register(0, 5, 0, 1)]);
    let trace = open(&sample).unwrap();
    assert_eq!(seen(&trace), [(call::REG_MR, 5)]);
    assert!(trace.damage.is_empty());
}

#[test]
fn a_file_that_is_cut_off_anywhere_gives_the_calls_up_to_there() {
    let mut sample = Sample::default();
    let mut one = Writer::new(7);
    one.start(&mut sample, "a\0");
    let start = sample.0.len();
    one.calls(
        &mut sample,
        &[register(0, 1, 0, 1), register(20_000, 2, 0, 1)],
    );
    one.calls(&mut sample, &[register(40_000, 3, 0, 1)]);
    let whole = sample.0.len();
    for length in 48..=whole {
        let trace = open(&Sample(sample.0[..length].to_vec())).unwrap();
        let calls = match length - start.min(length) {
            after if after < 48 + 64 => 0,
            after if after < 48 + 128 => 1,
            _ if length < whole => 2,
            _ => 3,
        };
        assert_eq!(seen(&trace).len(), calls, "at {length}");
        let at_a_block = [start, start + 48 + 128, whole].contains(&length);
        assert_eq!(
            trace.damage.is_empty(),
            at_a_block,
            "at {length}: {:?}",
            trace.damage
        );
    }
}

#[test]
fn a_torn_block_does_not_hide_those_behind_it() {
    let mut sample = Sample::default();
    let (mut one, mut two) = (Writer::new(7), Writer::new(8));
    one.start(&mut sample, "a\0");
    one.calls(
        &mut sample,
        &[register(0, 1, 0, 1), register(20_000, 2, 0, 1)],
    );
    sample.0.truncate(sample.0.len() - 10);
    two.start(&mut sample, "b\0");
    two.calls(&mut sample, &[register(40_000, 3, 0, 1)]);
    sample.0.extend([b'x'; 300]);
    one.calls(&mut sample, &[register(60_000, 4, 0, 1)]);
    let trace = open(&sample).unwrap();
    assert_eq!(
        seen(&trace).iter().map(|call| call.1).collect::<Vec<_>>(),
        [1, 3, 4]
    );
    assert!(
        trace.damage[0].starts_with("A block is cut off"),
        "{:?}",
        trace.damage
    );
    assert!(
        trace.damage[1].starts_with("The report leaves out 300 bytes"),
        "{:?}",
        trace.damage
    );
}

#[test]
fn blocks_that_are_missing_are_counted() {
    let mut sample = Sample::default();
    let mut one = Writer::new(7);
    one.sequence = 4;
    one.calls(&mut sample, &[register(0, 1, 0, 1)]);
    one.sequence = 9;
    one.end(&mut sample, 500);
    let trace = open(&sample).unwrap();
    assert_eq!(trace.damage, ["The file lacks 8 blocks of process 7."]);
    // Without the first block nothing relates the process's clocks: the process begins with its
    // first call.
    assert_eq!(
        (trace.processes[0].begin, trace.processes[0].end),
        (BEGAN, BEGAN + 10_000)
    );
}

#[test]
fn what_is_no_trace_is_refused_in_words() {
    assert!(refused(b"#!/bin/sh\n").starts_with("it is not a trace of librdmamr"));
    assert!(refused(b"").starts_with("it is empty"));
    assert_eq!(refused(b"RDMAMRTR"), "there is no whole block in it");
    let mut later = Sample::default();
    let mut one = Writer::new(7);
    one.version = 2;
    one.start(&mut later, "a\0");
    assert_eq!(
        refused(&later.0),
        "it is a trace of version 2, and this program reads version 1"
    );
    let folder = tempfile::tempdir().unwrap();
    let why = |path: &Path| {
        let error = Trace::open(path).err().unwrap();
        error.chain().nth(1).unwrap().to_string()
    };
    assert_eq!(why(folder.path()), "there is no trace in this folder");
    assert_eq!(why(&folder.path().join("none")), "it cannot be opened");
    assert_eq!(
        why(Path::new("/dev/null")),
        "it is neither a regular file, nor a folder, nor a pipe"
    );
}

#[test]
fn an_address_is_in_the_list_of_its_time_or_else_in_another() {
    let mut sample = Sample::default();
    let mut one = Writer::new(7);
    one.start(&mut sample, "a\0");
    one.block(
        &mut sample,
        kind::MODULES,
        b"5000 6000 4000 /a\nnot a line\n1000 2000 1000 /with a space\n",
    );
    one.calls(&mut sample, &[register(0, 1, 0, 1)]);
    one.block(
        &mut sample,
        kind::MODULES,
        b"5000 6000 5000 /b\n8000 9000 8000 /c\n",
    );
    let trace = open(&sample).unwrap();
    let locate = |list, address| {
        let (path, offset) = trace.locate(0, list, address);
        path.map(|path| (trace.paths[path as usize].as_str(), offset))
    };
    assert_eq!(locate(0, 0x5010), Some(("/a", 0x1010)));
    assert_eq!(locate(1, 0x5010), Some(("/b", 0x10)));
    assert_eq!(locate(0, 0x8fff), Some(("/c", 0xfff)));
    assert_eq!(locate(1, 0x1000), Some(("/with a space", 0)));
    assert_eq!(locate(1, 0x2000), None);
    assert_eq!(locate(0, 0), None);
}

#[test]
fn a_list_far_away_names_no_caller() {
    let mut sample = Sample::default();
    let mut one = Writer::new(7);
    one.start(&mut sample, "a\0");
    for n in 0..40 {
        let line = format!("{:x} {:x} 0 /{n}\n", (n + 1) << 12, (n + 2) << 12);
        one.block(&mut sample, kind::MODULES, line.as_bytes());
    }
    let trace = open(&sample).unwrap();
    let found = |list: u32, n: u64| trace.locate(0, list, (n + 1) << 12).0.is_some();
    assert!(found(20, 20) && found(20, 27) && found(20, 12));
    // So the work for an address does not grow with the number of lists.
    assert!(!found(20, 28) && !found(20, 11));
}

/// A file that claims more than it has: a block of `kind` with `length` bytes, of which it has
/// `then`.
fn sparse(kind: u16, length: u32, then: &[u8]) -> Vec<u8> {
    let mut sample = Sample::default();
    Writer::new(7).block(&mut sample, kind, b"");
    sample.0[16..20].copy_from_slice(&length.to_le_bytes());
    sample.0.extend(then);
    sample.0
}

/// Each block claims the rest of the file. If each search for the next block read the file anew, 1 GiB of
/// such blocks would take a quarter of an hour.
#[test]
fn damaged_blocks_are_read_once() {
    let sample = sparse(kind::CALLS, 1 << 30, b"").repeat(1 << 15);
    let size = sample.len() as u64;
    let (_folder, path) = file(&Sample(sample));
    let read = || crate::files::field("/proc/thread-self/io", "rchar").unwrap();
    let read = || read().parse::<u64>().unwrap();
    let before = read();
    let trace = Trace::open(&path).unwrap();
    let read = read() - before;
    assert!(read < 4 * size, "{read} bytes of {size}");
    assert!(trace.damage[0].starts_with("32768 blocks are cut off"));
}

#[test]
fn a_hole_in_the_file_is_no_content() {
    for kind in [
        kind::START,
        kind::MODULES,
        kind::CALLS,
        kind::PLACE,
        kind::REASON,
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        std::fs::write(&path, sparse(kind, u32::MAX - 47, &[0; 64])).unwrap();
        let file = std::fs::File::options().append(true).open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        let mut sample = Sample::default();
        let mut one = Writer::new(8);
        one.start(&mut sample, "a\0");
        one.calls(&mut sample, &[register(0, 5, 0, 1)]);
        std::io::Write::write_all(&mut &file, &sample.0).unwrap();
        let trace = Trace::open(&path).unwrap();
        assert!(seen(&trace).contains(&(call::REG_MR, 5)));
        assert!(trace.runs.len() < 10, "calls of a hole were read");
        assert!(trace.processes[0].command.len() < 8192);
        assert!(
            trace.damage.iter().any(|words| words.contains("cut off")),
            "{:?}",
            trace.damage
        );
    }
}

#[test]
fn a_long_command_line_and_a_long_reason_are_read_in_part() {
    let mut sample = Sample::default();
    let mut one = Writer::new(7);
    one.start(&mut sample, &"x".repeat(1 << 20));
    one.block(
        &mut sample,
        kind::REASON,
        &[&[1, 0, 0, 0][..], &[b'y'; 1 << 20]].concat(),
    );
    let trace = open(&sample).unwrap();
    assert_eq!(trace.processes[0].command[0].len(), 1 << 16);
    assert!(trace.reason(0, 1).unwrap().len() < 1 << 12);
}

#[test]
fn several_files_and_a_folder_are_one_trace() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for pid in [7, 8] {
        let mut sample = Sample::default();
        let mut one = Writer::new(pid);
        one.start(&mut sample, "a\0");
        one.calls(
            &mut sample,
            &[register(u64::from(9 - pid) * 50_000, pid, 0, 1)],
        );
        std::fs::write(at(&format!("{pid}.trace")), &sample.0).unwrap();
    }
    std::fs::write(at("report.html"), "no trace").unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    std::os::unix::fs::symlink(at("7.trace"), at("a link")).unwrap();
    let expected = [(call::REG_MR, 8), (call::REG_MR, 7)];
    let both = [at("7.trace"), at("8.trace"), at("7.trace")];
    for paths in [&both[..], &[folder.path().to_path_buf()]] {
        let trace = Trace::of(paths).unwrap();
        assert_eq!((trace.sources.len(), trace.processes.len()), (2, 2));
        assert_eq!(seen(&trace), expected);
        assert!(trace.is_at(&at("8.trace")) && !trace.is_at(&at("report.html")));
    }
}

#[test]
fn an_output_is_at_most_as_open_as_each_file_of_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut modes = Vec::new();
    for (name, mode) in [("a", 0o666), ("b", 0o444), ("c", 0o604), ("d", 0o640)] {
        let mut sample = Sample::default();
        Writer::new(7).start(&mut sample, "a\0");
        std::fs::write(path(name), sample.0).unwrap();
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path(name), mode).unwrap();
        modes.push(Trace::open(&path(name)).unwrap().mode());
    }
    assert_eq!(modes, [0o644, 0o644, 0o604, 0o600]);
    let all = [folder.path().to_path_buf()];
    assert_eq!(Trace::of(&all).unwrap().mode(), 0o600);
}

#[test]
fn a_pipe_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name is a string that ends with a NUL.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let mut sample = Sample::default();
    let mut one = Writer::new(7);
    one.start(&mut sample, "a\0");
    one.calls(&mut sample, &[register(0, 5, 0, 1)]);
    let writer = std::thread::spawn({
        let path = path.clone();
        move || std::fs::write(path, sample.0).unwrap()
    });
    let trace = Trace::open(&path).unwrap();
    writer.join().unwrap();
    assert_eq!(seen(&trace), [(call::REG_MR, 5)]);
    assert_eq!(trace.mode(), 0o600);
}
