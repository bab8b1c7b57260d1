#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""bound.py RDMAMR LIBRARY WORKLOAD: runs programs (workload.c) without the cache and with it, and
traces both. The cache has no more hits than `rdmamr report` says registrations came back on the first
trace. Prints TAP.
"""
import json
import os
import subprocess
import sys
import tempfile

# Each program, with how many registrations come back with --cache=all. None: mmap decides.
PROGRAMS = {"ring": 16 * 248, "once": 0, "too_many": 256 * 10, "emptied": 1998, "unmapped": None, "late": 64 * 6}


def run(workload, program, rdmamr, trace, **settings):
    subprocess.run([workload, program], env={**os.environ, **settings, "RDMAMR_TRACE": trace}, check=True)
    done = subprocess.run([rdmamr, "report", "--json", trace], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def main(rdmamr, library, workload):
    with tempfile.TemporaryDirectory() as folder:
        for number, (program, expected) in enumerate(PROGRAMS.items(), 1):
            runs = [run(workload, program, rdmamr, f"{folder}/{number}.{cache}", LD_PRELOAD=library, RDMAMR_CACHE=cache)
                    for cache in ("off", "local", "all")]
            back = [runs[0]["advice"][cache]["registrations"] for cache in ("local", "all")]
            hits = [report["totals"]["hits"] for report in runs[1:]]
            right = all(map(int.__le__, hits, back)) and expected in (None, back[1])
            print(f"{'ok' if right else 'not ok'} {number} - {program}: {hits} hits of {back} that came back", flush=True)
    print(f"1..{len(PROGRAMS)}")


main(*sys.argv[1:])
