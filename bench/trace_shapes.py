#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""trace_shapes.py SHAPE FILE: writes a large trace for bench/report, of one of SHAPES, with as many calls as
$CALLS says."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ctests/tool"))
from trace import DEREG_MR, KERNEL, MODULES, PROGRAM_AT, REG_MR, REREG_MR, Process, s, us


def pairs(n):
    """Over 100 000 ranges."""
    where = n // 2 * 7919 % 100_000
    return (REG_MR, DEREG_MR)[n % 2], ((where + 1) << 20, 4096 << n // 2 % 8), where, n // 2 % 64


def distinct(n):
    """Each range is registered once."""
    return (REG_MR, DEREG_MR)[n % 2], ((n // 2 + 1) << 13, 8192), n // 2, n // 2 % 64


def live(n):
    """Nothing is deregistered."""
    return REG_MR, ((n + 1) << 13, 8192), n, n % 64


def callers(n):
    """As many places in the program as calls."""
    return (REG_MR, DEREG_MR)[n % 2], ((n // 2 % 1000 + 1) << 13, 8192), n // 2 % 1000, n


def moved(n):
    """Half of the calls register, the other half registers the same regions again in another domain."""
    half = int(os.environ["CALLS"]) // 2
    return (REG_MR, REREG_MR)[n // half], ((n % half + 1) << 13, 8192), n % half, 0


def lists(n):
    """With a new list of modules before each call, none of which has the caller."""
    return REG_MR, ((n % 1000 + 1) << 13, 8192), n, n - (1 << 32)


SHAPES = {shape.__name__: shape for shape in (pairs, distinct, live, callers, moved, lists)}


def main(shape, path):
    shape, calls = SHAPES[shape], int(os.environ["CALLS"])
    with open(path, "wb") as out:
        one = Process(out, 1, ["./large"], 1_763_642_400 * s)
        one.modules("/nowhere/program", "/nowhere/library")
        for n in range(calls):
            call, memory, key, caller = shape(n)
            one.call(n * 10 * us, 3000 + n % 997, call, KERNEL, memory, 1, key, PROGRAM_AT + caller,
                     pd=0xABC0 + (call == REREG_MR))
            if shape is lists:
                one.block(MODULES, b"%x %x 0 /lib/%d.so\n" % (n << 12, (n + 1) << 12, n % 9))
            if shape is lists or n % 1024 == 1023:
                one.flush()
        one.flush()
        one.end(calls * 10 * us)


main(*sys.argv[1:])
