// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of a GPU. The kernel pins a GPU's memory by its address only with a module of the GPU's
//! vendor (nvidia_peermem). Without it `ibv_reg_mr` fails with EFAULT. The same memory can be
//! registered as a dma-buf that the GPU's runtime exports, so the library does that instead.
//!
//! Nothing here runs before the kernel has refused a registration, and nothing is loaded: only a
//! runtime that the program has loaded is asked. The region is libibverbs' own, unless the cache
//! keeps it.

mod cuda;
mod rocm;
mod runtime;

use super::forwarded;
use super::outcome::{Error, How, Obstacle, Registered, RuntimeKind, Why};
use super::refused::{OnDevice, Refused, says};
use super::request::Request;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use errno::Errno;
use rdmamr_config::{Gpu, config, disabled};
use rdmamr_next::Pd;
use rdmamr_stats::log::{self, Level};
use rdmamr_stats::{self as stats, counter};
use rdmamr_sys::budget::Attempts;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::seccomp::is_filtered;
use rdmamr_sys::thread;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A dma-buf.
pub struct Export {
    file: OwnedFd,
    /// Where the exported range begins in the dma-buf.
    offset: u64,
}

/// A runtime's own code of success.
const SUCCESS: c_int = 0;

impl Export {
    /// The outcome of a runtime's call that exports memory into a new file; its answer is `None` if there is
    /// no such call.
    ///
    /// # Safety
    /// After success the call has just opened `file` for its caller.
    unsafe fn made(answer: Option<c_int>, file: c_int, offset: u64) -> Result<Export, Why> {
        match answer {
            None => Err(Why::NoFunction),
            Some(SUCCESS) if file >= 0 => Ok(Export {
                // SAFETY: as this function's contract says.
                file: unsafe { OwnedFd::from_raw_fd(file) },
                offset,
            }),
            Some(error) => Err(Why::Export(error)),
        }
    }

    /// The descriptor of the file, and where memory at `within` bytes behind the start of the exported
    /// range lies in the dma-buf.
    pub fn at(&self, within: u64) -> (i32, u64) {
        (self.file.as_raw_fd(), self.offset + within)
    }
}

/// An allocation of a GPU's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Its number, not 0. No other allocation of this process has had it or will have it.
    pub id: u64,
    /// The whole pages around it.
    pub pages: PageRange,
}

/// A runtime that exports memory of its GPUs.
trait Runtime: Sized {
    const KIND: RuntimeKind;

    /// The runtime, if the program has loaded it.
    fn find() -> Option<Self>;

    /// Whether the address is memory of a GPU.
    fn has(&self, addr: u64) -> bool;

    /// Exports the range, or fails with the runtime's error.
    fn export(&self, range: PageRange, way: Way) -> Result<Export, Why>;

    /// Whether the ways of an export differ for the memory at `addr`.
    fn has_second_way(&self, _addr: u64) -> bool {
        false
    }

    /// The whole allocation that the address lies in.
    fn allocation(&self, addr: u64) -> Option<PageRange>;

    /// The cause of a refused export, for people, if the runtime tells one.
    fn cause(&self, _addr: u64, _length: u64) -> Option<Why> {
        None
    }

    /// Runs `body` while the GPU's context that the memory at `addr` belongs to is current.
    fn in_context<T>(&self, _addr: u64, body: impl FnOnce() -> T) -> T {
        body()
    }
}

/// How a runtime maps memory for a device. Where processor and GPU share page tables, the first is by
/// PCIe, which some devices need and others refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    First,
    Second,
}

/// Whether the kernel may have refused the request because the memory is a GPU's.
fn may_be_gpu(pd: Pd, request: &Request, errno: i32) -> bool {
    let refused = Refused {
        request: *request,
        device: OnDevice::of(pd),
    };
    match errno {
        _ if disabled() || request.length == 0 || request.access.on_demand() => false,
        // The kernel checks the limit of locked memory (ENOMEM, EPERM) before it looks at the pages.
        // A dma-buf does not count against the limit.
        libc::EFAULT | libc::EOPNOTSUPP | libc::ENOMEM | libc::EPERM => true,
        // Some drivers answer so.
        libc::EINVAL => refused.wrong_argument().is_none(),
        _ => errno == says(refused.device).unmapped,
    }
}

/// Registers the memory as a dma-buf if it is a GPU's, after the kernel has refused its address with
/// `error`. If it is not, or if it cannot be done, the errno stays that of `error`; otherwise it
/// becomes `before`, the errno before the refused call.
#[cold]
pub fn instead(
    pd: Pd,
    request: &Request,
    error: Error,
    before: Errno,
) -> Result<Registered, Error> {
    let (Error::Kernel(errno) | Error::Next(errno)) = error else {
        return Err(error);
    };
    if !may_be_gpu(pd, request, errno.0) {
        return Err(error);
    }
    let refused = errno::errno();
    // The runtime, and the close of the export, may be cancellation points. `ibv_reg_mr` is none.
    let _uncancelled = thread::uncancelled();
    let registered = by::<cuda::Cuda>(pd, request).or_else(|| by::<rocm::Rocm>(pd, request));
    let Some(registered) = registered else {
        errno::set_errno(refused);
        return Err(error);
    };
    let (counters, thread) = (stats::counters(), thread::number());
    match registered {
        Ok(registered) => {
            REFUSED.store(true, Relaxed);
            errno::set_errno(before);
            counters.add(thread, counter!(reg_gpu), 1);
            Ok(registered)
        }
        Err(obstacle) => {
            counters.add(thread, counter!(reg_gpu_failed), 1);
            errno::set_errno(errno);
            Err(Error::Gpu(errno, obstacle))
        }
    }
}

