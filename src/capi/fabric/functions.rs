// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions in the tables of this library's objects.
//!
//! # Safety
//! libfabric, its inline functions and the application keep these contracts when they call a
//! function of a table. The functions here keep both contracts for the functions that they call.
//!
//! - **Our object**: the first argument is an open object of this library, of the class whose table
//!   has the function; a region may also be closed already, as `Region::from_c` allows. Other
//!   pointers to objects are NULL or point to an open object.
//! - **Caller's memory**: any other pointer is NULL, or is valid as fi_mr(3) and fi_eq(3) say: for
//!   the size of its type, or for the size that another argument states.

use crate::capi::export::caller;
use crate::capi::ret;
use core::ffi::{c_char, c_int, c_void};
use core::slice;
use libc::{iovec, ssize_t};
use rdmamr_abi::libfabric::*;
use rdmamr_abi::libfabric_provider::Slot;
use rdmamr_fabric::attributes::{self, Buffer, Wish};
use rdmamr_fabric::close::{close, release, settle};
use rdmamr_fabric::domain::Domain;
use rdmamr_fabric::errors::{self, Result, ensure};
use rdmamr_fabric::queue::Queue;
use rdmamr_fabric::raw_key;
use rdmamr_fabric::refusals::*;
use rdmamr_fabric::region::Region;
use rdmamr_fabric::register::{hit, register};
use rdmamr_mr::explain::last_as_text;
use rdmamr_mr::{Error, How};
use rdmamr_stats::counter;
use rdmamr_sys::caller::Caller;
use rdmamr_trace::format::{call, how};
use rdmamr_trace::{self as trace, Pending};

fn not_there(call: &'static str) -> c_int {
    ret::done(call, || Err(UNSUPPORTED.into()))
}

/// Functions for calls that no object of this library supports.
macro_rules! unsupported {
    ($($name:ident($($type:ty),*) = $call:literal;)*) => {
        $(pub unsafe extern "C" fn $name($(_: $type),*) -> c_int {
            not_there($call)
        })*
    };
}
unsupported! {
    no_bind(*mut fid, *mut fid, u64) = "fi_bind";
    no_control(*mut fid, c_int, *mut c_void) = "fi_control";
    no_ops_open(*mut fid, *const c_char, u64, *mut *mut c_void, *mut c_void) = "fi_open_ops";
    no_tostr(*const fid, *mut c_char, usize) = "fi_tostr";
    no_ops_set(*mut fid, *const c_char, u64, *mut c_void, *mut c_void) = "fi_set_ops";
    // [`Slot`] says why it has no arguments.
    nothing() = "a call of libfabric";
}
const _: Slot = nothing;

pub unsafe extern "C" fn domain_close(fid: *mut fid) -> c_int {
    // SAFETY: our object: `fid` is an open domain of this library.
    ret::done("fi_close", || unsafe { Domain::close(fid) })
}

pub unsafe extern "C" fn domain_bind(fid: *mut fid, queue: *mut fid, flags: u64) -> c_int {
    ret::done("fi_domain_bind", || {
        // SAFETY: our object: `fid` is an open domain of this library.
        let domain = unsafe { Domain::of_this_process(fid) }?;
        // SAFETY: our object: `queue` is NULL or an open object.
        unsafe { domain.bind(queue, flags) }
    })
}

pub unsafe extern "C" fn domain_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    match command {
        // SAFETY: our object, caller's memory: both arguments are forwarded unchanged, and this
        // command takes `arg` of that type.
        FI_MAP_RAW_MR => ret::done("fi_mr_map_raw", || unsafe { map_raw(fid, arg.cast()) }),
        FI_UNMAP_KEY => ret::done("fi_mr_unmap_key", || {
            // SAFETY: our object: `fid` is an open domain of this library.
            let domain = unsafe { Domain::of_this_process(fid) }?;
            // SAFETY: caller's memory: the argument of FI_UNMAP_KEY is NULL or points to a key.
            let key = unsafe { arg.cast::<u64>().as_ref() }.ok_or(NULL_KEY)?;
            domain.keys.unmap(*key)
        }),
        _ => not_there("fi_control"),
    }
}

