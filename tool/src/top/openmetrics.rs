// SPDX-License-Identifier: MIT OR Apache-2.0
//! A sample as OpenMetrics, and in the older text format of Prometheus, which node_exporter's
//! textfile collector reads: there a counter is named as its samples, and there is no unit and no
//! end.

use super::sample::{OfDevice, Process, Sample};
use std::fmt::Write;

/// Which format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Prometheus,
}

struct Family {
    name: &'static str,
    kind: &'static str,
    unit: &'static str,
    help: &'static str,
}

/// A value that may go down.
const fn gauge(name: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind: "gauge",
        unit,
        help,
    }
}

/// Writes a sample.
pub fn render(sample: &Sample, format: Format) -> String {
    let mut out = Writer {
        text: String::new(),
        format,
    };
    out.of_devices(
        "rdmamr_registrations",
        "counter",
        "",
        "Registrations by the kernel and by libibverbs.",
        sample,
        |of| vec![("", of.registrations.map(|n| n as f64))],
    );
    out.of_devices(
        "rdmamr_regions",
        "gauge",
        "",
        "Regions that are registered.",
        sample,
        |of| {
            vec![
                (
                    "in_use",
                    Some(of.regions.saturating_sub(of.idle_regions) as f64),
                ),
                ("idle", Some(of.idle_regions as f64)),
            ]
        },
    );
    out.of_devices(
        "rdmamr_registered_bytes",
        "gauge",
        "bytes",
        "The sum of the lengths of the regions that are registered.",
        sample,
        |of| {
            vec![
                (
                    "in_use",
                    Some(of.bytes.saturating_sub(of.idle_bytes) as f64),
                ),
                ("idle", Some(of.idle_bytes as f64)),
            ]
        },
    );
    let counter =
        |name: &'static str| move |process: &Process| Some(*process.counters.get(name)? as f64);
    out.of_processes(
        "rdmamr_hits",
        "counter",
        "",
        "Registrations that a cached region served.",
        sample,
        counter("hits"),
    );
    out.of_processes(
        "rdmamr_misses",
        "counter",
        "",
        "Registrations for which a region was made that may be kept.",
        sample,
        counter("misses"),
    );
    out.of_processes(
        "rdmamr_failures",
        "counter",
        "",
        "Registrations that failed.",
        sample,
        counter("reg_failed"),
    );
    out.of_processes(
        "rdmamr_registration_seconds",
        "counter",
        "seconds",
        "The time that registrations took in the kernel.",
        sample,
        |process| process.registration_seconds,
    );
    out.limits(sample);
    out.devices(sample);
    if format == Format::OpenMetrics {
        out.text += "# EOF\n";
    }
    out.text
}

struct Writer {
    text: String,
    format: Format,
}

impl Writer {
    fn head(&mut self, family: &Family) {
        let Family {
            name,
            kind,
            unit,
            help,
        } = family;
        let total = self.end_of_name(kind);
        let _ = writeln!(self.text, "# HELP {name}{total} {help}");
        let _ = writeln!(self.text, "# TYPE {name}{total} {kind}");
        if self.format == Format::OpenMetrics && !unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
    }

