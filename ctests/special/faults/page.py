#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""page.py write RESULTS | suites PLACE | check: docs/results/faults.md, the outcome of faults.

People write the faults of the page, their outcomes, and the suites that show them. "write" adds the
results of "ctests/run faults", and each system call that failed. "suites" lists the suites of the page
that run in that place. "check" prints a line for each fault or system call that failed, and for each
suite and site that no longer exists.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from prose import with_tables

PAGE = pathlib.Path("docs/results/faults.md")
# A fault of the page: its outcome, the results, the suite, the place.
FAULT = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| `(\w+)`, ([\w.-]+) \|$", re.M)
# The beginning of a fault, and a pattern of the suite's results that show it; all show the others.
PATTERNS = {
    "a registration is": "registrations? (is|are) refused",
    "a deregistration is": "a deregistration is refused",
    "thread creation is": "threads run out",
    "userfaultfd and /dev/userfaultfd": "device as well",
    "userfaultfd cannot be": "name its file",
    "userfaultfd dies: reading": "reader read",
    "userfaultfd is closed": "the number",
    "all descriptors are": "closed by a raw",
    "userfaultfd is slow": "debugger",
    "the device is unplugged": "under traffic|device goes|it is gone|was stale",
    "the device is closed": "a device|next device",
    "the limits of": "registrations|queue|domain|region|rounds|memory",
    "few huge pages": "huge pages",
    "RLIMIT_MEMLOCK, at every": "limit",
    "RLIMIT_MEMLOCK is reached": "pins",
    "vm.max_map_count is reached": "mappings are left",
    "RLIMIT_NOFILE is reached": "descriptors run out",
    "a container's seccomp": "profile, |Docker's own",
    "/proc is absent": "/proc",
    "/sys is absent": "/sys",
    "no /dev/shm, no": "/dev|/run|folder|directory|FSIZE",
    "a full file": "cannot grow",
    "kill -9 at": "killed .SIGKILL|processes work",
    "SIGSTOP and SIGCONT": "SIGSTOP",
    "a tracer attaches": "strace|in order",
    "a garbage collector": "collector",
    "fork beside idle": "fork beside",
    "a child outlives": "device is closed",
}


def results(folder, place, suite, words):
    """The number of a suite's results that match, and of the failed ones; 0 if the suite did not run to its end."""
    try:
        text = (folder / f"{place}.{suite}.tap").read_text(errors="replace")
    except FileNotFoundError:
        return 0, 0
    lines = [m for m in re.finditer(r"^(not )?ok \d+ - (.*)$", text, re.M) if re.search(words, m[2]) and " # SKIP" not in m[2]]
    return len(lines), sum(bool(m[1]) for m in lines) + ("Bail out!" in text)


def write(folder):
    def with_results(row):
        fault, outcome, _, suite, place = row.groups()
        words = next((words for start, words in PATTERNS.items() if fault.startswith(start)), "")
        count, failed = results(folder, place, suite, words)
        word = f"{count} ok" if count and not failed else f"FAILED: {failed} of {count}" if count else "FAILED: not run"
        return f"| {fault} | {outcome} | {word} | `{suite}`, {place} |"

    sites, sums = [], []
    for name in ("host", "device"):
        rows = [line.split("\t") for line in (folder / f"{name}.tsv").read_text().splitlines()]
        sums.append(f"{sum(int(row[3]) for row in rows)} faults at {len(rows)} sites.")
        sites.append("| system call | function | file | faults | the program notices |\n| --- | --- | --- | --- | --- |\n" +
                     "".join(f"| `{row[0]}` | `{row[1]}` | {row[2]} | {row[3]} | {row[4]} |\n" for row in rows))
    left = iter(sums)
    text = re.sub(r"^\d+ faults at \d+ sites\.$", lambda _: next(left), PAGE.read_text(), flags=re.M)
    PAGE.write_text(with_tables(FAULT.sub(with_results, text), [None, *sites]))


def check():
    text = PAGE.read_text()
    manifest = {line.split()[0]: line.split()[3] for line in pathlib.Path("ctests/manifest").read_text().splitlines()
                if line and not line.startswith("#")}
    faults = FAULT.findall(text)
    wrong = [f"there is no fault: {start}" for start in PATTERNS if not any(row[0].startswith(start) for row in faults)]
    for fault, _, result, suite, _ in faults:
        if not result.endswith(" ok"):
            wrong.append(f"the page does not say that this holds: {fault}")
        if manifest.get(suite, "-") == "-":
            wrong.append(f"ctests/manifest runs no suite {suite}")
    sites = re.findall(r"^\| `\w+` \| `[^`]*` \| ((?:library|src)/\S+) \| \d+ \| (.*) \|$", text, re.M)
    wrong += [f"{file} failed" for file, outcome in sites if outcome == "FAILED"]
    ours = {file for file, _ in sites if file.startswith("src/")}
    wrong += [f"there is no {file}" for file in sorted(ours) if not pathlib.Path(file).exists()]
    wrong += [f"there are only {len(sites)} system calls"] * (len(sites) < 100)
    return wrong


def main():
    match sys.argv[1:]:
        case ["write", folder]:
            write(pathlib.Path(folder))
        case ["suites", place]:
            print(*sorted({row[3] for row in FAULT.findall(PAGE.read_text()) if row[4] == place}), sep="\n")
        case ["check"]:
            wrong = check()
            print("\n".join(wrong))
            return bool(wrong)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
