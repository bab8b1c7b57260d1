// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of processes: its order, its filter, its cells.

use super::sample::{Process, Sample};
use crate::limit::Limit;
use crate::report::units;
use crate::style;
use anstyle::Style;
use clap::ValueEnum;
use std::cmp::Ordering;
use std::fmt::Write;

/// What the table is sorted by.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Column {
    Calls,
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
            names.push(process.command_line.to_lowercase());
            names.extend(process.rank.map(|rank| format!("rank {rank}")));
            let devices = process.devices.iter();
            names.extend(devices.map(|of| of.device.to_lowercase()));
            names.iter().any(|name| name.contains(&words))
        });
        let rate = |process: &Process| process.registrations_per_second.unwrap_or(0.0);
        let busy = |process: &Process| process.registering.unwrap_or(0.0);
        let time = |process: &Process| process.registration_seconds.unwrap_or(0.0);
        let order = |a: &Process, b: &Process| match self.sort {
            Column::Calls => busy(b).total_cmp(&busy(a)).then(b.bytes.cmp(&a.bytes)),
            Column::Bytes => b.bytes.cmp(&a.bytes),
            Column::Idle => b.idle_bytes.cmp(&a.idle_bytes),
            Column::Regions => b.regions.cmp(&a.regions),
            Column::Rate => rate(b).total_cmp(&rate(a)),
            Column::Hits => b.hits.cmp(&a.hits),
            Column::Time => time(b).total_cmp(&time(a)),
            Column::Pid => Ordering::Equal,
        };
        processes.sort_by(|a, b| order(a, b).then(a.pid.cmp(&b.pid)));
        if self.reversed {
            processes.reverse();
        }
    }
}

/// The heads of the columns, and the least width of each.
pub const HEADS: [(&str, u16); 12] = [
    ("PID", 7),
    ("RANK", 5),
    ("DEVICE", 10),
    ("REGIONS", 8),
    ("IN USE", 9),
    ("IDLE", 9),
    ("REG/S", 7),
    ("HITS/S", 7),
    ("HITS", 6),
    ("% IN CALLS", 11),
    ("TIME", 8),
    ("COMMAND", 14),
];
/// The columns whose colour says how bad it is.
pub const IN_USE: usize = 4;
pub const IN_CALLS: usize = 9;
pub const COMMAND: usize = HEADS.len() - 1;

pub fn is_number(column: usize) -> bool {
    !matches!(column, 1 | 2 | COMMAND)
}

/// The room for the command, behind the other columns that are shown.
pub fn room(shown: &[usize], width: usize) -> usize {
    let others = shown.iter().filter(|&&n| n != COMMAND);
    let others: u16 = others.map(|&n| HEADS[n].1 + 1).sum();
    width.saturating_sub(others.into())
}

/// The columns that a terminal of this width shows: the last of this list go first.
pub fn columns(width: u16) -> Vec<usize> {
    const BY_WORTH: [usize; HEADS.len()] = [0, 11, 4, 9, 10, 6, 7, 5, 3, 2, 1, 8];
    let mut left = i32::from(width);
    let mut columns = BY_WORTH.to_vec();
    columns.retain(|&n| {
        left -= i32::from(HEADS[n].1) + 1;
        left >= 0
    });
    columns.sort_unstable();
    columns
}

/// How bad a figure is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    Good,
    Doubtful,
    Bad,
}

impl Severity {
    /// Of a share that is doubtful, or bad, from these on.
    pub fn of(share: f64, doubtful: f64, bad: f64) -> Severity {
        match share {
            share if share >= bad => Severity::Bad,
            share if share >= doubtful => Severity::Doubtful,
            _ => Severity::Good,
        }
    }

    /// Of the use of a limit.
    pub fn of_limit(limit: &Limit) -> Severity {
        Severity::of(share(limit), 0.7, 0.9)
    }

