#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""predict.py RDMAMR LIBRARY WORKLOAD: runs programs (workload.c) without the cache, traced, and with
the cache. Compares the prediction of `rdmamr report` with the cache's effect: it is within 25 % of
the median outcome, or the report says that it cannot know, if more than 5 % of the program's time is
at stake.

Other programs on the machine make outliers, of which the report must not promise anything, so a
program whose prediction fails runs more often. Prints TAP.
"""
import json
import os
import subprocess
import sys
import tempfile
from statistics import median

RUNS, MOST_RUNS = 5, 25
# Below this many ns a difference is the noise of the machine.
LEAST = 2_000_000
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
    """The saving, and whether the report says that it is right to 25 %."""
    done = subprocess.run([rdmamr, "report", "--json", trace], check=True, stdout=subprocess.PIPE)
    saving = json.loads(done.stdout)["advice"]["all"]
    doubt = saving["unsure_ns"] + saving["outlier_ns"]
    return saving["saved_ns"], 4 * doubt <= abs(saving["saved_ns"])


def is_right(predicted, saved, plain):
    at_stake = max(abs(predicted), abs(saved)) > max(0.05 * plain, LEAST)
    return not at_stake or abs(predicted - saved) <= 0.25 * abs(saved)


def main(rdmamr, library, workload):
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (program, costs) in enumerate(PROGRAMS, 1):
            plain, cached, traced = [], [], []
            for turn in range(MOST_RUNS):
                trace = os.path.join(folder, f"{number}.{turn}")
                plain.append(run(library, workload, program, costs))
                cached.append(run(library, workload, program, costs, RDMAMR_CACHE="all"))
                run(library, workload, program, costs, RDMAMR_TRACE=trace)
                traced.append(foretold(rdmamr, trace))
                os.remove(trace)
                whole, saved = median(plain), median(plain) - median(cached)
                knew = [predicted for predicted, knows in traced if knows]
                wrong = [predicted for predicted in knew if not is_right(predicted, saved, whole)]
                right = len(wrong) <= len(traced) // 4
                if right and turn + 1 >= RUNS:
                    break
            failed += not right
            predicted = median([predicted for predicted, _ in traced])
            print(f"{'ok' if right else 'not ok'} {number} - {program}, a registration takes "
                  f"{costs[0]} ns: {predicted / 1e6:.2f} ms saved were predicted, {saved / 1e6:.2f} of "
                  f"{whole / 1e6:.2f} ms were, in {turn + 1} runs; {len(knew)} reports knew, "
                  f"{len(wrong)} of them wrongly", flush=True)
    print(f"1..{len(PROGRAMS)}")
    return failed != 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
