#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""
ffi.py [LIBRARY]: libfabric's memory calls from a language that calls symbols alone: in libfabric they are static
inline functions. It needs no shim of C. LIBRARY is librdmamr.so.1, the device CHECK_DEVICE. Prints TAP.
"""
import mmap
import os
import sys
from ctypes import CDLL, POINTER, Structure, addressof, byref, c_char, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from errno import EBUSY, EFAULT, EINVAL

PAGE, SIZE = 4096, 16 * 4096
ALL = 0x3f00  # FI_READ, FI_WRITE, FI_RECV, FI_SEND, FI_REMOTE_READ, FI_REMOTE_WRITE
ENOKEY = 266  # an error of libfabric's own


class Segment(Structure):
    _fields_ = [("addr", c_uint64), ("length", c_uint64), ("lkey", c_uint32), ("rkey", c_uint32)]


class DomainAttr(Structure):
    _fields_ = [("size", c_size_t), ("api_version", c_uint32), ("mr_mode", c_int), ("more", c_uint64 * 4)]


verbs, rdmamr = CDLL("libibverbs.so.1"), CDLL(sys.argv[1] if len(sys.argv) > 1 else "librdmamr.so.1")
for library, name, result, *arguments in (
        (verbs, "ibv_get_device_list", POINTER(c_void_p), c_void_p),
        (verbs, "ibv_get_device_name", c_char_p, c_void_p),
        (verbs, "ibv_open_device", c_void_p, c_void_p),
        (verbs, "ibv_alloc_pd", c_void_p, c_void_p),
        (rdmamr, "ibv_dealloc_pd", c_int, c_void_p),
        (rdmamr, "ibv_close_device", c_int, c_void_p),
        (rdmamr, "rdmamr_domain_open", c_int, c_void_p, POINTER(DomainAttr), POINTER(c_void_p), c_void_p),
        (rdmamr, "rdmamr_resolve", c_int, c_void_p, c_uint64, c_uint64, c_size_t, POINTER(Segment), POINTER(c_size_t)),
        (rdmamr, "rdmamr_last_reason", c_char_p),
        (rdmamr, "fi_mr_reg", c_int, c_void_p, c_void_p, c_size_t, *[c_uint64] * 4, POINTER(c_void_p), c_void_p),
        (rdmamr, "fi_mr_key", c_uint64, c_void_p),
        (rdmamr, "fi_mr_desc", c_void_p, c_void_p),
        (rdmamr, "fi_close", c_int, c_void_p)):
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    globals()[name] = function

count = 0


def is_(got, want, name):
    global count
    count += 1
    print(f"{'' if got == want else 'not '}ok {count} - {name}" + ("" if got == want else f"\n# got {got!r}, want {want!r}"), flush=True)


def resolved(key, offset, length):
    segment, room = Segment(), c_size_t(1)
    return rdmamr_resolve(domain, key, offset, length, byref(segment), byref(room)), segment


devices, n = ibv_get_device_list(None), 0
while ibv_get_device_name(devices[n]) != os.environb[b"CHECK_DEVICE"]:
    n += 1
context = ibv_open_device(devices[n])
pd = ibv_alloc_pd(context)
view = (c_char * SIZE).from_buffer(mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
at = addressof(view)

domain, mr, other = c_void_p(), c_void_p(), c_void_p()
is_(rdmamr_domain_open(None, None, byref(domain), None), -EINVAL, "a domain without a PD is EINVAL")
is_(b"NULL" in rdmamr_last_reason(), True, f"in words: {rdmamr_last_reason().decode()}")
is_(rdmamr_domain_open(pd, DomainAttr(48, 1 << 16 | 17), byref(domain), None), 0, "a domain")
is_(fi_mr_reg(domain, at, SIZE, ALL, 0, 0x77, 0, byref(mr), None), 0, "fi_mr_reg")
is_(fi_mr_key(mr), 0x77, "fi_mr_key is the requested key")
result, segment = resolved(0x77, 100, 50)
is_((result, segment.length, segment.addr % PAGE), (0, 50, (at + 100) % PAGE), "rdmamr_resolve of a range")
is_(bool(fi_mr_desc(mr)), True, "fi_mr_desc is an lkey")
is_(resolved(0x99, 0, 8)[0], -ENOKEY, "an unknown key is ENOKEY")
is_(fi_mr_reg(domain, 0x1000, PAGE, ALL, 0, 0x78, 0, byref(other), None), -EFAULT, "unmapped memory is EFAULT")
is_(b"mapped" in rdmamr_last_reason(), True, f"in words: {rdmamr_last_reason().decode()}")
is_(fi_close(domain), -EBUSY, "the domain is busy")
is_((fi_close(mr), fi_close(domain), ibv_dealloc_pd(pd), ibv_close_device(context)), (0, 0, 0, 0), "everything is closed")
print(f"1..{count}")
