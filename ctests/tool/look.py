#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""look.py PICTURE: looks into a screenshot (PNG) of the report on "trace.py known", 1100 pixels wide, whether the plots are
there and show its numbers. Prints a line for each thing that is wrong, and is 1 then.
"""
import struct
import sys
import zlib

PLAIN, HIT, POOL, GROUND = (0x00, 0x72, 0xB2), (0x00, 0x9E, 0x73), (0xE6, 0x9F, 0x00), (0xFF, 0xFF, 0xFF)


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

# The plot of pinned memory has plain memory from the first call to the end: its lowest rows are one run of blue.
wide = [y for y, row in enumerate(rows) if (lambda r: r[1] - r[0])(run(row, PLAIN)) > 800]
if not wide:
    sys.exit("no plot of pinned memory: no row of it is blue from side to side")
bottom = wide[-1] + 1
left, right = run(rows[wide[-1]], PLAIN)
top = bottom - 260


def pinned(seconds):
    x = left + round((right - left) * seconds / 3)
    return height(rows, x, top, bottom, PLAIN), height(rows, x, top, bottom, POOL)


mib = pinned(2.75)[0] / 2.125  # a MiB, in pixels
expect("pinned at 2.75 s: pixels of a MiB", mib, 70, 8)
for seconds, plain, pool in ((0.56, 0.125, 0), (1.2, 0.125, 0), (1.75, 0.125, 1), (2.25, 2.125, 1), (2.75, 2.125, 0)):
    found = pinned(seconds)
    expect(f"plain MiB pinned at {seconds} s", found[0] / mib, plain, 0.04)
    expect(f"MiB of the pool pinned at {seconds} s", found[1] / mib, pool, 0.04)
x = left + round((right - left) * 1.2 / 3)
expect("nothing above 0.125 MiB at 1.2 s", sum(rows[y][x] == GROUND for y in range(top, bottom)) / 260, 0.95, 0.06)

# Below it the two histograms: what is blue, green and orange there, by column.
middle = (left + right) // 2 - 20


def tallest(from_x, to_x, colour):
    return max(height(rows, x, bottom + 60, min(bottom + 520, len(rows)), colour) for x in range(from_x, to_x))


calls, times = (60, middle), (middle + 40, 1060)
most = tallest(*calls, PLAIN)
expect("registrations: pixels of the tallest bar", most, 222, 20)
expect("registrations: hits to the plain ones of 8 KiB", tallest(*calls, HIT) / most, 0.20, 0.02)
most = tallest(*times, PLAIN)
expect("times: pixels of the tallest bar", most, 222, 20)
expect("times: misses to the plain ones of 8 KiB", tallest(*times, POOL) / most, 0.20, 0.02)
print("\n".join(wrong))
sys.exit(1 if wrong else 0)
