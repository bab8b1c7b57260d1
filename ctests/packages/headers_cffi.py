# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reads the headers by Python's cffi, as docs/fabric.md says. `headers` runs it."""
import subprocess
import cffi

ffi = cffi.FFI()
for name in "rdmamr.h", "rdmamr/fi_mr.h":
    lines = [line for line in open(f"include/{name}") if not line.startswith("#include")]
    macros = ["-DRDMAMR_NO_LIBFABRIC", "-DRDMAMR_TYPED_CONSTANTS"]
    text = subprocess.run(["cc", "-E", "-P", *macros, "-"], input="".join(lines), text=True,
                          capture_output=True, check=True).stdout
    ffi.cdef("struct iovec { void *iov_base; size_t iov_len; };" * (name != "rdmamr.h") + text)
lib = ffi.dlopen(None)
assert lib.FI_KEY_NOTAVAIL == lib.RDMAMR_UNCHANGED == 2**64 - 1
assert lib.RDMAMR_MR_OFFSET == 1 << 59 and lib.FI_ENOKEY == 266 and lib.FI_MR_PROV_KEY == 64
assert ffi.sizeof("struct rdmamr_domain_attr") == 48
assert ffi.typeof("struct rdmamr_segment").fields[3][0] == "rkey"
