# SPDX-License-Identifier: MIT OR Apache-2.0
"""silent_autofs.py FOLDER COMMAND...: is the automounter of a folder, mounts nothing when it is asked, and
runs a command. In the folder "mounted" there a tmpfs is mounted, with a copy of the files that the folder
"mounted" had before. Fails if it was asked, or if the command fails. For a mount namespace of its own."""
import ctypes
import os
import shutil
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)
folder, *command = sys.argv[1:]
before, mounted = folder + ".before", folder + "/mounted"


def mount(kind, where, options):
    if libc.mount(kind, os.fsencode(where), kind, 0, options):
        sys.exit(f"mount {where}: {os.strerror(ctypes.get_errno())}")


shutil.copytree(mounted, before, dirs_exist_ok=True)
requests, daemon = os.pipe()
# The processes of this group are the automounter.
os.setpgid(0, 0)
mount(b"autofs", folder, f"fd={daemon},pgrp={os.getpgrp()},minproto=5,maxproto=5,indirect".encode())
os.mkdir(mounted)
mount(b"tmpfs", mounted, None)
shutil.copytree(before, mounted, dirs_exist_ok=True)
failed = subprocess.run(command, start_new_session=True).returncode
os.set_blocking(requests, False)
try:
    sys.exit(f"asked: {os.read(requests, 4096)}")
except BlockingIOError:
    sys.exit(failed)
