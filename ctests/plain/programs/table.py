# SPDX-License-Identifier: MIT OR Apache-2.0
"""table.py FOLDER RDMAMR PAGE: writes the tables of docs/results/programs.md, the PAGE, from the
results of "ctests/run wall" in FOLDER: the lines of `rows` (name|registrations|hits) and the traces
NAME.with.trace and NAME.cache.trace; for the tree of Debian sid `rows.sid` and `versions`, without
which that part of the PAGE stays.
"""

import json
import os
import re
import statistics
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../special"))
from prose import with_tables

COLUMNS = """| program | registrations | hits | sum, ms | with the cache, ms | a pair, median, ms | a hit, median, ms |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def pair(calls, kinds):
    """The median of registrations of these kinds, and of deregistrations; of all without kinds."""
    ends = ("ibv_dereg_mr", "ibv_dereg_mr_relaxed", "fi_close")
    both = [[], []]
    for call in calls:
        if call["args"]["errno"] == 0 and (not kinds or call["cat"] in kinds):
            both[call["name"] in ends].append(call["dur"] * 1e3)
    return sum(statistics.median(durations) for durations in both if durations)


def cells(trace, hits, rdmamr):
    """The time of all calls, and the median of a pair: of all, or of those that hits began."""
    if not os.path.exists(trace):
        return "", ""
    subprocess.run([rdmamr, "report", "--perfetto", trace], check=True, capture_output=True)
    with open(trace + ".json", encoding="utf-8") as file:
        calls = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    total = sum(call["dur"] for call in calls) * 1e3
    return milliseconds(total), milliseconds(pair(calls, ("hit", "kept") if hits else ()))


def milliseconds(nanoseconds):
    digits = sum(nanoseconds < limit for limit in (1e8, 1e7, 1e6))
    return f"{nanoseconds / 1e6:.{digits}f}"


def table(folder, file, rdmamr):
    text = COLUMNS
    with open(os.path.join(folder, file), encoding="utf-8") as rows:
        for row in rows:
            name, registrations, hits = row.rstrip("\n").split("|")
            time, each = cells(os.path.join(folder, f"{name}.with.trace"), 0, rdmamr)
            cache, served = cells(os.path.join(folder, f"{name}.cache.trace"), int(hits), rdmamr)
            served = served if int(hits) else ""
            text += f"| {name} | {registrations} | {hits} | {time} | {cache} | {each} | {served} |\n"
    return text


def main(folder, rdmamr, path):
    with open(path, encoding="utf-8") as file:
        page = file.read()
    sid = None
    if os.path.exists(os.path.join(folder, "rows.sid")):
        sid = table(folder, "rows.sid", rdmamr)
        with open(os.path.join(folder, "versions"), encoding="utf-8") as versions:
            linux, libfabric, open_mpi, rdma_core = (re.match(r"[\d.]*\d", line)[0] for line in versions)
        page = re.sub(r"Linux \S+ with rdma-core \S+, libfabric \S+ and Open MPI \S+\.\n",
                      f"Linux {linux} with rdma-core {rdma_core}, libfabric {libfabric} and Open MPI {open_mpi}.\n", page)
    with open(path, "w", encoding="utf-8") as file:
        file.write(with_tables(page, [table(folder, "rows", rdmamr), sid]))


main(*sys.argv[1:])
