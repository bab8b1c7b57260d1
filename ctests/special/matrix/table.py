# SPDX-License-Identifier: MIT OR Apache-2.0
"""table.py write RESULTS PAGE: writes the tables of docs/results/matrix.md, the PAGE, from the results
of "ctests/run matrix" in RESULTS. Fails if a suite failed, or if a case was skipped for a reason
that ctests/special/matrix/reasons does not explain.

table.py check RESULTS PAGE SUITE: compares the PAGE with the results of "make check" in RESULTS, on
this machine's own user space, of that Debian SUITE. Prints TAP. A failure is a suite that fails, or a
case that passed and is now missing or skipped; more cases than on the page are only reported.
"""

import collections
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from prose import with_tables

DEVICES = {"rxe": "soft-RoCE (rxe)", "siw": "soft-iWARP (siw)"}
DEBIAN = {"bookworm": "12", "trixie": "13", "sid": "sid", "arm64": "13"}


class Result:
    """The results in a suite's TAP file, of the cases whose names match."""

    def __init__(self, path, pattern=""):
        text = path.read_text(errors="replace")
        found = lambda line: re.findall(line, text, re.M)
        cases = found(r"^(not )?ok\b *\d* *-? *(.*)")
        self.passed, self.failed, self.skips = 0, found(r"^Bail out!.*"), found(r"^1\.\.0 # SKIP (.*)")
        self.left_out = self.skips[0] if self.skips else None
        if not self.left_out and (not cases or found(r"^1\.\.(\d+)")[-1:] != [str(len(cases))]):
            self.failed.append("the results are incomplete")
        for failed, words in cases:
            name, skip, reason = words.partition(" # SKIP ")
            if not re.search(pattern, name):
                continue
            if failed:
                self.failed.append(name)
            elif skip:
                self.skips.append(reason.strip())
            else:
                self.passed += 1

    def __str__(self):
        total = self.passed + len(self.skips) + len(self.failed)
        if not total:
            return "–"
        text = str(self.passed) if total == self.passed else f"{self.passed}/{total}"
        return f"{text}, **{len(self.failed)} failed**" if self.failed else text


def table_file(name):
    """The lines of a file here, split at " | "."""
    lines = (HERE / name).read_text().splitlines()
    return [[cell.strip() for cell in line.split(" | ")] for line in lines if line and line[0] != "#"]


def rows():
    return [(function, suites.replace("*", "").split()) for function, suites in table_file("rows")]


def reasons():
    """For each skip reason: a pattern, the number of cases that another run may have passed, and
    the explanation."""
    return [(re.compile(said + "$"), int(varies), why) for said, varies, why in table_file("reasons")]


def order(system):
    kernel, tree, device = system.split("-")
    return device, list(DEBIAN).index(tree), [int(part) if part.isdigit() else 99 for part in kernel.split(".")]


def write(folder, page):
    results = {}
    parts = [suite for _, suites in rows() for suite in suites if ":" in suite]
    for path in folder.glob("*.tap"):
        system, suite = path.stem.rsplit(".", 1)
        for of in (suite, *(part for part in parts if part.startswith(suite + ":"))):
            results[system, of] = Result(path, of.partition(":")[2])
    versions = {path.stem: path.read_text().split() for path in folder.glob("*.versions")}
    systems = sorted({system for system, _ in results}, key=order)
    well = True

    def short(system):
        kernel, core, fabric = (re.match(r"\d+\.?\d*", version)[0] for version in versions[system])
        return kernel, core.split(".")[0], fabric

    there = "| system | Linux | Debian | rdma-core | libfabric | device |\n| --- | --- | --- | --- | --- | --- |\n"
    for system in systems:
        kernel, core, fabric = (re.match(r"[\d.]+", version)[0] for version in versions[system])
        _, tree, device = system.split("-")
        there += f"| {system} | {kernel} | {DEBIAN[tree]} | {core} | {fabric} | {DEVICES[device]} |\n"
    heads = ["<br>".join((*short(system), system.split("-")[2])) for system in systems]
    passed = "| function | suite | " + " | ".join(heads) + " |\n| --- | --- |" + " ---: |" * len(systems) + "\n"
    skipped = collections.defaultdict(lambda: (set(), set()))
    for function, suites in rows():
        for suite in suites:
            cells = []
            for system in systems:
                result = results.get((system, suite))
                cells.append(str(result) if result else "")
                result = result if ":" not in suite else None
                for reason in result.skips if result else []:
                    skipped[reason][0].add(suite)
                    skipped[reason][1].add(system)
                for name in result.failed if result else []:
                    print(f"{system}: {suite}: failed: {name}")
                    well = False
            passed += f"| {function} | {suite.partition(':')[0] + ', of it' * (':' in suite)} | " + " | ".join(cells) + " |\n"
            function = ""
    passed += "| all | | " + " | ".join(
        str(sum(result.passed for (of, suite), result in results.items() if of == system and ":" not in suite)) for system in systems) + " |\n"
    differences = "| what is said | suites | systems | why |\n| --- | --- | --- | --- |\n"
    explained = collections.defaultdict(lambda: (set(), set(), []))
    for said, (suites, where) in sorted(skipped.items()):
        why = next((why for pattern, _, why in reasons() if pattern.match(said)), None)
        if why is None:
            print(f"No line of ctests/special/matrix/reasons explains: {said} ({', '.join(sorted(suites))}; {', '.join(sorted(where))})")
            why, well = f"not explained: {said}", False
        explained[why][0].update(suites)
        explained[why][1].update(where)
        explained[why][2].append(said)
    for why, (suites, where, said) in explained.items():
        more = f" and {len(said) - 1} more" if len(said) > 1 else ""
        where = "all" if where == set(systems) else ", ".join(sorted(where, key=order))
        differences += f"| {said[0]}{more} | {', '.join(sorted(suites))} | {where} | {why} |\n"
    page.write_text(with_tables(page.read_text(), [there, passed, differences]))
    return well