    /// Of a cell: the time in calls, and the registered memory by the fullest limit.
    pub fn of_cell(process: &Process, column: usize) -> Severity {
        match column {
            IN_CALLS => Severity::of(process.registering.unwrap_or(0.0), 0.05, 0.2),
            IN_USE => {
                let limits = process.limits.iter().map(Severity::of_limit);
                limits.max().unwrap_or(Severity::Good)
            }
            _ => Severity::Good,
        }
    }
}

/// The cells of a process. "-" stands for a figure that only the library knows. `room` is the width
/// of the command: the whole command line, if it has room for more than a name.
pub fn cells(process: &Process, room: usize) -> [String; HEADS.len()] {
    let rate = |rate: Option<f64>| rate.map_or("-".into(), short);
    let device = match &process.devices[..] {
        [] => "-".into(),
        [one] => one.device.clone(),
        [first, ..] => format!("{} +{}", first.device, process.devices.len() - 1),
    };
    let all = |hits: u64| hits.saturating_add(process.registrations.unwrap_or(0));
    let hits = process.hits.map(|hits| match all(hits) {
        0 => "-".into(),
        all => format!("{:.0} %", 100.0 * hits as f64 / all as f64),
    });
    let idle = process.library.then(|| units::bytes(process.idle_bytes));
    let (part, time) = (process.registering, process.registration_seconds);
    [
        process.pid.to_string(),
        process.rank.map_or("-".into(), |rank| rank.to_string()),
        device,
        process.regions.to_string(),
        units::bytes(process.in_use_bytes),
        idle.unwrap_or("-".into()),
        rate(process.registrations_per_second),
        rate(process.hits_per_second),
        hits.unwrap_or("-".into()),
        part.map_or("-".into(), |part| format!("{:.1} %", 100.0 * part)),
        time.map_or("-".into(), |time| units::time((time * 1e9) as u64)),
        command(process, room),
    ]
}

fn command(process: &Process, room: usize) -> String {
    const OF_A_LINE: usize = 30;
    let is_whole = room >= OF_A_LINE && !process.command_line.is_empty();
    let words = match is_whole {
        true => &process.command_line,
        false => &process.command,
    };
    let about = match (process.library, process.library_mapped) {
        _ if process.no_answer => "does not answer",
        (true, _) => return words.clone(),
        (_, Some(false)) => "no library",
        // RDMAMR_LIVE=0, or no folder for its page.
        (_, Some(true)) => "no counters",
        (_, None) => "library not known",
    };
    format!("{words} ({about})")
}

/// A rate in few characters.
fn short(rate: f64) -> String {
    match rate {
        rate if rate < 10_000.0 => format!("{rate:.0}"),
        rate if rate < 10e6 => format!("{:.0} k", rate / 1e3),
        rate => format!("{:.0} M", rate / 1e6),
    }
}

/// The name of a limit, and of its device.
pub fn name(limit: &Limit) -> String {
    let device = limit.device.iter().map(|device| format!(" of {device}"));
    limit.name.to_string() + &device.collect::<String>()
}

/// The part of a limit that is used, from 0 to 1.
pub fn share(limit: &Limit) -> f64 {
    if limit.most == 0 {
        return 1.0;
    }
    (limit.used as f64 / limit.most as f64).clamp(0.0, 1.0)
}

/// The lines on a process beside its devices and limits: GPUs' memory, past the library.
pub fn notes(process: &Process) -> impl Iterator<Item = String> {
    let counter = |name| process.counters.get(name).copied().unwrap_or(0);
    let (registered, failed) = (counter("reg_gpu"), counter("reg_gpu_failed"));
    let gpus = (registered + failed > 0)
        .then(|| format!("memory of GPUs: {registered} registered as a dma-buf, {failed} failed"));
    let past = counter("reg_past");
    let past = (past > 0).then(|| {
        format!(
            "registered past the library so far: {} of {}, by libmlx5",
            units::plural(past, "registration", "registrations"),
            units::bytes(counter("reg_past_bytes"))
        )
    });
    [gpus, past].into_iter().flatten()
}

