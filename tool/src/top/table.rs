// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of processes: its order, its filter, its cells.

use super::limits::Limit;
use super::sample::{Process, Sample};
use crate::report::units;
use clap::ValueEnum;
use std::cmp::Ordering;
use std::fmt::Write;

/// What the table is sorted by.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Column {
    Bytes,
    Idle,
    Regions,
    Rate,
    Hits,
    Time,
    Pid,
}

impl Column {
    /// The next one to sort by.
    pub fn next(self) -> Column {
        let all = Column::value_variants();
        all[(self as usize + 1) % all.len()]
    }
}

/// The choice of the processes that are shown, and their order.
pub struct View {
    pub sort: Column,
    pub reversed: bool,
    pub filter: String,
}

impl View {
    /// Retains the processes that are to be shown, in their order: the largest first, and among
    /// equals the smallest process number.
    pub fn apply(&self, processes: &mut Vec<Process>) {
        let words = self.filter.to_lowercase();
        processes.retain(|process| {
            let mut names = vec![process.pid.to_string(), process.command.to_lowercase()];
            names.extend(process.rank.map(|rank| format!("rank {rank}")));
            let devices = process.devices.iter();
            names.extend(devices.map(|of| of.device.to_lowercase()));
            names.iter().any(|name| name.contains(&words))
        });
        let rate = |process: &Process| process.registrations_per_second.unwrap_or(0.0);
        let order = |a: &Process, b: &Process| match self.sort {
            Column::Bytes => b.bytes.cmp(&a.bytes),
            Column::Idle => b.idle_bytes.cmp(&a.idle_bytes),
            Column::Regions => b.regions.cmp(&a.regions),
            Column::Rate => rate(b).total_cmp(&rate(a)),
            Column::Hits => b.hits.cmp(&a.hits),
            Column::Time => b
                .registration_seconds
                .unwrap_or(0.0)
                .total_cmp(&a.registration_seconds.unwrap_or(0.0)),
            Column::Pid => Ordering::Equal,
        };
        processes.sort_by(|a, b| order(a, b).then(a.pid.cmp(&b.pid)));
        if self.reversed {
            processes.reverse();
        }
    }
}

/// The heads of the columns, and the least width of each.
pub const HEADS: [(&str, u16); 11] = [
    ("PID", 8),
    ("RANK", 5),
    ("DEVICE", 10),
    ("REGIONS", 8),
    ("IN USE", 9),
    ("IDLE", 9),
    ("REG/S", 8),
    ("HITS/S", 8),
    ("HITS", 6),
    ("TIME", 8),
    ("COMMAND", 15),
];

/// The columns that a terminal of this width shows: the last of this list go first.
pub fn columns(width: u16) -> Vec<usize> {
    const BY_WORTH: [usize; HEADS.len()] = [0, 10, 4, 5, 3, 2, 1, 6, 8, 7, 9];
    let mut left = i32::from(width);
    let mut columns: Vec<usize> = BY_WORTH
        .into_iter()
        .take_while(|&n| {
            left -= i32::from(HEADS[n].1) + 1;
            left >= 0
        })
        .collect();
    columns.sort_unstable();
    columns
}

/// The cells of a process. "-" stands for a figure that only the library knows.
pub fn cells(process: &Process) -> [String; HEADS.len()] {
    let rate = |rate: Option<f64>| rate.map_or("-".into(), short);
    let device = match &process.devices[..] {
        [] => "-".into(),
        [one] => one.device.clone(),
        [first, ..] => format!("{} +{}", first.device, process.devices.len() - 1),
    };
    let all = |hits: u64| hits + process.registrations.unwrap_or(0);
    let hits = process.hits.map(|hits| match all(hits) {
        0 => "-".into(),
        all => format!("{:.0} %", 100.0 * hits as f64 / all as f64),
    });
    let time = process.registration_seconds;
    [
        process.pid.to_string(),
        process.rank.map_or("-".into(), |rank| rank.to_string()),
        device,
        process.regions.to_string(),
        units::bytes(process.in_use_bytes),
        if process.library {
            units::bytes(process.idle_bytes)
        } else {
            "-".into()
        },
        rate(process.registrations_per_second),
        rate(process.hits_per_second),
        hits.unwrap_or("-".into()),
        time.map_or("-".into(), |time| units::time((time * 1e9) as u64)),
        if process.library {
            process.command.clone()
        } else {
            format!("{} (no library)", process.command)
        },
    ]
}

/// A rate in few characters.
fn short(rate: f64) -> String {
    match rate {
        rate if rate < 10_000.0 => format!("{rate:.0}"),
        rate if rate < 10e6 => format!("{:.0} k", rate / 1e3),
        rate => format!("{:.0} M", rate / 1e6),
    }
}

/// The registrations of GPUs' memory, of a process that has made some.
fn of_gpus(process: &Process) -> Option<String> {
    let counter = |name| process.counters.get(name).copied().unwrap_or(0);
    let (registered, failed) = (counter("reg_gpu"), counter("reg_gpu_failed"));
    (registered + failed > 0)
        .then(|| format!("memory of GPUs: {registered} registered as a dma-buf, {failed} failed"))
}

