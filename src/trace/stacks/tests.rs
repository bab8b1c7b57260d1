// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;

#[test]
fn fingerprints_tell_orders_and_lengths_apart() {
    let of = |words: &[u64]| fingerprint(words, "");
    let mut all = vec![of(&[]), of(&[1]), of(&[1, 2]), of(&[2, 1]), of(&[1, 2, 3])];
    all.extend(["1 a b\n", "1 a b\n1 a b\n"].map(|lines| fingerprint(&[1], lines)));
    for n in 0..10_000 {
        all.push(of(&[0x7000_0000 + n, 5]));
    }
    assert!(!all.contains(&0));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}
