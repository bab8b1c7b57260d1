// SPDX-License-Identifier: MIT OR Apache-2.0
//! Failures in words: the attempt, the part that refused it, and the likely cause with figures. The
//! errno stays that of the refusing part: this file decides nothing.
//!
//! This file allocates nothing: it reads the limits, the maps and the process status through
//! buffers on the stack.

use super::memlock::{Limits, Needed, Raise};
use super::outcome::{Address, Error, Obstacle, PANICKED, RuntimeKind, Why};
use super::refused::{self, OnDevice, Refused, Wrong};
use super::request::Request;
use super::unpinned::{self, Words};
use super::{gpu, held, queue};
use core::cell::{Cell, RefCell};
use core::fmt::{self, Write};
use errno::Errno;
use rdmamr_abi::names::ERRNOS;
use rdmamr_next::Pd;
use rdmamr_stats::text::Text;
use rdmamr_sys::budget::TenASecond;
use rdmamr_sys::seccomp::is_filtered;
use rdmamr_sys::thread::keep_errno;
use rdmamr_sys::{cgroup, clock, descriptor, proc};
use rdmamr_uverbs::driver::Driver;

/// The object of a call that failed.
#[derive(Clone, Copy, Debug)]
pub enum Subject {
    /// Plain memory to be registered. The call had pinned that many other bytes before, and has
    /// released them since.
    Memory(Refused, u64),
    /// Memory of another kind (a dma-buf, for example). libibverbs knows more about it than this
    /// library.
    OtherMemory,
    /// Plain memory to be registered without a domain and without keys, by libmlx5.
    Umem(Request),
    /// A queue to be made on a device of that driver, if known.
    Queue(Option<&'static Driver>),
    Region,
    /// A region to be changed.
    Change,
    /// A domain on the device of this name.
    Domain(Option<[u8; 64]>),
    /// An object about which there is nothing to add.
    Other,
}

/// Why a call failed.
#[derive(Clone, Copy, Debug)]
pub struct Reason {
    /// The function that the program called.
    pub call: &'static str,
    pub error: Error,
    pub subject: Subject,
}

/// The room for a reason in words.
const WORDS: usize = 1024;

/// The reason of a thread's last failure. The value is initialised at compile time and has no
/// destructor, so it works throughout a thread's life.
struct Last {
    reason: Cell<Option<Reason>>,
    words: RefCell<Text<WORDS>>,
}

thread_local! {
    static LAST: Last = const {
        Last { reason: Cell::new(None), words: RefCell::new(Text::new()) }
    };
}

/// Remembers why a call of this thread failed.
pub fn remember(reason: Reason) {
    LAST.with(|last| last.reason.set(Some(reason)));
}

/// Returns the reason of this thread's last failure, in words that end with a NUL. To find the
/// cause takes system calls, so the first request finds it, once.
pub fn last_in_words() -> *const u8 {
    LAST.with(|last| {
        let Ok(mut words) = last.words.try_borrow_mut() else {
            // A signal handler interrupted this very function, and calls it.
            return c"".as_ptr().cast();
        };
        if let Some(reason) = last.reason.take() {
            words.clear();
            reason.write(&mut *words);
            words.cut(WORDS - 1);
        }
        words.as_c_str().unwrap_or_default().as_ptr().cast()
    })
}

/// Has the trace read the reason of this thread's last failure. The words that the program got by
/// [`last_in_words`] stay as they are: it may still read them.
pub fn last_as_text(read: &mut dyn FnMut(&str)) {
    let mut words = Text::<WORDS>::new();
    LAST.with(|last| match last.reason.get() {
        // Text that does not fit is cut. Nothing else can fail.
        Some(reason) => drop(write!(words, "{reason}")),
        // A signal handler has asked for the words since the failure.
        None => {
            if let Ok(asked) = last.words.try_borrow() {
                let asked = asked.as_str();
                let _ = words.write_str(asked);
            }
        }
    });
    read(words.as_str());
}

impl Reason {
    /// Writes the reason as one sentence or a few, for a program that asks for it.
    pub fn write(&self, out: &mut impl Write) {
        // Text that does not fit is cut. Nothing else can fail.
        let _ = keep_errno(|| self.try_write(not_looked_up(true), out));
    }

