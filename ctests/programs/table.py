# SPDX-License-Identifier: MIT OR Apache-2.0
"""table.py FOLDER RDMAMR: prints docs/programs.md from what "make wall" left in FOLDER: the lines of
`rows` (name|registrations|hits) and the traces NAME.with.trace and NAME.pool.trace.
"""

import json
import os
import subprocess
import sys

HEAD = """# Programs that people run

Each of these programs runs unmodified on soft-RoCE (Linux 6.12, rdma-core 44, Debian 12) in the
machine of `vm/`: without the library, with it, and with the pool (`RDMAMR_CACHE=all`). The results
are the same, and all registrations are the library's. `make wall` runs them and writes this page.
`make check` runs all but HPC Challenge and compares the registrations and, roughly, the hits.

The times are those of the calls that register and deregister, of both sides together, on an
emulated processor, far slower than a real one. "Each" is the mean of a registration with its
deregistration, "each hit" that of a hit. A program that registers its memory once, at its start,
gains nothing by the pool, and pays for the pool's start: about a hundred system calls and two
threads.

| program | registrations | hits | time, ms | with the pool, ms | each, ms | each hit, ms |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |"""

TAIL = """
HPC Challenge runs with two ranks of Open MPI 4.1 over libfabric, with libfabric's own registration
cache off (`FI_MR_CACHE_MAX_COUNT=0`).

## What does not run on soft-RoCE, without the library either

| program | the step that fails |
| --- | --- |
| qperf | RTR is `EINVAL`: it names no GID index |
| iperf3 by `librspreload.so` | it connects, and stalls |
| fio, `verb=send` | it hung in the one run that was tried |
| UCX 1.13 | its wire-up of two peers |"""


def cells(trace, hits, rdmamr):
    """The time of all calls, and of each pair: of all, or of those that hits began."""
    if not os.path.exists(trace):
        return "", ""
    output = subprocess.run([rdmamr, "report", "--json", trace], check=True, capture_output=True)
    report = json.loads(output.stdout)
    total = report["totals"]["time_ns"]
    if not hits:
        return milliseconds(total), milliseconds(total / report["totals"]["registrations"])
    served = sum(size["time_ns"] for size in report["sizes"] if size["what"] in ("hit", "kept"))
    return milliseconds(total), milliseconds(served / hits)


def milliseconds(nanoseconds):
    return f"{nanoseconds / 1e6:.{0 if nanoseconds > 1e8 else 1 if nanoseconds > 1e7 else 2}f}"


def main(folder, rdmamr):
    print(HEAD)
    with open(os.path.join(folder, "rows"), encoding="utf-8") as rows:
        for row in rows:
            name, registrations, hits = row.rstrip("\n").split("|")
            time, each = cells(os.path.join(folder, f"{name}.with.trace"), 0, rdmamr)
            pool, served = cells(os.path.join(folder, f"{name}.pool.trace"), int(hits), rdmamr)
            served = served if int(hits) else ""
            print(f"| {name} | {registrations} | {hits} | {time} | {pool} | {each} | {served} |")
    print(TAIL)


main(*sys.argv[1:])
