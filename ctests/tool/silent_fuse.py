# SPDX-License-Identifier: MIT OR Apache-2.0
"""silent_fuse.py PATH COMMAND...: mounts a file system of FUSE on a folder or a file that answers nothing but
its own start, and runs a command. For a mount namespace of its own."""
import ctypes
import os
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
device = os.open("/dev/fuse", os.O_RDWR)
kind = os.stat(sys.argv[1]).st_mode & 0o170000
options = f"fd={device},rootmode={kind:o},user_id=0,group_id=0,allow_other".encode()
if libc.mount(b"silent", os.fsencode(sys.argv[1]), b"fuse", 0, options):
    sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
unique = struct.unpack_from("<IIQ", os.read(device, 1 << 17))[2]
os.write(device, struct.pack("<IiQIIIIHHII36x", 80, 0, unique, 7, 31, 4096, 0, 1, 1, 4096, 1))
os.set_inheritable(device, True)
os.execvp(sys.argv[2], sys.argv[2:])
