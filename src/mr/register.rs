// SPDX-License-Identifier: MIT OR Apache-2.0
//! ibv_reg_mr(3) on plain memory, in the steps of libibverbs' `ibv_reg_mr_iova2`.
//!
//! Functions on every registration's path, from `capi/` to the system call, are `inline(always)`, but
//! for a few that would be copied into many callers; functions on rare paths are `cold`. Calls and returns were 35 % of our own time under QEMU
//! without KVM (a pair: 0.65 us with the calls, 0.42 us without, 0.68 us for libibverbs), and
//! nothing natively (45 ns).

use super::access::Access;
use super::devices::{self, Device, Devices};
use super::object::Object;
use super::outcome::{Error, How, Registered};
use super::request::Request;
use super::rows::Known;
use super::{fork, forwarded, gpu, large};
use errno::{Errno, errno};
use rdmamr_abi::uapi::ib_uverbs_reg_mr;
use rdmamr_config::disabled;
use rdmamr_next::{Context, Pd};
use rdmamr_stats::log::{self, Level};
use rdmamr_stats::{self as stats, Counter, counter};
use rdmamr_sys::allocator::has_memory;
use rdmamr_sys::{aside, probe, thread};
use rdmamr_trace as trace;
use rdmamr_uverbs::context::{self, Facts};
use rdmamr_uverbs::driver::Way;
use rdmamr_uverbs::{Uverbs, mr};

/// Registers memory by our own kernel call if the device and the request allow that. `counter`, if
/// there is one, counts the registration too.
#[inline(always)]
pub fn register(pd: Pd, request: &Request, counter: Option<Counter>) -> Result<Registered, Error> {
    let before = errno();
    let direct = match Direct::find(pd, request) {
        Ok(direct) => direct,
        Err(why) => {
            return forwarded::register(pd, request, why)
                .or_else(|error| gpu::instead(pd, request, error, before));
        }
    };
    match direct.register(request, counter) {
        Err(error) => match direct.device.facts.get().why_forwarded() {
            // The refusal led to a new look at the device: a device that was closed without a call
            // to us has left its address to another device, and libibverbs serves that device.
            Some(why) => forwarded::register(pd, request, why),
            None => gpu::instead(pd, request, error, before),
        },
        registered => registered,
    }
}

/// As [`register`], for callers that register rarely: they share this copy of 4 KiB.
#[inline(never)]
pub fn register_rarely(pd: Pd, request: &Request) -> Result<Registered, Error> {
    register(pd, request, None)
}

/// The values that a registration by our own kernel call needs.
pub struct Direct {
    pd: Pd,
    pub device: &'static Device,
    context: Context,
    pub fd: i32,
}