unsafe fn map_raw(fid: *mut fid, arg: *const fi_mr_map_raw) -> Result<()> {
    // SAFETY: our object: `fid` is an open domain of this library.
    let domain = unsafe { Domain::of_this_process(fid) }?;
    // SAFETY: caller's memory: `arg` is NULL or points to the argument of this command.
    let arg = unsafe { arg.as_ref() }.ok_or(NULL_ARGUMENT)?;
    ensure(!arg.raw_key.is_null() && !arg.key.is_null(), MAP_PLACES)?;
    ensure(
        arg.key_size <= raw_key::size(raw_key::IOV_LIMIT),
        RAW_KEY_SIZE,
    )?;
    // SAFETY: caller's memory: `raw_key` is not NULL and has `key_size` bytes.
    let bytes = unsafe { slice::from_raw_parts(arg.raw_key, arg.key_size) };
    let key = domain.map(bytes, arg.base_addr, arg.flags)?;
    // SAFETY: caller's memory: `key` is not NULL, so it points to a writable key.
    unsafe { arg.key.write(key) };
    Ok(())
}

/// Writes the record of a call that is about to return, and returns its result.
fn end(pending: Option<Pending>, result: c_int) -> c_int {
    ret::always((), || {
        if let Some(mut pending) = pending {
            pending.record.errno = -result as u16;
            pending.write(last_as_text);
        }
    });
    result
}

/// The memory that a call's arguments name, for the trace: address, length and access.
type Named = (usize, usize, u64);

/// The common body of the three registering calls. `call` is the function's number in the trace. A
/// reader of the event may close the region and the domain before this function returns. So
/// `register`, not this function, describes the region in the record, or takes the record along into
/// the background.
#[inline(always)]
unsafe fn register_in(
    call: u8,
    fid: *mut fid,
    mr: *mut *mut fid_mr,
    (addr, length, access): Named,
    caller: Caller,
    what: impl FnOnce(&Domain) -> Result<(Vec<Buffer>, Wish)>,
) -> c_int {
    let name = call::NAMES[usize::from(call)];
    let mut pending = ret::always(None, || Pending::begin(call, caller));
    if let Some(Pending { record, .. }) = &mut pending {
        // SAFETY: our object: `fid` is an open domain of this library.
        record.pd = unsafe { Domain::from_c(fid) }.pd.address() as u64;
        record.addr = addr as u64;
        record.length = length as u64;
        record.access = access as u32;
    }
    let result = ret::code(name, Some(counter!(reg_failed)), || {
        // SAFETY: our object: `fid` is an open domain of this library.
        let domain = unsafe { Domain::of_this_process(fid) }?;
        ensure(!mr.is_null(), NULL_REGION_PLACE)?;
        errors::may_allocate()?;
        let what = what(domain)?;
        // SAFETY: caller's memory: `mr` is not NULL, so it points to a writable pointer.
        let publish = |region: *mut fid_mr| unsafe { mr.write(region) };
        register(name, domain, what, &publish, &mut pending).map(|()| 0)
    });
    end(pending, result)
}

pub unsafe extern "C" fn reg(
    fid: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // The short path: the cache serves a region of a domain with the cache.
    let hits = || {
        // SAFETY: our object: `fid` is an open domain of this library.
        let domain = unsafe { Domain::from_c(fid) };
        let region = hit(domain, buf.addr(), len, access, context);
        // SAFETY: caller's memory: `mr` is not NULL, as the line below checks first.
        region.map(|region| unsafe { mr.write(region.as_ptr()) })
    };
    let may_hit = flags | offset == 0 && !mr.is_null() && !trace::is_on();
    if may_hit && ret::always(None, hits).is_some() {
        return 0;
    }
    let wish = Wish {
        access,
        offset,
        requested_key,
        flags,
        context,
    };
    // SAFETY: our object, caller's memory: the arguments are the C caller's, unchanged.
    unsafe { reg_slowly(fid, (buf, len), wish, mr, caller()) }
}

