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


class Refused(Exception):
    """The registration failed."""


def good(name, code):
    if code != 0:
        raise Refused(f"{name}: {code}")


class Engine:
    """Mooncake's transfer engine."""

    def __init__(self):
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        code = self.engine.initialize(f"{ADDRESS}:13001", "P2PHANDSHAKE", "rdma", DEVICE)
        assert code == 0, f"initialize: {code}"

    def register(self, address):
        good("register_memory", self.engine.register_memory(address, LENGTH))

    def unregister(self, address):
        good("unregister_memory", self.engine.unregister_memory(address))


class Pyverbs:
    """rdma-core's pyverbs."""

    def __init__(self):
        from pyverbs.device import Context
        from pyverbs.pd import PD

        self.context = Context(name=DEVICE)
        self.pd = PD(self.context)

    def register(self, address):
        from pyverbs.mr import MR
        from pyverbs.pyverbs_error import PyverbsRDMAError

        try:
            self.mr = MR(self.pd, LENGTH, 7, address=address)  # local and remote rights
        except PyverbsRDMAError as error:
            raise Refused(error) from error

    def unregister(self, _address):
        self.mr.close()


class Ucx:
    """UCX. The structures are ucp_params_t and ucp_mem_map_params_t of its header."""

    class Params(ctypes.Structure):
        _fields_ = [("mask", ctypes.c_uint64), ("features", ctypes.c_uint64), ("rest", ctypes.c_uint64 * 16)]

    class MemMapParams(ctypes.Structure):
        _fields_ = [
            ("mask", ctypes.c_uint64),
            ("address", ctypes.c_void_p),
            ("length", ctypes.c_size_t),
            ("rest", ctypes.c_uint64 * 8),
        ]

    FEATURES, RMA = 1 << 0, 1 << 1
    ADDRESS_AND_LENGTH = 3

    def __init__(self):
        self.library = ctypes.CDLL("libucp.so.0")
        self.context, self.memory = ctypes.c_void_p(), ctypes.c_void_p()
        params = self.Params(self.FEATURES, self.RMA)
        code = self.library.ucp_init_version(1, 13, ctypes.byref(params), None, ctypes.byref(self.context))
        assert code == 0, f"ucp_init: {code}"

    def register(self, address):
        params = self.MemMapParams(self.ADDRESS_AND_LENGTH, address, LENGTH)
        good("ucp_mem_map", self.library.ucp_mem_map(self.context, ctypes.byref(params), ctypes.byref(self.memory)))

    def unregister(self, _address):
        good("ucp_mem_unmap", self.library.ucp_mem_unmap(self.context, self.memory))


class Hca:
    """The control file of vm/hca."""

    def __init__(self):
        self.file = os.open("/dev/rdmamr-hca", os.O_RDWR)

    def run(self, command, *words):
        os.write(self.file, " ".join([command, DEVICE, *words]).encode())

    def answer(self):
        return os.read(self.file, 1 << 20).decode()

    def registered(self, address):
        """What became of the registrations of this address: the names of the calls, and the last key."""
        self.run("log")
        calls = re.findall(r"^(\S+) start=.* iova=(\S+) .* = (-?\d+) lkey=\S+ rkey=(\S+)$", self.answer(), re.M)
        calls = [(name, int(result), key) for name, iova, result, key in calls if int(iova, 16) == address]
        return [(name, result) for name, result, _ in calls], calls[-1][2] if calls else None

    def is_right(self, key, address):
        """Whether the device reaches the GPU's memory by the key."""
        wrote, wants = os.urandom(SHOWN), os.urandom(SHOWN)
        self.run("remote-write", key, hex(address), wrote.hex())
        if ctypes.string_at(gpu.gpu_bytes(address), SHOWN) != wrote:
            return False
        ctypes.memmove(gpu.gpu_bytes(address), wants, SHOWN)
        self.run("remote-read", key, hex(address), str(SHOWN))
        return bytes.fromhex(self.answer().strip()) == wants


by = {"engine": Engine, "pyverbs": Pyverbs, "ucx": Ucx}[BY]()
hca, at = Hca(), gpu.gpu_allocate(0, LENGTH)
assert at
hca.run("log")
hca.answer()
try:
    by.register(at)
    print("registered")
except Refused as refused:
    print(f"refused: {refused}")
calls, key = hca.registered(at)
print("calls:", ", ".join(f"{name} {result}" for name, result in calls))
if calls and calls[-1][1] == 0:
    print("data:", "right" if all(hca.is_right(key, at + offset) for offset in (0, LENGTH - SHOWN)) else "wrong")
    by.unregister(at)
    print("ended")
sys.stdout.flush()
# Mooncake's threads do not end with the interpreter.
os._exit(0)
