# SPDX-License-Identifier: MIT OR Apache-2.0
"""gpu_memory.py BY DEVICE ADDRESS

Registers memory of a GPU on DEVICE BY one of

    engine   Mooncake's transfer engine (its wheel for CUDA)
    pyverbs  rdma-core's pyverbs
    ucx      UCX (ucp_mem_map), built without CUDA

and prints the result. After a registration the device writes and reads the memory by the region's
key, and the program prints whether that was right. The GPU is the stand-in libcuda.so.1 of
gpu_runtime.c, the device is one of vm/hca.
"""

import ctypes
import os
import re
import sys

BY, DEVICE, ADDRESS = sys.argv[1:]
LENGTH, SHOWN = 8 << 20, 64

# The stand-ins have few of CUDA's functions: a program that calls another one ends here.
sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)
gpu = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
gpu.gpu_allocate.argtypes, gpu.gpu_allocate.restype = [ctypes.c_int, ctypes.c_size_t], ctypes.c_uint64
gpu.gpu_bytes.argtypes, gpu.gpu_bytes.restype = [ctypes.c_uint64], ctypes.c_void_p


def good(code):
    if code != 0:
        raise RuntimeError(code)


# Each of these opens the device, and returns the functions that register the address and end that.


def engine(address):
    from mooncake.engine import TransferEngine

    mine = TransferEngine()
    code = mine.initialize(f"{ADDRESS}:13001", "P2PHANDSHAKE", "rdma", DEVICE)
    assert code == 0, f"initialize: {code}"
    return (
        lambda: good(mine.register_memory(address, LENGTH)),
        lambda: good(mine.unregister_memory(address)),
    )


def pyverbs(address):
    from pyverbs.device import Context
    from pyverbs.mr import MR
    from pyverbs.pd import PD

    domain, regions = PD(Context(name=DEVICE)), []
    rights = 7  # local and remote ones
    return (
        lambda: regions.append(MR(domain, LENGTH, rights, address=address)),
        lambda: regions[0].close(),
    )


def ucx(address):
    library = ctypes.CDLL("libucp.so.0")
    context, memory = ctypes.c_void_p(), ctypes.c_void_p()
    # ucp_params_t, whose mask has the features only, which are RMA; ucp_mem_map_params_t, whose mask
    # has an address and a length.
    params, wanted = (ctypes.c_uint64 * 18)(1, 2), (ctypes.c_uint64 * 11)(3, address, LENGTH)
    code = library.ucp_init_version(1, 13, params, None, ctypes.byref(context))
    assert code == 0, f"ucp_init: {code}"
    return (
        lambda: good(library.ucp_mem_map(context, wanted, ctypes.byref(memory))),
        lambda: good(library.ucp_mem_unmap(context, memory)),
    )


control = os.open("/dev/rdmamr-hca", os.O_RDWR)


def hca(command, *words):
    """The answer of the control file of vm/hca."""
    os.write(control, " ".join([command, DEVICE, *words]).encode())
    return os.read(control, 1 << 20).decode()


def is_right(key, address):
    """Whether the device reaches the GPU's memory by the key."""
    wrote, wants = os.urandom(SHOWN), os.urandom(SHOWN)
    hca("remote-write", key, hex(address), wrote.hex())
    if ctypes.string_at(gpu.gpu_bytes(address), SHOWN) != wrote:
        return False
    ctypes.memmove(gpu.gpu_bytes(address), wants, SHOWN)
    return bytes.fromhex(hca("remote-read", key, hex(address), str(SHOWN)).strip()) == wants


at = gpu.gpu_allocate(0, LENGTH)
assert at
register, unregister = {"engine": engine, "pyverbs": pyverbs, "ucx": ucx}[BY](at)
hca("log")
try:
    register()
    print("registered")
except Exception as refused:  # pyverbs has one of its own
    print(f"refused: {refused}")
# The registrations of this address: the names of the calls, their results and keys.
log = re.findall(r"^(\S+) start=.* iova=(\S+) .* = (-?\d+) lkey=\S+ rkey=(\S+)$", hca("log"), re.M)
calls = [(name, result, key) for name, iova, result, key in log if int(iova, 16) == at]
print("calls:", ", ".join(f"{name} {result}" for name, result, _ in calls))
if calls and calls[-1][1] == "0":
    right = all(is_right(calls[-1][2], at + offset) for offset in (0, LENGTH - SHOWN))
    print("data:", "right" if right else "wrong")
    unregister()
    print("ended")
sys.stdout.flush()
# Mooncake's threads do not end with the interpreter.
os._exit(0)