// Not inlined: the short path keeps a small stack frame.
#[inline(never)]
unsafe fn reg_slowly(
    fid: *mut fid,
    (buf, len): (*const c_void, usize),
    wish: Wish,
    mr: *mut *mut fid_mr,
    caller: Caller,
) -> c_int {
    let named = (buf.addr(), len, wish.access);
    let what = |_: &Domain| Ok((vec![attributes::one(buf.cast_mut(), len)?], wish));
    // SAFETY: our object, caller's memory: the arguments are the C caller's, unchanged.
    unsafe { register_in(call::FI_MR_REG, fid, mr, named, caller, what) }
}

pub unsafe extern "C" fn regv(
    fid: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let wish = Wish {
        access,
        offset,
        requested_key,
        flags,
        context,
    };
    // SAFETY: caller's memory: `iov` is NULL or has `count` elements.
    let what = |_: &Domain| Ok((unsafe { attributes::several(iov, count) }?, wish));
    // SAFETY: our object, caller's memory: the arguments are the C caller's, unchanged.
    unsafe { register_in(call::FI_MR_REGV, fid, mr, (0, 0, access), caller(), what) }
}

pub unsafe extern "C" fn regattr(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: caller's memory: `attr` is not NULL, and every version of the attributes has `access`.
    let access = || unsafe { (*attr).access };
    let access = if attr.is_null() { 0 } else { access() };
    let what = |domain: &Domain| {
        // SAFETY: caller's memory: `attr` is NULL or points to attributes of the domain's version.
        unsafe { attributes::read(attr, flags, domain.mode.api_version) }
    };
    // SAFETY: our object, caller's memory: the arguments are the C caller's, unchanged.
    unsafe { register_in(call::FI_MR_REGATTR, fid, mr, (0, 0, access), caller(), what) }
}

pub unsafe extern "C" fn region_close(fid: *mut fid) -> c_int {
    // SAFETY: our object: `fid` is a region of this library.
    let region = unsafe { Region::from_c(fid) };
    if !trace::is_on() && ret::always(false, || release(region)) {
        return 0;
    }
    close_slowly(region, caller())
}

#[inline(never)]
fn close_slowly(region: &'static Region, caller: Caller) -> c_int {
    let mut pending = ret::always(None, || Pending::begin(call::FI_CLOSE, caller));
    ret::always((), || {
        // The region cannot be read after the call. A region that is closed already may have
        // outlived its domain.
        if let Some(pending) = pending.as_mut().filter(|_| region.check().is_ok()) {
            pending.record.pd = settle(region).pd.address() as u64;
            region.describe_record(&mut pending.record, How::Kernel);
        }
    });
    let result = ret::code("fi_close", Some(counter!(dereg_failed)), || {
        let how = close(region)?;
        // A region that failed after its call has nothing to deregister, and its record says so.
        let described = |pending: &&mut Pending| pending.record.how != how::NONE;
        if let Some(pending) = pending.as_mut().filter(described) {
            pending.record.how = how as u8;
        }
        Ok(0)
    });
    end(pending, result)
}

