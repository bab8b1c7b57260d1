// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gate: whether the cache may serve a registration, as far as the call, the thread and the process
//! decide that. What the kernel says about the memory comes after it (`life/miss.rs`), and what ends
//! the cache is in `ended.rs`.

use crate::ended::{ended_by, say_once};
use crate::instance::{self, Cache, existing};
use crate::life::cleaner_thread;
use crate::permitted;
use crate::region::slot::LookupKey;
use crate::start;
use crate::watch::calls;
use crate::watch::failure::say_passed_by;
use crate::watch::watch_fd::TABLE;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use rdmamr_config::{CacheMode, config, disabled};
use rdmamr_mr::kernel_mr::{self, Direct};
use rdmamr_mr::{Error, Request};
use rdmamr_next::Pd;
use rdmamr_policy::{Asked, may_be_kept, refusal_of, unserved};
use rdmamr_stats::log::{self, Level};
use rdmamr_stats::{Counter, counter};
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::thread;

/// Why the gate refuses a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    // By the call.
    /// A region with this access cannot be kept.
    Access,
    /// Remote peers address the memory by another address than its own.
    Address,
    /// The length is 0. The kernel refuses that too, so it is not counted.
    Empty,
    /// libibverbs must register on this device.
    Device,
    /// A region cannot hold the memory's address, or the domain's number.
    Number,
    /// The memory is on the main thread's stack, which is not watched ([`crate::watch::watcher::Watch::watch`]).
    Stack,
    // By the thread.
    /// It is a signal handler that interrupted the library.
    Interrupted,
    /// In its table of descriptors the numbers of the device and of the watch mean other files; or its
    /// start of the cache would keep files open.
    Table,
    // By the process.
    /// Another thread is starting the cache, or there is no memory for it.
    Starting,
    /// The cache cannot run in it (`permitted.rs`).
    Forbidden,
    /// No hit can succeed any more.
    Distrusted,
    /// It is switched off, or has panicked.
    Disabled,
    /// It is a child of one that had a cache.
    Child,
    /// libibverbs keeps registered memory from children: when a region ends, its memory must be given
    /// back to them, and the cache's threads cannot call libibverbs.
    Fork,
    /// It has ended its cache ([`crate::ended`]).
    Ended,
    /// Its memory calls, or the providers' deregistrations, bypass the library. The cache could keep no
    /// region, or a provider might free the object of one.
    PassedBy,
}

impl Refusal {
    /// The counter of such registrations.
    fn counted(self) -> Counter {
        match self {
            Refusal::Access => counter!(bypassed_access),
            Refusal::Address => counter!(bypassed_address),
            Refusal::Device | Refusal::Disabled => counter!(bypassed_device),
            Refusal::Number => counter!(bypassed_limit),
            Refusal::Stack => counter!(bypassed_memory),
            Refusal::Empty | Refusal::Interrupted | Refusal::Starting | Refusal::Distrusted => {
                counter!(bypassed_busy)
            }
            Refusal::Child | Refusal::Fork => counter!(bypassed_fork),
            Refusal::Table | Refusal::Forbidden | Refusal::Ended | Refusal::PassedBy => {
                counter!(bypassed_watch)
            }
        }
    }

    /// The counter of such plain registrations, if they are counted.
    pub fn counter(self) -> Option<Counter> {
        (self != Refusal::Empty).then_some(self.counted())
    }

