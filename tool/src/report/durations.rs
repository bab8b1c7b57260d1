// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations in ns, with any quantile of them.
use std::collections::BTreeMap;

#[derive(Default)]
pub struct Durations {
    /// 32 classes for each power of two: the count and the sum of each.
    classes: BTreeMap<u32, (u64, u64)>,
    pub count: u64,
    pub total: u64,
}

impl Durations {
    pub fn add(&mut self, ns: u32) {
        let class = match ns {
            0..32 => ns,
            _ => (ns.ilog2() - 4) * 32 + (ns >> (ns.ilog2() - 5) & 31),
        };
        let (count, total) = self.classes.entry(class).or_default();
        *count += 1;
        *total += u64::from(ns);
        self.count += 1;
        self.total += u64::from(ns);
    }

    pub fn quantile(&self, part: f64) -> u64 {
        let mut left = ((self.count as f64 * part).ceil() as u64).max(1);
        for &(count, total) in self.classes.values() {
            if left <= count {
                return (total as f64 / count as f64).round() as u64;
            }
            left -= count;
        }
        0
    }

    /// The count and the sum of the durations above a limit; to 3 %, the width of a class.
    pub fn above(&self, limit: u64) -> (u64, u64) {
        let above = self.classes.values();
        let above = above.filter(|&&(count, total)| total / count > limit);
        above.fold((0, 0), |sum, class| (sum.0 + class.0, sum.1 + class.1))
    }

    /// The count and the sum of the durations of each class, behind the beginning of its step of 1,
    /// 2, 5, 10 and so on; to 3 %, the width of a class.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let classes = self.classes.values();
        classes.map(|&(count, total)| (step(total / count), count, total))
    }
}

/// The largest of 1, 2, 5, 10 and so on that is not above.
pub fn step(number: u64) -> u64 {
    let power = 10u64.pow(number.max(1).ilog10());
    match number / power {
        5.. => 5 * power,
        2.. => 2 * power,
        _ => power,
    }
}