pub unsafe extern "C" fn region_bind(fid: *mut fid, with: *mut fid, flags: u64) -> c_int {
    ret::done("fi_mr_bind", || {
        // SAFETY: our object: `fid` is a region of this library.
        unsafe { Region::from_c(fid) }.check()?;
        // SAFETY: our object: `with` is NULL or an open object.
        let class = unsafe { with.as_ref() }.ok_or(NULL_BOUND)?.fclass;
        ensure([FI_CLASS_EQ, FI_CLASS_CNTR].contains(&class), NOT_BINDABLE)?;
        // libfabric before 1.0 called the flag FI_WRITE.
        let known = flags != 0 && flags & !(FI_REMOTE_WRITE | FI_WRITE) == 0;
        ensure(known, REGION_BIND_FLAGS)?;
        Err(NO_REMOTE_EVENTS.into())
    })
}

pub unsafe extern "C" fn region_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: our object: `fid` is a region of this library.
    let region = unsafe { Region::from_c(fid) };
    match command {
        // Every region is enabled from the start.
        FI_ENABLE => ret::done("fi_mr_enable", || region.check_registered()),
        FI_REFRESH => ret::done("fi_mr_refresh", || {
            region.check()?;
            Err(NO_REFRESH.into())
        }),
        // SAFETY: caller's memory: this command takes `arg` of that type.
        FI_GET_RAW_MR => ret::done("fi_mr_raw_attr", || unsafe { raw_attr(region, arg.cast()) }),
        _ => not_there("fi_control"),
    }
}

unsafe fn raw_attr(region: &Region, arg: *const fi_mr_raw_attr) -> Result<()> {
    region.check_registered()?;
    // SAFETY: caller's memory: `arg` is NULL or points to the argument of this command.
    let arg = unsafe { arg.as_ref() }.ok_or(NULL_ARGUMENT)?;
    ensure(arg.flags == 0, RAW_KEY_FLAGS)?;
    let places = !arg.base_addr.is_null() && !arg.key_size.is_null();
    ensure(places, RAW_KEY_PLACES)?;
    // SAFETY: caller's memory: `key_size` is not NULL, so it points to a readable size.
    let given = unsafe { arg.key_size.read() };
    let most = given.min(raw_key::size(raw_key::IOV_LIMIT));
    // SAFETY: caller's memory: `raw_key` is NULL or has `given` bytes.
    let (size, written) = region.write_raw_key(unsafe { bytes(arg.raw_key, most) });
    // SAFETY: caller's memory: `key_size` is not NULL, so it points to a writable size.
    unsafe { arg.key_size.write(size) };
    written?;
    // SAFETY: caller's memory: `base_addr` is not NULL, so it points to a writable address.
    unsafe { arg.base_addr.write(region.plan.base) };
    Ok(())
}

pub unsafe extern "C" fn queue_close(fid: *mut fid) -> c_int {
    // SAFETY: our object: `fid` is an open queue of this library.
    ret::done("fi_close", || unsafe { Queue::close(fid.cast()) })
}

pub unsafe extern "C" fn queue_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    if command != FI_GETWAIT && command != FI_GETWAITOBJ {
        return not_there("fi_control");
    }
    ret::done("fi_control", || {
        // SAFETY: our object: `fid` is an open queue of this library.
        let queue = unsafe { Queue::from_c(fid.cast()) }?;
        ensure(!arg.is_null(), NULL_ARGUMENT)?;
        let answer = match command {
            FI_GETWAIT => queue.fd()?,
            _ => queue.wait_object(),
        };
        // SAFETY: caller's memory: `arg` is not NULL, and both commands take a pointer to an int.
        unsafe { arg.cast::<c_int>().write(answer) };
        Ok(())
    })
}

/// The caller's bytes for a result.
unsafe fn bytes<'a>(buf: *mut u8, len: usize) -> &'a mut [u8] {
    if buf.is_null() {
        return &mut [];
    }
    // SAFETY: caller's memory: `buf` is not NULL and has `len` bytes.
    unsafe { slice::from_raw_parts_mut(buf, len) }
}

