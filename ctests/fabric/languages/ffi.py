#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""
ffi.py [LIBRARY]: libfabric's memory calls from a language that has no C compiler at hand. There they are static
inline functions, which nothing but C can call; here they are symbols. Python loads the library and libibverbs, and
uses no shim. LIBRARY is librdmamr.so.1, the device CHECK_DEVICE. Prints TAP.
"""
import errno
import mmap
import os
import sys
from ctypes import (CDLL, POINTER, Structure, addressof, byref, c_char, c_char_p, c_int, c_int32, c_size_t, c_ssize_t,
                    c_uint8, c_uint32, c_uint64, c_void_p, cast, sizeof)

PAGE = 4096
READ, WRITE, RECV, SEND, REMOTE_READ, REMOTE_WRITE = (1 << n for n in range(8, 14))
ALL = READ | WRITE | RECV | SEND | REMOTE_READ | REMOTE_WRITE
REG_MR = 1 << 59
KEY_NOTAVAIL = (1 << 64) - 1
CLASS_DOMAIN, CLASS_MR, CLASS_EQ = 2, 12, 13
MR_VIRT_ADDR, MR_PROV_KEY = 1 << 4, 1 << 6
MR_COMPLETE = 4
# libfabric's errors are errno's, and some of its own.
ETOOSMALL, EAVAIL, ENOKEY = 257, 259, 266


class Fid(Structure):
    _fields_ = [("fclass", c_size_t), ("context", c_void_p), ("ops", c_void_p)]


class Mr(Structure):
    _fields_ = [("fid", Fid), ("mem_desc", c_void_p), ("key", c_uint64)]


class Iovec(Structure):
    _fields_ = [("base", c_void_p), ("length", c_size_t)]


class EqAttr(Structure):
    _fields_ = [("size", c_size_t), ("flags", c_uint64), ("wait_obj", c_int), ("signaling_vector", c_int),
                ("wait_set", c_void_p)]


class EqEntry(Structure):
    _fields_ = [("fid", c_void_p), ("context", c_void_p), ("data", c_uint64)]


class EqError(Structure):
    _fields_ = [("fid", c_void_p), ("context", c_void_p), ("data", c_uint64), ("err", c_int), ("prov_errno", c_int),
                ("err_data", c_void_p), ("err_data_size", c_size_t)]


class DomainAttr(Structure):
    _fields_ = [("size", c_size_t), ("api_version", c_uint32), ("mr_mode", c_int32), ("mode", c_uint64),
                ("caps", c_uint64), ("flags", c_uint64), ("mr_key_size", c_size_t)]


class Segment(Structure):
    _fields_ = [("addr", c_uint64), ("length", c_uint64), ("lkey", c_uint32), ("rkey", c_uint32)]


count = 0


def ok(passed, name):
    global count
    count += 1
    print(f"{'' if passed else 'not '}ok {count} - {name}", flush=True)
    return passed


def is_(got, want, name):
    if not ok(got == want, name):
        print(f"# got {got!r}, want {want!r}", flush=True)


def must(condition, what):
    if not condition:
        print(f"Bail out! {what}")
        sys.exit(1)
    return condition


def declare(library, name, result, *arguments):
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


verbs = CDLL("libibverbs.so.1")
rdmamr = CDLL(sys.argv[1] if len(sys.argv) > 1 else "librdmamr.so.1")

get_device_list = declare(verbs, "ibv_get_device_list", POINTER(c_void_p), POINTER(c_int))
free_device_list = declare(verbs, "ibv_free_device_list", None, POINTER(c_void_p))
get_device_name = declare(verbs, "ibv_get_device_name", c_char_p, c_void_p)
open_device = declare(verbs, "ibv_open_device", c_void_p, c_void_p)
alloc_pd = declare(verbs, "ibv_alloc_pd", c_void_p, c_void_p)
# The library interposes these two.
dealloc_pd = declare(rdmamr, "ibv_dealloc_pd", c_int, c_void_p)
close_device = declare(rdmamr, "ibv_close_device", c_int, c_void_p)

domain_open = declare(rdmamr, "rdmamr_domain_open", c_int, c_void_p, POINTER(DomainAttr), POINTER(c_void_p), c_void_p)
eq_open = declare(rdmamr, "rdmamr_eq_open", c_int, c_uint32, POINTER(EqAttr), POINTER(c_void_p), c_void_p)
resolve = declare(rdmamr, "rdmamr_resolve", c_int, c_void_p, c_uint64, c_uint64, c_size_t, POINTER(Segment),
                  POINTER(c_size_t))
mr_segments = declare(rdmamr, "rdmamr_mr_segments", c_int, c_void_p, POINTER(Segment), POINTER(c_size_t))
last_reason = declare(rdmamr, "rdmamr_last_reason", c_char_p)
fi_mr_reg = declare(rdmamr, "fi_mr_reg", c_int, c_void_p, c_void_p, c_size_t, c_uint64, c_uint64, c_uint64, c_uint64,
                    POINTER(c_void_p), c_void_p)
fi_mr_regv = declare(rdmamr, "fi_mr_regv", c_int, c_void_p, POINTER(Iovec), c_size_t, c_uint64, c_uint64, c_uint64,
                     c_uint64, POINTER(c_void_p), c_void_p)
fi_mr_key = declare(rdmamr, "fi_mr_key", c_uint64, c_void_p)
fi_mr_desc = declare(rdmamr, "fi_mr_desc", c_void_p, c_void_p)
fi_mr_enable = declare(rdmamr, "fi_mr_enable", c_int, c_void_p)
fi_mr_raw_attr = declare(rdmamr, "fi_mr_raw_attr", c_int, c_void_p, POINTER(c_uint64), POINTER(c_uint8),
                         POINTER(c_size_t), c_uint64)
fi_mr_map_raw = declare(rdmamr, "fi_mr_map_raw", c_int, c_void_p, c_uint64, POINTER(c_uint8), c_size_t,
                        POINTER(c_uint64), c_uint64)
fi_mr_unmap_key = declare(rdmamr, "fi_mr_unmap_key", c_int, c_void_p, c_uint64)
fi_domain_bind = declare(rdmamr, "fi_domain_bind", c_int, c_void_p, c_void_p, c_uint64)
fi_eq_sread = declare(rdmamr, "fi_eq_sread", c_ssize_t, c_void_p, POINTER(c_uint32), c_void_p, c_size_t, c_int,
                      c_uint64)
fi_eq_read = declare(rdmamr, "fi_eq_read", c_ssize_t, c_void_p, POINTER(c_uint32), c_void_p, c_size_t, c_uint64)
fi_eq_readerr = declare(rdmamr, "fi_eq_readerr", c_ssize_t, c_void_p, POINTER(EqError), c_uint64)
fi_close = declare(rdmamr, "fi_close", c_int, c_void_p)


def open_named(name):
    devices, found = get_device_list(None), None
    for n in range(1000):
        if not devices[n]:
            break
        if get_device_name(devices[n]).decode() == name:
            found = open_device(devices[n])
    free_device_list(devices)
    return must(found, f"no device {name}")


def pinned():
    """The bytes that the kernel counts as pinned."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmPin:"))


