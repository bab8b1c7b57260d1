// SPDX-License-Identifier: MIT OR Apache-2.0
//! Refuses the targets that the library does not support. The other packages of the workspace
//! depend on this one, so its error comes first. `ctests/packages/abi/kept.sh` compiles this file
//! alone for such targets.

#[cfg(not(target_os = "linux"))]
compile_error!("librdmamr registers memory by Linux's uverbs: it is for Linux only");

#[cfg(not(target_pointer_width = "64"))]
compile_error!(
    "librdmamr is for 64-bit programs only: addresses and lengths of uverbs are 64 bits wide, and no test runs on 32"
);

#[cfg(not(target_endian = "little"))]
compile_error!(
    "librdmamr is for little-endian processors only: it reads packed words of rdma-core and the kernel, and no test runs on others"
);

#[cfg(target_env = "musl")]
compile_error!(
    "librdmamr is for glibc only: it stands in for symbols with version nodes (dlvsym, LD_AUDIT), which musl has not"
);
