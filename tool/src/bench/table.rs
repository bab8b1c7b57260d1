// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results, for people.

use super::results::{Results, size};
use crate::style::STRONG;

/// Prints the results.
pub fn print(results: &Results) {
    anstream::println!(
        "A registration and its deregistration on {}, Linux {}, medians of {} rounds,\nand half the distance of their quartiles:\n",
        results.device,
        results.kernel,
        results.rounds
    );
    anstream::println!(
        "{STRONG}{:>9} {:>16} {:>16} {:>7} {:>16} {:>7}{STRONG:#}",
        "size",
        "libibverbs",
        "plain",
        "ratio",
        "relaxed",
        "ratio"
    );
    for row in &results.sizes {
        anstream::println!(
            "{:>9} {:>16} {:>16} {:>7} {:>16} {:>7}",
            size(row.bytes),
            time(row.libibverbs_us, row.libibverbs_spread),
            time(row.plain_us, row.plain_spread),
            ratio(row.plain_ratio),
            time(row.relaxed_us, row.relaxed_spread),
            ratio(row.relaxed_ratio)
        );
    }
    for row in &results.sizes {
        if let Some(error) = &row.error {
            anstream::println!("\n{}: {error}", size(row.bytes));
        }
    }
    let measured = |it: Option<f64>| it.is_some();
    if results
        .sizes
        .iter()
        .any(|row| measured(row.plain_us) && !row.plain_own)
    {
        anstream::println!(
            "\nThe library forwarded plain registrations to libibverbs: 'rdmamr doctor' says why."
        );
    }
    if results
        .sizes
        .iter()
        .any(|row| measured(row.relaxed_us) && !row.relaxed_kept)
    {
        anstream::println!(
            "\nSome relaxed regions were not cached and were registered anew: 'rdmamr doctor' says why."
        );
    }
}

fn time(us: Option<f64>, spread: Option<f64>) -> String {
    let spread = spread.map_or(String::new(), |part| format!(" ±{:.0} %", 100.0 * part));
    median(us) + &spread
}

fn median(us: Option<f64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 1.0 => format!("{:.0} ns", us * 1e3),
        Some(us) if us < 1000.0 => format!("{us:.1} us"),
        Some(us) => format!("{:.2} ms", us / 1e3),
    }
}

fn ratio(ratio: Option<f64>) -> String {
    match ratio {
        None => "-".into(),
        Some(ratio) if ratio < 0.01 => format!("{ratio:.1e}"),
        Some(ratio) => format!("{ratio:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(
            (
                time(Some(0.0214), Some(0.034)),
                time(Some(31.25), None),
                time(None, None)
            ),
            ("21 ns ±3 %".into(), "31.2 us".into(), "-".into())
        );
        assert_eq!(
            (ratio(Some(0.994)), ratio(Some(0.0067))),
            ("0.994".into(), "6.7e-3".into())
        );
    }
}
