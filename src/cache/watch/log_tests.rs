// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes under way in the log: those whose calls never return are ended, all others are not.

use super::log::{Change, Frame, Kind, Log, UnderWay};
use errno::Errno;
use rdmamr_sys::memory;
use rdmamr_sys::pages::PageRange;

const RANGE: PageRange = PageRange::new(0x7000_0000_0000, 0x7000_0001_0000);
const MAKES: usize = 1;
const WAITS: usize = 2;

fn word_at(frame: u64) -> Result<u64, Errno> {
    memory::read(frame).map(|[word]| word)
}

fn records(log: &Log) -> usize {
    let mut count = 0;
    log.apply(|_| count += 1);
    count
}

#[test]
fn a_call_that_goes_on_is_not_ended() {
    let (log, frame) = (Log::new(), Frame::new());
    let change = log.begin_at(RANGE, MAKES, &frame);
    assert_eq!(log.under_way(RANGE, WAITS), UnderWay::Change);
    log.give_up_waiting(RANGE);
    assert_eq!(log.under_way(RANGE, WAITS), UnderWay::Stuck);
    log.give_up_waiting(RANGE);
    assert_eq!(log.under_way(RANGE, WAITS), UnderWay::Stuck);
    for refused in [libc::EPERM, libc::ENOSYS] {
        log.end_left(RANGE, |_| Err(Errno(refused)));
        assert_eq!(log.under_way(RANGE, WAITS), UnderWay::Stuck);
    }
    log.end_left(RANGE, word_at);
    assert_eq!(log.under_way(RANGE, WAITS), UnderWay::Stuck);
    assert!(!log.is_settled(RANGE));
    assert_eq!(records(&log), 0);
    log.end_at(change);
    assert_eq!(log.under_way(RANGE, WAITS), UnderWay::Nothing);
    assert!(log.is_settled(RANGE));
}

#[test]
fn a_call_that_was_left_is_ended_with_a_record() {
    let another_there: fn(u64) -> Result<u64, Errno> = |frame| word_at(frame).map(|word| !word);
    let nothing_there: fn(u64) -> Result<u64, Errno> = |_| Err(Errno(libc::EFAULT));
    for read in [another_there, nothing_there] {
        let (log, frame) = (Log::new(), Frame::new());
        let left = log.begin_at(RANGE, MAKES, &frame);
        log.give_up_waiting(RANGE);
        log.end_left(RANGE, read);
        assert_eq!(log.under_way(RANGE, WAITS), UnderWay::Nothing);
        assert_eq!(records(&log), 1);
        // The call returns after all.
        log.end_at(left);
        assert!(log.is_settled(RANGE));
        log.write(Change {
            range: RANGE,
            kind: Kind::Called,
        });
        assert!(!log.is_settled(RANGE));
    }
}

#[test]
fn a_long_call_counts_until_it_ends_but_not_for_ever() {
    let log = Log::new();
    assert!(!log.is_long(|| 1000));
    let left = log.begin_long(1000);
    assert!(left.is_some() && log.is_long(|| 1001));
    assert!(!log.is_long(|| 1000 + 60_000));
    let long = log.begin_long(2000);
    log.end_long(long.unwrap());
    assert!(log.is_long(|| 2001), "the first one");
    // A signal handler has left the first call, and no other call counts longer because of it.
    let long = log.begin_long(90_000);
    assert!(log.is_long(|| 90_001));
    log.end_long(long.unwrap());
    assert!(!log.is_long(|| 90_002));
    // The end of the abandoned call does not end the call that took its place.
    let long = log.begin_long(100_000);
    log.end_long(left.unwrap());
    assert!(log.is_long(|| 100_001));
    let more: Vec<_> = core::iter::from_fn(|| log.begin_long(100_000)).collect();
    more.into_iter()
        .chain(long)
        .for_each(|long| log.end_long(long));
    assert!(!log.is_long(|| 100_001));
}

#[test]
fn nothing_is_settled_in_a_log_that_is_not_trusted() {
    let log = Log::new();
    log.distrust();
    assert_eq!(log.under_way(RANGE, WAITS), UnderWay::Stuck);
    log.end_left(RANGE, word_at);
    assert_eq!(log.under_way(RANGE, WAITS), UnderWay::Stuck);
    assert!(!log.is_settled(RANGE));
}
