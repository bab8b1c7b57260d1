# SPDX-License-Identifier: MIT OR Apache-2.0
"""maps_file.py FILE: maps a file where a process under the library has its live page, says so, and waits."""
import ctypes
import os
import sys
import time

PLACE, SHARED, FIXED = 0x2D7200800000, 1, 16
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file = os.open(sys.argv[1], os.O_RDWR)
if libc.mmap(PLACE, os.fstat(file).st_size, 3, SHARED | FIXED, file, 0) != PLACE:
    sys.exit(f"mmap: {os.strerror(ctypes.get_errno())}")
print("ready", flush=True)
time.sleep(300)