    /// `unknown`: why the cause is not looked up, if it is not.
    fn try_write(&self, unknown: Option<&str>, out: &mut dyn Write) -> fmt::Result {
        write!(out, "{}", self.call)?;
        if let Subject::Memory(Refused { request, .. }, _) | Subject::Umem(request) = self.subject {
            let (addr, length, access) = (request.addr, request.length, request.access);
            let iova = request.iova;
            write!(out, " of {length} bytes at {addr:p}")?;
            if iova != addr.addr() as u64 {
                write!(out, ", iova {iova:#x}")?;
            }
            write!(out, ", access {access}")?;
        }
        write!(out, ": {}", Name(self.error.errno()))?;
        match self.error {
            Error::Argument(what)
            | Error::Busy(what)
            | Error::Shortage(what)
            | Error::Refused(_, what) => write!(out, ": {what}"),
            Error::Gone => out.write_str(": the region is deregistered already"),
            Error::Memory => out.write_str(": no memory for the region's object"),
            Error::NoNext(symbol) => write!(out, ": no loaded {} has {symbol}", self.next()),
            Error::Panic => write!(out, ": {PANICKED}"),
            Error::Gpu(_, obstacle) => {
                obstacle.write(out)?;
                self.more(out)
            }
            Error::Fork(_) => out.write_str(
                " from ibv_dontfork_range: the memory cannot be kept out of children. Each registration may split a \
                 mapping (vm.max_map_count)",
            ),
            Error::Kernel(errno) => self.refusal("the kernel", errno, unknown, out),
            Error::Next(errno) => self.refusal(self.next(), errno, unknown, out),
        }
    }

    fn refusal(
        &self,
        by: &str,
        errno: Errno,
        unknown: Option<&str>,
        out: &mut dyn Write,
    ) -> fmt::Result {
        write!(out, " from {by}: ")?;
        if let Some(why) = unknown {
            return out.write_str(why);
        }
        self.subject.cause(errno.0, out)?;
        self.more(out)
    }

    /// The library underneath that has the function.
    fn next(&self) -> &'static str {
        if self.call.starts_with("mlx5dv_") {
            "libmlx5"
        } else {
            "libibverbs"
        }
    }

    /// Names the command that goes through all causes.
    fn more(&self, out: &mut dyn Write) -> fmt::Result {
        use libc::{EAGAIN, EFAULT, EINVAL, ENOMEM, EPERM};
        match (self.subject, self.error.errno()) {
            (Subject::Queue(_), errno @ ENOMEM)
            | (Subject::Memory(..), errno @ (ENOMEM | EFAULT | EPERM | EINVAL | EAGAIN)) => {
                write!(out, " (more: rdmamr explain {})", Name(errno))
            }
            _ => Ok(()),
        }
    }
}

impl Subject {
    /// Memory to be registered in a domain.
    #[cold]
    pub fn of_memory(pd: impl Into<Option<Pd>>, request: Request) -> Subject {
        let device = pd.into().and_then(OnDevice::of);
        Subject::Memory(Refused { request, device }, 0)
    }

