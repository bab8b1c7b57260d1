#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""curve.py SOAK.tsv CURVE.svg: what the programs of `ctests/run soak` had, over time: a chart for each
column of the table, a line for each program.
"""
import csv
import sys
from xml.sax.saxutils import escape

# The columns, what their charts are called, and by what a value is divided.
CHARTS = [
    ("rss_kib", "resident memory, MiB", 1024), ("mappings", "mappings", 1), ("descriptors", "descriptors", 1),
    ("threads", "threads", 1), ("pinned_kib", "pinned memory, MiB", 1024), ("regions", "regions in the kernel", 1),
]
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666"]
WIDTH, HEIGHT = 450, 320
LEFT, TOP, RIGHT, BOTTOM = 60, 30, WIDTH - 20, HEIGHT - 45


def chart(lines, programs, column, unit):
    rows = [row for row in lines if row[column]]
    last = max([1.0] + [float(row["minute"]) for row in lines])
    most = 1.15 * max([1.0] + [float(row[column]) / unit for row in rows])
    for part in range(6):
        y = BOTTOM - (BOTTOM - TOP) * part / 5
        x = LEFT + (RIGHT - LEFT) * part / 5
        yield f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#cccccc"/>'
        yield f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{most * part / 5:.3g}</text>'
        yield f'<text x="{x:.1f}" y="{BOTTOM + 16}" text-anchor="middle">{last * part / 5:.3g}</text>'
    yield f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 34}" text-anchor="middle">minutes</text>'
    for number, program in enumerate(programs):
        colour = COLOURS[number % len(COLOURS)]
        points = [(LEFT + (RIGHT - LEFT) * float(row["minute"]) / last, BOTTOM - (BOTTOM - TOP) * float(row[column]) / unit / most)
                  for row in rows if row["program"] == program]
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
        # One legend is enough.
        if points and column == CHARTS[0][0]:
            yield f'<text x="{RIGHT}" y="{TOP + 14 * (number + 1)}" text-anchor="end" fill="{colour}">{escape(program)}</text>'


def main(table, curve):
    lines = list(csv.DictReader(open(table), delimiter="\t"))
    programs = list(dict.fromkeys(row["program"] for row in lines))
    with open(curve, "w") as out:
        print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {3 * HEIGHT}" font-family="sans-serif" font-size="12">', file=out)
        print('<rect width="100%" height="100%" fill="#ffffff"/>', file=out)
        for number, (column, name, unit) in enumerate(CHARTS):
            print(f'<g transform="translate({number % 2 * WIDTH} {number // 2 * HEIGHT})">', file=out)
            print(f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="16">{name}</text>', file=out)
            print(*chart(lines, programs, column, unit), "</g>", sep="\n", file=out)
        print("</svg>", file=out)


main(*sys.argv[1:])
