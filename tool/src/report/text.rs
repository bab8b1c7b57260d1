// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report as text, as wide as the terminal.
use super::callers::Caller;
use super::diff::{self, Diff};
use super::job;
use super::shape::Report;
use super::tables::{self, Column, Section};
use super::units::{count, name_of, printable, shortened};
use crate::style::{columns, wrap};
use std::fmt::Write;

/// The most lines of a table.
const SHOWN: usize = 10;
/// How wide the names of figures are.
const NAME: usize = 16;

/// Writes a heading, and the first rows of a table. If one is too wide, its last column loses the middle.
fn section(out: &mut String, of: &Section, most: usize) {
    heading(out, &of.heading);
    if !of.words.is_empty() {
        wrapped(out, "", &of.words);
    }
    let rows = &of.rows[..most.min(of.rows.len())];
    if rows.is_empty() {
        return;
    }
    let shown = of.columns(&['+', '!'], false);
    let (last, others) = shown.split_last().expect("a table has columns");
    let width = |column: &Column| {
        let cells = rows.iter().map(|row| row.0[column.at].chars().count());
        cells.fold(column.name.len(), usize::max)
    };
    let widths: Vec<usize> = others.iter().map(width).collect();
    let room = columns().saturating_sub(2 + widths.iter().map(|width| width + 2).sum::<usize>());
    let caller = |caller: &Caller| match who(caller) {
        words if words.chars().count() > room => caller.title(),
        words => words,
    };
    let line = |cell: &dyn Fn(&Column) -> String| {
        let mut line = String::from(" ");
        for (column, &width) in others.iter().zip(&widths) {
            let cell = printable(&cell(column));
            let _ = match column.is_left_aligned {
                true => write!(line, " {cell:<width$} "),
                false => write!(line, " {cell:>width$} "),
            };
        }
        line += &format!(" {}", shortened(&printable(&cell(last)), room));
        line.trim_end().to_string() + "\n"
    };
    out.push_str(&line(&|column| column.name.to_string()));
    let below = of.columns(&['!'], true);
    for (cells, of) in rows {
        out.push_str(&line(&|column| match (cells.get(column.at), of) {
            (None, Some(of)) => caller(of),
            (cell, _) => cell.cloned().unwrap_or_default(),
        }));
        if let Some(beyond) = of.and_then(Caller::beyond) {
            wrapped(out, "      < ", &beyond);
        }
        for text in below.iter().map(|column| &cells[column.at]) {
            if !text.is_empty() {
                wrapped(out, "      ", text);
            }
        }
    }
    more(out, of.all, most);
}

fn more(out: &mut String, all: u64, shown: usize) {
    if all > shown as u64 {
        let more = count(all - shown as u64);
        let _ = writeln!(out, "  and {more} more (--json has up to 100)");
    }
}

/// Text in lines behind a word, with long words shortened.
fn wrapped(out: &mut String, first: &str, text: &str) {
    let indent = first.chars().count();
    let text = printable(text);
    let words = text.split(' ');
    let words = words.map(|word| shortened(word, columns() - indent));
    let text = wrap(&words.collect::<Vec<_>>().join(" "), indent);
    let _ = writeln!(out, "{first}{text}");
}

/// A figure, or a sentence, behind its name.
fn named(out: &mut String, name: &str, text: &str) {
    wrapped(out, &format!("{name:<NAME$}"), text);
}

fn heading(out: &mut String, text: &str) {
    let _ = writeln!(out, "\n{text}\n{}", "-".repeat(text.chars().count()));
}

/// Function, source and place, as far as they are known; in Python its own function and line first.
pub fn who(caller: &Caller) -> String {
    let frame = &caller.frame;
    if caller.leads().is_python {
        return format!("{}  {}", caller.leads().words(), frame.name());
    }
    let source = frame.source.as_deref();
    let source = source.map(|source| name_of(source).into());
    let words = [frame.function.clone(), source, Some(frame.place())];
    words.into_iter().flatten().collect::<Vec<_>>().join("  ")
}

pub fn render(report: &Report) -> String {
    let mut text = String::new();
    let out = &mut text;
    wrapped(out, "", &report.advice.verdict.line);
    for command in &report.advice.next {
        // Not broken: it is there to be copied.
        let _ = writeln!(out, "  {}", printable(command));
    }
    let troubles = tables::troubles(report);
    if troubles.is_empty() {
        out.push_str(match report.totals.leaks_known {
            true => "No call failed, and no region was left registered.\n",
            false => "No recorded call failed. Which regions were left registered is not known.\n",
        });
    }
    for trouble in &troubles {
        section(out, trouble, SHOWN);
    }
    out.push('\n');
    named(out, "Trace", &report.trace);
    let groups = job::groups(&report.processes);
    for group in groups.iter().take(SHOWN) {
        named(out, "Program", &group.line());
        named(out, "", &(group.facts() + &group.end()));
    }
    more(out, groups.len() as u64, SHOWN);
    for (name, words) in tables::facts(report) {
        named(out, name, &words);
    }
    for note in &report.notes {
        named(out, "WARNING", note);
    }
    heading(out, "Why");
    wrapped(out, "", &report.advice.sentence);
    for of in tables::sections(report) {
        section(out, &of, SHOWN);
    }
    text
}

/// The comparison of two runs.
pub fn compare(diff: &Diff) -> String {
    let mut text = String::new();
    let out = &mut text;
    named(out, "Before", &diff.before.trace);
    named(out, "After", &diff.after.trace);
    for note in &diff.notes {
        named(out, "WARNING", note);
    }
    heading(out, diff.title());
    wrapped(out, "", &diff.sentence());
    for of in diff.sections() {
        section(out, &of, diff::SHOWN);
    }
    text
}
