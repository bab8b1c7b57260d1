#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""page.py write RESULTS | suites PLACE | check: docs/results/faults.md, the outcome of faults.

"write" puts the results of "ctests/run faults" into the page: each of FAULTS with its
outcome, if the results of its suite say so, and each system call that failed. "suites" lists the suites of
FAULTS that run in that place. "check" prints a line for each fault that the page lacks, each failed
one, each that FAULTS lacks, and each suite and site that no longer exists.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from prose import with_tables

PAGE = pathlib.Path("docs/results/faults.md")
HOST, DEVICE = "host", "rxe-6.12"

# The fault; the outcome; the place, the suite, and a pattern of its results that show it (all,
# without a pattern).
FAULTS = [
    ("a system call of the library fails, each once (below)", "the call of the program succeeds, or has that errno", HOST, "faults", ""),
    ("the C library has no memory for the library, at each allocation", "ENOMEM, or success; the next call works", HOST, "no_memory", ""),
    ("a registration is refused: EAGAIN, ENOMEM, EFAULT", "that errno, with a reason; no mapping stays split", HOST, "shortages", "registrations? (is|are) refused"),
    ("a deregistration is refused: EIO, EBADF, EBUSY", "it is tried again", HOST, "shortages", "a deregistration is refused"),
    ("thread creation is refused", "the cache keeps no region until it gets a thread", HOST, "starts_later", "threads run out"),
    ("userfaultfd and /dev/userfaultfd are refused", "the cache keeps no region; one line names the remedy", HOST, "starts_later", "device as well"),
    ("userfaultfd cannot be examined (fstat)", "it is closed; the cache keeps no region; one line says why", HOST, "starts_later", "name its file"),
    ("userfaultfd dies: reading it fails", "from then on the cache keeps no region", HOST, "starts_later", "reader read"),
    ("userfaultfd is closed, or replaced by another file", "no stale region; nothing waits", HOST, "descriptors", "the number"),
    ("all descriptors are closed", "from then on the cache keeps no region", HOST, "descriptors", "closed by a raw"),
    ("userfaultfd is slow: a debugger holds the library's threads", "a raw unmap waits; no stale region", DEVICE, "children", "debugger"),
    ("the device is unplugged under traffic (`rdma link delete`, `ip link delete`)", "the program goes on and ends in order; the device goes", DEVICE, "faults_device", "under traffic|device goes|it is gone|was stale"),
    ("the device is gone (EIO)", "libibverbs' answer", DEVICE, "gone", ""),
    ("the device is closed with idle regions", "they end with it", DEVICE, "lifetimes", "a device|next device"),
    ("the limits of the rdma and memory cgroup are reached", "idle regions end first; EAGAIN, with the limit in the reason", DEVICE, "cgroup_limits", "registrations|queue|domain|region|rounds|memory"),
    ("few huge pages", "no idle region holds a page", DEVICE, "regions_ended", "huge pages"),
    ("RLIMIT_MEMLOCK, at every boundary", "libibverbs' answer: EPERM, ENOMEM or success", DEVICE, "lifetime", "limit"),
    ("RLIMIT_MEMLOCK is reached by idle regions", "they end, and the registration succeeds", DEVICE, "limits", "pins"),
    ("vm.max_map_count is reached", "the cache keeps no more regions; the program can map memory", HOST, "unwatched", "mappings are left"),
    ("RLIMIT_NOFILE is reached", "the cache keeps no region until it gets a descriptor", HOST, "starts_later", "descriptors run out"),
    ("a container's seccomp profile", "the cache keeps regions by /dev/userfaultfd, else none",
     HOST, "containers", "profile, |Docker's own"),
    ("/proc is absent, read-only, or hidden", "without it the cache keeps no region", HOST, "faults_places", "/proc"),
    ("/sys is absent or read-only", "nothing changes", HOST, "faults_places", "/sys"),
    ("no /dev/shm, no /dev, no writable folder, a deleted one", "nothing changes but the files that cannot be written", HOST, "faults_places", "/dev|/run|folder|directory|FSIZE"),
    ("the folder of live pages is missing, full, a link or another's", "no page; the program registers", HOST, "live_page", ""),
    ("a full file system under a trace", "one line; no more is written", HOST, "callers", "cannot grow"),
    ("kill -9 at a random moment, 1 000 times", "the kernel has no region of it", DEVICE, "faults_device", "killed .SIGKILL|processes work"),
    ("SIGSTOP and SIGCONT, 1 000 times under traffic", "registrations and traffic go on", DEVICE, "faults_device", "SIGSTOP"),
    ("a tracer attaches to all threads, and detaches", "registrations and traffic go on; a tracer that waits for ever ([limits.md](../limits.md#the-librarys-threads-and-descriptor)) is killed", DEVICE, "faults_device", "strace|in order"),
    ("a garbage collector stops the world", "nothing waits; no stale region", HOST, "tasks", "collector"),
    ("fork beside idle regions", "the child has none of them", HOST, "tasks", "fork beside"),
    ("a child outlives the parent's userfaultfd", "nothing waits for the child", DEVICE, "children", "device is closed"),
]

