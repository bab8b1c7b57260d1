#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""trace.py known|job|of FILE PROGRAM LIBRARY...: writes a trace, rdmamr_trace(5), for the tests
of "rdmamr report".

known has a little of everything, and numbers that report.sh expects. job makes a folder with a trace
for each of three ranks; its last argument FASTER divides the time of each call. PROGRAM and LIBRARY are
callers.c, built as both. of names PROGRAM, and all the libraries that hostile_modules.py made. This file follows the manual page alone, so that it checks the library's
own source.
"""
import os
import struct
import subprocess
import sys

START, MODULES, CALLS, REASON, END, PLACE = 1, 2, 3, 4, 5, 8
REG_MR, REREG_MR, DEREG_MR, REG_RELAXED, DEREG_RELAXED, FI_MR_REG, FI_CLOSE, CACHE = 1, 6, 7, 8, 9, 10, 13, 14
KERNEL, PASSED_ON, HIT, MISS, KEPT = 1, 2, 3, 4, 5
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ = 1, 2, 4
EFAULT, ENOMEM = 14, 12
us, ms, s = 1000, 1000_000, 1000_000_000
KiB, MiB = 1 << 10, 1 << 20

# The addresses of PROGRAM and LIBRARY in the traced process.
PROGRAM_AT, LIBRARY_AT, GONE_AT = 0x555500000000, 0x7F0000000000, 0x7E0000000000
CALL = struct.Struct("<QIBBHQQQIIQII")


class Process:
    def __init__(self, out, pid, command, began, monotonic=77 * s):
        self.out, self.pid, self.began, self.monotonic = out, pid, began, monotonic
        self.sequence = self.dropped = 0
        self.pending = []
        text = "".join(argument + "\0" for argument in command).encode()
        self.block(START, struct.pack("<QQQ", monotonic, began, 4096) + text)

    def block(self, kind, content, longer=b""):
        header = struct.pack("<8sHHIIIQQQ", b"RDMAMRTR", 1, kind, 48 + len(longer), len(content), self.pid,
                             self.began, self.sequence, self.dropped)
        self.out.write(header + longer + content)
        self.sequence += 1

    def modules(self, program, library):
        size = 0x100000
        self.block(MODULES, "".join(f"{at:x} {at + size:x} {at:x} {path}\n" for at, path in (
            (PROGRAM_AT, program), (LIBRARY_AT, library), (GONE_AT, "/nowhere/lib & <gone>.so"))).encode())

    def call(self, at, duration, call, how, memory, access=0, lkey=0, caller=0, thread=1, errno=0, reason=0, pd=0xABC0):
        address, length = memory
        self.pending.append(CALL.pack(self.monotonic + at, duration, call, how, errno, pd, address, length, access,
                                      lkey, caller, thread, reason))

    def flush(self):
        self.block(CALLS, b"".join(self.pending))
        self.pending = []

    def end(self, at):
        self.block(END, struct.pack("<Q", self.monotonic + at))


def return_address(binary, function, at):
    """The address behind the call that a function has."""
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", binary], capture_output=True, text=True, check=True)
    lines = listing.stdout.split(f"<{function}>:\n")[1].splitlines()
    for line, following in zip(lines, lines[1:]):
        if "call" in line and "register_memory" in line:
            return at + int(following.split(":")[0], 16)
    sys.exit(f"{binary}: {function} calls nothing")


def known(path, program, library):
    send = return_address(program, "send_message", PROGRAM_AT)
    fetch = return_address(program, "fetch_rows", PROGRAM_AT)
    load = return_address(library, "load_index", LIBRARY_AT)
    gone = GONE_AT + 0x1234
    with open(path, "wb") as out:
        began = 1_750_000_000 * s
        one = Process(out, 4711, ["./rpc", "--name", "<script>alert(1)</script>"], began)
        one.modules(program, library)
        one.block(77, b"of a later version")
        one.block(REASON, struct.pack("<I", 1) + b"ENOMEM from the kernel: RLIMIT_MEMLOCK <b>this</b> & that")
        # A second thread's calls come first in the file, and are later.
        bulk = (0x30000000, MiB)
        for n in range(10):
            at = 600 * ms + n * 50 * ms
            one.call(at, 300 * us, REG_MR, KERNEL, bulk, 7, 0x20, fetch, 2)
            one.call(at + 10 * ms, 100 * us, DEREG_MR, KERNEL, bulk, 0, 0x20, fetch, 2)
        one.flush()
        message = (0x20000F00, 8192)  # on three pages
        for n in range(100):
            at = n * 5 * ms
            one.call(at, 50 * us, REG_MR, KERNEL, message, LOCAL_WRITE, 0x10, send, 1)
            one.call(at + 1 * ms, 20 * us, DEREG_MR, KERNEL, message, 0, 0x10, send, 1)
        for n in range(2):
            one.call((5 + n) * ms, 80 * us, REG_MR, PASSED_ON, (0x40000000 + n * MiB, 64 * KiB), 1, 0x30 + n, gone, 1)
        for n in range(3):
            one.call((1000 + n) * ms, 5 * us, REG_MR, 0, (0x50000000, 64 * MiB), 1, 0, load, 1, ENOMEM, 1)
        for n in range(2):
            one.call((1100 + n) * ms, 4 * us, REG_MR, 0, (0, 4096), 1, 0, load, 1, EFAULT)
        one.flush()
        cached = (0x60000010, MiB - 0x20)  # 256 pages
        one.call(1500 * ms, 1 * ms, REG_RELAXED, MISS, cached, 1, 0x40, send, 1)
        one.call(1501 * ms, 200, DEREG_RELAXED, KEPT, cached, 0, 0x40, send, 1)
        for n in range(20):
            one.call((1510 + n) * ms, 300, REG_RELAXED, HIT, cached, 1, 0x40, send, 1)
            one.call((1510 + n) * ms + us, 200, DEREG_RELAXED, KEPT, cached, 0, 0x40, send, 1)
        one.call(2500 * ms, 15 * us, CACHE, KERNEL, (0x60000000, MiB), 0, 0x40, 0, 3)
        one.block(CALLS, b"".join(one.pending), longer=b"of later")
        one.end(3000 * ms)
        # Another process, with another monotonic clock, is killed while it writes its last block.
        two = Process(out, 4712, ["./worker"], began + 1 * s, 5 * s)
        two.dropped = 7
        two.modules(program, library)
        two.call(1 * s, 400 * us, REG_MR, KERNEL, (0x70000000, 2 * MiB), 7, 0x50, fetch, 9)
        two.call(1100 * ms, 10 * us, REG_MR, KERNEL, (0x71000000, 4096), 1, 0x51, fetch, 9)
        two.call(1200 * ms, 10 * us, REG_MR, KERNEL, (0x72000000, 4096), 1, 0x52, fetch, 9)
        two.flush()
        out.truncate(out.tell() - CALL.size - 10)


def job(path, program, library, faster=1):
    """Rank 0 and 1 on node1, rank 2 on node2, which takes three times as long as rank 1."""
    faster = int(faster)
    send = return_address(program, "send_message", PROGRAM_AT)
    load = return_address(library, "load_index", LIBRARY_AT)
    os.mkdir(path)
    for rank, host, took in ((0, "node1", 20), (1, "node1", 10), (2, "node2", 30)):
        with open(f"{path}/{host}-{rank}.trace", "wb") as out:
            one = Process(out, 500 + rank % 2, ["./solver", "--grid", "64"], 1_763_642_400 * s + rank)
            one.block(PLACE, struct.pack("<I", rank) + host.encode())
            one.modules(program, library)
            for n in range(20):
                memory = (0x20000000 + n % 5 * MiB, 64 * KiB << rank)
                one.call(n * 50 * ms, took * 30 * us // faster, REG_MR, KERNEL, memory, LOCAL_WRITE, n, send if n % 4 else load)
                one.call(n * 50 * ms + 20 * ms, took * 20 * us // faster, DEREG_MR, KERNEL, memory, 0, n, send if n % 4 else load)
            one.flush()
            one.end(1 * s)


def of(path, program, *libraries):
    """A process whose calls come from each library, then from the program."""
    places = [(PROGRAM_AT + n * MiB, library, int(open(library.replace(".so", ".at")).read(), 16)) for n, library in enumerate(libraries, 1)]
    with open(path, "wb") as out:
        one = Process(out, 600, ["./app"], 1_750_000_000 * s)
        modules = [(PROGRAM_AT, program)] + [(at, library) for at, library, _ in places]
        one.block(MODULES, "".join(f"{at:x} {at + MiB:x} {at:x} {module}\n" for at, module in modules).encode())
        callers = [at + offset + 8 for at, _, offset in places] + [return_address(program, "send_message", PROGRAM_AT)]
        for n, caller in enumerate(callers):
            one.call(n * 50 * ms, (100 - n) * us, REG_MR, KERNEL, (0x20000000 + n * MiB, 4096), LOCAL_WRITE, n, caller)
        one.flush()
        one.end(1 * s)


if __name__ == "__main__":
    kind, *names = sys.argv[1:]
    {"known": known, "job": job, "of": of}[kind](*names)