    /// The likely cause of an errno.
    fn cause(&self, errno: i32, out: &mut dyn Write) -> fmt::Result {
        out.write_str(match (self, errno) {
            (Subject::Memory(refused, before), _) => {
                return registration(refused, errno, *before, out);
            }
            (&Subject::Umem(request), libc::EPERM | libc::ENOMEM | libc::EFAULT) => {
                let device = None;
                return registration(&Refused { request, device }, errno, 0, out);
            }
            (&Subject::Queue(driver), libc::ENOMEM) => return queue::no_memory(driver, out),
            (Subject::Queue(_), libc::EAGAIN) => {
                "likely the rdma cgroup's limit (rdma.max) is reached, or the device has no such queue left"
            }
            (Subject::OtherMemory | Subject::Umem(_), libc::EOPNOTSUPP) => {
                "the device, its driver or this libibverbs cannot register memory of that kind"
            }
            (Subject::Region, libc::EINVAL | libc::EBUSY) => {
                "a memory window is still bound to the region, or another thread is using it; it stays registered"
            }
            (Subject::Change, libc::EINVAL) => {
                "the flags do not fit the arguments, or the device's driver refuses one of them"
            }
            (Subject::Change, libc::EOPNOTSUPP) => "the device's driver cannot change a region so",
            (Subject::Change, libc::EBUSY) => "another thread is using the region",
            (Subject::Region | Subject::Change, libc::ENOENT) => {
                "the kernel does not know the region any more"
            }
            (&Subject::Domain(device), libc::EBUSY) => return held::write(device, out),
            (_, libc::EIO) => "likely: the device is gone; the kernel's log decides",
            // UCX asks so whether the device takes dma-bufs.
            (Subject::OtherMemory, libc::EBADF) => {
                "the dma-buf is no open file, or the device's file is closed"
            }
            (_, libc::EBADF) => "the device's file is closed",
            (_, libc::EMFILE) => "RLIMIT_NOFILE is reached",
            _ => "no likely cause is known",
        })
    }
}

/// For a line and for the trace, which nobody may read.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        keep_errno(|| self.try_write(not_looked_up(false), f))
    }
}

/// Why the cause of a failure is not looked up, if it is not. The look reads files, such as all mappings of
/// the process, and a program may find out by failing what a device can do.
fn not_looked_up(is_asked: bool) -> Option<&'static str> {
    static LOOKS: TenASecond = TenASecond::new();
    if is_filtered() {
        Some("the cause is not looked up: the program filters its system calls")
    } else if is_asked || LOOKS.may(clock::monotonic()) {
        None
    } else {
        Some(
            "the cause is not looked up: this process has had more than ten failures within a second",
        )
    }
}

/// The name of an errno, if these calls return that errno.
pub struct Name(pub i32);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match ERRNOS.iter().find(|row| row.0 == self.0) {
            Some(row) => f.write_str(row.1),
            None => write!(f, "errno {}", self.0),
        }
    }
}

/// The likely cause of a refused registration (drivers/infiniband/core/{uverbs_cmd,umem}.c,
/// mm/gup.c).
fn registration(refused: &Refused, errno: i32, before: u64, out: &mut dyn Write) -> fmt::Result {
    if let (libc::EPERM, Some(ipc_lock)) = (errno, forbidden()) {
        out.write_str("RLIMIT_MEMLOCK is 0, which forbids pinning memory. ")?;
        return write!(out, "{}", Raise(ipc_lock));
    }
    out.write_str(match errno {
        libc::EPERM | libc::EACCES if proc::is_filtered() => {
            "likely: a filter of system calls (seccomp) refuses it: this process has one (Seccomp in /proc/self/status)"
        }
        libc::EPERM | libc::EACCES => {
            "not known: RLIMIT_MEMLOCK or CAP_IPC_LOCK allows it, and the process has no filter of system calls; likely a \
             security module refuses it (/sys/kernel/security/lsm, the audit log)"
        }
        libc::EOPNOTSUPP if refused.request.access.on_demand() => {
            "the device has no on-demand paging for this"
        }
        libc::EOPNOTSUPP | libc::EEXIST => return of_memory(refused, errno, out),
        libc::EREMOTEIO => {
            "likely: part of it is PCI peer-to-peer memory (/proc/self/maps: p2pmem), which a registration does not take: \
             register it as a dma-buf; or the firmware refused the command: the kernel's log decides"
        }
        libc::EOVERFLOW => "address and length run past the end of the address space",
        libc::EAGAIN => return of_cgroup(refused, out),
        libc::EBADF => "the device's file is closed",
        libc::ENOENT => "the kernel does not know this protection domain",
        libc::EBUSY => {
            "not known: likely another thread is deallocating the protection domain, or memory of a GPU cannot move \
             to the machine's"
        }
        _ => return of_driver(refused, errno, before, out),
    })
}

/// How far the process has CAP_IPC_LOCK, if a limit of 0 forbids it to pin memory.
fn forbidden() -> Option<proc::Capability> {
    let status = proc::Status::read().unwrap_or_default();
    (proc::memlock_limit() == Some(0) && !status.may_lock).then_some(status.ipc_lock)
}

