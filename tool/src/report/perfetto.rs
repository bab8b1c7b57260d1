// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trace in Chrome's trace event format, which Perfetto (ui.perfetto.dev) and chrome://tracing
//! show: each call on the track of its thread, and pinned memory as a counter.
use super::access;
use super::callers::{Frame, Resolver};
use super::figures;
use super::json::escaped;
use super::shape::Report;
use super::units::name_of;
use crate::trace::{Event, Process, Trace, delay};
use anyhow::Result;
use rdmamr_trace_format::{call, how};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{self, Write};

/// The number of the track of all processes together. Those of the others follow: two hosts may have
/// given the same pid.
const ALL: usize = 0;

/// The most characters of a caller's name, which each of its calls has.
const LONGEST: usize = 256;

pub fn write(
    trace: &Trace,
    report: &Report,
    resolver: &mut Resolver,
    out: &mut dyn Write,
) -> Result<()> {
    let begin = trace.begin();
    let name = |pid: usize, name: &str| about("M", "process_name", pid, json!({"name": name}));
    writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    write!(out, "{}", name(ALL, "all processes"))?;
    let mut put =
        |value: Value| -> io::Result<()> { write!(out, ",\n{}", escaped(&value.to_string())) };
    for (number, process) in (ALL + 1..).zip(&trace.processes) {
        put(name(number, &title(process)))?;
        if let Some(rank) = process.rank {
            let index = json!({"sort_index": rank});
            put(about("M", "process_sort_index", number, index))?;
        }
    }
    for point in &report.pinned.points {
        let bytes = json!({"plain": point.plain_bytes, "cache": point.cache_bytes});
        let mut counter = about("C", "pinned bytes", ALL, bytes);
        counter["ts"] = us(point.time_ns).into();
        put(counter)?;
    }
    let mut callers: HashMap<(u32, u32, u64), String> = HashMap::default();
    let mut written = Ok(());
    trace.calls(|event| {
        if written.is_err() {
            return;
        }
        let address = (event.process, event.modules, event.call.caller);
        let caller = || {
            let name = caller(trace, resolver, event)[0].name();
            name.chars().take(LONGEST).collect()
        };
        let caller = callers.entry(address).or_insert_with(caller);
        written = put(of_call(event, begin, caller));
    })?;
    written?;
    writeln!(out, "\n]}}")?;
    Ok(())
}

/// A record of a track, not of a thread.
fn about(kind: &str, name: &str, pid: usize, args: Value) -> Value {
    json!({"ph": kind, "name": name, "pid": pid, "tid": 0, "args": args})
}

/// Viewers expect microseconds, in which a double has the ns of a year.
fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn title(process: &Process) -> String {
    let program = process.command.first().map_or("", |path| name_of(path));
    let host = process.host.as_ref();
    let host = host.map_or(String::new(), |host| format!(" on {host}"));
    match process.rank {
        Some(rank) => format!("rank {rank}{host}: {program} {}", process.pid),
        None => format!("{program} {}{host}", process.pid),
    }
}

/// The functions from which a call came, the innermost inlined one first.
pub fn caller(trace: &Trace, resolver: &mut Resolver, event: &Event) -> Vec<Frame> {
    let place = trace.locate(event.process, event.modules, event.call.caller);
    resolver.at(trace, event.process, place)
}

fn of_call(event: &Event, begin: u64, caller: &str) -> Value {
    let of = &event.call;
    let how = how::NAMES.get(usize::from(of.how)).copied();
    let began = event.effect - delay(of);
    let mut value = json!({
        "name": figures::name_of(of.call),
        "cat": how.filter(|how| !how.is_empty()).unwrap_or("none"),
        "pid": ALL + 1 + event.process as usize,
        "tid": of.thread,
        "ts": us(began.saturating_sub(begin)),
        "args": {
            "addr": format!("{:#x}", of.addr),
            "length": of.length,
            "lkey": of.lkey,
            "access": access::words(of.call, of.access),
            "errno": of.errno,
            "caller": caller,
        },
    });
    // A record that is not a call of the program has a moment, and no place among the thread's
    // calls.
    if !call::is_of_program(of.call) {
        value["ph"] = "i".into();
        value["s"] = "p".into();
    } else {
        value["ph"] = "X".into();
        value["dur"] = us(of.duration.into()).into();
    }
    value
}
