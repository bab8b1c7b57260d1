// SPDX-License-Identifier: MIT OR Apache-2.0
//! Choices and sizes on the command line.

use clap::ValueEnum;

pub fn name(choice: impl ValueEnum) -> String {
    let value = choice.to_possible_value();
    value.map_or(String::new(), |value| value.get_name().to_owned())
}

/// A number of bytes: 4096, 64K, 1M, 2G.
pub fn bytes(text: &str) -> Result<u64, String> {
    let mut units = [(['K', 'k'], 10), (['M', 'm'], 20), (['G', 'g'], 30)].into_iter();
    let of_unit = units.find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let (digits, shift) = of_unit.unwrap_or((text, 0));
    let number = digits.parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|&bytes| bytes > 0 && bytes < 1 << 46)
        .ok_or_else(|| "a size is a number such as 4096, 64K, 1M or 2G".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("64k"), Ok(65536));
        assert_eq!(bytes("2G"), Ok(2 << 30));
        for wrong in ["", "K", "0", "-1", "1T", "99999999999G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
