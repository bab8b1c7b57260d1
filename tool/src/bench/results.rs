// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results, and their figures.

use serde::Serialize;
use std::path::PathBuf;

/// All measurements. The fields are those of the JSON.
#[derive(Serialize)]
pub struct Results {
    /// Increases if a reader of an earlier version would be misled.
    pub schema: u32,
    pub device: String,
    pub kernel: String,
    pub library: PathBuf,
    pub rounds: u32,
    pub sizes: Vec<Row>,
}

/// The figures of one size: microseconds, and ratios to libibverbs.
#[derive(Serialize)]
pub struct Row {
    pub bytes: u64,
    /// A registration and its deregistration.
    pub libibverbs_us: Option<f64>,
    pub plain_us: Option<f64>,
    pub relaxed_us: Option<f64>,
    /// The registration alone.
    pub libibverbs_reg_us: Option<f64>,
    pub plain_reg_us: Option<f64>,
    /// Half the distance between the quartiles, as a part of the median.
    pub libibverbs_spread: Option<f64>,
    pub plain_spread: Option<f64>,
    pub relaxed_spread: Option<f64>,
    pub plain_ratio: Option<f64>,
    pub relaxed_ratio: Option<f64>,
    /// The library made the plain registrations by its own call and did not forward them.
    pub plain_own: bool,
    /// The library served the relaxed registrations by cached regions.
    pub relaxed_kept: bool,
    /// Why a figure is missing.
    pub error: Option<String>,
}

pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Half the distance between the quartiles, as a part of the median: how far a figure may be off.
pub fn spread(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let quartile = |part: usize| values.get(values.len() * part / 4).copied();
    let (low, high) = (quartile(1)?, quartile(3)?);
    Some((high - low) / 2.0 / median(values)?)
}

/// A number of bytes, in the largest unit that divides it.
pub fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.iter().find(|unit| bytes % (1 << unit.1) == 0);
    unit.map_or_else(
        || format!("{bytes} B"),
        |unit| format!("{} {}", bytes >> unit.1, unit.0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn spreads() {
        assert_eq!(spread(vec![]), None);
        assert_eq!(spread(vec![5.0]), Some(0.0));
        assert_eq!(spread(vec![8.0, 10.0, 12.0, 10.0]), Some(0.1));
    }

    #[test]
    fn sizes() {
        assert_eq!(size(4096), "4 KiB");
        assert_eq!(size(3 << 30), "3 GiB");
        assert_eq!(size(5000), "5000 B");
    }
}
