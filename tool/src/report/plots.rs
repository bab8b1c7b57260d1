// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plots, as SVG for the page. The page's style refers to their colours (Okabe and Ito's, which
//! the colour-blind can tell apart) by value, so that it can change them on a dark background.
use super::shape::{Pinned, Size, What};
use super::units;
use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;

pub const PLAIN: RGBColor = RGBColor(0x00, 0x72, 0xB2);
pub const HIT: RGBColor = RGBColor(0x00, 0x9E, 0x73);
pub const POOL: RGBColor = RGBColor(0xE6, 0x9F, 0x00);

const FONT: (&str, i32) = ("sans-serif", 15);

/// Draws one plot as part of a page. The page names the plot, so the plot names nothing itself.
fn svg(
    size: (u32, u32),
    title: &str,
    draw: impl FnOnce(
        &DrawingArea<SVGBackend, plotters::coord::Shift>,
    ) -> Result<(), Box<dyn std::error::Error>>,
) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        draw(&area).map_err(|error| anyhow!("the plot of {title}: {error}"))?;
        area.present()
            .map_err(|error| anyhow!("the plot of {title}: {error}"))?;
    }
    Ok(svg.replacen(
        " xmlns=\"http://www.w3.org/2000/svg\"",
        &format!(" role=\"img\" aria-label=\"{title}\""),
        1,
    ))
}

