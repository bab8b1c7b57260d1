// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results as a plot: cost over size, a line for each way.

use super::results::{Results, Row, size};
use crate::files::named::replace;
use plotters::prelude::*;
use std::path::Path;

type Cost = fn(&Row) -> Option<f64>;
const LINES: [(&str, RGBColor, Cost); 3] = [
    ("libibverbs", RGBColor(0x99, 0x99, 0x99), |row| {
        row.libibverbs_us
    }),
    (
        "plain: the library's ibv_reg_mr",
        RGBColor(0x00, 0x72, 0xb2),
        |row| row.plain_us,
    ),
    (
        "relaxed: cached by the library",
        RGBColor(0xd5, 0x5e, 0x00),
        |row| row.relaxed_us,
    ),
];

/// Writes the plot.
pub fn write(results: &Results, path: &Path) -> anyhow::Result<()> {
    let mut svg = String::new();
    draw(results, &mut svg)?;
    replace(path, 0o644, |out| Ok(out.write_all(svg.as_bytes())?))
}

fn draw(results: &Results, svg: &mut String) -> anyhow::Result<()> {
    let rows = &results.sizes;
    let costs = LINES.iter().flat_map(|line| rows.iter().filter_map(line.2));
    let (least, most) = costs.fold((f64::MAX, 0.0), |range: (f64, f64), cost| {
        (range.0.min(cost), range.1.max(cost))
    });
    if most == 0.0 {
        anyhow::bail!("nothing was measured");
    }
    let area = SVGBackend::with_string(svg, (800, 500)).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!(
        "A registration and its deregistration on {}, Linux {}",
        results.device, results.kernel
    );
    // Each size has the same width; costs span several powers of ten.
    let places = 0..rows.len() as i32 - 1;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(16)
        .margin_right(40)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(
            places.start..places.end.max(1),
            (least / 2.0..most * 2.0).log_scale(),
        )?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(rows.len())
        .x_label_formatter(&|&place| {
            rows.get(place as usize)
                .map_or(String::new(), |row| size(row.bytes))
        })
        .x_desc("size")
        .y_label_formatter(&|&us| axis(us))
        .y_desc("time")
        .label_style(("sans-serif", 14))
        .draw()?;
    for (name, colour, cost) in LINES {
        let points: Vec<(i32, f64)> = rows
            .iter()
            .enumerate()
            .filter_map(|(place, row)| Some((place as i32, cost(row)?)))
            .collect();
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(4))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 14))
        .draw()?;
    area.present()?;
    Ok(())
}

/// The label of a power of ten of a microsecond.
fn axis(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{} ns", (us * 1e3).round()),
        us if us < 1e3 => format!("{} us", us.round()),
        us if us < 1e6 => format!("{} ms", (us / 1e3).round()),
        us => format!("{} s", (us / 1e6).round()),
    }
}
