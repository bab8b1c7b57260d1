// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terminal: the table of processes, and below it the limits of the selected one as bars.

use super::sample::{Memory, Process, Sample};
use super::table::{self, HEADS, Severity, View, cells};
use crate::choices::name;
use crate::report::units::{bytes, plural};
use anyhow::Result;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame};
use std::time::{Duration, Instant};

/// The limits of the interval that keys reach.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(60);
const KEYS: &str = "q end  arrows select  s sort  r reverse  / filter  p pause  + - interval";

struct Screen {
    view: View,
    interval: Duration,
    sample: Sample,
    /// The processes of the sample that are shown.
    shown: Vec<Process>,
    selected: TableState,
    paused: bool,
    /// The filter is being typed.
    typing: bool,
}

/// Shows samples until the user ends it.
pub fn run(view: View, interval: Duration, memory: &mut Memory) -> Result<()> {
    let mut screen = Screen {
        view,
        interval,
        sample: Sample::take(memory),
        shown: Vec::new(),
        selected: TableState::new().with_selected(0),
        paused: false,
        typing: false,
    };
    let mut terminal = ratatui::try_init()?;
    let shown = screen.show(&mut terminal, memory);
    ratatui::restore();
    shown
}

impl Screen {
    fn show(&mut self, terminal: &mut DefaultTerminal, memory: &mut Memory) -> Result<()> {
        let mut next = Instant::now() + self.interval.min(Duration::from_millis(300));
        loop {
            self.shown = self.sample.processes.clone();
            self.view.apply(&mut self.shown);
            terminal.draw(|frame| self.draw(frame))?;
            if event::poll(next.saturating_duration_since(Instant::now()))? {
                if let Event::Key(key) = event::read()? {
                    let is_ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
                    let ctrl_c = is_ctrl && key.code == KeyCode::Char('c');
                    if key.kind != KeyEventKind::Release && (ctrl_c || self.key(key.code)) {
                        return Ok(());
                    }
                }
            }
            if Instant::now() >= next {
                next = Instant::now() + self.interval;
                if !self.paused {
                    let mut sample = Sample::take(memory);
                    sample.compare(&self.sample);
                    self.sample = sample;
                }
            }
        }
    }

