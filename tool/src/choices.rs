// SPDX-License-Identifier: MIT OR Apache-2.0
//! Choices and sizes on the command line, and what a mistyped word may have meant.

use clap::ValueEnum;
use strsim::damerau_levenshtein;

pub fn name(choice: impl ValueEnum) -> String {
    let value = choice.to_possible_value();
    value.map_or(String::new(), |value| value.get_name().to_owned())
}

/// A number of bytes: 4096, 64K, 1M, 2G.
pub fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.to_ascii_uppercase().chars().last() {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|&bytes| bytes > 0 && bytes < 1 << 46)
        .ok_or_else(|| "a size is a number such as 4096, 64K, 1M or 2G".into())
}

/// The word that a mistyped one is likely to mean: at most two letters are wrong.
pub fn nearest<'a>(given: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = words
        .into_iter()
        .map(|word| (damerau_levenshtein(given, word), word));
    near.filter(|&(distance, word)| distance <= 2 && distance < word.len())
        .min_by_key(|near| near.0)
        .map(|near| near.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_word_has_a_near_one() {
        let words = ["run", "report", "top", "trace"];
        assert_eq!(nearest("tpo", words), Some("top"));
        assert_eq!(nearest("rport", words), Some("report"));
        assert_eq!(nearest("doctor", words), None);
    }

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
