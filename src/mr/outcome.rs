// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a call ended: how it was done, or why it failed. The errno, libfabric's code and the message
//! for people all come from these values.

use errno::Errno;
use rdmamr_abi::rdma_core::ibv_mr;
use rdmamr_trace::format::how;

/// The part that did the work of a successful call, by its number in the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum How {
    /// The library, by its own call of the kernel.
    Kernel = how::KERNEL,
    /// libibverbs, because the library forwarded the call.
    Forwarded = how::FORWARDED,
    /// The cache had a region that serves, and handed it out.
    Hit = how::HIT,
    /// The cache made a new region, which it may keep.
    Miss = how::MISS,
    /// The region that the program deregistered stays registered, idle in the cache.
    Kept = how::KEPT,
    /// libibverbs registered memory of a GPU as a dma-buf, after the kernel had refused its address.
    Gpu = how::GPU,
    /// A provider's own call did it, past the library.
    Past = how::PAST,
}

/// A region that a call has registered.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    pub mr: *mut ibv_mr,
    pub how: How,
}

impl Registered {
    /// A region that was registered in this way.
    #[inline(always)]
    pub fn by(how: How, mr: *mut ibv_mr) -> Registered {
        Registered { mr, how }
    }
}

/// Why a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The library refuses an argument, without asking the kernel or libibverbs.
    Argument(&'static str),
    /// The kernel refused the call.
    Kernel(Errno),
    /// libibverbs refused the call, or libmlx5 its own.
    Next(Errno),
    /// libibverbs could not keep the memory from being shared with a child process
    /// (`ibv_fork_init`).
    Fork(Errno),
    /// No memory is left for the region's object.
    Memory,
    /// The region is deregistered already: a double free.
    Gone,
    /// Another object still depends on the object that the call would end.
    Busy(&'static str),
    /// A resource is short now, and will soon be there again.
    Shortage(&'static str),
    /// No loaded libibverbs, or no loaded libmlx5, has this function.
    NoNext(&'static str),
    /// A rule of the call's family (libfabric's, for example) refuses the call, with a code of that
    /// family.
    Refused(i32, &'static str),
    /// The kernel refused memory of a GPU by its address, and it could not be registered as a dma-buf
    /// either.
    Gpu(Errno, Obstacle),
    /// The library itself failed.
    Panic,
}

/// The message about a panic, for people. docs/troubleshooting.md contains it.
pub const PANICKED: &str = "librdmamr itself failed; it now forwards everything";

impl Error {
    /// The errno for C.
    pub fn errno(self) -> i32 {
        match self {
            Error::Argument(_) | Error::Gone => libc::EINVAL,
            Error::Kernel(errno)
            | Error::Next(errno)
            | Error::Fork(errno)
            | Error::Gpu(errno, _) => errno.0,
            Error::Refused(code, _) => code,
            Error::Busy(_) => libc::EBUSY,
            Error::Shortage(_) => libc::EAGAIN,
            Error::Memory | Error::Panic => libc::ENOMEM,
            Error::NoNext(_) => libc::EOPNOTSUPP,
        }
    }
}

/// Memory of a GPU that cannot be registered as a dma-buf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Obstacle {
    pub runtime: RuntimeKind,
    pub why: Why,
}

/// An address, aligned so that it makes no [`Error`] longer: the stack has several in each call.
#[repr(Rust, packed(4))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address(pub u64);

const _: () = assert!(size_of::<Error>() == 24);

impl Obstacle {
    /// The errno of the dma-buf's registration, if that is the step that failed.
    pub fn of_dmabuf(&self) -> Option<Errno> {
        match self.why {
            Why::Register(errno) => Some(errno),
            _ => None,
        }
    }
}

/// The step that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The setting `RDMAMR_GPU=off`.
    Off,
    /// The runtime lacks the function that exports.
    NoFunction,
    /// The runtime refused to export the memory, with this error.
    Export(i32),
    /// The runtime refused, since the memory is managed.
    Managed,
    /// The runtime refused, since the GPU's driver exports no dma-buf.
    DriverExportsNone,
    /// The runtime refused, since the memory was allocated for the GPU alone.
    NotCapable,
    /// The range goes on behind this address, where another allocation handle begins.
    Handles(Address),
    /// The range goes on behind this address, where the GPU's memory ends.
    Ends(Address),
    /// libibverbs has no `ibv_reg_dmabuf_mr`.
    NoRegister,
    /// The provider, the kernel or the device refused the dma-buf.
    Register(Errno),
}

/// A runtime that says that the memory is a GPU's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuntimeKind {
    Cuda,
    Rocm,
}

impl RuntimeKind {
    /// The name of the library, for people.
    pub fn name(self) -> &'static str {
        match self {
            RuntimeKind::Cuda => "libcuda.so.1",
            RuntimeKind::Rocm => "libhsa-runtime64.so.1",
        }
    }

    /// The function that exports memory as a dma-buf.
    pub fn export(self) -> &'static str {
        match self {
            RuntimeKind::Cuda => "cuMemGetHandleForAddressRange",
            RuntimeKind::Rocm => "hsa_amd_portable_export_dmabuf",
        }
    }
}