/// A limit in words: the used amount, and the most.
pub fn words(limit: &Limit) -> String {
    let amount = |amount: u64| {
        if limit.bytes {
            units::bytes(amount)
        } else {
            amount.to_string()
        }
    };
    format!("{} of {}", amount(limit.used), amount(limit.most))
}

/// The name of a limit, and of its device.
pub fn name(limit: &Limit) -> String {
    let device = limit.device.iter().map(|device| format!(" of {device}"));
    limit.name.to_owned() + &device.collect::<String>()
}

/// The part of a limit that is used, from 0 to 1.
pub fn share(limit: &Limit) -> f64 {
    if limit.most == 0 {
        return 1.0;
    }
    (limit.used as f64 / limit.most as f64).clamp(0.0, 1.0)
}

/// What the process has registered past the library, in words.
fn past(process: &Process) -> Option<String> {
    let counter = |name: &str| process.counters.get(name).copied().unwrap_or(0);
    let registrations = counter("reg_past");
    (registrations > 0).then(|| {
        format!(
            "registered past the library so far: {} of {}, by libmlx5",
            units::plural(registrations, "registration", "registrations"),
            units::bytes(counter("reg_past_bytes"))
        )
    })
}

/// The lines on a process beside its devices and limits: GPUs' memory, and past the library.
pub fn notes(process: &Process) -> impl Iterator<Item = String> {
    [of_gpus(process), past(process)].into_iter().flatten()
}

/// The sums over all processes.
pub fn summary(sample: &Sample) -> String {
    let sum =
        |of: fn(&Process) -> u64| sample.processes.iter().map(of).fold(0, u64::saturating_add);
    format!(
        "{}: {} processes, {} regions, {} registered, {} of them idle",
        sample.host,
        sample.processes.len(),
        sum(|process| process.regions),
        units::bytes(sum(|process| process.bytes)),
        units::bytes(sum(|process| process.idle_bytes)),
    )
}

/// The table as text, for `--once`.
pub fn text(sample: &Sample) -> String {
    let mut text = summary(sample) + "\n";
    let rows: Vec<_> = sample.processes.iter().map(cells).collect();
    let heads = HEADS.map(|head| head.0.to_owned());
    let mut widths = HEADS.map(|head| usize::from(head.1));
    for row in std::iter::once(&heads).chain(&rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let last = HEADS.len() - 1;
    for row in std::iter::once(&heads).chain(&rows) {
        for (n, (width, cell)) in widths.iter().zip(row).enumerate() {
            let _ = match n {
                n if n == last => writeln!(text, "{cell}"),
                1 | 2 => write!(text, "{cell:<width$} "),
                _ => write!(text, "{cell:>width$} "),
            };
        }
    }
    for process in &sample.processes {
        for words in notes(process) {
            let _ = writeln!(text, "{}: {words}", process.pid);
        }
        for limit in &process.limits {
            let bar = bar(share(limit));
            let _ = writeln!(
                text,
                "{}: {} {bar} {}",
                process.pid,
                name(limit),
                words(limit)
            );
        }
    }
    if let Some(why) = &sample.kernel_error {
        let _ = writeln!(text, "The kernel does not list regions: {why}");
    }
    text
}

fn bar(share: f64) -> String {
    const WIDTH: usize = 20;
    let full = (share * WIDTH as f64).round() as usize;
    format!("[{}{}]", "#".repeat(full), ".".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_comes_round() {
        let mut column = Column::Bytes;
        for wanted in Column::value_variants() {
            assert!(column == *wanted);
            column = column.next();
        }
        assert!(column == Column::Bytes);
    }

    #[test]
    fn a_narrow_terminal_has_the_process_and_its_command() {
        assert_eq!(columns(40), [0, 4, 10]);
        assert_eq!(columns(80).len(), 8);
        assert_eq!(columns(120).len(), HEADS.len());
    }

    #[test]
    fn memory_of_gpus_has_a_line() {
        let mut process = Process::default();
        assert_eq!(of_gpus(&process), None);
        process.counters.insert("reg_gpu".into(), 0);
        process.counters.insert("reg_gpu_failed".into(), 0);
        assert_eq!(of_gpus(&process), None);
        process.counters.insert("reg_gpu_failed".into(), 2);
        let words = "memory of GPUs: 0 registered as a dma-buf, 2 failed";
        assert_eq!(of_gpus(&process).as_deref(), Some(words));
    }

    #[test]
    fn a_limit_of_nothing_is_used_up() {
        let limit = |used, most| Limit {
            name: "memory.max",
            device: None,
            bytes: true,
            used,
            most,
        };
        assert_eq!(share(&limit(0, 0)), 1.0);
        assert_eq!(share(&limit(3, 2)), 1.0);
        assert_eq!(share(&limit(1, 4)), 0.25);
        assert_eq!(words(&limit(1 << 20, 1 << 30)), "1 MiB of 1 GiB");
        assert_eq!(bar(0.25).matches('#').count(), 5);
    }
}
