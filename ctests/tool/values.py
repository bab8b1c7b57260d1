# SPDX-License-Identifier: MIT OR Apache-2.0
"""values.py: for each line of standard input, FILE TAB EXPRESSION, prints the value of a Python expression about
FILE.json. In it `report` is that JSON, `callers` are its callers of ibv_reg_mr, and `stacks` their stacks, innermost first."""
import collections
import json
import sys


def name(frame):  # without its offset
    return (frame["function"] or "?").partition("+")[0]


def names(stack):
    return " ".join(map(name, stack))


def places(report):
    """The calls of each place in the source: the report has a caller once for each call stack, and once for its
    calls without one, and which calls have a stack depends on the time that the program ran."""
    calls, called = collections.Counter(), collections.defaultdict(set)
    for caller in report["callers"]:
        place = (caller["module"], caller["offset"], caller["function"])
        calls[place] += caller["calls"]
        called[place].update(caller["called"])
    return sorted((place[2], calls[place], *sorted(called[place])) for place in calls)


def of(rows, by, *fields):
    """The sums of some fields, by others."""
    sums = collections.defaultdict(lambda: [0] * len(fields))
    for row in rows:
        key = " ".join(name(row["caller"]) if field == "caller" else str(row[field]) for field in by.split())
        sums[key] = [sum + row[field] for sum, field in zip(sums[key], fields)]
    return ", ".join(" ".join([key, *map(str, sums[key])]) for key in sorted(sums))


for line in sys.stdin:
    file, expression = line.rstrip("\n").split("\t", 1)
    try:
        report = json.load(open(file + ".json"))
        callers = [caller for caller in report.get("callers", ()) if "ibv_reg_mr" in caller["called"]]
        stacks = [[caller] + caller["stack"] for caller in callers]
        value = eval(expression)
    except Exception as error:
        value = f"{type(error).__name__}: {error}"
    print(str(value).replace("\n", " "), flush=True)