def documented(page):
    """The cells of the page: (system, suite) to passed, total."""
    cells, systems = {}, []
    for line in page.splitlines():
        words = [cell.strip() for cell in line.strip()[1:-1].split("|")]
        if re.match(r"[\d.a-z]+-[a-z]+-(rxe|siw)$", words[0]):
            systems.append(words[0])
        if len(words) == len(systems) + 2 and re.match(r"[a-z_0-9@]+$", words[1]):
            for system, cell in zip(systems, words[2:]):
                if numbers := re.match(r"(\d+)(?:/(\d+))?", cell):
                    cells[system, words[1]] = int(numbers[1]), int(numbers[2] or numbers[1])
    return cells


def differs(wanted, result):
    """The cases of the page that a result lacks, in words, or None."""
    passed, total = wanted
    # The skipped cases that another run may have passed.
    vary = sum(next((varies for pattern, varies, _ in reasons() if pattern.match(reason)), 0) for reason in result.skips)
    if result.failed:
        return f"failed: {result.failed[0]}"
    if result.passed + vary < passed:
        return f"{result.passed} cases passed, the page has {passed}"
    if result.passed + max(vary, len(result.skips)) < total:
        return f"{result.passed + len(result.skips)} cases, the page has {total}"
    return None


def check(folder, path, tree):
    text = path.read_text()
    page = documented(text)
    count = 0

    def tell(name, wrong, skip=""):
        nonlocal count
        count += 1
        print(f"{'not ' if wrong else ''}ok {count} - {name}{skip and ' # SKIP '}{skip}")
        for line in wrong:
            print(f"# {line}")

    for device, kernel in (("rxe", "6.1"), ("siw", "6.1"), ("rxe", "6.12")):
        system, wrong, suites = f"{kernel}-{tree}-{device}", [], 0
        skip = "" if any(of == system for of, _ in page) else f"{path} has no system with this user space"
        for (of, suite), wanted in page.items():
            there = folder / f"{device}-{kernel}.{suite}.tap"
            if of != system or not there.exists():
                continue
            result = Result(there)
            if result.left_out:
                skip = result.left_out
                continue
            suites += 1
            if why := differs(wanted, result):
                wrong.append(f"{suite}: {why}")
            elif result.passed > wanted[0]:
                print(f"# {system}, {suite}: {result.passed} cases passed, the page has {wanted[0]}: ctests/run matrix")
        if not suites and not skip:
            wrong = ["no suite has a result"]
        tell(f"{system}: {suites} suites as {path} says", wrong, "" if suites else skip)
    known = {line.split()[0] for line in (HERE / "../../manifest").read_text().splitlines() if line}
    listed = [suite for _, suites in rows() for suite in suites if ":" not in suite]
    tell("each suite of ctests/special/matrix/rows is one of the manifest", [suite for suite in listed if suite not in known])
    in_page = {line.split("|")[2].strip() for line in text.splitlines() if line.startswith("|")}
    tell(f"each is in {path}", [suite for suite in listed if suite not in in_page])
    print(f"1..{count}")


way, results, page, *tree = sys.argv[1:]
if way == "check":
    check(pathlib.Path(results), pathlib.Path(page), *tree)
else:
    sys.exit(not write(pathlib.Path(results), pathlib.Path(page)))
