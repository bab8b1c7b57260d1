#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""docs.py links|columns|messages|refusals|tests|targets|paths FILE...: looks for mistakes in documents
and prints each with its place. The exit status is 1 if there is one.

links: a relative link of Markdown leads to a file that exists, and its anchor to a heading of that
file.
messages: each message that a table quotes below "the line says" or "line" is in the library's
source. "..." stands for any words, RDMAMR_X for each setting, y for each value.
refusals: the tables below "the line says" quote each message about memory of a GPU (src/mr/explain.rs,
src/mr/gpu.rs and src/mr/gpu/cuda.rs).
tests: each test that the last column of a table names in code is a suite of ctests/manifest or a
unit test; words in quotes behind a suite are in one of the suite's files.
targets: each "make NAME", "ctests/run NAME" and "bench/run NAME" in code exists.
paths: a path of the tree in code leads to a file or folder. NAME stands for any.
columns: prose of Markdown has at most 100 columns. Tables and code do not count.
"""
import re
import sys
from itertools import chain, count
from pathlib import Path


def lines(path):
    """The lines of a Markdown file, each with its number and whether it is code."""
    fenced = False
    before = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        # A paragraph's next line may be indented; code follows an empty line, or code.
        indented = line.startswith("    ") and (not before.strip() or before.startswith("    "))
        yield number, line, fenced or fence or indented
        before = line


def anchors(path):
    """The anchors that GitHub makes from the headings of a file."""
    found = set()
    for _, line, code in lines(path):
        heading = None if code else re.match(r"#+ +(.*)", line)
        if heading:
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "").lower()
            slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
            names = chain([slug], (f"{slug}-{again}" for again in count(1)))
            found.add(next(name for name in names if name not in found))
    return found


def links(path):
    # A link may continue on the next line.
    text = "\n".join("" if code else re.sub(r"`[^`]*`", "``", line) for _, line, code in lines(path))
    for match in re.finditer(r"\[[^]]*\]\(([^)\s]*)\)", text):
        place = f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
        target, _, anchor = match[1].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = path.parent / target if target else path
        if not file.exists():
            yield f"{place}: {match[1]}: no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{place}: {match[1]}: no such heading"


def columns(path):
    for number, line, code in lines(path):
        if not code and not line.startswith("|") and len(line) > 100:
            yield f"{path}:{number}: {len(line)} columns"


def source_of(files):
    """The text of source files. A string continues behind a backslash at the end of its line."""
    return re.sub(r"\\\n\s*", "", " ".join(file.read_text() for file in files))


def quoted(path):
    """The parts of the messages that the tables quote, each with its line's number."""
    inside = False
    for number, line, code in lines(path):
        inside = not code and line.startswith("|") and (inside or bool(re.match(r"\| (the line says|line) \|", line)))
        for message in re.findall(r"`([^`]*)`", line.split("|")[1]) if inside else ():
            for part in re.split(r"\.\.\.|RDMAMR_X=y:|RDMAMR_X:", message):
                yield number, part.strip()


def messages(path):
    source = source_of(sorted(Path("src").rglob("*.rs")))
    for number, part in quoted(path):
        if part not in source:
            yield f"{path}:{number}: no source says: {part}"


def refusals(path):
    said = " ".join(part for _, part in quoted(path))
    explained = re.search(r"\nimpl Obstacle \{.*?\n\}\n", source_of([Path("src/mr/explain.rs")]), re.S)[0]
    source = explained + source_of([Path("src/mr/gpu.rs"), Path("src/mr/gpu/cuda.rs")])
    # Neither comments nor the tests of a file.
    source = re.sub(r"//.*", "", source.partition("#[cfg(test)]")[0])
    for message in re.findall(r'"([^"]*)"', source):
        for part in re.split(r"\{[^}]*\}", message):
            # A shorter one is a name, or joins others.
            if len(part.split()) >= 4 and part.strip() not in said and "it is memory of a GPU, says" not in message:
                yield f"{path}: it does not quote: {part.strip()}"


def targets(path):
    known = {
        "make": set(re.findall(r"^([a-z][a-z-]*):(?!=)", Path("Makefile").read_text(), re.M)),
        "ctests/run": set(re.findall(r"^([a-z0-9-]+)\)$", Path("ctests/run").read_text(), re.M)),
        "bench/run": set(re.search(r"^names=\((.*)\)$", Path("bench/run").read_text(), re.M)[1].split()),
    }
    for number, line, code in lines(path):
        for text in [line] if code else re.findall(r"`([^`]*)`", line):
            for command, name in re.findall(r"(?<![\w/])(make|ctests/run|bench/run) ([a-z][a-z0-9-]*)", text.partition("#")[0]):
                if name not in known[command]:
                    yield f"{path}:{number}: there is no {command} {name}"


def suites():
    """For each suite of the manifest the files that its row names, and those that they run or include."""
    others = {".sh": r"\$here/(\w+\.\w+)", ".c": r'#include "([\w./]+)"'}
    found = {}
    for line in Path("ctests/manifest").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, _, where = line.split()[:4]
            if where != "-":
                files = [Path(file) for file in re.findall(r"ctests/[\w/]*\.\w+", line)]
                named = [file.parent / other for file in files if file.suffix in others
                         for other in re.findall(others[file.suffix], file.read_text())]
                found[name] = files + [file for file in named if file.is_file()]
    return found


def tests(path):
    known = suites()
    source = " ".join(file.read_text() for top in ("src", "tool") for file in sorted(Path(top).rglob("*.rs")))
    units = set(re.findall(r"#\[test\]\s+(?:#\[[^]]*\]\s+)*fn (\w+)", source))
    inside = False
    for number, line, code in lines(path):
        inside = not code and line.startswith("|") and (inside or line.rstrip().endswith("| tests |"))
        cell = line.rstrip().rstrip("|").rpartition(" | ")[2] if inside else ""
        named = re.findall(r'`(\w+)`(?: "([^"]*)")?', cell)
        if inside and not named and not re.match(r"\| (-|.*\| tests \|)", line):
            yield f"{path}:{number}: no test is named"
        for name, words in named:
            if name not in known and name not in units:
                yield f"{path}:{number}: no such test: {name}"
            elif words and not any(words in file.read_text() for file in known.get(name, ())):
                yield f"{path}:{number}: {name} does not say: {words}"


def paths(path):
    for number, line, code in lines(path):
        for named in () if code else re.findall(r"`((?:src|tool|ctests|docs|bench|vm|packaging|include|man|examples)/[\w./-]*)`", line):
            if "NAME" not in named and not Path(named).exists() and not (path.parent / named).exists():
                yield f"{path}:{number}: no such file: {named}"


mode, *files = sys.argv[1:]
checks = {"links": links, "columns": columns, "messages": messages, "refusals": refusals,
          "tests": tests, "targets": targets, "paths": paths}
complaints = [complaint for file in files for complaint in checks[mode](Path(file))]
print(*complaints, sep="\n", end="\n" if complaints else "")
sys.exit(bool(complaints))
