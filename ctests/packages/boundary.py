#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""boundary.py: reports in TAP what no compiler checks of the sources: each function that C calls goes
through the panic boundary, src/capi/ret.rs; no other file has C symbols; no files import each other in
a circle."""
import graphlib
import pathlib
import re

# The forms of a function that C calls: a call of the boundary in capi/ret.rs, of a function or
# macro that is one, or a jump to a function that is checked as well.
BOUNDARY = re.compile(
    r"\bret::(run|traced|code|done|always)\b|\bnot_there\(|\bsilent\(|\bclose_slowly\("
    r"|\bmake_queue\(|\bregister_in\(|\bread_event\(|\b(de)?reg\(|\b(during|around|kept_in|duplicating|unregister|map|advising(_unreported)?)\(|\b(slot|command)!"
)
# These neither allocate nor index, and call nothing that could panic.
EXEMPT = {"rdmamr_version", "cleanup", "fi_eq_strerror", "queue_strerror", "fi_mr_desc", "fi_mr_key", "forget"}


def end_of_item(text, at):
    """The end of the item that begins there: behind its block, or behind its semicolon."""
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] in "{([") - (text[end] in "})]")
        if depth == 0 and text[end] in ";}":
            return end + 1
    return len(text)


def c_functions(text):
    """The name and the text of each function with C's calling convention, declarations left out."""
    for match in re.finditer(r'extern "" fn (\$?\w+)\s*\(', text):
        item = text[match.start():end_of_item(text, match.start())]
        if item.endswith("}"):
            yield match.group(1), item


def without_tests(text):
    """The text without comments, strings and the items that #[cfg(test)] precedes."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text, flags=re.S)
    kept, at = [], 0
    for mark in re.finditer(r"#\[cfg\((?:test|all\(test[^)]*\)|loom)\)\]", text):
        if mark.start() >= at:
            kept.append(text[at : mark.start()])
            at = end_of_item(text, mark.end())
    return "".join([*kept, text[at:]])


def expanded(path):
    """The paths that one "use" names: its innermost braces are expanded first."""
    while braces := re.search(r"([\w:]*)\{([^{}]*)\}", path):
        inside = [braces[1] + part.strip() for part in braces[2].split(",") if part.strip()]
        path = path.replace(braces[0], ",".join(inside))
    return path.split(",")


def imports(root):
    """For each file of a crate the files that it imports; a file by the parts of its module's path."""
    files = {}
    for file in root.rglob("*.rs"):
        if any((folder / "Cargo.toml").exists() for folder in file.parents if root in folder.parents):
            continue  # Another crate's.
        parts = file.relative_to(root).with_suffix("").parts
        files[parts[:-1] if parts[-1] in ("lib", "main", "mod") else parts] = file
    found = {}
    for here, file in files.items():
        found[here] = set()
        for use in re.findall(r"use\s+((?:crate|super|self)::[^;]+);", without_tests(file.read_text())):
            for path in expanded(use):
                words = [word.strip() for word in path.split("::")]
                up = words.count("super")
                names = tuple(word for word in words if word not in ("crate", "super", "self"))
                names = names if words[0] == "crate" else here[: len(here) - up] + names
                there = next(names[:n] for n in range(len(names), -1, -1) if names[:n] in files)
                found[here] |= {there} - {here}
    return found


def circle(found):
    """A circle of files that import each other, if there is one."""
    try:
        graphlib.TopologicalSorter(found).prepare()
    except graphlib.CycleError as error:
        return ", ".join("::".join(file) for file in error.args[1])


def result(number, passed, name, places):
    print(f"{'ok' if passed else 'not ok'} {number} - {name}", *(f"# {place}" for place in places), sep="\n")


def main():
    src = pathlib.Path(__file__).resolve().parents[2] / "src"
    unguarded, found = [], 0
    for file in sorted((src / "capi").rglob("*.rs")):
        for name, body in c_functions(without_tests(file.read_text())):
            found += 1
            if name not in EXEMPT and not BOUNDARY.search(body):
                unguarded.append(f"{file.relative_to(src)}: {name}")
    result(1, found > 80 and not unguarded, f"no panic crosses into C: each of {found} functions goes through capi/ret.rs", unguarded)
    # No other function has a name in C: the crates below use C's convention for callbacks alone.
    exported = [str(file.relative_to(src)) for file in sorted(src.rglob("*.rs")) if "capi" not in file.parts and "audit" not in file.parts
                and re.search(r"no_mangle|export_name", without_tests(file.read_text()))]
    result(2, not exported, "src/capi alone has C symbols", exported)
    crates = sorted(file.parent for file in [*src.rglob("lib.rs"), *src.parent.glob("tool/src/main.rs")])
    graphs = {crate: imports(crate) for crate in crates}
    circles = [f"{crate.relative_to(src.parent)}: {found}" for crate, graph in graphs.items() if (found := circle(graph))]
    edges = sum(map(len, (files for graph in graphs.values() for files in graph.values())))
    result(3, edges > 400 and not circles, f"none of {edges} imports between files of a crate closes a circle", circles)
    print("1..3")


main()