    /// What the name of a family has behind it in its metadata.
    fn end_of_name(&self, kind: &str) -> &'static str {
        match self.format {
            Format::Prometheus if kind == "counter" => "_total",
            _ => "",
        }
    }

    fn value(&mut self, family: &Family, labels: &[(&str, &str)], value: f64) {
        let end = if family.kind == "counter" {
            "_total"
        } else {
            ""
        };
        let _ = write!(self.text, "{}{end}{{", family.name);
        for (n, (name, value)) in labels.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            let _ = write!(self.text, "{comma}{name}=\"{}\"", escaped(value));
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    #[allow(clippy::too_many_arguments, reason = "a row of a table")]
    fn of_devices(
        &mut self,
        name: &'static str,
        kind: &'static str,
        unit: &'static str,
        help: &'static str,
        sample: &Sample,
        values: impl Fn(&OfDevice) -> Vec<(&'static str, Option<f64>)>,
    ) {
        let family = Family {
            name,
            kind,
            unit,
            help,
        };
        self.head(&family);
        for process in &sample.processes {
            let who = Who::of(process);
            for of in &process.devices {
                for (state, value) in values(of) {
                    let Some(value) = value else { continue };
                    let mut labels = who.labels();
                    labels.push(("device", &of.device));
                    if !state.is_empty() {
                        labels.push(("state", state));
                    }
                    self.value(&family, &labels, value);
                }
            }
        }
    }

    fn of_processes(
        &mut self,
        name: &'static str,
        kind: &'static str,
        unit: &'static str,
        help: &'static str,
        sample: &Sample,
        value: impl Fn(&Process) -> Option<f64>,
    ) {
        let family = Family {
            name,
            kind,
            unit,
            help,
        };
        self.head(&family);
        for process in &sample.processes {
            if let Some(value) = value(process) {
                self.value(&family, &Who::of(process).labels(), value);
            }
        }
    }

    fn limits(&mut self, sample: &Sample) {
        let families = [
            gauge(
                "rdmamr_limit_bytes",
                "bytes",
                "A limit on memory that holds for the process.",
            ),
            gauge(
                "rdmamr_limit_used_bytes",
                "bytes",
                "How much of the limit is used, by all that count.",
            ),
            gauge(
                "rdmamr_limit_objects",
                "objects",
                "A limit on a device's objects that holds for the process.",
            ),
            gauge(
                "rdmamr_limit_used_objects",
                "objects",
                "How much of the limit is used, by all that count.",
            ),
        ];
        for (n, family) in families.iter().enumerate() {
            self.head(family);
            for process in &sample.processes {
                let who = Who::of(process);
                // A process has a limit in each of the groups that it is in: the tightest counts.
                let mut done = Vec::new();
                let mut limits: Vec<_> = process.limits.iter().collect();
                limits.sort_by_key(|limit| limit.most.saturating_sub(limit.used));
                for limit in limits.into_iter().filter(|limit| limit.bytes == (n < 2)) {
                    let device = limit.device.as_deref().unwrap_or("");
                    if done.contains(&(limit.name, device)) {
                        continue;
                    }
                    done.push((limit.name, device));
                    let mut labels = who.labels();
                    labels.push(("limit", limit.name));
                    if !device.is_empty() {
                        labels.push(("device", device));
                    }
                    let value = if n % 2 == 0 { limit.most } else { limit.used };
                    self.value(family, &labels, value as f64);
                }
            }
        }
    }

    fn devices(&mut self, sample: &Sample) {
        let families = [
            gauge(
                "rdmamr_device_regions",
                "",
                "Regions of all processes on the device.",
            ),
            gauge(
                "rdmamr_device_registered_bytes",
                "bytes",
                "The sum of their lengths.",
            ),
            gauge(
                "rdmamr_device_limit_regions",
                "",
                "The most regions that the device can have.",
            ),
        ];
        for (n, family) in families.iter().enumerate() {
            self.head(family);
            for device in &sample.devices {
                let value = [
                    Some(device.regions),
                    Some(device.bytes),
                    device.most_regions,
                ][n];
                if let Some(value) = value {
                    self.value(family, &[("device", &device.name)], value as f64);
                }
            }
        }
    }
}

/// What names a process.
struct Who {
    pid: String,
    command: String,
    user: String,
    rank: String,
    library: &'static str,
}

impl Who {
    fn of(process: &Process) -> Who {
        let number = |number: Option<u64>| number.map_or(String::new(), |it| it.to_string());
        Who {
            pid: process.pid.to_string(),
            command: process.command.clone(),
            user: number(process.user.map(u64::from)),
            rank: number(process.rank),
            library: if process.library { "yes" } else { "no" },
        }
    }

    fn labels(&self) -> Vec<(&str, &str)> {
        let mut labels = vec![
            ("pid", &*self.pid),
            ("command", &*self.command),
            ("user", &*self.user),
            ("library", self.library),
        ];
        if !self.rank.is_empty() {
            labels.push(("rank", &*self.rank));
        }
        labels
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
