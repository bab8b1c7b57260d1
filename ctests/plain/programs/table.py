# SPDX-License-Identifier: MIT OR Apache-2.0
"""table.py FOLDER RDMAMR PAGE: writes docs/results/programs.md, the PAGE, from the
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

HEAD = """# Programs that people run

Each of these programs runs unmodified on soft-RoCE (Linux 6.12, rdma-core 44, Debian 12) in the
machine of `vm/`: without the library, with it, and with the cache (`RDMAMR_CACHE=all`). The results
are the same, and the library serves all registrations. `ctests/run wall` runs the programs and
writes this page. `make check-all` runs the programs down to ucx_perftest and compares the
registrations and, roughly, the hits.

The times are those of the calls that register and deregister, of both sides together, on an
emulated processor, far slower than a real one. The sums have its outliers, some of which take as
long as all other calls of the program. The medians have none: "a pair" is the median of all
registrations and that of all deregistrations, "a hit" those of the pairs that the cache served. A
program that registers its memory once, at its start, neither gains nor loses by the cache: the
cache starts when a range comes back.
"""

COLUMNS = """
| program | registrations | hits | sum, ms | with the cache, ms | a pair, median, ms | a hit, median, ms |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""

NOTES = """
- Mooncake is release 0.3.13 from PyPI. Its transfer engine and its store move the data of
  `ctests/plain/programs/moves.py`: 20 buffers that are allocated and freed. `transfer_engine_bench`
  registers its memory once.
- librpma moves the same buffers through Python's ctypes: Debian packages no program of it, and its
  fio has no engine for it.
- netcat is `nc.traditional`; `librspreload.so` turns its sockets into RDMA sockets.
- fio's server posts one receive for each unit of its `iodepth`, so `send` needs a larger `iodepth`
  at the server than at the client.
- UCX 1.13 runs with `UCX_UD_VERBS_ETH_DGID_CHECK=n`. It registers more buffers if messages arrive
  late.
- The loopback is the example of the crate ibverbs 0.9.2, and one process.
- HPC Challenge runs with two ranks of Open MPI 4.1 over libfabric, with libfabric's own
  registration cache off (`FI_MR_CACHE_MAX_COUNT=0`).

"""

SID_TITLE = "## On Debian sid\n"

SID = """
The same library on Linux {0} with rdma-core {3}, libfabric {1} and Open MPI {2}.
`ctests/run wall` makes a tree of Debian sid for it; `make check` does not run it. Three ranks over
`verbs;ofi_rxm` send buffers around a ring and sum them over all ranks. Each buffer is new, from
`malloc` or `mmap`, and the program checks all data (`ctests/plain/programs/ring.c`). The ranks get
the library by `mpirun -x LD_PRELOAD`, or `rdmamr run` starts `mpirun`. In the rows "no other cache"
libfabric's own cache is off. The program unmaps a buffer from `mmap` after its message, so the
cache cannot keep its region. The cache serves buffers from `malloc`, unless libfabric's cache
serves them first; the others cost more than without the cache. The number of registrations differs
a little from run to run.
"""

TAIL = """## What does not run on soft-RoCE, without the library either

Each program ran without the library, on the same machine.

| program | the step that fails |
| --- | --- |
| qperf 0.4.11 | `failed to modify QP to RTR: Invalid argument`: it has no option for the GID index |
| iperf3 3.12 by `librspreload.so` | it connects; `getsockopt` is `EOPNOTSUPP`, no data arrives |
| socat 1.7.4 by `librspreload.so` | the client crashes when it connects |
| nc.openbsd 1.219 by `librspreload.so` | `SO_REUSEPORT` is `EOPNOTSUPP`; `accept` gets no socket |
| fio, `verb=send`, `iodepth` of the client above the server's | `RNR retry counter exceeded`, and both sides wait for ever |
| UCX 1.13 by default | `Endpoint timeout`: it checks each datagram's destination, and drops them all |
| UCX 1.22 (PyPI), 1.23 (Debian sid) | they are built without InfiniBand (no `libuct_ib.so`) |
| sideway 0.4.3 for Rust, `rc_pingpong` | `post send failed`, `ENOSPC`: its send queue has one entry |
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


def sid(folder, rdmamr, page):
    if not os.path.exists(os.path.join(folder, "rows.sid")):
        return SID_TITLE + page.partition(SID_TITLE)[2].partition(TAIL.splitlines()[0])[0]
    with open(os.path.join(folder, "versions"), encoding="utf-8") as versions:
        names = [re.match(r"[\d.]*\d", line)[0] for line in versions]
    return SID_TITLE + SID.format(*names) + table(folder, "rows.sid", rdmamr) + "\n"


def main(folder, rdmamr, path):
    with open(path, encoding="utf-8") as page:
        old = page.read()
    page = HEAD + table(folder, "rows", rdmamr) + NOTES + sid(folder, rdmamr, old) + TAIL
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


main(*sys.argv[1:])