def register(domain, address, length, access, key, context=None):
    mr = c_void_p()
    return fi_mr_reg(domain, address, length, access, 0, key, 0, byref(mr), context), mr.value


def segments_of(call, *arguments):
    segments, room = (Segment * 16)(), c_size_t(16)
    result = call(*arguments, segments, byref(room))
    return result, [(s.addr, s.length, s.lkey, s.rkey) for s in segments[:room.value]] if result == 0 else None


context = open_named(os.environ["CHECK_DEVICE"])
pd = must(alloc_pd(context), "ibv_alloc_pd")
memory = mmap.mmap(-1, 16 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
view = (c_char * (16 * PAGE)).from_buffer(memory)
at = addressof(view)
view[:] = b"\x55" * (16 * PAGE)

domain = c_void_p()
is_(domain_open(None, None, byref(domain), None), -errno.EINVAL, "a domain without a PD is EINVAL")
ok(b"NULL" in last_reason(), f"in words: {last_reason().decode()}")
attr = DomainAttr(size=sizeof(DomainAttr), api_version=1 << 16 | 17)
is_(domain_open(pd, byref(attr), byref(domain), 0x1234), 0, "a domain")
opened = cast(domain, POINTER(Fid)).contents
is_((opened.fclass, opened.context), (CLASS_DOMAIN, 0x1234), "its class and context")

result, mr = register(domain, at, 16 * PAGE, ALL, 0x77, 0x5678)
is_(result, 0, "fi_mr_reg")
must(mr, "no region")
is_(fi_mr_key(mr), 0x77, "fi_mr_key is the requested key")
ok(pinned() in (16 * PAGE, 32 * PAGE), f"the memory is pinned, for the process and for remote peers: {pinned()} bytes")
result, local = segments_of(mr_segments, mr)
is_(result, 0, "rdmamr_mr_segments")
ok(len(local) == 1 and local[0][:2] == (at, 16 * PAGE) and local[0][2] and local[0][3], f"is the buffer: {local}")
is_(fi_mr_desc(mr), local[0][2], "fi_mr_desc is its lkey")
fields = cast(mr, POINTER(Mr)).contents
is_((fields.fid.fclass, fields.fid.context, fields.key, fields.mem_desc), (CLASS_MR, 0x5678, 0x77, local[0][2]),
    "the object's fields are what the functions return")
is_(fi_mr_enable(mr), 0, "fi_mr_enable")
is_(register(domain, at, PAGE, ALL, 0x77)[0], -ENOKEY, "the key is in use")
ok(last_reason(), f"in words: {last_reason().decode()}")
is_(register(domain, at, PAGE, 1, 0x78)[0], -errno.EINVAL, "an unknown access is EINVAL")
is_(register(domain, 0x1000, PAGE, ALL, 0x78)[0], -errno.EFAULT, "unmapped memory is EFAULT")
ok(b"mapped" in last_reason(), f"in words: {last_reason().decode()}")

size, base, raw = c_size_t(0), c_uint64(99), (c_uint8 * 1024)()
is_(fi_mr_raw_attr(mr, byref(base), raw, byref(size), 0), -ETOOSMALL, "fi_mr_raw_attr without room")
needed = size.value
ok(0 < needed < 1024, f"needs {needed} bytes")
is_(fi_mr_raw_attr(mr, byref(base), raw, byref(size), 0), 0, "fi_mr_raw_attr")
is_((base.value, size.value), (0, needed), "offsets begin at 0")
mapped = c_uint64()
is_(fi_mr_map_raw(domain, base, raw, size, byref(mapped), 0), 0, "fi_mr_map_raw")
ok(1 << 32 <= mapped.value < KEY_NOTAVAIL, f"a key that no device has: {mapped.value:#x}")
for key, name in (mapped.value, "the mapped key"), (0x77, "the region's own"):
    result, remote = segments_of(resolve, domain, key, 100, 50)
    is_(result, 0, f"rdmamr_resolve of {name}")
    is_(remote and [(length, rkey) for _, length, _, rkey in remote], [(50, local[0][3])], f"{name}: 50 bytes, its rkey")
    is_(remote and remote[0][0] % PAGE, (at + 100) % PAGE, f"{name}: 100 bytes into the page")
is_(segments_of(resolve, domain, mapped.value, 16 * PAGE - 8, 16)[0], -errno.EINVAL, "past its end is EINVAL")
is_(segments_of(resolve, domain, 0x99, 0, 8)[0], -ENOKEY, "an unknown key is ENOKEY")
raw[needed // 2] ^= 1
again = c_uint64()
is_(fi_mr_map_raw(domain, base, raw, size, byref(again), 0), -errno.EINVAL, "a raw key with one bit changed is EINVAL")
is_(fi_close(domain), -errno.EBUSY, "the domain is busy")
is_(fi_mr_unmap_key(domain, mapped), 0, "fi_mr_unmap_key")
is_(fi_mr_unmap_key(domain, mapped), -ENOKEY, "once")

iov = (Iovec * 3)((at, 100), (at + 4 * PAGE, PAGE), (at + 8 * PAGE, 10))
pieces = c_void_p()
is_(fi_mr_regv(domain, iov, 3, ALL, 0, 0x80, 0, byref(pieces), None), 0, "fi_mr_regv")
is_((fi_mr_key(pieces), fi_mr_desc(pieces)), (0x80, None), "one key, no descriptor")
result, local = segments_of(mr_segments, pieces)
is_(result == 0 and [s[:2] for s in local], [(at, 100), (at + 4 * PAGE, PAGE), (at + 8 * PAGE, 10)], "its pieces")
result, remote = segments_of(resolve, domain, 0x80, 90, PAGE + 20)
is_(result == 0 and [s[1] for s in remote], [10, PAGE, 10], "a range is where its bytes lie")
is_(result == 0 and [s[3] for s in remote], [s[3] for s in local], "with the rkey of each")
is_(fi_close(pieces), 0, "fi_close of the pieces")
is_(fi_close(mr), 0, "fi_close of the region")
is_(pinned(), 0, "nothing is pinned")
is_(fi_close(None), -errno.EINVAL, "fi_close of NULL is EINVAL")
is_(fi_mr_key(None), KEY_NOTAVAIL, "the key of NULL is FI_KEY_NOTAVAIL")
is_(fi_mr_desc(None), None, "nor is its descriptor")
is_(fi_mr_key(domain), KEY_NOTAVAIL, "nor the key of a domain")
is_(fi_close(domain), 0, "fi_close of the domain")

# Asynchronous registrations.
queue = c_void_p()
is_(eq_open(1 << 16 | 17, byref(EqAttr(wait_obj=1)), byref(queue), None), 0, "an event queue")
is_(domain_open(pd, byref(attr), byref(domain), None), 0, "another domain")
is_(fi_domain_bind(domain, queue, REG_MR), 0, "registers asynchronously")
event, entry, error = c_uint32(77), EqEntry(), EqError()
result, mr = register(domain, at, PAGE, ALL, 5, 0x9abc)
is_(result, 0, "fi_mr_reg")
is_(fi_eq_sread(queue, byref(event), byref(entry), sizeof(entry), 20000, 0), sizeof(entry), "an event comes")
is_((event.value, entry.fid, entry.context, entry.data), (MR_COMPLETE, mr, 0x9abc, 0), "of that region")
is_(fi_mr_key(mr), 5, "which has its key")
result, failing = register(domain, 0x1000, PAGE, ALL, 6, 0xdef0)
is_(result, 0, "fi_mr_reg of unmapped memory")
is_(fi_eq_sread(queue, byref(event), byref(entry), sizeof(entry), 20000, 0), -EAVAIL, "is an error")
is_(fi_eq_readerr(queue, byref(error), 0), sizeof(error), "which is read")
is_((error.fid, error.context, error.err, error.prov_errno), (failing, 0xdef0, errno.EFAULT, errno.EFAULT), "of that region")
is_(fi_eq_read(queue, byref(event), byref(entry), sizeof(entry), 0), -errno.EAGAIN, "and no more")
is_(fi_close(queue), -errno.EBUSY, "the queue is busy")
is_((fi_close(mr), fi_close(failing), fi_close(domain), fi_close(queue)), (0, 0, 0, 0), "everything is closed")

# The provider's keys, which are the default.
is_(domain_open(pd, None, byref(domain), None), 0, "a domain without attributes")
result, mr = register(domain, at + 8, 100, ALL, 7)
is_(result, 0, "fi_mr_reg")
result, local = segments_of(mr_segments, mr)
is_(result == 0 and (local[0][:2], local[0][3]), ((at + 8, 100), fi_mr_key(mr)), "its key is the rkey")
result, remote = segments_of(resolve, domain, fi_mr_key(mr), at + 16, 8)
is_(result == 0 and [(a, length, rkey) for a, length, _, rkey in remote], [(at + 16, 8, fi_mr_key(mr))],
    "remote peers use the address unchanged")
is_((fi_close(mr), fi_close(domain)), (0, 0), "everything is closed")
ok(view[:] == b"\x55" * (16 * PAGE), "the memory is unchanged")
is_(dealloc_pd(pd), 0, "the protection domain is not in use")
is_(close_device(context), 0, "the device is closed")
print(f"1..{count}")