    /// Says once that the setting is without effect, if it is.
    fn say(self) {
        static SAID: AtomicBool = AtomicBool::new(false);
        let (say, why): (fn(fmt::Arguments<'_>), _) = match self {
            Refusal::Fork => (
                |message| log::line(Level::Info, message),
                KEPT_FROM_CHILDREN,
            ),
            Refusal::PassedBy => (log::always, PASSED_BY),
            _ => return,
        };
        if !SAID.swap(true, Relaxed) {
            let which = name(config().cache_mode);
            say(format_args!(
                "RDMAMR_CACHE={which} is without effect: {why}"
            ));
        }
    }
}

const PASSED_BY: &str = "dlopen loaded the library, so the program's memory calls bypass it, or the \
    program is linked to libibverbs before the library. Preload the library (LD_PRELOAD), or link the \
    program to it, before libibverbs";
const KEPT_FROM_CHILDREN: &str = "libibverbs keeps registered memory from children (ibv_fork_init, \
    RDMAV_FORK_SAFE), since this kernel does not copy it for them, or the program took \
    ibv_fork_init from libibverbs itself";

/// Why the cache does not serve a registration.
pub enum Unserved {
    /// The caller must make a plain region. The counter tells the reason.
    Because(Counter),
    /// The registration failed.
    Failed(Error),
}

impl Unserved {
    /// The counter of the plain registration that the caller makes instead.
    pub fn counter(self) -> Counter {
        match self {
            Unserved::Because(reason) => reason,
            Unserved::Failed(_) => counter!(bypassed_memory),
        }
    }
}

impl From<Refusal> for Unserved {
    fn from(refusal: Refusal) -> Unserved {
        Unserved::Because(refusal.counted())
    }
}

/// What the cache needs to serve a registration.
pub struct Admitted {
    pub cache: &'static Cache,
    pub direct: Direct,
    pub lookup_key: LookupKey,
}

/// Whether the cache may serve a plain call at all, by its arguments.
#[inline(always)]
pub fn of_call(mode: CacheMode, request: &Request) -> Result<(), Refusal> {
    let asked = Asked {
        access: request.access.bits(),
        at_own_address: request.iova == request.addr.addr() as u64,
        is_empty: request.length == 0,
    };
    match refusal_of(mode, asked) {
        unserved::NONE => Ok(()),
        unserved::ACCESS => Err(Refusal::Access),
        unserved::ADDRESS => Err(Refusal::Address),
        _ => Err(Refusal::Empty),
    }
}

/// Whether the cache may serve a call of this thread, as far as a look at the library's own state tells.
fn of_process() -> Result<(), Refusal> {
    if disabled() {
        Err(Refusal::Disabled)
    } else if thread::is_inside() {
        Err(Refusal::Interrupted)
    } else if instance::is_child_without_cache() {
        Err(Refusal::Child)
    } else if kernel_mr::is_fork_protected() {
        Err(Refusal::Fork)
    } else {
        Ok(())
    }
}

/// Whether the cache may make a region for a plain call of this thread. An error is the counter of the
/// reason.
pub fn of_process_of_plain() -> Result<(), Counter> {
    of_process().map_err(|why| {
        why.say();
        why.counted()
    })
}

/// Why the cache does not serve a plain registration under `RDMAMR_CACHE=all`, a value of
/// [`unserved`]: for the trace, from which `rdmamr report` counts what came back.
#[cold]
pub fn verdict(request: &Request) -> u32 {
    let of_memory = || match PageRange::around(request.addr.addr() as u64, request.length as u64) {
        Some(range) if thread::is_on_main_stack(range) => Err(Refusal::Stack),
        _ => Ok(()),
    };
    match of_call(CacheMode::All, request)
        .and_then(|()| of_process())
        .and_then(|()| of_memory())
    {
        Ok(()) => unserved::NONE,
        Err(Refusal::Stack) => unserved::STACK,
        Err(Refusal::Access) => unserved::ACCESS,
        Err(Refusal::Address) => unserved::ADDRESS,
        Err(Refusal::Empty) => unserved::EMPTY,
        Err(Refusal::Interrupted) => unserved::INTERRUPTED,
        Err(Refusal::Disabled) => unserved::DISABLED,
        Err(Refusal::Child) => unserved::CHILD,
        Err(Refusal::Fork) => unserved::FORK,
        Err(_) => unserved::DEVICE,
    }
}

/// Whether the cache may make a region for this registration. The first call starts the cache. With
/// `is_plain` the call is a plain one.
pub fn admit(pd: Pd, request: &Request, is_plain: bool) -> Result<Admitted, Unserved> {
    if !may_be_kept(request.access.bits()) {
        return Err(Refusal::Access.into());
    }
    let page_range = check(request).map_err(Unserved::Failed)?;
    of_process()?;
    if thread::is_on_main_stack(page_range) {
        return Err(Refusal::Stack.into());
    }
    if existing().is_some_and(|cache| cache.regions.ring.is_distrusted()) {
        log::write_waiting();
        return Err(Refusal::Distrusted.into());
    }
    if kernel_mr::is_fork_protected_in(pd) {
        return Err(Refusal::Fork.into());
    }
    // Checked before the cache starts: under `RDMAMR_CACHE` a device that libibverbs serves needs
    // no cache. (The start logs why regions are not reused, and users of relaxed calls should read
    // that.)
    let direct = Direct::find(pd, request);
    if is_plain && direct.is_err() {
        return Err(Refusal::Device.into());
    }
    // Before any system call for the cache: the program may filter them.
    if let Some(why) = ended_by() {
        say_once(why);
        return Err(Refusal::Ended.into());
    }
    if is_plain && !calls::all_calls_come() {
        Refusal::PassedBy.say();
        return Err(Refusal::PassedBy.into());
    }
    if !calls::ends_come() {
        if !calls::are_in_place() {
            say_passed_by();
        }
        return Err(Refusal::PassedBy.into());
    }
    if start::would_keep_files() {
        return Err(Refusal::Table.into());
    }
    let no_cache = || match permitted::may_start() {
        true => Refusal::Starting,
        false => Refusal::Forbidden,
    };
    let cache = start::current().ok_or_else(no_cache)?;
    cleaner_thread::start(cache);
    let direct = direct.map_err(|_| Refusal::Device)?;
    if !TABLE.is_here() {
        return Err(Refusal::Table.into());
    }
    let lookup_key = cache.lookup_key(pd, page_range, request.access, is_plain);
    if !lookup_key.can_be_kept() {
        return Err(Refusal::Number.into());
    }
    Ok(Admitted {
        cache,
        direct,
        lookup_key,
    })
}

/// Refuses arguments that no relaxed registration can have. Returns the page range of the memory.
fn check(request: &Request) -> Result<PageRange, Error> {
    if let Some(why) = request.access.refusal() {
        return Err(Error::Argument(why));
    }
    if request.length == 0 {
        return Err(Error::Argument("the length is 0"));
    }
    PageRange::around(request.addr.addr() as u64, request.length as u64).ok_or(Error::Argument(
        "address and length run past the end of the address space",
    ))
}

pub fn name(mode: CacheMode) -> &'static str {
    match mode {
        CacheMode::Off => "off",
        CacheMode::Local => "local",
        CacheMode::All => "all",
    }
}
