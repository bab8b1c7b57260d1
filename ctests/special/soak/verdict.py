#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""verdict.py FOLDER PAGE: judges the results of run.py in FOLDER, prints the verdict, and writes PAGE,
docs/results/soak.md. The exit status is 1 if something grows, a program failed or data was wrong.

A column grows if its median over the last third of the run exceeds that over the first third by
more than SLACK, and its values rise (Mann and Kendall's test, z above RISES). Warm-up, a tenth of
the run or three minutes, is left out. If the rounds of a program take minutes, a value is a round's
maximum.

>>> flat = [100, 103, 98, 104, 99, 101, 103, 97, 102, 100]
>>> grows("threads", flat), grows("threads", [value + 40 for value in flat])
(False, False)
>>> grows("threads", [100 + 2 * n for n in range(10)])
True
>>> grows("rss_kib", [100000 + 200 * n for n in range(120)])
True
>>> grows("rss_kib", [100000 + 10 * n for n in range(120)])
False
>>> grows("threads", [3] * 5 + [90] + [3] * 5)
False
>>> grows("threads", [1, 9, 17]) is None
True
"""

import json
import math
import pathlib
import re
import statistics
import sys
import textwrap

# The slack, an increase that does not count as growth: memory that allocators hold, one connection
# more.
SLACK = {"rss_kib": 2048, "mappings": 16, "descriptors": 4, "threads": 2, "pinned_kib": 1024, "regions": 16}
PART = 0.05  # of the first third's median, another part of the slack
RISES = 2.33
FEW = 6
NAMES = {"rss_kib": "RSS, MiB", "mappings": "mappings", "descriptors": "descriptors", "threads": "threads", "pinned_kib": "pinned, MiB"}

# The page's end; people write what stands before, but for the line of the slack.
END = """The last run took {hours:g} hours on Linux {kernel}:
{verdict}.

| program | rounds | data checked | registrations | hits | {names} |
| --- | ---: | --- | ---: | ---: | {dashes} |
{rows}

A cell is the median of the first third and that of the last. The kernel's regions of the device
were {regions}; {left} at the end, when all programs had ended.

{notes}
"""


def grows(column, values):
    """Whether the values grow. None if they are too few to say."""
    if len(values) < FEW:
        return None
    first, last = thirds(values)
    rise = sum((b > a) - (b < a) for n, a in enumerate(values) for b in values[n + 1:])
    count = len(values)
    ties = sum(times * (times - 1) * (2 * times + 5) for times in (values.count(value) for value in set(values)))
    variance = (count * (count - 1) * (2 * count + 5) - ties) / 18
    z = (rise - 1) / math.sqrt(variance) if rise > 0 else 0
    return last - first > SLACK[column] + PART * first and z > RISES


def thirds(values):
    third = max(len(values) // 3, 1)
    return statistics.median(values[:third]), statistics.median(values[-third:])


def series(lines, column, whole):
    """The values of a column, without the warm-up. WHOLE: one round takes the whole time."""
    lines = [line for line in lines if line[column]]
    if not whole and lines and int(lines[-1]["rounds"]) < len(lines):
        of = {}
        for line in lines:
            of.setdefault(line["rounds"], []).append(float(line[column]))
        return [max(values) for values in of.values()]
    values = [float(line[column]) for line in lines]
    return values[max(len(values) // 10, 3):]


def cell(column, values):
    unit = 1024 if column.endswith("_kib") else 1
    return " to ".join(f"{value / unit:.0f}" for value in thirds(values)) if values else "none"


def main(folder, page):
    header, *lines = [line.split("\t") for line in (folder / "soak.tsv").read_text().splitlines()]
    lines = [dict(zip(header, line)) for line in lines]
    said = json.loads((folder / "soak.json").read_text())
    wrong, short, rows, notes = [], set(), [], []

    def judge(program, columns, whole):
        found = []
        for column in columns:
            values = series([line for line in lines if line["program"] == program], column, whole)
            verdict = grows(column, values)
            if verdict:
                wrong.append(f"{program}: {column} grows: {cell(column, values)}")
            elif verdict is None:
                short.add(program)
            found.append(cell(column, values))
        return found

    for program, load in said["loads"].items():
        cells = judge(program, NAMES, load["whole"])
        wrong.extend(f"{program}: {words}" for words in load["wrong"])
        failed = len(load["failures"])
        if failed * 100 > load["tolerated"] * load["rounds"]:
            wrong.extend(f"{program}: {words}" for words in load["failures"])
        elif failed:
            notes.append(f"{failed} of {load['rounds']} rounds of {program} were not done, as without the library on a busy machine.")
        stats = load["stats"]
        # The statistics of a program that was killed prove nothing.
        if not stats.get("reg_kernel") and "was cut" not in load["counted"]:
            wrong.append(f"{program}: the library made no registration")
        for field in ("ended_elsewhere", "reg_next"):
            # pyverbs registers dma-bufs too, which are forwarded by design.
            if stats.get(field) and program != "pyverbs":
                wrong.append(f"{program}: {field} is {stats[field]}")
        rounds = load["passed"]
        never = sorted(set(rounds[0]) - set().union(*rounds[1:])) if len(rounds) > 1 else []
        wrong.extend(f"{program}: {test} passed in the first round, and in none later" for test in never)
        # A round that was cut has not reached its other tests.
        whole = rounds[:-1] if "was cut" in load["counted"] else rounds
        if whole:
            notes.append(f"{len(set.intersection(*map(set, whole)))} tests of pyverbs passed in each round.")
        if load["counted"]:
            notes.append(f"{program}: {load['counted']}.")
        made = stats.get("reg_kernel", 0) + stats.get("hits", 0)
        rows.append(f"| {program} | {load['rounds']} | {load['checks']} | {made} | {stats.get('hits', 0)} | {' | '.join(cells)} |")
    regions = judge("kernel", ["regions"], True)[0]
    if said["regions_left"]:
        wrong.append(f"the kernel has {said['regions_left']} regions of the device when all programs have ended")

    verdict = "all data was right, and nothing grows" if not wrong else f"{len(wrong)} things were wrong"
    if short:
        verdict += f"; it was too short to say what grows of: {', '.join(sorted(short))}"
    for words in wrong:
        print(f"WRONG: {words}")
    print(f"{said['hours']:g} hours: {verdict}")
    notes = [f"**Wrong**: {words}." for words in wrong] + notes
    of = lambda column: f"{SLACK[column] // 1024} MiB" if column.endswith("_kib") else SLACK[column]
    slack = f"The slack is {PART:.0%} and " + ", ".join(f"{of(column)} ({name.split(',')[0]})" for column, name in NAMES.items()) + "."
    words = re.sub(r"^The slack is .*", textwrap.fill(slack, 98), page.read_text().partition("The last run took")[0], flags=re.M)
    notes = [textwrap.fill(note, 98, initial_indent="- ", subsequent_indent="  ") for note in notes]
    page.write_text(words + END.format(
        hours=said["hours"], kernel=said["kernel"], verdict=textwrap.fill(verdict, 98), names=" | ".join(NAMES.values()),
        dashes=" | ".join(["---:"] * len(NAMES)), rows="\n".join(rows), regions=regions, left=said["regions_left"],
        notes="\n".join(notes)))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*map(pathlib.Path, sys.argv[1:])))
