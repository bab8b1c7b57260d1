# SPDX-License-Identifier: MIT OR Apache-2.0
"""moves.py BY DEVICE ADDRESS FOLDER target | initiator [BUFFERS]

Two processes that move data BY one of

    engine   Mooncake's transfer engine (a Python wheel), as servers of language models do
    librpma  librpma, which reaches remote persistent memory, through ctypes

The target offers memory and writes to FOLDER/offer what the initiator needs to find it. The
initiator allocates a buffer, writes it to that memory, reads it back into another buffer, compares,
and frees both, for 20 buffers or for BUFFERS ("30": that many, "30s": as many as 30 seconds take).
It prints the differences, and the number of buffers.
FOLDER's name is a free port (librpma).
"""

import ctypes
import os
import sys
import time

LENGTH = 64 << 10
PATTERN = bytes(range(251)) * (LENGTH // 251 + 2)
BY, DEVICE, ADDRESS, FOLDER, ROLE = sys.argv[1:6]
BUFFERS = sys.argv[6] if len(sys.argv) > 6 else "20"
PORT = os.path.basename(FOLDER)
os.makedirs(FOLDER, exist_ok=True)


def good(name, code, wanted=0):
    assert code == wanted, f"{name}: {code}"


class Engine:
    """Mooncake's transfer engine."""

    def __init__(self):
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        port = {"target": 13001, "initiator": 13002}[ROLE]
        code = self.engine.initialize(f"{ADDRESS}:{port}", "P2PHANDSHAKE", "rdma", DEVICE)
        good("initialize", code)

    def offer(self, memory):
        self.mine = self.register(memory)
        # The peer knows this process by this port, not by the one above.
        return f"{self.engine.get_rpc_port()} {self.mine}"

    def serve(self):
        read("done")
        self.unregister(self.mine)

    def find(self, port, remote):
        self.peer, self.remote = f"{ADDRESS}:{port}", int(remote)

    def register(self, buffer):
        address = ctypes.addressof(buffer)
        good("register_memory", self.engine.register_memory(address, LENGTH))
        return address

    def unregister(self, address):
        good("unregister_memory", self.engine.unregister_memory(address))

    def write(self, address):
        code = self.engine.transfer_sync_write(self.peer, address, self.remote, LENGTH)
        good("transfer_sync_write", code)

    def read(self, address):
        code = self.engine.transfer_sync_read(self.peer, address, self.remote, LENGTH)
        good("transfer_sync_read", code)

    def close(self):
        write("done", "")


class Librpma:
    """librpma. The constants are RPMA_UTIL_IBV_CONTEXT_*, RPMA_MR_USAGE_*,
    RPMA_F_COMPLETION_ALWAYS and RPMA_CONN_* of its header.
    """

    LOCAL, REMOTE = 0, 1
    READ_SRC, READ_DST, WRITE_SRC, WRITE_DST = 1, 2, 4, 8
    ALWAYS = 3
    ESTABLISHED, CLOSED = 0, 1

    def __init__(self):
        self.library = ctypes.CDLL("librpma.so.0")
        side = self.LOCAL if ROLE == "target" else self.REMOTE
        device = self.new("utils_get_ibv_context", ADDRESS.encode(), side)
        self.peer = self.new("peer_new", device)

    def call(self, name, *words):
        good(name, getattr(self.library, "rpma_" + name)(*words))

    def new(self, name, *words):
        """The value that a call returns through its last argument."""
        made = ctypes.c_void_p()
        self.call(name, *words, ctypes.byref(made))
        return made

    def connect(self, request):
        self.connection = self.new("conn_req_connect", ctypes.byref(request), None)
        self.event(self.ESTABLISHED)
        self.queue = self.new("conn_get_cq", self.connection)

    def event(self, wanted):
        event = ctypes.c_int()
        self.call("conn_next_event", self.connection, ctypes.byref(event))
        good("the event", event.value, wanted)

    def region(self, buffer, usage):
        address, size = ctypes.c_void_p(ctypes.addressof(buffer)), ctypes.c_size_t(LENGTH)
        return self.new("mr_reg", self.peer, address, size, usage)

    def offer(self, memory):
        self.end = self.new("ep_listen", self.peer, ADDRESS.encode(), PORT.encode())
        self.mine = self.region(memory, self.READ_SRC | self.WRITE_DST)
        size = ctypes.c_size_t()
        self.call("mr_get_descriptor_size", self.mine, ctypes.byref(size))
        descriptor = (ctypes.c_char * size.value)()
        self.call("mr_get_descriptor", self.mine, descriptor)
        return descriptor.raw.hex()

    def serve(self):
        self.connect(self.new("ep_next_conn_req", self.end, None))
        self.event(self.CLOSED)
        self.call("conn_disconnect", self.connection)
        self.call("conn_delete", ctypes.byref(self.connection))
        self.unregister(self.mine)
        self.call("ep_shutdown", ctypes.byref(self.end))
        self.call("peer_delete", ctypes.byref(self.peer))

    def find(self, words):
        descriptor = bytes.fromhex(words)
        size = ctypes.c_size_t(len(descriptor))
        self.remote = self.new("mr_remote_from_descriptor", descriptor, size)
        self.connect(self.new("conn_req_new", self.peer, ADDRESS.encode(), PORT.encode(), None))

    def register(self, buffer):
        return self.region(buffer, self.READ_DST | self.WRITE_SRC)

    def unregister(self, region):
        self.call("mr_dereg", ctypes.byref(region))

    def move(self, name, to, from_):
        start, size = ctypes.c_size_t(0), ctypes.c_size_t(LENGTH)
        self.call(name, self.connection, to, start, from_, start, size, self.ALWAYS, None)
        self.call("cq_wait", self.queue)
        completion = (ctypes.c_uint32 * 12)()  # struct ibv_wc: wr_id, then status
        self.call("cq_get_wc", self.queue, 1, completion, None)
        good(f"the completion of {name}", completion[2])

    def write(self, region):
        self.move("write", self.remote, region)

    def read(self, region):
        self.move("read", region, self.remote)

    def close(self):
        self.call("conn_disconnect", self.connection)
        self.event(self.CLOSED)
        self.call("conn_delete", ctypes.byref(self.connection))
        self.call("mr_remote_delete", ctypes.byref(self.remote))
        self.call("peer_delete", ctypes.byref(self.peer))


def write(name, text):
    """Makes a file that appears only when it is complete."""
    path = os.path.join(FOLDER, name)
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(text)
    os.rename(path + ".new", path)


def read(name):
    path = os.path.join(FOLDER, name)
    while not os.path.exists(path):
        time.sleep(0.05)
    with open(path, encoding="ascii") as file:
        return file.read()


def target(mine):
    memory = (ctypes.c_char * LENGTH)()
    write("offer", mine.offer(memory))
    mine.serve()


def numbers():
    """Numbers the buffers."""
    until = time.monotonic() + float(BUFFERS[:-1]) if BUFFERS.endswith("s") else None
    number = 0
    while time.monotonic() < until if until else number < int(BUFFERS):
        yield number
        number += 1


def initiator(mine):
    mine.find(*read("offer").split())
    came_back = count = 0
    for number in numbers():
        count += 1
        text = PATTERN[number % 251 :][:LENGTH]
        # The C library allocates the buffers in the same places again and again.
        source = ctypes.create_string_buffer(text, LENGTH)
        back = ctypes.create_string_buffer(LENGTH)
        from_, to = mine.register(source), mine.register(back)
        mine.write(from_)
        mine.read(to)
        if back.raw == text:
            came_back += 1
        else:
            print(f"buffer {number}: the data that came back differs")
        mine.unregister(from_)
        mine.unregister(to)
        del source, back
    print(f"{came_back} of {count} buffers came back as they went")
    mine.close()
    sys.exit(came_back != count)


by = {"engine": Engine, "librpma": Librpma}[BY]()
{"target": target, "initiator": initiator}[ROLE](by)
