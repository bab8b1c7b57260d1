// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers as people read them, and text of others as a terminal may get it.

pub use rdmamr_live_page::controls;
use std::ffi::OsStr;
use std::path::Path;

/// A count, with separated thousands.
pub fn count(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{} {:03}", count(number / 1000), number % 1000),
    }
}

/// A number to three digits.
fn three_digits(number: f64) -> String {
    let decimals = match number {
        number if number < 9.995 => 2,
        number if number < 99.95 => 1,
        _ => 0,
    };
    format!("{number:.decimals$}")
}

/// A length in bytes; exact if the exact number is short.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = bytes.max(1).ilog2() as usize / 10;
    let (size, name) = (1u64 << (10 * unit), UNITS[unit]);
    match bytes % size {
        0 => format!("{} {name}", bytes / size),
        _ => format!("{} {name}", three_digits(bytes as f64 / size as f64)),
    }
}

/// A duration in ns.
pub fn time(ns: u64) -> String {
    match ns as f64 {
        _ if ns < 1000 => format!("{ns} ns"),
        ns if ns < 999.5e3 => format!("{} us", three_digits(ns / 1e3)),
        ns if ns < 999.5e6 => format!("{} ms", three_digits(ns / 1e6)),
        ns => format!("{} s", three_digits(ns / 1e9)),
    }
}

/// A part of a whole.
pub fn share(part: u64, whole: u64) -> String {
    let percent = match whole {
        0 => 0.0,
        _ => 100.0 * part as f64 / whole as f64,
    };
    format!("{} %", three_digits(percent))
}

/// A number of things.
pub fn plural(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// The name of a file, without its folder.
pub fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The name of a program, by its command line: of a program in Python the script's or the module's,
/// since its interpreter says nothing.
pub fn program(command: &[String]) -> String {
    let first = command.first().map_or("", String::as_str);
    script(command).unwrap_or_else(|| name_of(first).to_string())
}

/// The script or the module that an interpreter of Python runs. `None` for other programs, and for
/// `python3 -c` and an interpreter without a script.
pub fn script(command: &[String]) -> Option<String> {
    let (first, arguments) = command.split_first()?;
    let version = name_of(first).strip_prefix("python")?;
    if version.contains(|c: char| !c.is_ascii_digit() && c != '.') {
        return None;
    }
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-m" => return arguments.next().cloned(),
            // These take a value of their own.
            "-W" | "-X" | "--check-hash-based-pycs" => drop(arguments.next()),
            "-c" | "-" => return None,
            option if option.starts_with('-') => {}
            script => return Some(name_of(script).to_string()),
        }
    }
    None
}

/// A word as a shell reads it. Control characters are replaced: no shell reads a word that has some.
pub fn quoted(word: impl AsRef<OsStr>) -> String {
    let word = shown(word.as_ref());
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// An error in words for people: without the number of the errno, and without the name of a
/// temporary file.
pub fn reason(error: &anyhow::Error) -> String {
    let mut words = format!("{error:#}");
    for (begin, end) in [(" (os error ", ")"), (" at path \"", "\"")] {
        while let Some(at) = words.find(begin) {
            let rest = &words[at + begin.len()..];
            let Some(length) = rest.find(end) else { break };
            words.replace_range(at..at + begin.len() + length + end.len(), "");
        }
    }
    words
}

/// Text without its middle, if it is too long.
pub fn shortened(text: &str, columns: usize) -> String {
    let characters: Vec<char> = text.chars().collect();
    if characters.len() <= columns {
        return text.to_string();
    }
    let head = columns.saturating_sub(3) / 3;
    let tail = columns.saturating_sub(3) - head;
    let end = &characters[characters.len() - tail..];
    let parts = [&characters[..head], &['.'; 3], end];
    parts.concat().iter().collect()
}

/// A path as it is shown to people: any user may choose one.
pub fn shown(path: impl AsRef<Path>) -> String {
    printable(&path.as_ref().to_string_lossy())
}

/// Text from outside, without characters that would control a terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if controls(c) { '\u{fffd}' } else { c })
        .collect()
}

/// The same of several lines.
pub fn lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_python_has_the_name_of_its_script() {
        let name = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_string).collect();
            program(&words)
        };
        for (line, wanted) in [
            ("/usr/bin/python3 -u -X dev /srv/kv.py --port 5", "kv.py"),
            (
                "python3.11 -m torch.distributed.run train.py",
                "torch.distributed.run",
            ),
            ("python -c print", "python"),
            ("python3", "python3"),
            ("/opt/app kv.py", "app"),
            ("pythonic kv.py", "pythonic"),
        ] {
            assert_eq!(name(line), wanted, "{line}");
        }
        assert_eq!(program(&[]), "");
    }

    #[test]
    fn an_error_is_for_people() {
        let words = "page.html: No such file (os error 2) at path \"/tmp/.rdmamr-0Ft\": so";
        let error = anyhow::anyhow!("{words}");
        assert_eq!(reason(&error), "page.html: No such file: so");
        assert_eq!(reason(&anyhow::anyhow!("odd (os error ")), "odd (os error ");
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!(
            [count(0), count(999), count(1000), count(12_345_678)],
            ["0", "999", "1 000", "12 345 678"]
        );
        assert_eq!(
            [bytes(0), bytes(1023), bytes(4096), bytes(5000)],
            ["0 B", "1023 B", "4 KiB", "4.88 KiB"]
        );
        assert_eq!(
            [bytes(3 << 19), bytes(u64::MAX), bytes(1 << 30)],
            ["1.50 MiB", "16.0 EiB", "1 GiB"]
        );
        assert_eq!(
            [time(999), time(1000), time(999_499)],
            ["999 ns", "1.00 us", "999 us"]
        );
        assert_eq!(
            [time(999_500), time(12_345_678), time(7_250_000_000)],
            ["1.00 ms", "12.3 ms", "7.25 s"]
        );
        assert_eq!(
            [share(1, 3), share(1, 0), share(2, 2)],
            ["33.3 %", "0.00 %", "100 %"]
        );
        assert_eq!(
            [plural(1, "call", "calls"), plural(1000, "call", "calls")],
            ["1 call", "1 000 calls"]
        );
        assert_eq!(printable("a\x1b[31mb\n"), "a\u{fffd}[31mb\u{fffd}");
        assert_eq!(
            printable("\u{9b}2J\u{202e}\u{2066}\u{200b}\u{2028}é"),
            "\u{fffd}2J\u{fffd}\u{fffd}\u{fffd}\u{fffd}é"
        );
    }
}