/// The sums over all processes.
pub fn summary(sample: &Sample) -> String {
    let sum =
        |of: fn(&Process) -> u64| sample.processes.iter().map(of).fold(0, u64::saturating_add);
    format!(
        "{}: {}, {}, {} registered, {} of them idle",
        sample.host,
        units::plural(sample.processes.len() as u64, "process", "processes"),
        units::plural(sum(|process| process.regions), "region", "regions"),
        units::bytes(sum(|process| process.bytes)),
        units::bytes(sum(|process| process.idle_bytes)),
    )
}

/// The lines below the processes: each device's pools of keys, why the kernel lists no regions, and why
/// processes have no page.
pub fn below(sample: &Sample) -> Vec<String> {
    let pools = sample.devices.iter().filter_map(|device| {
        let pools = device.key_pools.as_ref()?;
        Some(format!("{}: {}", device.name, pools.words()))
    });
    let why = sample.kernel_error.iter();
    let why = why.map(|why| format!("The kernel does not list regions: {why}"));
    pools.chain(why).chain(sample.notes.clone()).collect()
}

/// The table as text, for `--once`.
pub fn text(sample: &Sample) -> String {
    let mut text = summary(sample) + "\n";
    // A reader that is no terminal gets all columns, and the name of the command alone.
    let shown = match style::width() {
        Some(width) => columns(width as u16),
        None => (0..HEADS.len()).collect(),
    };
    let room = room(&shown, style::columns());
    let heads = HEADS.map(|head| head.0.to_owned());
    let row = |process| (cells(process, room), Some(process));
    let mut rows = vec![(heads, None)];
    rows.extend(sample.processes.iter().map(row));
    let widths = std::array::from_fn::<_, { HEADS.len() }, _>(|n| {
        let cells = rows.iter().map(|(cells, _)| cells[n].chars().count());
        cells.fold(HEADS[n].1.into(), usize::max)
    });
    for (cells, process) in &rows {
        for &n in &shown {
            let (width, cell) = (widths[n], &cells[n]);
            let colour = match process.map(|process| Severity::of_cell(process, n)) {
                None | Some(Severity::Good) => Style::new(),
                Some(Severity::Doubtful) => style::DOUBTFUL,
                Some(Severity::Bad) => style::BAD,
            };
            let _ = match n {
                COMMAND => writeln!(text, "{cell}"),
                n if is_number(n) => write!(text, "{colour}{cell:>width$}{colour:#} "),
                _ => write!(text, "{cell:<width$} "),
            };
        }
    }
    for process in &sample.processes {
        for words in notes(process) {
            let _ = writeln!(text, "{}: {words}", process.pid);
        }
        for limit in &process.limits {
            let _ = writeln!(text, "{}: {}: {limit}", process.pid, name(limit));
        }
    }
    for line in below(sample) {
        let _ = writeln!(text, "{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Pools;
    use super::super::sample::{Device, Memory};
    use super::*;

    #[test]
    fn a_narrow_terminal_has_the_process_and_its_command() {
        assert_eq!(columns(40), [0, IN_USE, 11]);
        let names = columns(80).into_iter().map(|n| HEADS[n].0);
        let names: Vec<_> = names.collect();
        assert_eq!(
            names,
            [
                "PID",
                "IN USE",
                "IDLE",
                "REG/S",
                "HITS/S",
                "% IN CALLS",
                "TIME",
                "COMMAND"
            ]
        );
        assert_eq!(columns(120).len(), HEADS.len());
    }

    #[test]
    fn the_busiest_process_comes_first_and_is_red() {
        let process = |pid, registering, bytes| Process {
            pid,
            registering,
            bytes,
            ..Process::default()
        };
        let mut processes = vec![
            process(1, None, 5),
            process(2, Some(0.06), 1),
            process(3, Some(0.5), 1),
            process(4, None, 9),
        ];
        let view = View {
            sort: Column::Calls,
            reversed: false,
            filter: String::new(),
        };
        view.apply(&mut processes);
        let pids: Vec<_> = processes.iter().map(|process| process.pid).collect();
        assert_eq!(pids, [3, 2, 4, 1]);
        let of = |n: usize| Severity::of_cell(&processes[n], IN_CALLS);
        assert_eq!(
            (of(0), of(1), of(2)),
            (Severity::Bad, Severity::Doubtful, Severity::Good)
        );
        assert_eq!(cells(&processes[0], 15)[IN_CALLS], "50.0 %");
    }

    #[test]
    fn the_whole_command_line_is_shown_where_there_is_room() {
        let process = Process {
            command: "kv.py".into(),
            command_line: "python3 kv.py --port 5".into(),
            library: true,
            ..Process::default()
        };
        let last = |room: usize| cells(&process, room)[COMMAND].clone();
        assert_eq!(last(15), "kv.py");
        assert_eq!(last(40), "python3 kv.py --port 5");
    }

    #[test]
    fn the_library_of_another_users_process_is_not_known() {
        let shown = |library, library_mapped| {
            let process = Process {
                command: "app".into(),
                library,
                library_mapped,
                ..Process::default()
            };
            cells(&process, 0)[COMMAND].clone()
        };
        assert_eq!(shown(true, None), "app");
        assert_eq!(shown(false, Some(false)), "app (no library)");
        assert_eq!(shown(false, Some(true)), "app (no counters)");
        assert_eq!(shown(false, None), "app (library not known)");
        let silent = Process {
            no_answer: true,
            ..Process::default()
        };
        assert_eq!(cells(&silent, 0)[COMMAND], " (does not answer)");
    }

    #[test]
    fn memory_of_gpus_has_a_line() {
        let mut process = Process::default();
        assert_eq!(notes(&process).next(), None);
        process.counters.insert("reg_gpu".into(), 0);
        process.counters.insert("reg_gpu_failed".into(), 0);
        assert_eq!(notes(&process).next(), None);
        process.counters.insert("reg_gpu_failed".into(), 2);
        let words = "memory of GPUs: 0 registered as a dma-buf, 2 failed";
        assert_eq!(notes(&process).collect::<Vec<_>>(), [words]);
    }

    #[test]
    fn pools_of_keys_have_a_line_and_are_in_the_json() {
        let mut sample = Sample::take(&mut Memory::default());
        // Of this machine.
        sample.notes.clear();
        sample.kernel_error = Some("why".into());
        let mut device = Device {
            name: "mlx5_0".into(),
            regions: 3,
            bytes: 4096,
            most_regions: None,
            key_pools: None,
        };
        let json = |device: &Device| serde_json::to_value(device).unwrap()["key_pools"].clone();
        assert!(json(&device).is_null());
        device.key_pools = Some(Pools {
            pools: 2,
            queue: 8,
            in_use: 3,
            max_in_use: 5,
            pinned: 1,
        });
        let names = ["pools", "queue", "in_use", "max_in_use", "pinned"];
        assert_eq!(
            names.map(|name| json(&device)[name].as_u64().unwrap()),
            [2, 8, 3, 5, 1]
        );
        sample.devices = vec![device];
        let lines = [
            "mlx5_0: 8 keys at hand in 2 pools, 1 pinned; 3 in use, at most 5 so far",
            "The kernel does not list regions: why",
        ];
        assert_eq!(below(&sample), lines);
        assert!(text(&sample).ends_with(&(lines.join("\n") + "\n")));
    }

    #[test]
    fn a_limit_of_nothing_is_used_up() {
        let limit = |used, most| Limit {
            name: "memory.max".into(),
            device: None,
            bytes: true,
            used,
            most,
        };
        assert_eq!(share(&limit(0, 0)), 1.0);
        assert_eq!(share(&limit(3, 2)), 1.0);
        assert_eq!(share(&limit(1, 4)), 0.25);
        assert_eq!(limit(1 << 20, 1 << 30).to_string(), "1 MiB of 1 GiB");
    }
}
