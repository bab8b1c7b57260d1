#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""predict.py RDMAMR LIBRARY WORKLOAD: runs programs (workload.c) without the cache, traced, and with
the cache. Compares the prediction of `rdmamr report` with the cache's effect: the sign is right, and
the time within a factor of 2, if more than 5 % of the program's time is at stake.

Other programs on the machine only add to a time, so the shortest of several runs counts, and a
program whose prediction fails runs more often. Prints TAP.
"""
import json
import os
import subprocess
import sys
import tempfile

RUNS, MOST_RUNS = 5, 25
# A registration, a page of it and a deregistration, in ns: of a device that costs nothing, and of a
# fast one.
FREE, FAST = (0, 0, 0), (20_000, 100, 5_000)
PROGRAMS = [
    ("ring", FREE), ("ring", FAST), ("remote_ring", FAST), ("once", FREE), ("once", FAST),
    ("twice", FREE), ("thrice", FAST), ("too_many", FREE), ("too_many", FAST), ("mixed", FREE), ("emptied", FAST),
    ("unmapped", FAST), ("two_threads", FAST), ("at_once", FAST), ("parts", FAST), ("late", FREE),
]
SETTINGS = {"RDMAMR_CACHE_MAX_IDLE": "128", "RDMAMR_CACHE_LINGER": "0.1"}


def run(library, workload, program, costs, **settings):
    environment = {**os.environ, **SETTINGS, **settings, "LD_PRELOAD": library}
    command = [workload, program, *map(str, costs)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return int(done.stdout)


def foretold(rdmamr, trace):
    done = subprocess.run([rdmamr, "report", "--json", trace], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)["advice"]["all"]["saved_ns"]


def is_right(predicted, saved, plain):
    if max(abs(predicted), abs(saved)) <= 0.05 * plain:
        return True
    return predicted * saved > 0 and 0.5 <= predicted / saved <= 2


def main(rdmamr, library, workload):
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (program, costs) in enumerate(PROGRAMS, 1):
            plain, cached, traced = [], [], []
            for turn in range(MOST_RUNS):
                trace = os.path.join(folder, f"{number}.{turn}")
                plain.append(run(library, workload, program, costs))
                cached.append(run(library, workload, program, costs, RDMAMR_CACHE="all"))
                took = run(library, workload, program, costs, RDMAMR_TRACE=trace)
                traced.append((took, foretold(rdmamr, trace)))
                os.remove(trace)
                predicted, saved = min(traced)[1], min(plain) - min(cached)
                right = is_right(predicted, saved, min(plain))
                if right and turn + 1 >= RUNS:
                    break
            failed += not right
            print(f"{'ok' if right else 'not ok'} {number} - {program}, a registration takes "
                  f"{costs[0]} ns: {predicted / 1e6:.2f} ms saved were predicted, {saved / 1e6:.2f} of "
                  f"{min(plain) / 1e6:.2f} ms were, in {turn + 1} runs", flush=True)
    print(f"1..{len(PROGRAMS)}")
    return failed != 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