    /// True if the key ends it.
    fn key(&mut self, key: KeyCode) -> bool {
        if self.typing {
            match key {
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => {
                    self.typing = false;
                    self.view.filter.clear();
                }
                KeyCode::Backspace => drop(self.view.filter.pop()),
                KeyCode::Char(c) => self.view.filter.push(c),
                _ => {}
            }
            return false;
        }
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Down | KeyCode::Char('j') => self.selected.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.selected.select_previous(),
            KeyCode::Home => self.selected.select_first(),
            KeyCode::End => self.selected.select_last(),
            KeyCode::Char('s') => self.view.sort = self.view.sort.next(),
            KeyCode::Char('r') => self.view.reversed = !self.view.reversed,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('p') => self.paused = !self.paused,
            // One key takes back what the other did.
            KeyCode::Char('+') if self.interval >= 2 * SHORTEST => self.interval /= 2,
            KeyCode::Char('-') if self.interval <= LONGEST / 2 => self.interval *= 2,
            _ => {}
        }
        false
    }

    fn draw(&mut self, frame: &mut Frame) {
        let selected = self.selected.selected().unwrap_or(0);
        let last = self.shown.len().saturating_sub(1);
        let chosen = self.shown.get(selected.min(last));
        let details = chosen.map(|process| {
            let words = match process.command_line.as_str() {
                "" => &process.command,
                line => line,
            };
            let block = Block::bordered().title(format!(" {} {words} ", process.pid));
            let inside = block.inner(frame.area()).width;
            (details_of(process, inside.into()), block)
        });
        let height = details.as_ref().map_or(0, |details| details.0.len() + 2);
        let height = (height as u16).min(frame.area().height / 2);
        let below = table::below(&self.sample);
        let [top, middle, bottom, note, foot, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(3),
            Constraint::Length(height),
            Constraint::Length(below.len() as u16),
            Constraint::Length(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Line::from(table::summary(&self.sample)), top);
        if let Some((lines, block)) = details {
            frame.render_widget(Paragraph::new(lines).block(block), bottom);
        }
        self.draw_table(frame, middle);
        frame.render_widget(Paragraph::new(below.join("\n")), note);
        frame.render_widget(self.foot(), foot);
        frame.render_widget(Line::from(KEYS).style(Modifier::DIM), keys);
    }

    fn draw_table(&mut self, frame: &mut Frame, area: Rect) {
        if self.shown.is_empty() {
            let words = if self.sample.processes.is_empty() {
                "No process that this user may see has memory registered."
            } else {
                "No process passes the filter."
            };
            frame.render_widget(Paragraph::new(words), area);
            return;
        }
        let columns = table::columns(area.width);
        let room = table::room(&columns, area.width.into());
        let cell = |n: usize, text: String| match table::is_number(n) {
            true => Line::from(text).right_aligned(),
            false => Line::from(text),
        };
        let rows = self.shown.iter().map(|process| {
            let mut cells = cells(process, room);
            let shown = columns.iter().map(|&n| {
                let severity = Severity::of_cell(process, n);
                cell(n, std::mem::take(&mut cells[n])).style(painted(severity, Color::Reset))
            });
            let dim = match process.library {
                true => Modifier::empty(),
                false => Modifier::DIM,
            };
            Row::new(shown).style(Style::new().add_modifier(dim))
        });
        let widths = columns.iter().map(|&n| match n {
            table::COMMAND => Constraint::Fill(1),
            n => Constraint::Length(HEADS[n].1),
        });
        let heads = columns.iter().map(|&n| cell(n, HEADS[n].0.to_owned()));
        let heads = Row::new(heads);
        let table = Table::new(rows, widths)
            .header(heads.style(Style::new().add_modifier(Modifier::REVERSED)))
            .row_highlight_style(Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED));
        frame.render_stateful_widget(table, area, &mut self.selected);
    }

    fn foot(&self) -> String {
        if self.typing {
            let filter = &self.view.filter;
            return format!("filter: {filter}_ (Enter takes it, Esc drops it)");
        }
        let filter = match &self.view.filter[..] {
            "" => String::new(),
            filter => format!(", filter: {filter}"),
        };
        let order = match self.view.reversed {
            true => " (reversed)",
            false => "",
        };
        let paused = if self.paused { ", paused" } else { "" };
        let (sort, seconds) = (name(self.view.sort), self.interval.as_secs_f64());
        format!("sorted by {sort}{order}, every {seconds:.1} s{paused}{filter}")
    }
}

/// The devices of a process, and its limits as bars, in lines of this width.
fn details_of(process: &Process, width: usize) -> Vec<Line<'static>> {
    let devices = process.devices.iter().map(|of| {
        let mut words = format!(
            "{}: {}, {}; {} idle, {}",
            of.device,
            plural(of.regions, "region", "regions"),
            bytes(of.bytes),
            of.idle_regions,
            bytes(of.idle_bytes)
        );
        if let Some(regions) = of.kernel_regions {
            words += &format!("; the kernel lists {regions}");
        }
        words
    });
    let limits = process.limits.iter().map(|limit| {
        let label = format!("{:<24} {:<26} ", table::name(limit), limit.to_string());
        let width = width.saturating_sub(label.chars().count());
        let filled = (table::share(limit) * width as f64) as usize;
        let colour = painted(Severity::of_limit(limit), Color::Green);
        Line::from_iter([
            Span::raw(label),
            Span::styled("█".repeat(filled), colour),
            Span::raw("░".repeat(width - filled)),
        ])
    });
    let words = devices.chain(table::notes(process)).map(Line::from);
    words.chain(limits).collect()
}

/// The style of a figure; `good` is the colour of one that is not bad.
fn painted(severity: Severity, good: Color) -> Style {
    // The user may want none (no-color.org).
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    match severity {
        _ if !has_colours => Style::new(),
        Severity::Good => Style::new().fg(good),
        Severity::Doubtful => Style::new().fg(Color::Yellow),
        Severity::Bad => Style::new().fg(Color::Red),
    }
}