/// The cause of an errno that is about the memory or about the access flags.
fn of_memory(refused: &Refused, errno: i32, out: &mut dyn Write) -> fmt::Result {
    let mut words = Words::new();
    let is_known = unpinned::find(&refused.request, errno, &mut words);
    if errno == libc::EOPNOTSUPP && !is_known {
        return out.write_str(
            "not known: likely the device's driver does not support one of the access flags; no file in DAX mode is \
             seen there (statx)",
        );
    }
    out.write_str(words.as_str())
}

fn of_cgroup(refused: &Refused, out: &mut dyn Write) -> fmt::Result {
    let mut is_reached = false;
    cgroup::each_limit_of_rdma(|_, _, is| is_reached |= is);
    if !is_reached {
        out.write_str("likely: ")?;
        if refused.may_lack_keys_by_eagain() {
            no_key_left(refused, out)?;
            out.write_str(", which the kernel's log and rdma resource decide; or ")?;
        }
    }
    out.write_str("the limit of the rdma cgroup (rdma.max) is reached")?;
    let mut written = Ok(());
    cgroup::each_limit_of_rdma(|group, line, _| {
        let [group, line] = [group, line].map(|it| core::str::from_utf8(it).unwrap_or_default());
        written = written.and_then(|()| write!(out, "; {group}: {line}"));
    });
    written?;
    if !is_reached {
        out.write_str("; no group that is seen here has as many (rdma.current): rdma.events, or the kernel's log, decides")?;
    }
    Ok(())
}

/// The likely cause of a refusal that is the driver's, or of `ib_umem_get` for it. Some drivers have
/// errnos of their own (`Says`), so that the arguments, the limit and the memory decide first.
fn of_driver(refused: &Refused, errno: i32, before: u64, out: &mut dyn Write) -> fmt::Result {
    let says = refused::says(refused.device);
    let length = refused.request.length;
    let wrong = match errno == libc::EINVAL || length == 0 {
        true => refused.wrong_argument(),
        false => refused.too_long().map(Wrong::Longer),
    };
    if let Some(wrong) = wrong {
        return match wrong {
            Wrong::Offsets(iova, addr) => write!(
                out,
                "iova and address must have the same offset in their page, but their offsets are {iova:#x} and {addr:#x}"
            ),
            Wrong::Other(why) => out.write_str(why),
            Wrong::Longer(most) => write!(
                out,
                "{length} bytes are more than the device registers at once ({most}, max_mr_size)"
            ),
        };
    }
    if errno == libc::ENOMEM && refused.is_too_long_for_rxe() {
        return out.write_str(
            "soft-RoCE of this kernel registers at most 1 GiB at once (max_mr_size does not say so): register in parts",
        );
    }
    let mut words = Words::new();
    let is_unfit = errno == says.unmapped && unpinned::find(&refused.request, errno, &mut words);
    // Between two possible causes.
    let (mut or, mut is_over) = ("", false);
    if errno == says.over_limit || errno == libc::ENOMEM {
        let needed = Needed::by(&refused.request, before);
        let limits = Limits::read();
        is_over = limits.are_exceeded(&needed);
        if is_over {
            write!(out, "RLIMIT_MEMLOCK: {needed}, and ")?;
            limits.write_pinned(out)?;
            or = "; or ";
        } else if errno == libc::ENOMEM && !is_unfit {
            write!(out, "{needed}, ")?;
            limits.write(out)?;
            or = "; or ";
        }
    }
    if errno == says.unmapped && (is_unfit || or.is_empty()) {
        out.write_str(or)?;
        out.write_str(words.as_str())?;
        or = "; or ";
    }
    let is_old_rxe = errno == libc::ENOMEM && refused.is_by_rxe();
    if (errno == says.full || is_old_rxe) && !is_unfit && !is_over {
        out.write_str(or)?;
        out.write_str("likely: ")?;
        no_key_left(refused, out)?;
        or = "; or ";
    }
    let of_errno = match errno {
        libc::EIO => {
            "likely: the device is gone, its memory mapping (IOMMU) failed, or its firmware refused; the kernel's log decides"
        }
        libc::ETIMEDOUT | libc::ETIME => {
            "likely: the device's firmware does not answer; the kernel's log decides"
        }
        libc::EINVAL => {
            "likely: the device's driver refuses the address, the length or an access flag"
        }
        libc::ENOSPC if or.is_empty() => {
            "likely: the device has no key left; rdma resource, and max_mr (rdmamr doctor), decide"
        }
        _ if or.is_empty() => "no likely cause is known",
        _ => return Ok(()),
    };
    out.write_str(or)?;
    out.write_str(of_errno)
}

