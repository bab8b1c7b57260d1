// SPDX-License-Identifier: MIT OR Apache-2.0
use super::*;

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