/// Registers by an export of this runtime. `None` if the memory is none of its GPUs'.
fn by<R: Runtime>(pd: Pd, request: &Request) -> Option<Result<Registered, Obstacle>> {
    let addr = request.addr.addr() as u64;
    let runtime = R::find().filter(|runtime| runtime.has(addr))?;
    let obstacle = |why| Obstacle {
        runtime: R::KIND,
        why,
    };
    if config().gpu == Gpu::Off {
        return Some(Err(obstacle(Why::Off)));
    }
    let range = PageRange::around(addr, request.length as u64)?;
    let attempt = |way| {
        let exported = runtime.in_context(addr, || export(&runtime, addr, range, way));
        let (export, start) = exported?;
        register(pd, request, &export, addr - start)
    };
    let registered = attempt(Way::First).or_else(|why| match why {
        Why::Register(_) if runtime.has_second_way(addr) => attempt(Way::Second).map_err(|_| why),
        why => Err(why),
    });
    if registered.is_ok() {
        let (length, name) = (request.length, R::KIND.name());
        log::line(
            Level::Info,
            format_args!(
                "{length} bytes of a GPU at {addr:#x} are registered as a dma-buf, by {name}"
            ),
        );
    }
    Some(registered.map_err(obstacle))
}

/// Exports the range, or the whole allocation: drivers differ in which of the two they take. Also
/// returns where the exported memory starts.
fn export<R: Runtime>(
    runtime: &R,
    addr: u64,
    range: PageRange,
    way: Way,
) -> Result<(Export, u64), Why> {
    let is_more = |whole: &PageRange| whole.contains(range) && *whole != range;
    let exported = runtime.export(range, way);
    let exported = exported.map(|export| (export, range.start));
    let exported = exported.or_else(|why| {
        let whole = runtime.allocation(addr).filter(is_more).ok_or(why)?;
        Ok((runtime.export(whole, way).map_err(|_| why)?, whole.start))
    });
    exported.map_err(|why| runtime.cause(addr, range.end - addr).unwrap_or(why))
}

/// The addresses between which the cache has seen memory of GPUs.
static SEEN: [AtomicU64; 2] = [AtomicU64::new(u64::MAX), AtomicU64::new(0)];

/// Whether an address may be memory of a GPU, as far as the cache has seen such memory.
#[inline(always)]
pub fn may_be_seen(addr: u64) -> bool {
    addr < SEEN[1].load(Relaxed) && addr >= SEEN[0].load(Relaxed)
}

/// This process is a forked child, in which CUDA must not be called.
pub fn forget() {
    SEEN[0].store(u64::MAX, Relaxed);
    SEEN[1].store(0, Relaxed);
}

/// Whether the kernel has refused memory of a GPU by its address, and taken its dma-buf.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether the kernel registers memory of a GPU as a dma-buf, and not by its address.
pub fn was_refused() -> bool {
    REFUSED.load(Relaxed)
}

/// Whether `nvidia_peermem` is loaded.
pub fn has_peer_memory() -> bool {
    let module = c"/sys/module/nvidia_peermem".as_ptr();
    // SAFETY: the path ends with a NUL.
    unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, module, libc::F_OK) == 0 }
}

/// Whether a look at memory that has come back may show that it is a GPU's: if `nvidia_peermem` is
/// loaded, the kernel registers such memory by its address. To look for CUDA takes as long as some
/// registrations, so it is done once a second until memory of a GPU is found.
pub fn may_be_unseen() -> bool {
    static LOOKS: Attempts = Attempts::new();
    let is_loaded = !is_filtered() && LOOKS.begin() && thread::keep_errno(has_peer_memory);
    if is_loaded {
        // Another look in a second.
        LOOKS.failed_for_now();
    }
    is_loaded
}

/// The allocation that the memory lies in, if its runtime numbers it. Preserves errno.
#[cold]
pub fn allocation(addr: u64, length: u64) -> Option<Allocation> {
    let _uncancelled = thread::uncancelled();
    let find = || cuda::Cuda::find()?.numbered(addr, length);
    let found = thread::keep_errno(find);
    if let Some(Allocation { pages, .. }) = found.filter(|_| !may_be_seen(addr)) {
        SEEN[0].fetch_min(pages.start, Relaxed);
        SEEN[1].fetch_max(pages.end, Relaxed);
    }
    found
}

/// Exports pages of an allocation that [`allocation`] has found. The caller preserves errno, and the
/// runtime may be a cancellation point.
pub fn export_pages(pages: PageRange) -> Option<Export> {
    let cuda = cuda::Cuda::find()?;
    let export = || cuda.export(pages, Way::First);
    cuda.in_context(pages.start, export).ok()
}

/// Registers a part of a dma-buf. `within` is where the memory lies behind the start of what was
/// exported. The kernel holds the dma-buf from then on, so its file need not stay open.
fn register(pd: Pd, request: &Request, export: &Export, within: u64) -> Result<Registered, Why> {
    let (file, offset) = export.at(within);
    let place = (offset, request.length, request.iova);
    let access = request.access.of_dmabuf();
    // SAFETY: the file is a dma-buf, which this function has to itself.
    let registered = unsafe { forwarded::reg_dmabuf_mr(pd, place, file, access) };
    let refused = |error| match error {
        Error::NoNext(_) => Why::NoRegister,
        error => Why::Register(Errno(error.errno())),
    };
    let mr = registered.map_err(refused)?.mr;
    // libibverbs takes the offset for the address. A program looks for its pointer there.
    // SAFETY: libibverbs has just made this region, and no other thread knows it.
    unsafe { (*mr).addr = request.addr };
    Ok(Registered::by(How::Gpu, mr))
}
