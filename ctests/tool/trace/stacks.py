# SPDX-License-Identifier: MIT OR Apache-2.0
# stacks.py LIBRARY: registers from Python through stacks.c, with the interpreter's lock and without it.
import ctypes
import sys


class Ring:
    def send(self, library):
        return library.library_call()  # send


def holds_the_lock(path):
    return Ring().send(ctypes.PyDLL(path))  # holds


def has_released_it(path):
    return Ring().send(ctypes.CDLL(path))  # released


def in_lambda_of_größe(path):
    return (lambda library: library.library_call())(ctypes.CDLL(path))  # größe


for way in (holds_the_lock, has_released_it, in_lambda_of_größe):
    assert way(sys.argv[1]) == 0  # main
