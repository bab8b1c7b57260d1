#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""page.py RESULTS PAGE: writes the tables of docs/results/peers.md from the answers of bench/peers/each.
Fails if librdmamr hands out a stale region or serves unchanged memory anew, or if an answer lacks."""

import pathlib
import re
import sys

OURS = "librdmamr"
WORDS = {"STALE": "**stale**"}


def column(path):
    """The answer for each change: (result, expected)."""
    lines = [line.split("|") for line in path.read_text().splitlines()]
    assert lines and lines[-1][0] == "done", f"{path}: the program did not run to its end"
    return {line[0]: (line[1], line[3] if len(line) > 3 else "") for line in lines[:-1]}


def main(results, page):
    words, wrong = [pathlib.Path(page).read_text().partition("\n## ")[0].rstrip() + "\n"], []
    for kernel in ("6.1", "6.12", "sid"):
        folder = pathlib.Path(results, kernel)
        columns = {path.name.removesuffix(".answers"): column(path) for path in folder.glob("*.answers")}
        names = sorted(columns, key=lambda name: (name == OURS, name.startswith("libfabric"), name))
        series = re.match(r"\d+\.\d+", (folder / "kernel").read_text())[0]
        words.append(f"## Linux {series}\n")
        words.append(f"| change | {' | '.join(names)} |")
        words.append("| --- |" + " --- |" * len(names))
        for change, (answer, expected) in columns[OURS].items():
            cells = [columns[name][change][0] for name in names]
            words.append(f"| {change} | {' | '.join(WORDS.get(cell, cell) for cell in cells)} |")
            if answer == "STALE" or (expected == "hit" and answer != "hit") or (expected == "fresh" and answer == "hit"):
                wrong.append(f"{kernel}, {change}: {answer} in place of {expected}")
        stale = [sum(answer == "STALE" for answer, _ in columns[name].values()) for name in names]
        words.append(f"| stale, of {len(columns[OURS])} | {' | '.join(map(str, stale))} |\n")
        if not any(stale):
            wrong.append(f"{kernel}: no cache was seen to be stale")
    pathlib.Path(page).write_text("\n".join(words).rstrip() + "\n")
    for line in wrong:
        print(f"page.py: {line}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
