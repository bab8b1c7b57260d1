#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""hostile_modules.py FOLDER: makes shared libraries there whose symbols and debug information take much
memory or time to read: NAME.so, whose function begins at the address that NAME.at contains.

name: a mangled name that stands for GiB. deep: inlined functions, one in another, 30 000 times.
frames: 4000 of them, whose names stand for MiB. lines: 128 MiB of line numbers, compressed.
"""
import os
import subprocess
import sys

# An argument P<int, int>, and further ones P<x, x>, where x is the argument before.
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def mangled(arguments):
    return "_Z1f1PIiiE" + "".join(f"S_IS{DIGITS[n]}_S{DIGITS[n]}_E" for n in range(arguments))


ABBREVIATIONS = """
    .section .debug_abbrev
    .uleb128 1, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0x10, 0x17, 0x13, 0x05, 0, 0
    .uleb128 2, 0x2e, 1, 0x11, 0x01, 0x12, 0x07, 0, 0
    .uleb128 3, 0x1d, 1, 0x31, 0x13, 0x11, 0x01, 0x12, 0x07, 0, 0
    .uleb128 4, 0x2e, 0, 0x6e, 0x08, 0, 0
    .byte 0
"""


def unit(inlined=0, name="f", lines=b""):
    """A unit of C++ with a function, in which functions of that name are inlined."""
    with open("lines.bin", "wb") as file:
        file.write(lines)
    return ABBREVIATIONS + f"""
    .section .debug_info
info:
    .long end - begin
begin:
    .short 4
    .long .debug_abbrev
    .byte 8
    .uleb128 1
    .quad function, 64
    .long .debug_line
    .short 4
origin:
    .uleb128 4
    .asciz "{name}"
    .uleb128 2
    .quad function, 64
    .rept {inlined}
    .uleb128 3
    .long origin - info
    .quad function, 64
    .endr
    .zero {inlined + 2}
end:
    .section .debug_line
    .long lines_end - lines_begin
lines_begin:
    .short 4
    .long program - header
header:
    .byte 1, 1, 1, -5, 14, 13
    .byte 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1
    .byte 0
    .asciz "a.cc"
    .byte 0, 0, 0, 0
program:
    .byte 0, 9, 2
    .quad function
    .incbin "lines.bin"
    .byte 2, 64, 0, 1, 1
lines_end:
"""


def make(name, debug="", symbol="function"):
    with open(f"{name}.s", "w") as file:
        file.write(f"""
    .text
    .globl {symbol}
    .type {symbol}, @function
{symbol}:
function:
    .zero 64
    .size {symbol}, 64
{debug}
""")
    subprocess.run(["cc", "-shared", "-nostdlib", "-Wl,--compress-debug-sections=zlib", f"{name}.s", "-o", f"{name}.so"], check=True)
    symbols = subprocess.run(["nm", f"{name}.so"], capture_output=True, text=True, check=True).stdout
    with open(f"{name}.at", "w") as file:
        file.write(next(line.split()[0] for line in symbols.splitlines() if line.endswith(f" {symbol}")))
    os.remove(f"{name}.s")


os.chdir(sys.argv[1])
make("name", symbol=mangled(34))
make("deep", unit(30_000))
make("frames", unit(4000, mangled(17)))
# An opcode that advances the address by 1, and the line by none.
make("lines", unit(lines=b"\x20" * (128 << 20)))
os.remove("lines.bin")
