// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr explain`: the causes of an errno in the order in which to look at them, and the doctor's
//! finding about each. The words are those of docs/troubleshooting.md, so that each rule stands in
//! one place.

use crate::choices::nearest;
use crate::doctor;
use crate::doctor::check::Check;
use crate::report::errno;
use crate::style::{self, wrap};
use anyhow::bail;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

const DOCUMENT: &str = include_str!("../../docs/troubleshooting.md");
const INDENT: usize = 4;

/// Explain an errno of a registration, with this machine's limits
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr explain ENOMEM
  rdmamr explain 14
  docker exec CONTAINER rdmamr explain EPERM     limits are the caller's

Exit status: 0; 2: wrong usage, or an errno without an explanation.")]
pub struct Args {
    /// ENOMEM, EFAULT, EPERM, EINVAL, EAGAIN or another errno, by name or number
    #[arg(value_name = "ERRNO")]
    errno: String,
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

/// Prints the section of the errno, or its row, and what the doctor finds.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let wanted = match args.errno.parse() {
        Ok(number) => errno::name(number),
        Err(_) => args.errno.to_uppercase(),
    };
    let section = SECTIONS.iter().find(|row| row.0 == wanted);
    let text = match section {
        Some(row) => explain(row.0).map(|mut text| {
            let checks = row.1.iter().map(|check| check());
            let checks: Vec<_> = checks.chain(doctor::of_devices(row.0)).collect();
            if !checks.is_empty() {
                let strong = style::STRONG;
                let _ = write!(text, "\n{strong}This process, here{strong:#}\n\n");
                text += &doctor::paragraphs(&checks);
            }
            text
        }),
        None => other(&wanted),
    };
    let Some(text) = text else {
        let names = names();
        let names = names.iter().map(|name| name.as_ref());
        let near = nearest(&wanted, names.clone());
        let near = near.map_or(".".into(), |near| format!(": did you mean {near}?"));
        bail!(
            "there is no explanation of {}{near} There are: {}",
            args.errno,
            names.collect::<Vec<&str>>().join(", ")
        );
    };
    anstream::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
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
    let strong = style::STRONG;
    let (says, rest) = cells.split_first().expect("a row has a cell");
    let mut text = format!("\n{number:2}. {strong}{}{strong:#}\n", wrap(says, INDENT));
    let (to_do, causes) = rest.split_last().expect("a row has two cells");
    for cause in causes {
        let _ = writeln!(text, "{:INDENT$}{}", "", wrap(cause, INDENT));
    }
    let _ = writeln!(text, "{:INDENT$}-> {}", "", wrap(to_do, INDENT + 3));
    text
}

/// The row of an errno that has no section.
fn other(errno: &str) -> Option<String> {
    let rows = rows_of_others().filter(|cells| cells[0].split(' ').next() == Some(errno));
    let text: String = rows
        .map(|cells| format!("{}: {}\n", cells[0], wrap(&cells[1], INDENT)))
        .collect();
    (!text.is_empty()).then_some(text)
}

/// The errnos that have an explanation.
pub fn names() -> Vec<String> {
    let sections = SECTIONS.iter().map(|row| row.0.to_owned());
    let name = |cells: Vec<String>| cells[0].split(' ').next().map(str::to_owned);
    let mut names: Vec<_> = sections.chain(rows_of_others().filter_map(name)).collect();
    names.dedup();
    names
}

fn rows_of_others() -> impl Iterator<Item = Vec<String>> {
    let section = DOCUMENT.split("\n## Other errors\n").nth(1);
    let section = section.and_then(|rest| rest.split("\n## ").next());
    let lines = section.unwrap_or_default().lines();
    lines.filter(|line| line.starts_with("| `")).map(cells)
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

    #[test]
    fn each_errno_has_its_causes() {
        for (errno, ..) in SECTIONS {
            let text = explain(errno).unwrap_or_else(|| panic!("no section for {errno}"));
            assert!(text.contains(" 1. ") && text.contains("-> "), "{text}");
            assert!(!text.contains('`') && !text.contains("]("), "{text}");
        }
        assert!(explain("ENOMEM").unwrap().contains("Slurm"));
        assert!(explain("EXDEV").is_none() && other("EXDEV").is_none());
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
