# SPDX-License-Identifier: MIT OR Apache-2.0
"""opened.py FILE COMMAND...: runs a command. The exit status is 0 if somebody opened the file meanwhile, 1
if nobody did, and 2 if that is not known or if the command failed."""
import ctypes
import os
import subprocess
import sys

IN_OPEN = 0x20
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(os.O_NONBLOCK)
if libc.inotify_add_watch(watch, os.fsencode(sys.argv[1]), IN_OPEN) < 0:
    print(f"{sys.argv[1]}: {os.strerror(ctypes.get_errno())}")
    sys.exit(2)
done = subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
try:
    os.read(watch, 4096)
except BlockingIOError:
    sys.exit(2 if done.returncode else 1)
