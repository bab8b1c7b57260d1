// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text in a buffer of fixed size, for messages that are written where no code may allocate.

use core::ffi::CStr;
use core::fmt::{self, Write};

/// At most `N` bytes of text. Text that does not fit is cut off and ends in "...".
pub struct Text<const N: usize> {
    bytes: [u8; N],
    used: usize,
}

/// Marks the end of text that was cut.
const CUT: &[u8] = b"...";

impl<const N: usize> Text<N> {
    /// An empty text.
    pub const fn new() -> Self {
        const { assert!(N > CUT.len()) };
        Text {
            bytes: [0; N],
            used: 0,
        }
    }

    /// The text so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// The text so far, which was written as words. (Bytes of another kind give none.)
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// Removes the text.
    pub fn clear(&mut self) {
        self.cut(0);
    }

    /// Removes the text behind its first bytes.
    pub fn cut(&mut self, length: usize) {
        self.used = self.used.min(length);
    }

    /// Adds bytes. False if there is no room for all of them.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let taken = bytes.len().min(N - self.used);
        self.bytes[self.used..self.used + taken].copy_from_slice(&bytes[..taken]);
        self.used += taken;
        if taken < bytes.len() {
            self.bytes[N - CUT.len()..].copy_from_slice(CUT);
        }
        taken == bytes.len()
    }

    /// Becomes these words, as a C string. `None` if there is no room for all of them.
    pub fn set(&mut self, words: fmt::Arguments<'_>) -> Option<&CStr> {
        self.clear();
        self.write_fmt(words).ok()?;
        self.as_c_str()
    }

    /// The text as a C string. `None` if there is no room for its end.
    pub fn as_c_str(&mut self) -> Option<&CStr> {
        *self.bytes.get_mut(self.used)? = 0;
        CStr::from_bytes_until_nul(&self.bytes).ok()
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let fits = self.push(text.as_bytes());
        fits.then_some(()).ok_or(fmt::Error)
    }
}

/// `value / unit` with this many decimals, rounded, for people. It uses no floating-point number:
/// printing one brings 15 KiB of code and tables into the library.
pub struct Decimal {
    /// The dividend.
    pub value: u64,
    /// The divisor.
    pub unit: u64,
    /// How many digits follow the point.
    pub decimals: usize,
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = 10_u64.pow(self.decimals as u32);
        let scaled = self.value.saturating_mul(scale);
        let rounded = scaled.saturating_add(self.unit / 2) / self.unit;
        write!(f, "{}", rounded / scale)?;
        match self.decimals {
            0 => Ok(()),
            width => write!(f, ".{:0width$}", rounded % scale),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Decimal, Text};
    use std::fmt::Write;

    #[test]
    fn too_much_is_cut_visibly() {
        let mut text = Text::<8>::new();
        assert!(text.write_str("12345678").is_ok());
        assert_eq!(text.as_bytes(), b"12345678");
        assert!(text.write_str("9").is_err());
        assert_eq!(text.as_bytes(), b"12345...");
        assert_eq!(text.as_c_str(), None);
        text.cut(7);
        assert_eq!(text.as_c_str(), Some(c"12345.."));
        assert_eq!(text.set(format_args!("{}/{}", 12, 345)), Some(c"12/345"));
        text.cut(2);
        assert!(text.push(b"/3"));
        assert_eq!(text.as_c_str(), Some(c"12/3"));
        assert_eq!(text.set(format_args!("{}", 12_345_678)), None);
        text.clear();
        assert_eq!(text.as_bytes(), b"");
    }

    #[test]
    fn decimals_are_rounded() {
        let text = |value, unit, decimals| {
            let number = Decimal {
                value,
                unit,
                decimals,
            };
            number.to_string()
        };
        assert_eq!(text(1_049, 1_000, 1), "1.0");
        assert_eq!(text(1_050, 1_000, 1), "1.1");
        assert_eq!(text(1_999, 1_000, 0), "2");
        assert_eq!(text(3 << 29, 1 << 30, 2), "1.50");
        assert_eq!(text(1_005, 1_000, 3), "1.005");
    }
}
