// SPDX-License-Identifier: MIT OR Apache-2.0
//! A sample as OpenMetrics, and in the older text format of Prometheus, which node_exporter's
//! textfile collector reads: there a counter has the name of its samples, and the unit and the end
//! are missing.

use super::sample::{Device, OfDevice, Process, Sample};
use crate::limit::Limit;
use std::collections::HashSet;
use std::fmt::Write;

/// The format of the text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Prometheus,
}

type Labels<'a> = Vec<(&'static str, &'a str)>;
/// Values with the labels of each.
type Series<'a> = Vec<(Labels<'a>, f64)>;

/// Values with the text of their labels.
type Values = Vec<(String, f64)>;
type Of = fn(&Shown) -> Values;

/// A sample, and those of its processes that have series of their own.
struct Shown<'a> {
    sample: &'a Sample,
    processes: &'a [Process],
}

const PROCESSES: &str = "rdmamr_processes";
const BYTES: bool = true;
const OBJECTS: bool = false;
const COUNTER: &str = "counter";
/// A value that may go down.
const GAUGE: &str = "gauge";

/// The most processes that have series of their own: those with the most registered bytes.
const MOST: usize = 1000;
/// The most bytes of the text. A thousand processes on two devices take 6 MB. A user who chooses names
/// and devices to take the most room makes it ten times as long, and a scraper reads it every 15 s.
const LONGEST: usize = 16 << 20;

/// Each family: its name, its kind, its unit, its words and its values.
#[rustfmt::skip]
const FAMILIES: [(&str, &str, &str, &str, Of); 18] = [
    (PROCESSES, GAUGE, "", "Processes with registrations.",
        |shown| vec![(String::new(), shown.sample.processes.len() as f64)]),
    ("rdmamr_registrations", COUNTER, "", "Registrations by the kernel and by libibverbs.",
        |shown| each(shown, registrations)),
    ("rdmamr_regions", GAUGE, "", "Regions that are registered.",
        |shown| each(shown, |process| states(process, |of| (of.regions, of.idle_regions)))),
    ("rdmamr_registered_bytes", GAUGE, "bytes", "The sum of the lengths of the regions that are registered.",
        |shown| each(shown, |process| states(process, |of| (of.bytes, of.idle_bytes)))),
    ("rdmamr_hits", COUNTER, "", "Registrations that a cached region served.",
        |shown| each(shown, |process| counter(process, "hits"))),
    ("rdmamr_misses", COUNTER, "", "Registrations for which the cache made a new region.",
        |shown| each(shown, |process| counter(process, "misses"))),
    ("rdmamr_failures", COUNTER, "", "Registrations that failed.",
        |shown| each(shown, |process| counter(process, "reg_failed"))),
    ("rdmamr_gpu_registrations", COUNTER, "", "Registrations of a GPU's memory as a dma-buf.",
        |shown| each(shown, |process| counter(process, "reg_gpu"))),
    ("rdmamr_gpu_failures", COUNTER, "", "Registrations of a GPU's memory that failed.",
        |shown| each(shown, |process| counter(process, "reg_gpu_failed"))),
    ("rdmamr_past_registrations", COUNTER, "", "Registrations past the library, by libmlx5.",
        |shown| each(shown, |process| counter(process, "reg_past"))),
    ("rdmamr_registration_seconds", COUNTER, "seconds", "The time that registrations took in the kernel.",
        |shown| each(shown, |process| one(process.registration_seconds))),
    ("rdmamr_limit_bytes", GAUGE, "bytes", "A limit on memory that holds for the process.",
        |shown| each(shown, |process| limits(process, BYTES, |limit| limit.most))),
    ("rdmamr_limit_used_bytes", GAUGE, "bytes", "How much of the limit is used, by all that count.",
        |shown| each(shown, |process| limits(process, BYTES, |limit| limit.used))),
    ("rdmamr_limit_objects", GAUGE, "objects", "A limit on a device's objects that holds for the process.",
        |shown| each(shown, |process| limits(process, OBJECTS, |limit| limit.most))),
    ("rdmamr_limit_used_objects", GAUGE, "objects", "How much of the limit is used, by all that count.",
        |shown| each(shown, |process| limits(process, OBJECTS, |limit| limit.used))),
    ("rdmamr_device_regions", GAUGE, "", "Regions of all processes on the device.",
        |shown| devices(shown, |device| Some(device.regions))),
    ("rdmamr_device_registered_bytes", GAUGE, "bytes", "The sum of their lengths.",
        |shown| devices(shown, |device| Some(device.bytes))),
    ("rdmamr_device_limit_regions", GAUGE, "", "The most regions that the device can have.",
        |shown| devices(shown, |device| device.most_regions)),
];

fn one<'a>(value: Option<f64>) -> Series<'a> {
    Vec::from_iter(value.map(|value| (Vec::new(), value)))
}

fn counter<'a>(process: &Process, name: &str) -> Series<'a> {
    one(process.counters.get(name).map(|&value| value as f64))
}

fn registrations(process: &Process) -> Series<'_> {
    let devices = process.devices.iter();
    let series =
        devices.filter_map(|of| Some((vec![("device", &*of.device)], of.registrations? as f64)));
    series.collect()
}

/// What is in use, and what is idle, on each device; `of` has all and what is idle.
fn states(process: &Process, of: fn(&OfDevice) -> (u64, u64)) -> Series<'_> {
    let states = process.devices.iter().flat_map(|device| {
        let (all, idle) = of(device);
        let states = [("in_use", all.saturating_sub(idle)), ("idle", idle)];
        states.map(|(state, value)| {
            let labels = vec![("device", &*device.device), ("state", state)];
            (labels, value as f64)
        })
    });
    states.collect()
}

