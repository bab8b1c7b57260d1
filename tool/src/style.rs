// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text on a terminal: its width, its colours, and what is said on standard error. `anstream` prints
//! colours on a terminal only, and never if `NO_COLOR` is set. Text from outside, such as a name,
//! reaches a terminal without characters that control it.

use crate::report::units::{lines, printable};
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
/// The escape sequences of these styles, without the escape character. Text from outside can use them
/// too, to colour itself.
const STYLES: [&str; 5] = ["[0m", "[1m", "[31m", "[32m", "[33m"];

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
    for word in printable(text).split(' ').filter(|word| !word.is_empty()) {
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
    out.write_all(filtered(text).as_bytes())?;
    Ok(out.flush()?)
}

/// The lines without control characters, except those of the styles.
fn filtered(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let mut filtered = lines(parts.next().unwrap_or_default());
    for part in parts {
        let is_style = STYLES.iter().any(|style| part.starts_with(style));
        filtered.push(if is_style { '\x1b' } else { '\u{fffd}' });
        filtered += &lines(part);
    }
    filtered
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
    fn nothing_but_styles_and_ends_of_lines_controls_a_terminal() {
        let styles = [GOOD, DOUBTFUL, BAD, STRONG].map(|style| format!("{style}word{style:#}\n"));
        assert_eq!(filtered(&styles.concat()), styles.concat());
        let text = "a\x1b]0;x\x07\x1b[2J\u{202e}\r\t\u{9b}2J\x1b";
        let shown = "a\u{fffd}]0;x\u{fffd}\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}\u{fffd}2J\u{fffd}";
        assert_eq!(filtered(text), shown);
    }

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
