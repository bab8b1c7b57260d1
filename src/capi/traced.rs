// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tracers that record calls of libibverbs' family in the trace, if `RDMAMR_TRACE` is set.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use rdmamr_abi::rdma_core::ibv_pd;
use rdmamr_cache::dispatch::{Mr, verdict};
use rdmamr_mr::explain::last_as_text;
use rdmamr_mr::mlx5::Umem;
use rdmamr_mr::{Error, How, Registered, Request, Reregistration};
use rdmamr_sys::caller::Caller;
use rdmamr_trace::format::{Call, call, how, unserved};
use rdmamr_trace::{self as trace, Began};

/// Observes a call from its begin to its outcome. `T` is the value of a call that succeeds.
pub trait Tracer<T> {
    /// The observations from before the call.
    type Before: Default;
    fn begin(&self) -> Self::Before;
    fn end(self, before: Self::Before, outcome: &Result<T, Error>);
}

/// The tracer of a call that the trace does not record.
pub struct Nobody;

impl<T> Tracer<T> for Nobody {
    type Before = ();
    #[inline(always)]
    fn begin(&self) {}
    #[inline(always)]
    fn end(self, (): (), _: &Result<T, Error>) {}
}

/// The tracer of a registration. `call` is one of the numbers in `trace::format::call`.
pub struct TracedRegistration<'a> {
    pub call: u8,
    pub pd: *mut ibv_pd,
    pub request: &'a Request,
    pub caller: Caller,
}

impl Tracer<Registered> for TracedRegistration<'_> {
    type Before = Option<Began>;

    #[inline(always)]
    fn begin(&self) -> Option<Began> {
        trace::begin()
    }

    #[inline(always)]
    fn end(self, began: Option<Began>, outcome: &Result<Registered, Error>) {
        if let Some(began) = began {
            let mut record = registered(self.call, self.pd, self.request, outcome);
            match outcome {
                Ok(registered) if registered.how == How::Gpu => record.reason = unserved::DEVICE,
                Ok(registered) if registered.how == How::Past => {}
                Ok(_) => record.reason = unserved_reason(self.call, self.request),
                Err(_) => {}
            }
            began.write(record, self.caller, last_as_text);
        }
    }
}

/// Why the cache does not serve a registration of `call` that has succeeded.
#[cold]
fn unserved_reason(call: u8, request: &Request) -> u32 {
    match call {
        call::REG_MR | call::REG_MR_IOVA | call::REG_MR_IOVA2 => verdict(request),
        call::REG_MR_EX if request.length != 0 => verdict(request),
        call::REG_MR_EX | call::REG_DMABUF_MR => unserved::DEVICE,
        _ => unserved::UNKNOWN,
    }
}

/// The record of a registration that has just finished.
#[cold]
fn registered(
    call: u8,
    pd: *mut ibv_pd,
    request: &Request,
    outcome: &Result<Registered, Error>,
) -> Call {
    let (mr, how, errno) = match outcome {
        Ok(registered) => (registered.mr, registered.how.code(), 0),
        Err(error) => (null_mut(), trace::NOTHING.how, error.errno() as u16),
    };
    // SAFETY: `mr` is the region that the call has just registered, or NULL.
    let mr = unsafe { Mr::from_c(mr) };
    Call {
        call,
        how,
        errno,
        pd: pd.addr() as u64,
        addr: request.addr.addr() as u64,
        length: request.length as u64,
        access: request.access.bits(),
        lkey: mr.map_or(0, |mr| mr.read().lkey),
        ..trace::NOTHING
    }
}

/// The tracer of a deregistration.
pub struct TracedDeregistration {
    pub call: u8,
    pub mr: Option<Mr>,
    pub caller: Caller,
}

impl Tracer<How> for TracedDeregistration {
    /// The region cannot be read after the call, so the record is made before the call.
    type Before = Option<(Began, Call)>;

    #[inline(always)]
    fn begin(&self) -> Self::Before {
        let began = trace::begin()?;
        Some((began, to_be_deregistered(self.call, self.mr)))
    }