def results(folder, place, suite, words):
    """The number of a suite's results that match, and of the failed ones; 0 if the suite did not run to its end."""
    try:
        text = (folder / f"{place}.{suite}.tap").read_text(errors="replace")
    except FileNotFoundError:
        return 0, 0
    lines = [m for m in re.finditer(r"^(not )?ok \d+ - (.*)$", text, re.M) if re.search(words, m[2]) and " # SKIP" not in m[2]]
    return len(lines), sum(bool(m[1]) for m in lines) + ("Bail out!" in text)


def write(folder):
    faults = "| fault | outcome | results | suite |\n| --- | --- | --- | --- |\n"
    for fault, outcome, place, suite, words in FAULTS:
        count, failed = results(folder, place, suite, words)
        word = f"{count} ok" if count and not failed else f"FAILED: {failed} of {count}" if count else "FAILED: not run"
        faults += f"| {fault} | {outcome} | {word} | `{suite}`, {place} |\n"
    sites, sums = [], []
    for name in ("host", "device"):
        rows = [line.split("\t") for line in (folder / f"{name}.tsv").read_text().splitlines()]
        sums.append(f"{sum(int(row[3]) for row in rows)} faults at {len(rows)} sites.")
        sites.append("| system call | function | file | faults | the program notices |\n| --- | --- | --- | --- | --- |\n" +
                     "".join(f"| `{row[0]}` | `{row[1]}` | {row[2]} | {row[3]} | {row[4]} |\n" for row in rows))
    left = iter(sums)
    text = re.sub(r"^\d+ faults at \d+ sites\.$", lambda _: next(left), PAGE.read_text(), flags=re.M)
    PAGE.write_text(with_tables(text, [faults, *sites]))


def check():
    text = PAGE.read_text()
    manifest = {line.split()[0]: line.split()[3] for line in pathlib.Path("ctests/manifest").read_text().splitlines()
                if line and not line.startswith("#")}
    wrong = []
    rows = re.findall(r"^\| ([^|`][^|]*) \| ([^|]*) \| ([^|]*) \| `(\w+)`, ([\w.-]+) \|$", text, re.M)
    for fault, outcome, place, suite, _ in FAULTS:
        found = [row for row in rows if row[:2] == (fault, outcome) and row[3:] == (suite, place)]
        if not found or not found[0][2].endswith(" ok"):
            wrong.append(f"the page does not say that this holds: {fault}")
        if manifest.get(suite, "-") == "-":
            wrong.append(f"ctests/manifest runs no suite {suite}")
    if len(rows) != len(FAULTS):
        wrong.append(f"the page has {len(rows)} faults, not {len(FAULTS)}")
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
            print(*sorted({row[3] for row in FAULTS if row[2] == place}), sep="\n")
        case ["check"]:
            wrong = check()
            print("\n".join(wrong))
            return bool(wrong)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
