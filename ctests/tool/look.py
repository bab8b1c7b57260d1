#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""look.py PICTURE: checks in a screenshot (PNG) of the report on "trace.py known", 1100 pixels wide, that
the plot of pinned memory exists and shows its numbers. Prints a line for each mistake, and then exits
with 1.
"""
import struct
import sys
import zlib

PLAIN, CACHE = (0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)


def pixels(path):
    """The rows of a PNG of 8 bits, RGB or RGBA, as lists of (red, green, blue)."""
    data = open(path, "rb").read()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", "no PNG"
    at, packed, size = 8, b"", None
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        content = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colours, _, _, interlaced = struct.unpack(">IIBBBBB", content)
            assert depth == 8 and colours in (2, 6) and not interlaced, "a PNG of another kind"
            size = {2: 3, 6: 4}[colours]
        elif kind == b"IDAT":
            packed += content
        at += 12 + length
    raw = zlib.decompress(packed)
    step, rows, above = width * size, [], bytes(width * size)
    for y in range(height):
        kind, row = raw[y * (step + 1)], bytearray(raw[y * (step + 1) + 1:(y + 1) * (step + 1)])
        if kind:
            for x in range(step):
                left = row[x - size] if x >= size else 0
                corner = above[x - size] if x >= size else 0
                if kind == 1:
                    guess = left
                elif kind == 2:
                    guess = above[x]
                elif kind == 3:
                    guess = (left + above[x]) // 2
                else:
                    to = left + above[x] - corner
                    guess = min((abs(to - left), 0, left), (abs(to - above[x]), 1, above[x]), (abs(to - corner), 2, corner))[2]
                row[x] = (row[x] + guess) & 255
        above = bytes(row)
        rows.append(list(zip(row[0::size], row[1::size], row[2::size])))
    return rows


def run(line, colour):
    """The longest run of a colour in a line of pixels: where it begins and where it ends."""
    best = start = 0, 0
    for x, pixel in enumerate(line + [None]):
        if pixel == colour:
            start = (start[0], x + 1) if start[1] == x else (x, x + 1)
            best = max(best, start, key=lambda run: run[1] - run[0])
    return best


def height(rows, x, top, bottom, colour):
    """The height of the colour's longest run in a column."""
    first, last = run([row[x] for row in rows[top:bottom]], colour)
    return last - first


wrong = []


def expect(what, found, expected, tolerance):
    if abs(found - expected) > tolerance:
        wrong.append(f"{what}: {found:.3f}, not {expected:.3f}")


rows = pixels(sys.argv[1])
if len(set(pixel for row in rows[::7] for pixel in row[::7])) < 5:
    sys.exit("the picture is blank")

# The plot of pinned memory shows plain memory from the first call to the end: its lowest rows are
# one run of blue. It is the first such plot.
wide = [y for y, row in enumerate(rows) if (lambda r: r[1] - r[0])(run(row, PLAIN)) > 800]
if not wide:
    sys.exit("no plot of pinned memory: no row of it is blue from side to side")
bottom = wide[0] + 1
while bottom in wide:
    bottom += 1
left, right = run(rows[wide[0]], PLAIN)
top = bottom - 150


def pinned(seconds):
    x = left + round((right - left) * seconds / 3)
    return height(rows, x, top, bottom, PLAIN), height(rows, x, top, bottom, CACHE)


mib = pinned(2.75)[0] / 2.125  # a MiB, in pixels
expect("pinned at 2.75 s: pixels of a MiB", mib, 44.5, 3)
for seconds, plain, cache in ((0.56, 0.125, 0), (1.2, 0.125, 0), (1.75, 0.125, 1), (2.25, 2.125, 1), (2.75, 2.125, 0)):
    found = pinned(seconds)
    expect(f"plain MiB pinned at {seconds} s", found[0] / mib, plain, 0.06)
    expect(f"MiB of the cache pinned at {seconds} s", found[1] / mib, cache, 0.06)
print("\n".join(wrong))
sys.exit(1 if wrong else 0)
