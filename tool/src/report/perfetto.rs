// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trace in Chrome's trace event format, which Perfetto (ui.perfetto.dev) and chrome://tracing
//! show: each call on the track of its thread, and pinned memory as a counter.
use super::access;
use super::callers::Resolver;
use super::figures;
use super::json::escaped;
use super::shape::Report;
use super::units::name_of;
use crate::trace::{Event, Process, Trace};
use anyhow::Result;
use rdmamr_trace_format::{call, how};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Value, json};
use std::io::{self, Write};

/// The track of the data about all processes together. No pid is as large.
const ALL: u64 = 1 << 23;

pub fn write(trace: &Trace, report: &Report, out: &mut dyn Write) -> Result<()> {
    let begin = trace.processes.iter().map(|process| process.begin).min();
    let begin = begin.unwrap_or(0);
    let numbers = numbers(&trace.processes);
    let name = |pid: u64, name: &str| json!({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}});
    writeln!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    write!(out, "{}", name(ALL, "all processes"))?;
    let mut put =
        |value: Value| -> io::Result<()> { write!(out, ",\n{}", escaped(&value.to_string())) };
    for (process, &number) in trace.processes.iter().zip(&numbers) {
        put(name(number, &title(process)))?;
        if let Some(rank) = process.rank {
            put(
                json!({"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0,
                "args": {"sort_index": rank}}),
            )?;
        }
    }
    for point in &report.pinned.points {
        put(
            json!({"ph": "C", "name": "pinned bytes", "pid": ALL, "tid": 0, "ts": us(point.time_ns),
            "args": {"plain": point.plain_bytes, "cache": point.cache_bytes}}),
        )?;
    }
    let mut resolver = Resolver::default();
    let mut callers: FxHashMap<(u32, u32, u64), String> = FxHashMap::default();
    let mut written = Ok(());
    trace.calls(|event| {
        if written.is_err() {
            return;
        }
        let address = (event.process, event.modules, event.call.caller);
        let caller = callers
            .entry(address)
            .or_insert_with(|| caller(trace, &mut resolver, event));
        written = put(of_call(
            event,
            numbers[event.process as usize],
            begin,
            caller,
        ));
    })?;
    written?;
    writeln!(out, "\n]}}")?;
    Ok(())
}

/// Viewers expect microseconds, in which a double has the ns of a year.
fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// A number for each process: its pid, or another number if two hosts gave the same pid.
fn numbers(processes: &[Process]) -> Vec<u64> {
    let mut taken = FxHashSet::default();
    let number = |(at, process): (usize, &Process)| match taken.insert(process.pid) {
        true => u64::from(process.pid),
        false => ALL + 1 + at as u64,
    };
    processes.iter().enumerate().map(number).collect()
}

fn title(process: &Process) -> String {
    let program = process.command.first().map_or("", |path| name_of(path));
    match (process.rank, &process.host) {
        (Some(rank), Some(host)) => format!("rank {rank} on {host}: {program}"),
        (_, Some(host)) => format!("{program} on {host}"),
        _ => program.to_string(),
    }
}

fn caller(trace: &Trace, resolver: &mut Resolver, event: &Event) -> String {
    let (process, address) = (event.process, event.call.caller);
    let (path, offset) = trace.locate(process, event.modules, address);
    let module = path.map(|path| trace.paths[path as usize].as_str());
    let caller = resolver.resolve(module, offset, trace.processes[process as usize].process);
    caller.name()
}

fn of_call(event: &Event, pid: u64, begin: u64, caller: &str) -> Value {
    let of = &event.call;
    let how = how::NAMES.get(usize::from(of.how)).copied();
    // A call that counts at its end has begun earlier.
    let ends = of.errno != 0 || call::registers(of.call);
    let began = event.effect - if ends { u64::from(of.duration) } else { 0 };
    let mut value = json!({
        "name": figures::name_of(of.call),
        "cat": how.filter(|how| !how.is_empty()).unwrap_or("none"),
        "pid": pid,
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
