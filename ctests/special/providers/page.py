#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""page.py RESULTS: writes the tables of docs/results/providers.md from RESULTS/SERIES/providers.tsv, the results of
"ctests/run providers"."""
import pathlib
import sys

PAGE = pathlib.Path("docs/results/providers.md")
# Libraries that are not named after their driver.
LIBRARIES = {"hfi1": "hfi1verbs", "qib": "ipathverbs"}

def library(device):
    """rdma-core's library for a device of vm/hca, as mlx5 for mlx5_0."""
    driver = device.rstrip("0123456789").rstrip("_")
    return LIBRARIES.get(driver, driver)


def main(results):
    rows = []
    for path in sorted(results.glob("*/providers.tsv")):
        rows += [line.split("\t") for line in path.read_text().splitlines()]
    everywhere = {library(row[0]) for row in rows}
    systems = sorted({(kernel, core) for _, kernel, core, *_ in rows}, key=lambda of: int(of[1].split(".")[0]))
    words = [PAGE.read_text().partition("\n## ")[0].rstrip() + "\n"]
    for kernel, core in systems:
        of = [row for row in rows if (row[1], row[2]) == (kernel, core)]
        total = [sum(int(row[at]) for row in of) for at in (3, 4, 5)]
        words.append(f"## Linux {kernel}, rdma-core {core}\n")
        words.append("| rdma-core's library | device | cases | differences | with the cache |")
        words.append("| --- | --- | ---: | ---: | ---: |")
        for device, _, _, cases, wrong, cached in of:
            words.append(f"| {library(device)} | {device} | {cases} | {wrong} | {cached} |")
        words.append(f"| {len(of)} libraries | | {total[0]} | {total[1]} | {total[2]} |\n")
        missing = sorted(everywhere - {library(row[0]) for row in of})
        if missing:
            words.append(f"This rdma-core has no library for {', '.join(missing)}.\n")
    PAGE.write_text("\n".join(words).rstrip() + "\n")


main(pathlib.Path(sys.argv[1]))
