// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text on a terminal: its width, its colours, and what is said on standard error. `anstream` prints
//! colours on a terminal only, and never if `NO_COLOR` is set.

use crate::report::units::lines;
use anstyle::{AnsiColor, Style};
use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::tcgetwinsize;
use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::sync::OnceLock;

pub const GOOD: Style = AnsiColor::Green.on_default();
pub const DOUBTFUL: Style = AnsiColor::Yellow.on_default();
pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const STRONG: Style = Style::new().bold();

/// How wide text is: as the terminal, within reason; 80 columns where there is none.
pub fn columns() -> usize {
    width().unwrap_or(80)
}

/// How wide text is on this terminal, within reason. `None` where there is none.
pub fn width() -> Option<usize> {
    static WIDTH: OnceLock<Option<usize>> = OnceLock::new();
    *WIDTH.get_or_init(|| {
        let columns = tcgetwinsize(std::io::stdout()).ok()?.ws_col;
        let is_known = columns > 0 && !cfg!(test);
        is_known.then(|| usize::from(columns).clamp(40, 160))
    })
}

/// Breaks lines between words, and indents all but the first.
pub fn wrap(text: &str, indent: usize) -> String {
    let mut wrapped = String::new();
    let mut column = indent;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let length = word.chars().count();
        if column > indent && column + 1 + length > columns() {
            let _ = write!(wrapped, "\n{:indent$}", "");
            column = indent;
        } else if column > indent {
            wrapped.push(' ');
            column += 1;
        }
        wrapped.push_str(word);
        column += length;
    }
    wrapped
}

/// Prints text to standard output.
pub fn print(text: &str) -> Result<()> {
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Prints a line to standard error. If that fails, nobody reads it, and the exit status must not change.
/// A program that `rdmamr run` starts must not wait for the reader either: if a pipe or a terminal is
/// full, the line is lost.
/// The line may have text from outside.
pub fn say(line: impl Display) {
    let stderr = std::io::stderr();
    let mut about = [PollFd::new(&stderr, PollFlags::OUT)];
    if poll(&mut about, Some(&Timespec::default())) == Ok(1) {
        let text = lines(&line.to_string());
        let _ = writeln!(anstream::stderr(), "rdmamr: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words() {
        let wrapped = wrap(&"word ".repeat(100), 9);
        assert!(
            wrapped
                .lines()
                .all(|line| line.len() <= 80 && line.ends_with("word"))
        );
        assert!(
            wrapped
                .lines()
                .skip(1)
                .all(|line| line.starts_with("         word"))
        );
        assert_eq!(wrapped.split_whitespace().count(), 100);
    }
}
