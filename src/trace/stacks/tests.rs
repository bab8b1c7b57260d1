// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;

#[test]
fn a_rule_is_known_until_the_files_change() {
    let stacks = Stacks::new().unwrap();
    let rule = Rule::POINTERS;
    assert_eq!(stacks.known(0x1234, 1), None);
    stacks.keep(0x1234, 1, rule);
    assert_eq!(stacks.known(0x1234, 1), Some(rule));
    assert_eq!(stacks.known(0x1235, 1), None);
    assert_eq!(stacks.known(0x1234, 2), None);
    stacks.keep(0x1234, 2, Rule::END);
    assert_eq!(stacks.known(0x1234, 2), Some(Rule::END));
    // No address of a program.
    stacks.keep(1 << 50, 1, rule);
    assert_eq!(stacks.known(1 << 50, 1), None);
}

#[test]
fn a_full_table_forgets_and_never_confuses() {
    let stacks = Stacks::new().unwrap();
    let rules = [Rule::POINTERS, Rule::END];
    let rule = |code: u64| rules[(code % 2) as usize];
    for code in 1..40_000 {
        stacks.keep(code, 1, rule(code));
        assert_eq!(stacks.known(code, 1), Some(rule(code)));
    }
    for code in 1..40_000 {
        if let Some(found) = stacks.known(code, 1) {
            assert_eq!(found, rule(code));
        }
    }
}

#[test]
fn threads_that_replace_each_others_rules_read_their_own() {
    let stacks = Stacks::new().unwrap();
    let rules = [Rule::POINTERS, Rule::END];
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let stacks = &stacks;
            scope.spawn(move || {
                for n in 0..20_000 {
                    let code = 1 + n % 50 + (n / 50) * 64;
                    let list = 1 + (n + thread) % 3;
                    let rule = rules[((code + list) % 2) as usize];
                    stacks.keep(code, list, rule);
                    let found = stacks.known(code, list);
                    assert!(found.is_none_or(|found| found == rule));
                }
            });
        }
    });
}

#[test]
fn fingerprints_tell_orders_and_lengths_apart() {
    let of = |words: &[u64]| {
        let mut fingerprint = Fingerprint(0);
        words.iter().for_each(|&word| fingerprint.add(word));
        fingerprint.number()
    };
    let mut all = vec![of(&[]), of(&[1]), of(&[1, 2]), of(&[2, 1]), of(&[1, 2, 3])];
    for n in 0..10_000 {
        all.push(of(&[0x7000_0000 + n, 5]));
    }
    assert!(!all.contains(&0));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}