fn no_key_left(refused: &Refused, out: &mut dyn Write) -> fmt::Result {
    out.write_str("the device has no key left")?;
    match refused.device.and_then(OnDevice::most) {
        Some(most) => write!(out, " of its {} (max_mr)", most.regions),
        None => Ok(()),
    }
}

/// The kernel's own number for a call that a driver lacks (include/linux/errno.h). It may reach user
/// space.
const ENOTSUPP: i32 = 524;

impl Obstacle {
    /// Writes the reason, after "EFAULT".
    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        let name = self.runtime.name();
        write!(
            out,
            " from the kernel: it is memory of a GPU, says {name}, and "
        )?;
        self.why(out)?;
        let loaded = gpu::has_peer_memory();
        out.write_str(match self.runtime {
            RuntimeKind::Cuda if loaded => ". (nvidia_peermem is loaded)",
            RuntimeKind::Cuda => ". Without a dma-buf it takes nvidia_peermem, which is not loaded",
            RuntimeKind::Rocm => "",
        })
    }

    fn why(&self, out: &mut dyn Write) -> fmt::Result {
        let export = self.runtime.export();
        let words = match self.why {
            Why::Off => "RDMAMR_GPU=off keeps it from being registered as a dma-buf",
            Why::NoFunction => {
                return write!(
                    out,
                    "this version has no {export} to export it as a dma-buf: CUDA 11.7 and ROCm 5.6 have it"
                );
            }
            Why::Export(error) => {
                write!(out, "{export} exports no dma-buf of it (error {error})")?;
                match descriptor::none_is_left() {
                    true => ": RLIMIT_NOFILE is reached",
                    false => "",
                }
            }
            Why::Managed => {
                "it has no dma-buf: managed memory (cudaMallocManaged) moves between GPU and processor and has no \
                 dma-buf: allocate it by cudaMalloc"
            }
            Why::DriverExportsNone => {
                "it has no dma-buf: the GPU's driver exports no dma-buf: NVIDIA's open kernel modules do \
                 (nvidia-open), from Linux 5.12 on"
            }
            Why::NotCapable => {
                "it has no dma-buf: cuMemCreate was not asked for memory that other devices reach: set \
                 CUmemAllocationProp.allocFlags.gpuDirectRDMACapable (PyTorch: PYTORCH_CUDA_ALLOC_CONF=\
                 expandable_segments:False)"
            }
            Why::Handles(Address(at)) => {
                return write!(
                    out,
                    "it has no single dma-buf: another allocation handle begins at {at:#x}. Register the parts, or \
                     (PyTorch) set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"
                );
            }
            Why::Ends(Address(at)) => {
                return write!(
                    out,
                    "it has no dma-buf: the GPU's memory ends at {at:#x}, before the region does"
                );
            }
            Why::NoRegister => {
                "this libibverbs cannot register a dma-buf: rdma-core 34 and later can"
            }
            Why::Register(errno) => {
                write!(out, "its dma-buf is refused with {}: ", Name(errno.0))?;
                match errno.0 {
                    libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT | ENOTSUPP => {
                        "the device's provider or the kernel (before Linux 5.12) takes no dma-buf"
                    }
                    libc::ENOMEM | libc::ENOSPC => {
                        "the GPU's BAR, the IOMMU or the device has no room for it"
                    }
                    _ => {
                        "the device cannot map it (the GPU's BAR, the IOMMU, PCIe access control), or its access \
                         flags or its length do not suit a dma-buf"
                    }
                }
            }
        };
        out.write_str(words)
    }
}

