// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr explain`: the causes of an errno in the order in which to look at them, and the doctor's
//! finding about each; what a completion error means, and lines of other programs. The words are those
//! of docs/troubleshooting.md, so that each rule stands in one place. `pasted.rs` finds in a line what
//! it is about; `key.rs` looks a key up in a trace.

mod key;
mod pasted;

use crate::doctor;
use crate::doctor::check::Check;
use crate::style::{self, wrap};
use anyhow::bail;
use std::fmt::Write as _;
use std::io::Read as _;
use std::process::ExitCode;

const DOCUMENT: &str = include_str!("../../docs/troubleshooting.md");
const INDENT: usize = 4;

/// The sections with one row for each error.
const OTHERS: &str = "Other errors";
const COMPLETIONS: &str = "Completion errors";
const LINES: &str = "Lines of other programs";

/// So much of standard input is read, in bytes.
const MOST: u64 = 64 << 10;

/// Explain an error of a registration or of a completion, with this machine's limits
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr explain ENOMEM
  rdmamr explain -14
  rdmamr explain ibv_reg_mr failed: Bad address
  rdmamr explain 'Got completion with error 4, opcode 1, len 8, vendor err 81'
  dmesg | tail -1 | rdmamr explain -
  docker exec CONTAINER rdmamr explain EPERM     limits are the caller's
  rdmamr explain --trace app.trace --key 0x1234 --addr 0x7f2ae4172000 --length 4096

Exit status: 0; 2: wrong usage, or nothing to explain.")]
pub struct Args {
    /// An errno by name, number or words, a completion's status, or a line of a log; - for standard
    /// input
    #[arg(
        value_name = "ERROR",
        required_unless_present = "trace",
        allow_hyphen_values = true
    )]
    words: Vec<String>,
    #[command(flatten)]
    key: key::Args,
}

type Checks = &'static [fn() -> Check];

/// The errnos that have a section, with the doctor's checks for each.
#[rustfmt::skip]
const SECTIONS: &[(&str, Checks)] = &[
    ("ENOMEM", &[doctor::container, doctor::memlock, doctor::cgroup, doctor::mappings]),
    ("EFAULT", &[doctor::cgroup, doctor::hugepages]),
    ("EPERM", &[doctor::container, doctor::memlock, doctor::userfaultfd]),
    ("EINVAL", &[]),
    ("EAGAIN", &[doctor::container, doctor::cgroup]),
];

