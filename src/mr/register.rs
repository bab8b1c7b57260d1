// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registering plain memory, ibv_reg_mr(3), in the steps of libibverbs' `ibv_reg_mr_iova2`.

use super::object::Object;
use super::table::{Name, Region};
use super::{Context, Error, Pd, Request, count_vanished, fork, passed_on};
use crate::abi::rdma_core::ibv_mr;
use crate::abi::uapi::ib_uverbs_reg_mr_resp;
use crate::config::{Level, disabled};
use crate::process::{self, Process};
use crate::stats::Counter;
use crate::uverbs::context::{self, Facts};
use crate::uverbs::driver::Way;
use crate::uverbs::{Uverbs, mr};
use crate::{log, thread};
use errno::Errno;

/// Registers memory, by our own kernel call if the device and the moment allow it.
pub fn register(pd: Pd, request: &Request) -> Result<*mut ibv_mr, Error> {
    match Own::find(pd, request) {
        Ok(own) => own.register(pd, request),
        Err(why) => passed_on::register(pd, request, why),
    }
}

/// What it takes to register by ourselves.
struct Own {
    process: &'static Process,
    context: Context,
    fd: i32,
    facts: Facts,
}

impl Own {
    /// Whether this registration is ours; otherwise why not.
    fn find(pd: Pd, request: &Request) -> Result<Own, &'static str> {
        if disabled() {
            return Err("RDMAMR_DISABLE=1, or the library has failed in itself");
        }
        if thread::is_inside() {
            return Err("a signal handler interrupted this thread inside the library");
        }
        let process = process::current();
        // SAFETY: a protection domain's own device, which is open as long as the domain exists.
        let context = unsafe { Context::from_c(pd.context()) }.ok_or("the domain has no device")?;
        let fd = context
            .fd()
            .ok_or("it has no kernel file: its provider registers by other means")?;
        let facts = facts(process, context, fd)?;
        if let Some(why) = facts.why_passed_on() {
            return Err(why);
        }
        let driver = facts.driver().ok_or("no driver")?;
        if driver.way == Way::OwnUnlessEmpty && (request.addr.is_null() || request.length == 0) {
            return Err(driver.why);
        }
        if request.access.has_optional() && !facts.contains(Facts::OPTIONAL_ACCESS) {
            return Err("optional access flags, and the kernel may not know them (before 5.9)");
        }
        Ok(Own {
            process,
            context,
            fd,
            facts,
        })
    }

    fn register(self, pd: Pd, request: &Request) -> Result<*mut ibv_mr, Error> {
        // As ibv_cmd_reg_mr has it: 2^64 - 1 bytes from address 0, on demand, are the whole address space.
        if request.access.on_demand() && request.length == usize::MAX && !request.addr.is_null() {
            return Err(Error::Argument(
                "on-demand paging of the whole address space starts at address 0",
            ));
        }
        if request.access.on_demand() {
            return self.register_protected(pd, request);
        }
        fork::dontfork(request.addr, request.length).map_err(Error::Fork)?;
        let result = self.register_protected(pd, request);
        if result.is_err() {
            fork::dofork(request.addr, request.length);
        }
        result
    }

    fn register_protected(self, pd: Pd, request: &Request) -> Result<*mut ibv_mr, Error> {
        let Process {
            table,
            retired,
            counters,
            ..
        } = self.process;
        let object = retired.take().and_then(Object::at);
        let object = object.or_else(Object::allocate).ok_or(Error::Memory)?;
        let answer = match self.ask_kernel(pd, request) {
            Ok(answer) => answer,
            Err(errno) => {
                super::put_away(self.process, object);
                return Err(Error::Kernel(errno));
            }
        };
        object.fill(pd, request, &answer);
        let name = Name {
            context: self.context.address(),
            handle: answer.mr_handle,
        };
        let region = Region {
            object: object.address(),
            lkey: answer.lkey,
            pd: pd.address(),
            length: request.length,
        };
        if let Some(vanished) = table.insert(name, region) {
            count_vanished(self.process, vanished);
        }
        counters.add(Counter::RegKernel, 1);
        counters.add(Counter::BytesMade, request.length as u64);
        Ok(object.as_ptr())
    }

    fn ask_kernel(&self, pd: Pd, request: &Request) -> Result<ib_uverbs_reg_mr_resp, Errno> {
        let registration = mr::Registration {
            start: request.addr.addr() as u64,
            length: request.length as u64,
            hca_va: request.iova,
            pd_handle: pd.handle(),
            access: request.access.bits(),
        };
        let refused = match mr::register(&Uverbs, self.fd, self.facts, &registration) {
            Err(errno) if errno.0 == libc::EINVAL => errno,
            result => return result,
        };
        // EINVAL is what a wrong driver number gets too. Make sure of ours, now that it costs no one.
        if context::still_holds(&Uverbs, self.fd, self.facts) {
            return Err(refused);
        }
        self.process.contexts.forget(self.context.address());
        match facts(self.process, self.context, self.fd) {
            Ok(facts) if facts.why_passed_on().is_none() => {
                mr::register(&Uverbs, self.fd, facts, &registration)
            }
            _ => Err(refused),
        }
    }
}

/// What is known of the device, asked now if it is not known yet.
#[inline]
fn facts(process: &Process, context: Context, fd: i32) -> Result<Facts, &'static str> {
    match process.contexts.get(context.address()) {
        Some(facts) => Ok(facts),
        None => identify(process, context, fd),
    }
}

#[cold]
fn identify(process: &Process, context: Context, fd: i32) -> Result<Facts, &'static str> {
    let facts =
        context::identify(&Uverbs, fd).map_err(|_| "the kernel does not answer for it now")?;
    process.contexts.insert(context.address(), facts);
    match (facts.why_passed_on(), facts.driver()) {
        (None, Some(driver)) => {
            let by = if facts.contains(Facts::REG_BY_WRITE) {
                "write()"
            } else {
                "ioctl"
            };
            log::line(
                Level::Info,
                format_args!(
                    "device on fd {fd}: driver {}, registered by {by}",
                    driver.name
                ),
            );
        }
        (why, _) => log::line(
            Level::Info,
            format_args!(
                "device on fd {fd} is left to libibverbs: {}",
                why.unwrap_or_default()
            ),
        ),
    }
    Ok(facts)
}
