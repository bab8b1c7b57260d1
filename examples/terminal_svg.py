#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""terminal_svg.py TITLE: turns the output of `tmux capture-pane -e` (standard input) into a picture
(SVG, standard output). It knows the colours and attributes that `rdmamr top` uses."""
import html
import re
import sys

WIDE, HIGH, MARGIN = 8.4, 18, 12
DARK, LIGHT = "#1c1f24", "#d8dce3"
COLORS = {31: "#ff6b68", 32: "#6cc56c", 33: "#e5c07b", 36: "#56c2d6"}


def runs(line):
    """The parts of a line: its column, its text and its attributes."""
    attributes, column = set(), 0
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if not part.startswith("\x1b"):
            if part:
                yield column, part, frozenset(attributes)
            column += len(part)
            continue
        for code in [int(code or 0) for code in part[2:-1].split(";")]:
            if code == 0:
                attributes.clear()
            elif code == 39:
                attributes -= set(COLORS)
            elif code == 27:
                attributes.discard(7)
            elif code == 22:
                attributes -= {1, 2}
            else:
                attributes.add(code)


def main():
    lines = sys.stdin.read().rstrip("\n").split("\n")
    columns = max(sum(len(text) for _, text, _ in runs(line)) for line in lines)
    width, height = columns * WIDE + 2 * MARGIN, len(lines) * HIGH + 2 * MARGIN
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
          f'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">')
    print(f"<title>{html.escape(sys.argv[1])}</title>")
    print(f'<rect width="100%" height="100%" rx="6" fill="{DARK}"/>')
    for row, line in enumerate(lines):
        base = MARGIN + row * HIGH
        for column, text, attributes in runs(line):
            color = next((COLORS[code] for code in attributes if code in COLORS), LIGHT)
            left, long = MARGIN + column * WIDE, len(text) * WIDE
            if 7 in attributes:
                print(f'<rect x="{left:.1f}" y="{base}" width="{long:.1f}" height="{HIGH}" fill="{LIGHT}"/>')
                color = DARK
            if not text.strip():
                continue
            weight = ' font-weight="bold"' if 1 in attributes else ""
            faint = ' opacity="0.6"' if 2 in attributes else ""
            print(f'<text x="{left:.1f}" y="{base + 14}" fill="{color}" textLength="{long:.1f}" '
                  f'xml:space="preserve"{weight}{faint}>{html.escape(text)}</text>')
    print("</svg>")


main()