/// Prints what is known of the error, and what the doctor finds.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.key.trace.is_some() {
        style::print(&key::explain(&args.key)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut pasted = args.words.join(" ");
    if pasted == "-" {
        pasted.clear();
        std::io::stdin().take(MOST).read_to_string(&mut pasted)?;
    }
    let found = pasted::find(&pasted, rows(LINES));
    let statuses = found.statuses.iter().filter_map(|status| of_status(status));
    let lines = found.lines.iter().map(|cells| of_line(cells));
    let errnos = found.errnos.iter().filter_map(|errno| of_errno(errno));
    let texts: Vec<_> = statuses.chain(lines).chain(errnos).collect();
    if texts.is_empty() {
        bail!(
            "there is no explanation of {}. There are: {}. Or paste the whole line, or let the library say \
             the reason: rdmamr run --log=warn -- PROGRAM",
            pasted.trim(),
            names().join(", ")
        );
    }
    style::print(&texts.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The section of an errno with what the doctor finds, or its rows.
fn of_errno(errno: &str) -> Option<String> {
    let Some(row) = SECTIONS.iter().find(|row| row.0 == errno) else {
        return other(errno);
    };
    explain(row.0).map(|mut text| {
        let checks = row.1.iter().map(|check| check());
        let checks: Vec<_> = checks.chain(doctor::of_devices(row.0)).collect();
        if !checks.is_empty() {
            let strong = style::STRONG;
            let _ = write!(text, "\n{strong}This process, here{strong:#}\n\n");
            text += &doctor::paragraphs(&checks);
        }
        text
    })
}

/// The row of a completion's status: what is known, and what to look at.
fn of_status(status: &str) -> Option<String> {
    rows_of(COMPLETIONS, status)
        .map(|cells| entry("", &cells[0], &cells[1..2], Some(&cells[2])))
        .next()
}

/// What the line of another program means.
fn of_line(cells: &[String]) -> String {
    entry("", &cells[0], &cells[2..], None)
}

/// A heading after `before`, text below it, and what to do.
fn entry(before: &str, heading: &str, below: &[String], to_do: Option<&String>) -> String {
    let strong = style::STRONG;
    let heading = wrap(heading, INDENT);
    let mut text = format!("{before}{strong}{heading}{strong:#}\n");
    for part in below {
        let _ = writeln!(text, "{:INDENT$}{}", "", wrap(part, INDENT));
    }
    if let Some(to_do) = to_do {
        let _ = writeln!(text, "{:INDENT$}-> {}", "", wrap(to_do, INDENT + 3));
    }
    text
}

/// The section whose heading ends in the errno's name: "Bad address (EFAULT)".
fn explain(errno: &str) -> Option<String> {
    let mut sections = DOCUMENT.split("\n## ").skip(1);
    let (heading, body) = sections.find_map(|section| {
        let (heading, body) = section.split_once('\n')?;
        Some((heading.strip_suffix(&format!(" ({errno})"))?, body))
    })?;
    let strong = style::STRONG;
    let mut text = format!("{strong}{errno}: {heading}{strong:#}\n");
    text += "The causes, by what the library's line says (rdmamr run --log=warn -- ./app):\n";
    let mut number = 0;
    for block in body.split("\n\n") {
        let block = block.trim_matches('\n');
        if block.starts_with('|') {
            for row in block.lines().skip(2) {
                number += 1;
                text += &cause(number, &cells(row));
            }
        } else if block.starts_with("- ") {
            for point in format!("\n{block}").split("\n- ").skip(1) {
                let _ = write!(text, "\n  - {}\n", wrap(&plain(point), INDENT));
            }
        } else if !block.is_empty() && !block.starts_with("    ") {
            let _ = write!(text, "\n{:INDENT$}{}\n", "", wrap(&plain(block), INDENT));
        }
    }
    Some(text)
}

/// A row: what the library's line says, the cause if the row has one, and what to do.
fn cause(number: usize, cells: &[String]) -> String {
    let (says, rest) = cells.split_first().expect("a row has a cell");
    let (to_do, causes) = rest.split_last().expect("a row has two cells");
    entry(&format!("\n{number:2}. "), says, causes, Some(to_do))
}

/// The row of an errno that has no section.
fn other(errno: &str) -> Option<String> {
    let text: String = rows_of(OTHERS, errno)
        .map(|cells| format!("{}: {}\n", cells[0], wrap(&cells[1], INDENT)))
        .collect();
    (!text.is_empty()).then_some(text)
}

/// The errnos that have an explanation.
pub fn names() -> Vec<String> {
    let sections = SECTIONS.iter().map(|row| row.0.to_owned());
    let name = |cells: Vec<String>| cells[0].split(' ').next().map(str::to_owned);
    let mut names: Vec<_> = sections.chain(rows(OTHERS).filter_map(name)).collect();
    names.dedup();
    names
}

/// The rows of the table in a section.
fn rows(section: &str) -> impl Iterator<Item = Vec<String>> {
    let heading = format!("\n## {section}\n");
    let section = DOCUMENT.split_once(&heading).map(|parts| parts.1);
    let section = section.and_then(|rest| rest.split("\n## ").next());
    let lines = section.unwrap_or_default().lines();
    lines.filter(|line| line.starts_with("| `")).map(cells)
}

/// Those that are about this name.
fn rows_of(section: &str, name: &str) -> impl Iterator<Item = Vec<String>> {
    let is_it = move |word: &str| word.split(' ').next() == Some(name);
    rows(section).filter(move |cells| cells[0].split(", ").any(is_it))
}

fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_matches('|');
    row.split(" | ").map(|cell| plain(cell.trim())).collect()
}

/// The text without the marks of Markdown: backquotes, the targets of links, and the ends of its
/// lines.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let (before, link) = before.rsplit_once('[').unwrap_or((before, ""));
        plain += before;
        plain += link;
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain += rest;
    let plain = plain.replace(['`', '*'], "");
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::errno;

    #[test]
    fn each_errno_has_its_causes() {
        for (errno, ..) in SECTIONS {
            let text = explain(errno).unwrap_or_else(|| panic!("no section for {errno}"));
            assert!(text.contains(" 1. ") && text.contains("-> "), "{text}");
            assert!(!text.contains('`') && !text.contains("]("), "{text}");
        }
        assert!(explain("ENOMEM").unwrap().contains("Slurm"));
        assert!(explain("EXDEV").is_none() && other("EXDEV").is_none());
        for section in [COMPLETIONS, LINES] {
            assert!(rows(section).all(|cells| cells.len() == 3), "{section}");
        }
        assert!(pasted::names().all(|name| of_status(name).is_some()));
        assert!(other("EIO").unwrap().contains("the device is gone"));
        let named = |name: &String| (0..300).any(|number| errno::name(number) == *name);
        assert!(names().iter().all(named), "{:?} have numbers", names());
    }

    #[test]
    fn markdown_becomes_plain() {
        assert_eq!(
            plain("see [the\nsection](#x) of `it`, **now**"),
            "see the section of it, now"
        );
    }
}
