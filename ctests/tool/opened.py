# SPDX-License-Identifier: MIT OR Apache-2.0
"""opened.py FILE COMMAND...: runs a command; the exit status is 0 if somebody opened the file meanwhile."""
import ctypes
import os
import subprocess
import sys

IN_OPEN = 0x20
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(os.O_NONBLOCK)
if libc.inotify_add_watch(watch, os.fsencode(sys.argv[1]), IN_OPEN) < 0:
    sys.exit(f"{sys.argv[1]}: {os.strerror(ctypes.get_errno())}")
subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL)
try:
    sys.exit(not os.read(watch, 4096))
except BlockingIOError:
    sys.exit(1)
