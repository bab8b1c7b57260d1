// SPDX-License-Identifier: MIT OR Apache-2.0
//! `soak_curve SOAK.tsv CURVE.svg`: what the programs of `ctests/run soak` had, over time: a chart for
//! each column of the table, a line for each program.

use anyhow::Context;
use plotters::prelude::*;
use std::{env, fs};

/// The columns, what their charts are called, and by what a value is divided.
const COLUMNS: [(&str, &str, f64); 6] = [
    ("rss_kib", "resident memory, MiB", 1024.0),
    ("mappings", "mappings", 1.0),
    ("descriptors", "descriptors", 1.0),
    ("threads", "threads", 1.0),
    ("pinned_kib", "pinned memory, MiB", 1024.0),
    ("regions", "regions in the kernel", 1.0),
];
const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x66, 0x66, 0x66),
];

struct Line {
    minute: f64,
    program: String,
    cells: Vec<Option<f64>>,
}

fn read(table: &str) -> anyhow::Result<Vec<Line>> {
    let mut lines = table.lines().map(|line| line.split('\t').collect());
    let header: Vec<&str> = lines.next().context("the table is empty")?;
    let place = |name: &str| {
        let place = header.iter().position(|&cell| cell == name);
        place.with_context(|| format!("the table has no column {name}"))
    };
    let (minute, program) = (place("minute")?, place("program")?);
    let columns: Vec<usize> = COLUMNS
        .iter()
        .map(|column| place(column.0))
        .collect::<Result<_, _>>()?;
    lines
        .map(|cells: Vec<&str>| {
            let cell = |at: usize| cells.get(at).context("a line is too short");
            Ok(Line {
                minute: cell(minute)?.parse()?,
                program: cell(program)?.to_string(),
                cells: columns
                    .iter()
                    .map(|&at| Ok(cell(at)?.parse().ok()))
                    .collect::<anyhow::Result<_>>()?,
            })
        })
        .collect()
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = env::args().collect();
    let [_, from, to] = &words[..] else {
        anyhow::bail!("usage: soak_curve SOAK.tsv CURVE.svg");
    };
    let lines = read(&fs::read_to_string(from)?)?;
    let last = lines.iter().map(|line| line.minute).fold(1.0, f64::max);
    let mut programs: Vec<&str> = Vec::new();
    for line in &lines {
        if !programs.contains(&line.program.as_str()) {
            programs.push(&line.program);
        }
    }
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (900, 960)).into_drawing_area();
    area.fill(&WHITE)?;
    for (column, panel) in area.split_evenly((3, 2)).iter().enumerate() {
        let (_, name, unit) = COLUMNS[column];
        let value = |line: &Line| Some(line.cells[column]? / unit);
        let most = lines.iter().filter_map(value).fold(1.0, f64::max);
        let mut chart = ChartBuilder::on(panel)
            .caption(name, ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(52)
            .build_cartesian_2d(0.0..last, 0.0..most * 1.15)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("minutes")
            .x_labels(8)
            .y_labels(6)
            .label_style(("sans-serif", 12))
            .draw()?;
        let mut named = false;
        for (&program, colour) in programs.iter().zip(COLOURS.iter().cycle()) {
            let of_program = lines.iter().filter(|line| line.program == program);
            let points: Vec<(f64, f64)> = of_program
                .filter_map(|line| Some((line.minute, value(line)?)))
                .collect();
            if points.is_empty() {
                continue;
            }
            let drawn = chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
            // One legend is enough.
            if column == 0 {
                named = true;
                drawn.label(program).legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2))
                });
            }
        }
        if named {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperRight)
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK.mix(0.3))
                .label_font(("sans-serif", 12))
                .draw()?;
        }
    }
    area.present()?;
    drop(area);
    fs::write(to, svg)?;
    Ok(())
}