    #[inline(always)]
    fn end(self, before: Self::Before, outcome: &Result<How, Error>) {
        if let Some((began, mut record)) = before {
            match outcome {
                Ok(how) => record.how = how.code(),
                Err(error) => record.errno = error.errno() as u16,
            }
            began.write(record, self.caller, last_as_text);
        }
    }
}

#[cold]
fn to_be_deregistered(call: u8, mr: Option<Mr>) -> Call {
    let Some(mr) = mr else {
        return Call {
            call,
            ..trace::NOTHING
        };
    };
    let public = mr.read();
    Call {
        call,
        pd: public.pd.addr() as u64,
        addr: public.addr.addr() as u64,
        length: public.length as u64,
        access: mr.access(),
        lkey: public.lkey,
        ..trace::NOTHING
    }
}

/// The tracer of a registration by libmlx5 that makes a umem.
pub struct TracedUmem<'a> {
    pub call: u8,
    pub request: &'a Request,
    pub caller: Caller,
}

impl Tracer<Umem> for TracedUmem<'_> {
    type Before = Option<Began>;

    #[inline(always)]
    fn begin(&self) -> Option<Began> {
        trace::begin()
    }

    #[inline(always)]
    fn end(self, began: Option<Began>, outcome: &Result<Umem, Error>) {
        if let Some(began) = began {
            let request = self.request;
            let record = Call {
                addr: request.addr.addr() as u64,
                length: request.length as u64,
                access: request.access.bits(),
                ..on_umem(
                    self.call,
                    outcome.map_or(0, |umem| umem.addr().get()),
                    outcome.err(),
                )
            };
            began.write(record, self.caller, last_as_text);
        }
    }
}

/// The tracer of the deregistration of a umem.
pub struct TracedUmemEnd {
    pub umem: *mut c_void,
    pub caller: Caller,
}

impl Tracer<How> for TracedUmemEnd {
    type Before = Option<Began>;

    #[inline(always)]
    fn begin(&self) -> Option<Began> {
        trace::begin()
    }

    #[inline(always)]
    fn end(self, began: Option<Began>, outcome: &Result<How, Error>) {
        if let Some(began) = began {
            let record = on_umem(
                call::MLX5DV_DEVX_UMEM_DEREG,
                self.umem.addr(),
                outcome.err(),
            );
            began.write(record, self.caller, last_as_text);
        }
    }
}

/// The record of a call on the umem at this address.
#[cold]
fn on_umem(call: u8, umem: usize, error: Option<Error>) -> Call {
    Call {
        call,
        how: how::PAST,
        errno: error.map_or(0, |error| error.errno() as u16),
        pd: umem as u64,
        ..trace::NOTHING
    }
}

/// The tracer of a change of a region, `ibv_rereg_mr`. The trace records the change as a
/// registration of the region's new state.
pub struct TracedChange<'a> {
    pub mr: Option<Mr>,
    pub change: &'a Reregistration,
    pub caller: Caller,
}

impl Tracer<c_int> for TracedChange<'_> {
    type Before = Option<Began>;

    #[inline(always)]
    fn begin(&self) -> Option<Began> {
        trace::begin()
    }

    #[inline(always)]
    fn end(self, began: Option<Began>, outcome: &Result<c_int, Error>) {
        let Some(began) = began else {
            return;
        };
        let asked = Request::at_address(self.change.addr, self.change.length, self.change.access);
        let record = match (self.mr, outcome) {
            (Some(mr), Ok(0)) => {
                let now = mr.read();
                let request = Request::at_address(now.addr, now.length, self.change.access);
                let done = Registered::by(How::Kernel, mr.as_ptr());
                registered(call::REREG_MR, now.pd, &request, &Ok(done))
            }
            (_, Err(error)) => registered(call::REREG_MR, self.change.pd, &asked, &Err(*error)),
            // libibverbs refused the change; errno has the reason.
            (_, Ok(_)) => {
                let refused = Err(Error::Next(errno::errno()));
                registered(call::REREG_MR, self.change.pd, &asked, &refused)
            }
        };
        began.write(record, self.caller, last_as_text);
    }
}
