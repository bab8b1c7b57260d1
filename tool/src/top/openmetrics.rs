// SPDX-License-Identifier: MIT OR Apache-2.0
//! A sample as OpenMetrics, and in the older text format of Prometheus, which node_exporter's
//! textfile collector reads: there a counter has the name of its samples, and the unit and the end
//! are missing.

use super::limits::Limit;
use super::sample::{Device, OfDevice, Process, Sample};
use std::fmt::Write;

/// The format of the text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Prometheus,
}

type States = Vec<(&'static str, Option<u64>)>;

/// The values of a family.
enum Values {
    /// Of each process on each device, by state if there is one.
    OfDevices(fn(&OfDevice) -> States),
    OfProcesses(fn(&Process) -> Option<f64>),
    /// Of each limit on bytes, or on a device's objects, by [`Limit::bytes`].
    OfLimits(bool, fn(&Limit) -> u64),
    /// Of each device, for all processes.
    Devices(fn(&Device) -> Option<u64>),
    Processes,
}

use Values::*;

const BYTES: bool = true;
const OBJECTS: bool = false;
const COUNTER: &str = "counter";
/// A value that may go down.
const GAUGE: &str = "gauge";

/// The most processes that have series of their own: those with the most registered bytes.
const MOST: usize = 1000;

/// Each family: its name, its kind, its unit, its words and its values.
#[rustfmt::skip]
const FAMILIES: [(&str, &str, &str, &str, Values); 18] = [
    ("rdmamr_processes", GAUGE, "", "Processes with registrations. Only the 1000 largest have series of their own.",
        Processes),
    ("rdmamr_registrations", COUNTER, "", "Registrations by the kernel and by libibverbs.",
        OfDevices(|of| vec![("", of.registrations)])),
    ("rdmamr_regions", GAUGE, "", "Regions that are registered.",
        OfDevices(|of| states(of.regions, of.idle_regions))),
    ("rdmamr_registered_bytes", GAUGE, "bytes", "The sum of the lengths of the regions that are registered.",
        OfDevices(|of| states(of.bytes, of.idle_bytes))),
    ("rdmamr_hits", COUNTER, "", "Registrations that a cached region served.",
        OfProcesses(|process| counter(process, "hits"))),
    ("rdmamr_misses", COUNTER, "", "Registrations for which the cache made a new region.",
        OfProcesses(|process| counter(process, "misses"))),
    ("rdmamr_failures", COUNTER, "", "Registrations that failed.",
        OfProcesses(|process| counter(process, "reg_failed"))),
    ("rdmamr_gpu_registrations", COUNTER, "", "Registrations of a GPU's memory as a dma-buf.",
        OfProcesses(|process| counter(process, "reg_gpu"))),
    ("rdmamr_gpu_failures", COUNTER, "", "Registrations of a GPU's memory that failed.",
        OfProcesses(|process| counter(process, "reg_gpu_failed"))),
    ("rdmamr_past_registrations", COUNTER, "", "Registrations past the library, by libmlx5.",
        OfProcesses(|process| counter(process, "reg_past"))),
    ("rdmamr_registration_seconds", COUNTER, "seconds", "The time that registrations took in the kernel.",
        OfProcesses(|process| process.registration_seconds)),
    ("rdmamr_limit_bytes", GAUGE, "bytes", "A limit on memory that holds for the process.",
        OfLimits(BYTES, |limit| limit.most)),
    ("rdmamr_limit_used_bytes", GAUGE, "bytes", "How much of the limit is used, by all that count.",
        OfLimits(BYTES, |limit| limit.used)),
    ("rdmamr_limit_objects", GAUGE, "objects", "A limit on a device's objects that holds for the process.",
        OfLimits(OBJECTS, |limit| limit.most)),
    ("rdmamr_limit_used_objects", GAUGE, "objects", "How much of the limit is used, by all that count.",
        OfLimits(OBJECTS, |limit| limit.used)),
    ("rdmamr_device_regions", GAUGE, "", "Regions of all processes on the device.",
        Devices(|device| Some(device.regions))),
    ("rdmamr_device_registered_bytes", GAUGE, "bytes", "The sum of their lengths.",
        Devices(|device| Some(device.bytes))),
    ("rdmamr_device_limit_regions", GAUGE, "", "The most regions that the device can have.",
        Devices(|device| device.most_regions)),
];

fn states(all: u64, idle: u64) -> States {
    let in_use = all.saturating_sub(idle);
    vec![("in_use", Some(in_use)), ("idle", Some(idle))]
}

fn counter(process: &Process, name: &str) -> Option<f64> {
    Some(*process.counters.get(name)? as f64)
}

/// Writes a sample.
pub fn render(sample: &Sample, format: Format) -> String {
    let mut text = String::new();
    for (name, kind, unit, help, values) in &FAMILIES {
        let total = if *kind == COUNTER { "_total" } else { "" };
        let end = match format {
            Format::OpenMetrics => "",
            Format::Prometheus => total,
        };
        let _ = writeln!(text, "# HELP {name}{end} {help}");
        let _ = writeln!(text, "# TYPE {name}{end} {kind}");
        if format == Format::OpenMetrics && !unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        values.of(sample, |labels, value| {
            let labels: Vec<_> = labels
                .iter()
                .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
                .collect();
            let _ = writeln!(text, "{name}{total}{{{}}} {value}", labels.join(","));
        });
    }
    if format == Format::OpenMetrics {
        text += "# EOF\n";
    }
    text
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

impl Values {
    /// Calls `put` with the labels of each value and the value.
    fn of(&self, sample: &Sample, mut put: impl FnMut(Labels, f64)) {
        if let Devices(value) = self {
            for device in &sample.devices {
                if let Some(value) = value(device) {
                    put(vec![("device", &device.name)], value as f64);
                }
            }
            return;
        }
        if let Processes = self {
            return put(Vec::new(), sample.processes.len() as f64);
        }
        for process in sample.processes.iter().take(MOST) {
            let number = |number: Option<u64>| number.map_or(String::new(), |it| it.to_string());
            let pid = process.pid.to_string();
            let (user, rank) = (number(process.user.map(u64::from)), number(process.rank));
            let mut put = |more: Labels, value: f64| {
                let library = match (process.library, process.library_mapped) {
                    (true, _) => "yes",
                    (_, Some(_)) => "no",
                    (_, None) => "not_known",
                };
                let mut labels: Labels = vec![
                    ("pid", &pid),
                    ("command", &process.command),
                    ("user", &user),
                    ("library", library),
                ];
                let job = process.job.as_deref().unwrap_or_default();
                let more = [("rank", &*rank), ("job", job)].into_iter().chain(more);
                labels.extend(more.filter(|(_, value)| !value.is_empty()));
                put(labels, value);
            };
            match self {
                OfDevices(values) => {
                    for of in &process.devices {
                        for (state, value) in values(of) {
                            if let Some(value) = value {
                                put(vec![("device", &of.device), ("state", state)], value as f64);
                            }
                        }
                    }
                }
                OfProcesses(value) => {
                    if let Some(value) = value(process) {
                        put(Vec::new(), value);
                    }
                }
                OfLimits(bytes, value) => {
                    for (limit, device) in tightest(process, *bytes) {
                        put(
                            vec![("limit", limit.name), ("device", device)],
                            value(limit) as f64,
                        );
                    }
                }
                Devices(_) | Processes => {}
            }
        }
    }
}

/// The limits of a process, each with its device. The process has a limit in each of the groups
/// that it is in: the tightest counts.
fn tightest(process: &Process, bytes: bool) -> Vec<(&Limit, &str)> {
    let mut limits: Vec<_> = process.limits.iter().collect();
    limits.retain(|limit| limit.bytes == bytes);
    limits.sort_by_key(|limit| limit.most.saturating_sub(limit.used));
    let mut tightest: Vec<(&Limit, &str)> = Vec::new();
    for limit in limits {
        let device = limit.device.as_deref().unwrap_or("");
        let is_same = |of: &(&Limit, &str)| (of.0.name, of.1) == (limit.name, device);
        if !tightest.iter().any(is_same) {
            tightest.push((limit, device));
        }
    }
    tightest
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
    use crate::top::limits;

    #[test]
    fn the_number_of_series_is_bounded() {
        let mut sample = Sample::take(&mut limits::Devices::default());
        sample.processes = vec![Process::default(); MOST + 500];
        for process in &mut sample.processes {
            process.counters.insert("hits".into(), 1);
        }
        let text = render(&sample, Format::OpenMetrics);
        assert_eq!(text.matches("\nrdmamr_hits_total{").count(), MOST);
        assert!(text.contains("\nrdmamr_processes{} 1500\n"));
    }
}