#[cfg(test)]
mod tests {
    use super::super::access::Access;
    use super::*;
    use errno::Errno;

    fn words(error: Error, subject: Subject) -> String {
        let mut text = String::new();
        Reason {
            call: "ibv_reg_mr",
            error,
            subject,
        }
        .write(&mut text);
        text
    }

    fn of(request: Request) -> Subject {
        let device = None;
        Subject::Memory(Refused { request, device }, 0)
    }

    fn memory(addr: usize, length: usize, access: u32) -> Subject {
        of(request(addr, length, access))
    }

    fn request(addr: usize, length: usize, access: u32) -> Request {
        let addr = core::ptr::without_provenance_mut(addr);
        let access = Access::from_bits_retain(access);
        Request::at_address(addr, length, access)
    }

    #[test]
    fn invalid_arguments_are_named() {
        let einval = Error::Kernel(Errno(libc::EINVAL));
        for (request, expected) in [
            (
                Request {
                    iova: 0x1010,
                    ..request(0x1000, 1, 1)
                },
                "0x10 and 0x0",
            ),
            (request(0x1000, 1, 2), "need local write"),
            (request(0x1000, 1, 1 << 10), "no kernel knows"),
            (request(0x1000, 1, 0x41), "no on-demand paging"),
            (request(0x1000, 0, 1), "length is 0"),
            (request(0x1000, usize::MAX, 1), "past the end"),
            (request(0x1000, 1 << 47, 1), "more than 2^32 - 1 pages"),
            (request(0x1000, 1, 1), "driver refuses"),
        ] {
            let text = words(einval, of(request));
            assert!(text.contains(expected), "{text}");
            assert!(
                text.starts_with("ibv_reg_mr of ") && text.contains(": EINVAL from the kernel: "),
                "{text}"
            );
        }
    }

    #[test]
    fn a_hole_and_a_read_only_page_are_found() {
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let map = |protection| unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                4096,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let efault = Error::Kernel(Errno(libc::EFAULT));
        let read_only = map(libc::PROT_READ).addr();
        assert!(words(efault, memory(read_only + 8, 8, 1)).contains("read-only"));
        assert!(words(efault, memory(read_only + 8, 8, 4)).contains("not known: "));
        assert!(words(efault, memory(map(libc::PROT_NONE).addr(), 8, 0)).contains("PROT_NONE"));
        assert!(words(efault, memory(0x1000, 8, 1)).contains("nothing is mapped at 0x1000"));
    }

    #[test]
    fn the_limit_is_given_in_figures() {
        let text = words(Error::Kernel(Errno(libc::ENOMEM)), memory(0x1fff, 2, 1));
        assert!(
            text.contains("needs 8 KiB"),
            "two bytes on two pages: {text}"
        );
        assert!(text.contains("RLIMIT_MEMLOCK"), "{text}");
    }

    #[test]
    fn an_errno_means_what_the_call_was_about() {
        let busy = |subject| words(Error::Next(Errno(libc::EBUSY)), subject);
        assert!(busy(Subject::Region).contains("memory window"));
        assert!(busy(Subject::Domain(None)).contains("still has regions"));
        assert!(busy(Subject::OtherMemory).contains("no likely cause"));
        let closed = words(Error::Next(Errno(libc::EBADF)), Subject::OtherMemory);
        assert!(closed.contains("the dma-buf is no open file"));
    }

    #[test]
    fn what_cannot_be_asked_is_likely() {
        for errno in [
            libc::EAGAIN,
            libc::EREMOTEIO,
            libc::EIO,
            libc::ENOSPC,
            libc::ETIMEDOUT,
        ] {
            let text = words(Error::Kernel(Errno(errno)), memory(0x1000, 8, 1));
            assert!(
                text.contains("likely: ") && text.contains("decide"),
                "{text}"
            );
        }
    }

    #[test]
    fn errno_is_kept() {
        errno::set_errno(Errno(77));
        words(Error::Kernel(Errno(libc::EFAULT)), memory(0x1000, 8, 1));
        assert_eq!(errno::errno(), Errno(77));
    }
}
