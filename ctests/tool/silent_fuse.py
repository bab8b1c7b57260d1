# SPDX-License-Identifier: MIT OR Apache-2.0
"""silent_fuse.py PLACE COMMAND...: mounts a file system of FUSE on a folder or a file, and runs a command.
The file system answers how it starts, and that the file has the attributes of the one below and can be
opened and closed. It answers nothing else. For a mount namespace of its own."""
import ctypes
import os
import select
import stat
import struct
import sys

INIT, GETATTR, OPEN, RELEASE, FLUSH, FOR_EVER, KEEP_CACHE = 26, 3, 14, 18, 25, 1 << 40, 2
libc = ctypes.CDLL(None, use_errno=True)
place = sys.argv[1]
below = os.stat(place)
device = os.open("/dev/fuse", os.O_RDWR)
kind = stat.S_IFMT(below.st_mode)
options = f"fd={device},rootmode={kind:o},user_id=0,group_id=0,allow_other".encode()
if libc.mount(b"silent", os.fsencode(place), b"fuse", 0, options):
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")


def serve(parent):
    # A parent that has changed its user may not send a signal at its end.
    while os.getppid() == parent:
        if not select.select([device], [], [], 0.1)[0]:
            continue
        _, request, unique = struct.unpack_from("<IIQ", os.read(device, 1 << 17))
        if request == INIT:
            answer = struct.pack("<IIIIHHII36x", 7, 31, 4096, 0, 1, 1, 4096, 1)
        elif request == GETATTR and kind == stat.S_IFREG:
            answer = struct.pack("<QII6Q10I", FOR_EVER, 0, 0, 1, below.st_size, 8, 0, 0, 0, 0, 0, 0, below.st_mode,
                                 1, below.st_uid, below.st_gid, 0, 4096, 0)
        elif request == OPEN:
            answer = struct.pack("<QII", 0, KEEP_CACHE, 0)
        elif request in (RELEASE, FLUSH):
            answer = b""
        else:
            continue
        os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)


parent = os.getpid()
if os.fork() == 0:
    serve(parent)
    os._exit(0)
if kind == stat.S_IFREG:
    os.stat(place)
os.close(device)
os.execvp(sys.argv[2], sys.argv[2:])
