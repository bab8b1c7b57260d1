# SPDX-License-Identifier: MIT OR Apache-2.0
"""moves.py DEVICE ADDRESS FOLDER target | initiator [BUFFERS]

Two processes that move data by Mooncake's transfer engine (the Python wheel), as servers of
language models move their caches. The target offers memory and writes its port to FOLDER/port. The
initiator writes buffers that come and go to that memory, reads each back into another buffer, and
compares, for 20 buffers or as many as is said. It prints what was wrong, and the number of transfers.
"""

import ctypes
import os
import sys
import time

from mooncake.engine import TransferEngine

LENGTH = 64 << 10
PATTERN = bytes(range(251)) * (LENGTH // 251 + 2)
DEVICE, ADDRESS, FOLDER, ROLE = sys.argv[1:5]
BUFFERS = int(sys.argv[5]) if len(sys.argv) > 5 else 20
os.makedirs(FOLDER, exist_ok=True)


def engine(port):
    new = TransferEngine()
    code = new.initialize(f"{ADDRESS}:{port}", "P2PHANDSHAKE", "rdma", DEVICE)
    assert code == 0, f"initialize: {code}"
    return new


def registered(by, buffer):
    address = ctypes.addressof(buffer)
    code = by.register_memory(address, ctypes.sizeof(buffer))
    assert code == 0, f"register_memory: {code}"
    return address


def ended(by, address):
    code = by.unregister_memory(address)
    assert code == 0, f"unregister_memory: {code}"


def write(name, text):
    """Makes a file that is there only once it is whole."""
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


def target():
    mine = engine(13001)
    memory = (ctypes.c_char * LENGTH)()
    address = registered(mine, memory)
    write("port", f"{mine.get_rpc_port()} {address}")
    read("done")
    ended(mine, address)


def initiator():
    mine = engine(13002)
    port, remote = map(int, read("port").split())
    peer = f"{ADDRESS}:{port}"
    good = 0
    for number in range(BUFFERS):
        text = PATTERN[number % 251 :][:LENGTH]
        # The C library takes the buffers from the same places again and again.
        source = ctypes.create_string_buffer(text, LENGTH)
        back = ctypes.create_string_buffer(LENGTH)
        from_, to = registered(mine, source), registered(mine, back)
        codes = (
            mine.transfer_sync_write(peer, from_, remote, LENGTH),
            mine.transfer_sync_read(peer, to, remote, LENGTH),
        )
        if codes != (0, 0):
            print(f"buffer {number}: write and read return {codes}")
        elif back.raw != text:
            print(f"buffer {number}: what came back differs")
        else:
            good += 1
        ended(mine, from_)
        ended(mine, to)
        del source, back
    print(f"{good} of {BUFFERS} buffers came back as they went")
    write("done", "")
    sys.exit(good != BUFFERS)


{"target": target, "initiator": initiator}[ROLE]()
