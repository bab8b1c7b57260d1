// SPDX-License-Identifier: MIT OR Apache-2.0
//! Changes under way in the log.

use super::log::Log;
use rdmamr_sys::pages::PageRange;

const RANGE: PageRange = PageRange::new(0x7000_0000_0000, 0x7000_0001_0000);

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
    assert!(log.is_settled(RANGE));
    log.distrust();
    assert!(!log.is_settled(RANGE));
}