impl Direct {
    /// Finds the values for our own kernel call. An error says why libibverbs must register
    /// instead.
    #[inline(always)]
    pub fn find(pd: Pd, request: &Request) -> Result<Direct, &'static str> {
        if disabled() {
            return Err("RDMAMR_DISABLE=1, or librdmamr itself failed");
        }
        let context = pd.device().ok_or("the domain has no device")?;
        let why = |facts: Facts| facts.why_forwarded().unwrap_or_default();
        let fd = context.fd().ok_or_else(|| why(Facts::NO_KERNEL_FILE))?;
        let devices = devices::current();
        let device = match devices.get(context.address()) {
            Some(device) => device,
            // This needs more of the stack than a registration may.
            None => aside::run(|| identify(devices, context, fd)).unwrap_or(Err(NO_MEMORY))?,
        };
        let facts = device.facts.get();
        let driver = match facts.driver() {
            Some(driver) if driver.way != Way::Forward => driver,
            _ => return Err(why(facts)),
        };
        if driver.way == Way::DirectUnlessEmpty && (request.addr.is_null() || request.length == 0) {
            return Err(driver.why);
        }
        let has_optional = request.access.intersects(Access::OPTIONAL_RANGE);
        if has_optional && !facts.contains(Facts::OPTIONAL_ACCESS) {
            return Err("optional access flags, and the kernel may not know them (before 5.9)");
        }
        Ok(Direct {
            pd,
            device,
            context,
            fd,
        })
    }

    #[inline(always)]
    fn register(&self, request: &Request, counter: Option<Counter>) -> Result<Registered, Error> {
        let on_demand = request.access.on_demand();
        // ibv_cmd_reg_mr does the same: 2^64 - 1 bytes from address 0 are the whole address space.
        if on_demand && request.length == usize::MAX && !request.addr.is_null() {
            return Err(Error::Argument(
                "on-demand paging of the whole address space starts at address 0",
            ));
        }
        let (addr, length) = (request.addr, request.length);
        if !on_demand {
            fork::dontfork(self.context, addr, length).map_err(Error::Fork)?;
        }
        let failed = |error| {
            if !on_demand {
                fork::dofork(self.context, addr, length);
            }
            error
        };
        let object = Object::allocate().ok_or_else(|| failed(Error::Memory))?;
        let answer = self.ask_kernel(request, false).map_err(|errno| {
            // SAFETY: the object is new, and the program has not got it.
            unsafe { object.free() };
            failed(Error::Kernel(errno))
        })?;
        object.fill(self.pd, request, &answer);
        let region = Known {
            object: object.address(),
            pd: self.pd.address(),
            length,
            lkey: answer.lkey,
        };
        self.device.rows.insert(answer.mr_handle, region);
        let (thread, counters) = (thread::number(), stats::counters());
        counters.add(thread, counter!(reg_kernel), 1);
        if let Some(counter) = counter {
            counters.add(thread, counter, 1);
        }
        counters.count_on(thread, self.device.rows.counted_at());
        Ok(Registered::by(How::Kernel, object.as_ptr()))
    }

    /// The address of the library's [`Device`], by which the cache's slots name it.
    #[inline(always)]
    pub fn address(&self) -> usize {
        let device: *const Device = self.device;
        device.expose_provenance()
    }

    /// How many regions the device can have. `None` if the kernel does not tell.
    pub fn most_regions(&self) -> Option<u32> {
        let most = context::most(&Uverbs, self.fd, self.device.facts.get());
        most.ok().map(|most| most.regions)
    }

    /// Whether a refused call revealed another device, one that libibverbs serves.
    pub fn must_forward(&self) -> bool {
        self.device.facts.get().why_forwarded().is_some()
    }

    /// Has the kernel register memory, and no more.
    #[inline(always)]
    pub fn ask_kernel(&self, request: &Request, is_watched: bool) -> mr::Answered {
        let (thread, counters) = (thread::number(), stats::counters());
        trace::switch::look();
        let (addr, length) = (request.addr.addr() as u64, request.length as u64);
        probe!("reg_start", addr, length, u64::from(request.access.bits()));
        let measuring = counters.start_clock(thread, request.length);
        let answer = if large::is_large(request.length) {
            self.ask_kernel_for_large(request, is_watched)
        } else {
            self.ask_kernel_now(request)
        };
        counters.stop_clock(thread, measuring);
        let errno = answer.as_ref().map_or_else(|errno| errno.0 as u64, |_| 0);
        probe!("reg_done", addr, length, errno);
        answer
    }

    /// The start of prefault's threads needs more stack than the smallest one has.
    #[cold]
    #[inline(never)]
    fn ask_kernel_for_large(&self, request: &Request, is_watched: bool) -> mr::Answered {
        let large = || large::around(request, is_watched, || self.ask_kernel_now(request));
        aside::run(large).unwrap_or_else(|| self.ask_kernel_now(request))
    }

    /// The kernel's command, for memory at an address or at an offset in a dma-buf.
    #[inline(always)]
    fn command(&self, request: &Request, start: u64, access: Access) -> ib_uverbs_reg_mr {
        ib_uverbs_reg_mr {
            response: 0,
            start,
            length: request.length as u64,
            hca_va: request.iova,
            pd_handle: self.pd.handle(),
            access_flags: access.bits(),
        }
    }

    #[inline(always)]
    fn ask_kernel_now(&self, request: &Request) -> mr::Answered {
        let start = request.addr.addr() as u64;
        let command = self.command(request, start, request.access);
        match mr::register(&Uverbs, self.fd, self.device.facts.get(), &command) {
            Err(errno) if errno.0 == libc::EINVAL => self.ask_again(&command),
            result => result,
        }
    }

    /// Has the kernel register memory of an open dma-buf, which begins there at `offset`.
    pub(super) fn ask_kernel_for_dmabuf(
        &self,
        request: &Request,
        (file, offset): (i32, u64),
    ) -> mr::Answered {
        let command = self.command(request, offset, request.access.of_dmabuf());
        let facts = self.device.facts.get();
        mr::register_dmabuf(&Uverbs, self.fd, facts, &command, file)
    }

    /// Checks the driver number after EINVAL: a wrong number causes EINVAL too. A registration that
    /// has failed anyway can afford the check.
    #[cold]
    fn ask_again(&self, command: &ib_uverbs_reg_mr) -> mr::Answered {
        const REFUSED: Errno = Errno(libc::EINVAL);
        if context::still_holds(&Uverbs, self.fd, self.device.facts.get()) {
            return Err(REFUSED);
        }
        let facts = context::identify(&Uverbs, self.fd).map_err(|_| REFUSED)?;
        self.device.facts.set(facts);
        if facts.why_forwarded().is_some() {
            return Err(REFUSED);
        }
        mr::register(&Uverbs, self.fd, facts, command)
    }
}

const NO_MEMORY: &str = "there is no memory to remember the device";

/// Asks the kernel about a device and remembers the answer.
#[cold]
#[inline(never)]
fn identify(devices: &Devices, context: Context, fd: i32) -> Result<&'static Device, &'static str> {
    if !has_memory() {
        return Err(NO_MEMORY);
    }
    let facts =
        context::identify(&Uverbs, fd).map_err(|_| "the kernel does not answer for it now")?;
    match facts.why_forwarded() {
        None => {
            let name = facts.driver().map_or("", |driver| driver.name);
            log::line(
                Level::Info,
                format_args!("device on fd {fd}: driver {name}, registered by ioctl"),
            );
        }
        Some(why) => log::line(
            Level::Info,
            format_args!("device on fd {fd} is left to libibverbs: {why}"),
        ),
    }
    let device = devices.insert(context.address(), &context.name(), facts);
    device.ok_or(
        "a signal handler interrupted the library in this thread, or another thread keeps its lock",
    )
}