/// Writes a sample. Where the text would be too long, fewer processes have series.
pub fn render(sample: &Sample, format: Format) -> String {
    let mut processes = &sample.processes[..sample.processes.len().min(MOST)];
    loop {
        let text = text(&Shown { sample, processes }, format);
        if text.len() <= LONGEST || processes.is_empty() {
            return text;
        }
        processes = &processes[..processes.len() / 2];
    }
}

fn text(shown: &Shown, format: Format) -> String {
    let mut text = String::new();
    let (with_series, all) = (shown.processes.len(), shown.sample.processes.len());
    for (name, kind, unit, help, values) in &FAMILIES {
        let total = if *kind == COUNTER { "_total" } else { "" };
        let end = match format {
            Format::OpenMetrics => "",
            Format::Prometheus => total,
        };
        let _ = write!(text, "# HELP {name}{end} {help}");
        // OpenMetrics has no other comments.
        if *name == PROCESSES && with_series < all {
            let _ = write!(text, " Only the {with_series} largest have series here");
            let _ = match with_series {
                MOST => write!(text, "."),
                _ => write!(
                    text,
                    ": with more the text would exceed {} MiB.",
                    LONGEST >> 20
                ),
            };
        }
        let _ = writeln!(text, "\n# TYPE {name}{end} {kind}");
        if format == Format::OpenMetrics && !unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        for (labels, value) in values(shown) {
            let _ = writeln!(text, "{name}{total}{{{labels}}} {value}");
        }
    }
    if format == Format::OpenMetrics {
        text += "# EOF\n";
    }
    text
}

/// The values of each process.
fn each(shown: &Shown, of: fn(&Process) -> Series) -> Values {
    let values = shown.processes.iter().flat_map(|process| {
        let library = match (process.library, process.library_mapped) {
            (true, _) => "yes",
            (_, Some(_)) => "no",
            (_, None) => "not_known",
        };
        let pid = process.pid.to_string();
        let rank = process.rank.map_or(String::new(), |it| it.to_string());
        let user = process.user.map_or(String::new(), |it| it.to_string());
        let job = process.job.as_deref().unwrap_or_default();
        let values = of(process).into_iter().map(|(more, value)| {
            let mut labels: Labels = vec![("pid", &pid), ("command", &process.command)];
            labels.extend([("user", &*user), ("library", library)]);
            labels.extend([("rank", &*rank), ("job", job)]);
            labels.extend(more);
            (words(&labels), value)
        });
        values.collect::<Values>()
    });
    values.collect()
}

/// The values of each device, for all processes.
fn devices(shown: &Shown, of: fn(&Device) -> Option<u64>) -> Values {
    let devices = shown.sample.devices.iter();
    let values = devices.filter_map(|it| Some((words(&[("device", &it.name)]), of(it)? as f64)));
    values.collect()
}

/// The text of labels. An empty one counts as a missing one.
fn words(labels: &[(&str, &str)]) -> String {
    let labels = labels.iter().filter(|(_, value)| !value.is_empty());
    let words = labels.map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    words.collect::<Vec<_>>().join(",")
}

/// The limits of a process, on bytes or on a device's objects. The process has a limit in each of the
/// groups that it is in: the tightest counts.
fn limits(process: &Process, bytes: bool, of: fn(&Limit) -> u64) -> Series<'_> {
    let mut limits: Vec<_> = process.limits.iter().collect();
    limits.retain(|limit| limit.bytes == bytes);
    limits.sort_by_key(|limit| limit.most.saturating_sub(limit.used));
    let mut seen = HashSet::new();
    let tightest = limits.into_iter().filter_map(|limit| {
        let device = limit.device.as_deref().unwrap_or("");
        let labels = vec![("limit", &*limit.name), ("device", device)];
        let is_first = seen.insert(labels.clone());
        is_first.then(|| (labels, of(limit) as f64))
    });
    tightest.collect()
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample::Memory;

    use crate::top::sample::OfDevice;

    fn sample(processes: Vec<Process>) -> Sample {
        let mut sample = Sample::take(&mut Memory::default());
        sample.processes = processes;
        sample
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let mut process = Process::default();
        process.counters.insert("hits".into(), 1);
        let text = render(&sample(vec![process; MOST + 500]), Format::OpenMetrics);
        assert_eq!(text.matches("\nrdmamr_hits_total{").count(), MOST);
        assert!(text.contains("\nrdmamr_processes{} 1500\n"));
        assert!(text.contains("Only the 1000 largest have series here.\n"));
    }

    #[test]
    fn the_length_of_the_text_is_bounded() {
        // Three bytes each.
        let name = "\u{fffd}".repeat(64);
        let of = |n| OfDevice {
            device: format!("{n}{name}"),
            registrations: Some(1),
            ..OfDevice::default()
        };
        let process = Process {
            command: name.clone(),
            devices: (0..16).map(of).collect(),
            ..Process::default()
        };
        let text = render(&sample(vec![process; MOST]), Format::Prometheus);
        assert!(text.len() <= LONGEST && text.len() > LONGEST / 3);
        let words = " largest have series here: with more the text would exceed 16 MiB.\n";
        assert!(text.contains(words));
        assert!(text.contains("\nrdmamr_processes{} 1000\n"));
    }
}
