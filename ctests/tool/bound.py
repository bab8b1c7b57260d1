#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""bound.py RDMAMR LIBRARY WORKLOAD: runs programs (workload.c) without the cache and with it, and
traces both. The cache has no more hits than `rdmamr report` says registrations came back on the first
trace. Prints TAP, and the times, which a busy machine changes.
"""
import json
import os
import subprocess
import sys
import tempfile

# A registration, a page of it and a deregistration, in ns: as on a fast device.
COSTS = ("20000", "100", "5000")
# Each program, with how many registrations come back with --cache=all. None: malloc and mmap decide.
PROGRAMS = {
    "ring": 16 * 248, "remote_ring": 16 * 248, "shared": 16 * 248, "once": 0, "twice": 0, "thrice": 100,
    "too_many": 256 * 10, "mixed": 748, "emptied": 1998, "unmapped": None, "late": 64 * 6, "two_threads": 3996,
    "at_once": 8 * 298, "parts": 3000 - 2 * 64 + 1, "freed": None,
}


def run(workload, program, rdmamr, trace, **settings):
    environment = {**os.environ, **settings, "RDMAMR_TRACE": trace}
    subprocess.run([workload, program, *COSTS], env=environment, check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([rdmamr, "report", "--json", trace], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def main(rdmamr, library, workload):
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (program, expected) in enumerate(PROGRAMS.items(), 1):
            runs = [run(workload, program, rdmamr, f"{folder}/{number}.{cache}", LD_PRELOAD=library, RDMAMR_CACHE=cache)
                    for cache in ("off", "local", "all")]
            bounds = [runs[0]["advice"][cache] for cache in ("local", "all")]
            back = [bound["registrations"] for bound in bounds]
            hits = [report["totals"]["hits"] for report in runs[1:]]
            right = all(map(int.__le__, hits, back)) and expected in (None, back[1])
            failed += not right
            saved = (runs[0]["totals"]["time_ns"] - runs[2]["totals"]["time_ns"]) / 1e6
            most = (bounds[1]["most_ns"] + bounds[1]["outlier_ns"]) / 1e6
            print(f"{'ok' if right else 'not ok'} {number} - {program}: {hits} hits of {back} that came back\n"
                  f"# all saved {saved:.2f} ms, at most {most:.2f}", flush=True)
    print(f"1..{len(PROGRAMS)}")
    return failed != 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