/// The divisor and the unit's name for an axis up to `most`.
fn unit(most: u64, units: &[(u64, &'static str)]) -> (f64, &'static str) {
    let (size, name) = units
        .iter()
        .rev()
        .find(|(size, _)| most >= *size)
        .unwrap_or(&units[0]);
    (*size as f64, name)
}
const TIME: &[(u64, &str)] = &[
    (1, "ns"),
    (1_000, "us"),
    (1_000_000, "ms"),
    (1_000_000_000, "s"),
];
const BYTES: &[(u64, &str)] = &[
    (1, "B"),
    (1 << 10, "KiB"),
    (1 << 20, "MiB"),
    (1 << 30, "GiB"),
    (1 << 40, "TiB"),
];

/// A number on an axis, without zeros at the end of its decimals.
fn tick(number: &f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// Plots pinned bytes over time: plain regions, with the pool's stacked on them.
pub fn pinned(pinned: &Pinned, span_ns: u64) -> Result<String> {
    let (time_unit, time) = unit(span_ns, TIME);
    let (bytes_unit, bytes) = unit(pinned.peak_bytes, BYTES);
    let end = (span_ns as f64 / time_unit).max(f64::MIN_POSITIVE);
    let top = (pinned.peak_bytes as f64 / bytes_unit * 1.08).max(1.0);
    // The outline goes in steps, from each point to the next.
    let outline = |bytes: &dyn Fn(&super::shape::Point) -> u64| {
        let mut line = vec![(0.0, 0.0)];
        for (n, point) in pinned.points.iter().enumerate() {
            let height = bytes(point) as f64 / bytes_unit;
            let next = pinned
                .points
                .get(n + 1)
                .map_or(end, |next| next.time_ns as f64 / time_unit);
            if line.last().is_none_or(|last| last.1 != height) {
                line.push((point.time_ns as f64 / time_unit, height));
            }
            // A value that does not change needs no corner.
            if pinned
                .points
                .get(n + 1)
                .is_none_or(|next| bytes(next) != bytes(point))
            {
                line.push((next, height));
            }
        }
        line.push((end, 0.0));
        line
    };
    svg((960, 300), "Pinned memory over time", |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .margin_right(24)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..end, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(BLACK.mix(0.15))
            .light_line_style(TRANSPARENT)
            .label_style(FONT)
            .axis_desc_style(FONT)
            .x_desc(format!("time since the first moment of the trace, {time}"))
            .y_desc(format!("pinned, {bytes}"))
            .x_label_formatter(&tick)
            .y_label_formatter(&tick)
            .y_labels(6)
            .draw()?;
        chart.draw_series([
            Polygon::new(
                outline(&|point| point.plain_bytes + point.pool_bytes),
                POOL.filled(),
            ),
            Polygon::new(outline(&|point| point.plain_bytes), PLAIN.filled()),
        ])?;
        let peak = (
            pinned.peak_at_ns as f64 / time_unit,
            pinned.peak_bytes as f64 / bytes_unit,
        );
        chart.draw_series([Circle::new(peak, 4, BLACK.filled())])?;
        Ok(())
    })
}

/// A bar for each power of two, with plain registrations, hits and misses stacked.
fn by_size(
    sizes: &[Size],
    title: &str,
    of: impl Fn(&Size) -> u64,
    units: &[(u64, &'static str)],
) -> Result<String> {
    let bars = bars(sizes, of);
    // There is room for this many labels.
    let labelled = bars.len().div_ceil(8).max(1) as u32;
    let most = bars
        .iter()
        .map(|(_, stack)| stack.iter().sum())
        .max()
        .unwrap_or(0);
    let (one, name) = unit(most, units);
    let top = (most as f64 / one * 1.08).max(f64::MIN_POSITIVE);
    svg((475, 300), title, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d((0..bars.len().max(1) as u32 - 1).into_segmented(), 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(BLACK.mix(0.15))
            .light_line_style(TRANSPARENT)
            .label_style(FONT)
            .axis_desc_style(FONT)
            .x_desc("length, from, up to twice that")
            .y_desc(
                format!("{title}, {name}")
                    .trim_end_matches(", ")
                    .to_string(),
            )
            .x_labels(bars.len() + 1)
            .x_label_style(("sans-serif", 13))
            .x_label_formatter(&|at| match at {
                SegmentValue::CenterOf(at) if at % labelled == 0 => bars
                    .get(*at as usize)
                    .map_or(String::new(), |bar| units::bytes(bar.0)),
                _ => String::new(),
            })
            .y_labels(6)
            .y_label_formatter(&tick)
            .draw()?;
        for (at, (_, stack)) in bars.iter().enumerate() {
            let left = SegmentValue::Exact(at as u32);
            // Of a single bar, `Exact` is the left edge for any number.
            let right = if at + 1 == bars.len() {
                SegmentValue::Last
            } else {
                SegmentValue::Exact(at as u32 + 1)
            };
            let mut height = 0.0;
            for (part, colour) in stack
                .iter()
                .zip([PLAIN, HIT, POOL])
                .filter(|(part, _)| **part > 0)
            {
                let above = height + *part as f64 / one;
                let mut bar = Rectangle::new(
                    [(left.clone(), height), (right.clone(), above)],
                    colour.filled(),
                );
                bar.set_margin(0, 0, 2, 2);
                chart.draw_series([bar])?;
                height = above;
            }
        }
        Ok(())
    })
}

/// Each power of two with its plain registrations, hits and misses, including empty powers in
/// between.
fn bars(sizes: &[Size], of: impl Fn(&Size) -> u64) -> Vec<(u64, [u64; 3])> {
    let mut bars: Vec<(u64, [u64; 3])> = Vec::new();
    for size in sizes {
        let part = match size.what {
            What::Plain => 0,
            What::Hit => 1,
            What::Miss => 2,
            What::Deregister | What::Kept => continue,
        };
        while bars
            .last()
            .is_some_and(|bar| bar.0 != 0 && bar.0 < size.from_bytes / 2)
        {
            bars.push((bars[bars.len() - 1].0 * 2, [0; 3]));
        }
        if bars.last().is_none_or(|bar| bar.0 != size.from_bytes) {
            bars.push((size.from_bytes, [0; 3]));
        }
        bars.last_mut().expect("it has just been made sure").1[part] = of(size);
    }
    bars
}

pub fn calls_by_size(sizes: &[Size]) -> Result<String> {
    const COUNTS: &[(u64, &str)] = &[(1, ""), (1_000, "thousands"), (1_000_000, "millions")];
    by_size(sizes, "registrations", |size| size.calls, COUNTS)
}

pub fn time_by_size(sizes: &[Size]) -> Result<String> {
    by_size(sizes, "time in registrations", |size| size.time_ns, TIME)
}
