#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""
clients.py WAY: what clients, and a false service, can do to "rdmamr fence". fence.sh runs it as
root, fence.c has the clients that use the counters.

  rude     clients that send what the service never reads
  unread   clients that never read their answers
  lingers  clients that send sockets whose closing waits for an hour
  stays    the same, and the peer of these sockets lives until it is killed
  flood    8 processes that connect all the time
  false    a service of user 0 without rights, whose counters are a file that it moves
  serves USER ANSWER  a service of this user, with this answer and no counters
  locks    locks what is in the service's directory, as user 0 without rights
"""
import contextlib
import ctypes
import fcntl
import itertools
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import time

PLACE = "/run/rdmamr/fence"
SIZE = (1 + 32768) * 64
libc = ctypes.CDLL(None)
count = 0


def ok(passed, name):
    global count
    count += 1
    print(f"{'' if passed else 'not '}ok {count} - {name}", flush=True)


def dial():
    it = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        it.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 10, 0))
    it.connect(PLACE)
    return it


def ask(user=0):
    """Whether the service answers a user as agreed."""
    os.seteuid(user)
    answer, files, *_ = socket.recv_fds(dial(), 9, 7)
    counters = len(files) >= 4 and mmap.mmap(files[0], SIZE, prot=mmap.PROT_READ)
    return answer == b"RDMAMRF2" and bool(counters)


def in_child(succeeds, *arguments):
    child = os.fork()
    if not child:
        try:
            os._exit(not succeeds(*arguments))
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def drop_capabilities():
    assert libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)) == 0


def sends_a_file():
    """By a process of root without capabilities, which may open 1024 files."""
    one, other = socket.socketpair()
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    drop_capabilities()
    return socket.send_fds(one, [b"."], [other.fileno()]) == 1


def unread():
    def leaves(user, number):
        """A user asks by so many connections and reads no answer. The first are shut down."""
        os.seteuid(user)
        clients = [dial() for _ in range(number)]
        for client in clients[:16]:
            if select.select([client], [], [], 10)[0]:
                client.shutdown(socket.SHUT_RDWR)
        os.seteuid(0)
        return clients

    def answered(clients):
        """How many of them have an answer, when the service has closed the others."""
        return sum(len(client.recv(1, socket.MSG_PEEK)) for client in clients)

    clients = leaves(0, 300)
    ok(in_child(ask, 1), "the service answers another user although 300 never read their answers")
    ok(answered(clients) == 32, "of a user's clients that never read 32 have an answer")
    ok(not in_child(ask), "and no other of that user gets one")
    for client in clients:
        client.close()
    ok(in_child(ask), "before they close")
    others = [leaves(100 + user, 40) for user in range(9)]
    ok(max(map(answered, others)) == 32, "another user has as many")
    ok(in_child(sends_a_file), "9 users who never read keep no process of root from sending files")


def rude():
    kept = []
    for n in range(100):
        kept.append(dial())
        with contextlib.suppress(BrokenPipeError):  # The service was faster.
            kept[n].send(b"RDMAMRF1" + bytes(0 if n & 1 else 4088))
        if n & 2:
            kept[n].close()
    ok(in_child(ask, 1), "the service answers although 100 clients send garbage, and half of them stay")


listener = socket.socket()


def sends_lingering(to, number):
    """Whether so many sockets could be sent whose closing waits: their peer never reads."""
    sent = []
    for _ in range(number):
        it = socket.socket()
        it.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        it.connect(listener.getsockname())
        try:
            while it.send(bytes(65536), socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            pass
        it.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
        sent.append(it)
    try:
        return socket.send_fds(to, [b"."], [it.fileno() for it in sent]) == 1
    except OSError:
        # This process waits for none.
        for it in sent:
            it.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False


def service_of(connection):
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def lingers():
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1000)
    client = dial()
    select.select([client], [], [], 10)
    ok(not sends_lingering(client, 5), "no file comes to the service once it has accepted")
    # Before it has accepted.
    service = service_of(client)
    client.close()
    os.kill(service, signal.SIGSTOP)
    clients = [dial() for _ in range(24)]
    sent = sum(sends_lingering(client, 5) for client in clients)
    os.kill(service, signal.SIGCONT)
    ok(sent == 24, "24 clients have left 5 sockets each whose closing waits for an hour")
    time.sleep(0.1)
    for client in clients:
        client.close()
    since = time.monotonic()
    ok(in_child(ask, 1), "the service answers another user meanwhile")
    ok(in_child(ask), "and the same user")
    ok(time.monotonic() - since < 5, f"within {time.monotonic() - since:.1f} s")


def flood():
    def connects(keeps):
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        kept = []
        while True:
            try:
                kept = (kept if keeps else []) + [dial()]
            except OSError:
                pass

    service, most = service_of(dial()), 0
    children = []
    for n in range(8):
        children.append(os.fork())
        if not children[-1]:
            connects(n & 1)
    since = time.monotonic()
    while time.monotonic() - since < 5:
        most = max(most, len(os.listdir(f"/proc/{service}/fd")))
        time.sleep(0.02)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    ok(most < 1024, f"the service has at most {most} files while 8 processes connect all the time")
    since = time.monotonic()
    served = any(in_child(ask) or time.sleep(0.02) for _ in range(20))
    took = time.monotonic() - since
    ok(served and took < 2, f"it serves again {took:.1f} s after")


def serves(user, answer, *files):
    """Who sees the name of the socket can connect."""
    it, unready = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), "/run/rdmamr/unready"
    it.bind(unready)
    os.chmod(unready, 0o666)
    # A client gets the number of the user who listens.
    os.seteuid(int(user))
    it.listen(16)
    os.seteuid(0)
    os.rename(unready, PLACE)
    while True:
        client = it.accept()[0]
        try:
            if answer:
                socket.send_fds(client, [answer.encode()], files)
        except BrokenPipeError:  # The client has not waited.
            pass
        client.close()


def false():
    """As a container that has the directory: it has root's number, and none of its rights."""
    counters = os.memfd_create("counters", 0)
    os.truncate(counters, SIZE)
    if not os.fork():
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        os.sched_setaffinity(0, [0])
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        memory = mmap.mmap(counters, SIZE)
        for n in itertools.count():
            struct.pack_into("Q", memory, 64, n)
    drop_capabilities()
    serves(0, "RDMAMRF2", *[counters] * 4)


def locks():
    drop_capabilities()
    folder = os.open("/run/rdmamr", os.O_RDONLY)
    for name in [".", *os.listdir(folder)]:
        try:
            fcntl.flock(os.open(name, os.O_RDONLY, dir_fd=folder), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            assert name != "."
    print("locked", flush=True)
    signal.pause()


def stays():
    lingers()
    print(f"1..{count}", flush=True)
    signal.pause()


globals()[sys.argv[1]](*sys.argv[2:])
print(f"1..{count}")
