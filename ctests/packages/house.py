#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""house.py [--draw]: draws which room of src/ uses which, and reports in TAP whether each arrow points down.

A room is a file or a folder directly under src/. FLOORS lists the rooms from top to bottom; a room may use
its own floor's lower neighbours only as FLOORS orders them, so an arrow upwards and a circle are the same
mistake. Code under #[cfg(test)] is left out: a test may use whatever it needs.
"""
import pathlib
import re
import sys

# From top to bottom. Each room may use every room below it and none above it.
FLOORS = [
    ("what the dynamic linker asks", ["audit"]),
    ("what C sees", ["capi"]),
    ("libfabric's objects", ["fabric"]),
    ("the one door for every call", ["dispatch"]),
    ("another library's cache", ["monitor"]),
    ("what is kept", ["cache"]),
    ("what changes in the address space", ["watch"]),
    ("a registered region", ["mr"]),
    ("the libraries underneath", ["next"]),
    ("the kernel", ["uverbs"]),
    ("every call, written down", ["trace"]),
    ("settings", ["config"]),
    ("the pages of a registration", ["prefault"]),
    ("what people are told", ["report"]),
    ("what the cache would serve", ["policy"]),
    ("the process and its kernel", ["sys"]),
    ("other people's structures", ["abi"]),
]


# The dispatcher is the one door to these rooms.
BEHIND_THE_DESK = {"cache", "watch", "mr"}
# What every room forwards: the parts of a call, and why it failed.
PASSED = r"(?:Access|Error|How|PANICKED|Registered|Request|Reregistration)"
OF_A_CALL = re.compile(rf"\bcrate::mr::(?:explain\b|{PASSED}\b|\{{{PASSED}(?:, {PASSED})*\}})")
IN_FRONT = ["capi", "fabric"]

# What a function that C calls may consist of: a call of the boundary in capi/ret.rs, of a function or macro that is one, or
# a jump to a function that is looked at as well.
BOUNDARY = re.compile(
    r"\bret::(verbs|code|done|always)\b|\bnot_there\(|\bsilent\(|\breg(v|attr)?_wished\(|\bclose_slowly\(|\bclose_noting\("
    r"|\bregister_in\(|\bread_event\(|\$wished\(|\breg\(|\b(changing|around|touching|unregister|map|advising(_unreported)?)\(|\bwith_caller!|\b(slot|command)!"
)
# These neither allocate nor index, and call nothing that could panic.
BARE = {"rdmamr_version", "cleanup", "fi_eq_strerror", "queue_strerror", "fi_mr_desc", "fi_mr_key", "forget", "load"}


def c_functions(text):
    """The name and the body of each function with C's calling convention."""
    for match in re.finditer(r'extern "" fn (\$?\w+)\s*\(', text):
        start = text.index("{", match.end()) if "{" in text[match.end():] else None
        end_of_declaration = text.find(";", match.end())
        if start is None or -1 < end_of_declaration < start:
            continue
        depth, end = 0, start
        while True:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
            if depth == 0:
                break
        yield match.group(1), text[start:end]


def without_tests(text):
    """The text without comments, strings and the items that #[cfg(test)] precedes."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    kept, at = [], 0
    for mark in re.finditer(r"#\[cfg\((?:test|all\(test[^)]*\)|loom)\)\]", text):
        if mark.start() < at:
            continue
        kept.append(text[at : mark.start()])
        end, depth = mark.end(), 0
        while end < len(text):
            if text[end] in "{([":
                depth += 1
            elif text[end] in "})]":
                depth -= 1
                if depth == 0 and text[end] == "}":
                    end += 1
                    break
            elif text[end] == ";" and depth == 0:
                end += 1
                break
            end += 1
        at = end
    kept.append(text[at:])
    return "".join(kept)


def first_names(group):
    """The first name of each path in the body of `use crate::{...}`."""
    names, depth, name = [], 0, ""
    for char in group + ",":
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
        elif char == "," and depth == 0:
            names.append(re.match(r"\w*", name.strip()).group())
            name = ""
            continue
        name += char
    return names


def uses(text, in_package):
    """The rooms that a file names: by `crate::`, alone or in braces, or as a package of the workspace."""
    found = {name.split("_")[0] for name in re.findall(r"\brdmamr_(abi|policy|uverbs|trace_format)\b", text)}
    if in_package:
        # There `crate` is the package, and so this room.
        return found
    text = OF_A_CALL.sub("", text)
    for path in re.finditer(r"\bcrate::(\w+|\{)", text):
        if path.group(1) != "{":
            found.add(path.group(1))
            continue
        depth, end = 1, path.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        found.update(first_names(text[path.end() : end - 1]))
    return found


def graph(src):
    """For each room the rooms that it uses, with the files where each arrow starts."""
    arrows = {}
    for file in sorted(src.rglob("*.rs")):
        inside = file.relative_to(src)
        room = inside.parts[0].removesuffix(".rs")
        if inside.name.endswith("tests.rs") or str(inside) == "lib.rs":
            continue
        targets = arrows.setdefault(room, {})
        in_package = any((src / folder / "Cargo.toml").exists() for folder in inside.parents)
        for target in uses(without_tests(file.read_text()), in_package):
            if target != room:
                targets.setdefault(target, []).append(str(inside))
    return arrows


def main():
    src = pathlib.Path(__file__).resolve().parents[2] / "src"
    arrows = graph(src)
    order = [room for _, rooms in FLOORS for room in rooms]
    if "--draw" in sys.argv:
        for floor, rooms in FLOORS:
            for room in rooms:
                print(f"{room + '/':10} {floor}: uses {', '.join(r for r in order if r in arrows.get(room, {})) or 'none'}")
        return 0
    count = failed = 0

    def check(passed, name, details=()):
        nonlocal count, failed
        count += 1
        failed += not passed
        print(f"{'ok' if passed else 'not ok'} {count} - {name}")
        for detail in details:
            print(f"# {detail}")

    check(sorted(arrows) == sorted(order), "each room of src/ stands on a floor, and each floor has its rooms",
          [f"only here: {room}" for room in sorted(set(arrows) ^ set(order))])
    for room in order:
        up = [f"{where}: crate::{target}" for target, places in sorted(arrows.get(room, {}).items())
              if target in order and order.index(target) < order.index(room) for where in places]
        check(not up, f"{room} uses only rooms below it", up)
    past = [f"{where}: crate::{target}" for room in IN_FRONT for target in BEHIND_THE_DESK
            for where in arrows[room].get(target, [])]
    check(not past, "capi and fabric reach the cache and the regions through the dispatcher", past)
    unguarded, found = [], 0
    for file in sorted((src / "capi").rglob("*.rs")):
        for name, body in c_functions(without_tests(file.read_text())):
            found += 1
            if name not in BARE and not BOUNDARY.search(body):
                unguarded.append(f"{file.relative_to(src)}: {name}")
    check(found > 80 and not unguarded, f"no panic crosses into C: each of {found} functions goes through capi/ret.rs", unguarded)
    print(f"1..{count}")
    return 0


sys.exit(main())