/// Reads an event of a queue into the caller's memory.
unsafe fn read_event(
    call: &'static str,
    eq: *mut fid_eq,
    out: *mut u32,
    (buf, len): (*mut c_void, usize),
    read: impl FnOnce(&Queue, &mut [u8]) -> Result<(u32, usize)>,
) -> ssize_t {
    silent(call, || {
        // SAFETY: our object: `eq` is an open queue of this library.
        let queue = unsafe { Queue::from_c(eq) }?;
        // SAFETY: caller's memory: `buf` is NULL or has `len` bytes.
        let (event, size) = read(queue, unsafe { bytes(buf.cast(), len) })?;
        if !out.is_null() {
            // SAFETY: caller's memory: `out` is not NULL, so it points to a writable number.
            unsafe { out.write(event) };
        }
        Ok(size)
    })
}

pub unsafe extern "C" fn queue_read(
    eq: *mut fid_eq,
    out: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> ssize_t {
    let read = |queue: &Queue, room: &mut [u8]| queue.read(room, flags);
    // SAFETY: our object, caller's memory: the arguments are the C caller's, unchanged.
    unsafe { read_event("fi_eq_read", eq, out, (buf, len), read) }
}

pub unsafe extern "C" fn queue_sread(
    eq: *mut fid_eq,
    out: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> ssize_t {
    let read = |queue: &Queue, room: &mut [u8]| queue.read_waiting(room, timeout, flags);
    // SAFETY: our object, caller's memory: the arguments are the C caller's, unchanged.
    unsafe { read_event("fi_eq_sread", eq, out, (buf, len), read) }
}

pub unsafe extern "C" fn queue_readerr(
    eq: *mut fid_eq,
    out: *mut fi_eq_err_entry,
    flags: u64,
) -> ssize_t {
    silent("fi_eq_readerr", || {
        // SAFETY: our object: `eq` is an open queue of this library.
        let queue = unsafe { Queue::from_c(eq) }?;
        // SAFETY: caller's memory: `out` is NULL or points to a writable error entry.
        unsafe { queue.read_error(out, flags) }
    })
}

pub unsafe extern "C" fn queue_write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    flags: u64,
) -> ssize_t {
    ret::code("fi_eq_write", None, || {
        // SAFETY: our object: `eq` is an open queue of this library.
        let queue = unsafe { Queue::from_c(eq) }?;
        ensure(!buf.is_null() || len == 0, NULL_EVENT)?;
        // A slice, and so a copy of the event, has at most `isize::MAX` bytes.
        ensure(isize::try_from(len).is_ok(), Error::Memory)?;
        let bytes = if len == 0 {
            &[]
        } else {
            // SAFETY: caller's memory: `buf` is not NULL and has `len` bytes.
            unsafe { slice::from_raw_parts(buf.cast::<u8>(), len) }
        };
        queue.write(event, bytes, flags)?;
        Ok(len as ssize_t)
    })
}

/// The body of a call that reads a queue. An empty queue, or an error as the next event, is an
/// answer and not a failure: the thread's last reason stays.
fn silent(call: &'static str, body: impl FnOnce() -> Result<usize>) -> ssize_t {
    ret::code(call, None, || match body() {
        Err(failure) if [FI_EAGAIN, FI_EAVAIL].contains(&errors::code(failure.error)) => {
            Ok(-errors::code(failure.error) as ssize_t)
        }
        result => result.map(|size| size as ssize_t),
    })
}

pub unsafe extern "C" fn queue_strerror(
    _: *mut fid_eq,
    prov_errno: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let words = errors::words(prov_errno);
    if buf.is_null() || len == 0 {
        return words.as_ptr();
    }
    let fits = words.to_bytes().len().min(len - 1);
    // SAFETY: caller's memory: `buf` has `len` bytes, and `fits` is less than `len`.
    unsafe { buf.copy_from_nonoverlapping(words.as_ptr(), fits) };
    // SAFETY: caller's memory: `fits` is at most the index of the last of the `len` bytes.
    unsafe { buf.wrapping_add(fits).write(0) };
    words.as_ptr()
}
