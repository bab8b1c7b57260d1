# SPDX-License-Identifier: MIT OR Apache-2.0
"""silent_process.py FILE FOLDER [PAGE NUMBER]: FILE is on a file system that answers no read. NUMBER
processes, each with a live page in FOLDER that is a copy of PAGE, whose memory maps stay locked: one thread
of each reads FILE by /proc/self/mem and holds the lock, another waits for it to write. Without PAGE FOLDER
stays locked: its entries are read into memory that FILE has; and a file in it is there to be removed. If
FOLDER is another user's, a thread also waits to write to it, and so each look-up waits.
Prints the numbers of the processes."""
import ctypes
import mmap
import os
import sys
import threading
import time

PLACE, PAGE = 0x2D7200800000, 4096
SHARED, PRIVATE, FIXED, READ, WRITE, PR_SET_PDEATHSIG, SIGKILL = 1, 2, 16, 1, 2, 1, 9
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def map_file(path, length, protection, flags, place=None):
    file = os.open(path, os.O_RDWR if flags & SHARED else os.O_RDONLY)
    return libc.mmap(place, length, protection, flags, file, 0)


def read(at):
    os.pread(os.open("/proc/self/mem", os.O_RDONLY), 1, at)


def be_silent(silent, folder, page):
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
    start = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
    namespace = os.stat("/proc/self/ns/pid").st_ino
    content = bytearray(open(page, "rb").read())
    for at, word in (16, os.getpid()), (24, namespace), (32, start), (40, PLACE):
        content[at:at + 8] = word.to_bytes(8, "little")
    path = f"{folder}/{namespace}-{os.getpid()}-{start}"
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "wb") as file:
        file.write(content)
    map_file(path, len(content), READ, SHARED | FIXED, PLACE)
    at = map_file(silent, PAGE, READ, PRIVATE)
    threading.Thread(target=read, args=[at], daemon=True).start()
    time.sleep(0.2)
    os.write(1, b"%d\n" % os.getpid())
    while True:
        mmap.mmap(-1, PAGE).close()


silent, folder, *pages = sys.argv[1:]
os.makedirs(folder, 0o700, exist_ok=True)
if pages:
    for _ in range(int(pages[1])):
        if os.fork() == 0:
            be_silent(silent, folder, pages[0])
    print("ready", flush=True)
    time.sleep(1000)
namespace = os.stat("/proc/self/ns/pid").st_ino
open(f"{folder}/{namespace}-{os.getpid()}-1", "w").close()
at = map_file(silent, PAGE, READ | WRITE, PRIVATE)


def write():
    time.sleep(0.2)
    print("ready", flush=True)
    if os.stat(folder).st_uid != os.getuid():
        os.mkdir(f"{folder}/none")


threading.Thread(target=write, daemon=True).start()
libc.getdents64(os.open(folder, os.O_RDONLY), ctypes.c_void_p(at), PAGE)
