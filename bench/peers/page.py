#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""page.py RESULTS PAGE: writes the tables of docs/results/peers.md from the answers of bench/peers/each.
Fails if librdmamr hands out a stale region or serves unchanged memory anew, or if an answer lacks."""

import pathlib
import re
import sys

OURS = "librdmamr"
WORDS = {"STALE": "**stale**"}

# libfabric's monitor kdreg2 was measured once by hand, with the same answers on each of these
# kernels. Its column is shown on them alone, and a change that was not tried is an empty cell.
BY_HAND = "libfabric 2.6 kdreg2"
BY_HAND_KERNELS = {"6.1": "6.1.192-2", "6.12": "6.12.117-1~deb12u1", "7.2": "7.2.13-1"}
BY_HAND_ANSWERS = {
    "hit": ["nothing", "`MADV_PAGEOUT`"],
    "fresh": [
        "`munmap`, `mmap`",
        "`munmap`, `mmap` by raw system calls",
        "`munmap`, `mmap`, and another domain registers first by raw system calls",
        "`mmap` with `MAP_FIXED` over it",
        "`mmap` with `MAP_FIXED` over one page by raw system calls",
        "`MADV_DONTNEED`",
        "`MADV_DONTNEED` by raw system calls",
        "`MADV_DONTNEED_LOCKED`",
        "`mremap` away, `mmap`",
        "`mremap` with `MREMAP_FIXED` onto it",
        "`MADV_REMOVE` through another mapping",
        "`fallocate` with `FALLOC_FL_PUNCH_HOLE`",
        "`ftruncate` to 0 and back",
        "`shmdt`, `shmat` of another segment",
        "`mprotect` to read-only and back",
        "`fork`, and the child writes",
    ],
}
BY_HAND_NOTE = f"""## kdreg2, by hand

`make peers` repeats the column of kdreg2 as it was measured on 2026-11-27 in the machine of `vm/`,
with kdreg2 9a31fe2 of 2025-12-05, libfabric 2.6.0 and Debian's kernels
{", ".join(BY_HAND_KERNELS.values())}. Each change was made five times on each kernel, with the
same answer each time. libfabric's log named kdreg2 as the monitor and counted the hits. The
kernel's log had no error.

Two more changes, which `make peers` does not make, were made ten times each on Linux 6.12: another
process punched a hole into the mapped file, or truncated it, and the program let it grow again. The
next registration was **stale** each time: the module ignores a change that another process makes.
"""

BY_SOURCE_NOTE = """## A GPU's address freed and allocated again, by source

`make peers` has no GPU. This table is read from the peers' sources. librdmamr's row was also run on
stand-ins of the GPU and of the device (`gpu_reuse`).

| cache | the next registration of the address | why |
| --- | --- | --- |
| UCX's rcache (03ea311) | fresh, or **stale** after a free that its hooks do not see | it hooks `cuMemFree`, `cuMemFreeAsync`, `cudaFree` and `cudaFreeAsync`, and not `cuMemUnmap` |
| libfabric's, with its CUDA monitor (49fc8ca) | fresh | each hit asks CUDA for the allocation's number (`CU_POINTER_ATTRIBUTE_BUFFER_ID`) |
| aws-ofi-nccl's (2f01c73) | **stale** while the program still holds a registration of the address, else fresh | it counts uses by address, asks nobody, and ends a region with its last use |
| librdmamr with `RDMAMR_CACHE` | fresh | each hit asks CUDA for the allocation's number; memory without one is not kept ([gpu.md](../gpu.md#the-same-memory-again)) |
"""


def column(path):
    """The answer for each change: (result, expected)."""
    lines = [line.split("|") for line in path.read_text().splitlines()]
    assert lines and lines[-1][0] == "done", f"{path}: the program did not run to its end"
    return {line[0]: (line[1], line[3] if len(line) > 3 else "") for line in lines[:-1]}


def by_hand(changes):
    answers = {change: answer for answer, of in BY_HAND_ANSWERS.items() for change in of}
    return {change: (answers.get(change, ""), "") for change in changes}


def main(results, page):
    words, wrong = [pathlib.Path(page).read_text().partition("\n## ")[0].rstrip() + "\n"], []
    for kernel in ("6.1", "6.12", "sid"):
        folder = pathlib.Path(results, kernel)
        columns = {path.name.removesuffix(".answers"): column(path) for path in folder.glob("*.answers")}
        series = re.match(r"\d+\.\d+", (folder / "kernel").read_text())[0]
        if series in BY_HAND_KERNELS:
            columns[BY_HAND] = by_hand(columns[OURS])
        names = sorted(columns, key=lambda name: (name == OURS, name.startswith("libfabric"), name))
        words.append(f"## Linux {series}\n")
        words.append(f"| change | {' | '.join(names)} |")
        words.append("| --- |" + " --- |" * len(names))
        for change, (answer, expected) in columns[OURS].items():
            cells = [columns[name][change][0] for name in names]
            words.append(f"| {change} | {' | '.join(WORDS.get(cell, cell) for cell in cells)} |")
            if answer == "STALE" or (expected == "hit" and answer != "hit") or (expected == "fresh" and answer == "hit"):
                wrong.append(f"{kernel}, {change}: {answer} in place of {expected}")
        stale = [sum(answer == "STALE" for answer, _ in columns[name].values()) for name in names]
        words.append(f"| stale, of {len(columns[OURS])} | {' | '.join(map(str, stale))} |\n")
        if not any(stale):
            wrong.append(f"{kernel}: no cache was seen to be stale")
    words += [BY_HAND_NOTE, BY_SOURCE_NOTE]
    pathlib.Path(page).write_text("\n".join(words).rstrip() + "\n")
    for line in wrong:
        print(f"page.py: {line}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
