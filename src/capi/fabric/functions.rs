// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tables of functions of our objects point to.
//!
//! # Safety
//! As libfabric and its inlines call them: an object is one of ours and open, the other pointers are NULL or
//! as fi_mr(3) and fi_eq(3) say.

use crate::abi::libfabric::*;
use crate::abi::libfabric_provider::Slot;
use crate::capi::ret;
use crate::fabric::attributes::{self, Buffers, Wish};
use crate::fabric::errors::{self, Failure, invalid, refused};
use crate::fabric::{Domain, Publish, Queue, Region, close, fast, raw_key, register};
use crate::stats::Counter;
use core::ffi::{c_char, c_int, c_void};
use core::slice;
use libc::{iovec, ssize_t};

const NOT_THERE: Failure = refused(
    FI_ENOSYS,
    "this object registers memory or reports it, and can do nothing else",
);

fn not_there(call: &'static str) -> c_int {
    ret::code(call, None, || Err(NOT_THERE))
}

/// What none of our objects can do. See [`Slot`] for its arguments.
pub unsafe extern "C" fn nothing() -> c_int {
    not_there("a call of libfabric")
}
const _: Slot = nothing;

pub unsafe extern "C" fn no_bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    not_there("fi_bind")
}

pub unsafe extern "C" fn no_control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    not_there("fi_control")
}

pub unsafe extern "C" fn no_ops_open(
    _: *mut fid,
    _: *const c_char,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    not_there("fi_open_ops")
}

pub unsafe extern "C" fn no_tostr(_: *const fid, _: *mut c_char, _: usize) -> c_int {
    not_there("fi_tostr")
}

pub unsafe extern "C" fn no_ops_set(
    _: *mut fid,
    _: *const c_char,
    _: u64,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    not_there("fi_set_ops")
}

pub unsafe extern "C" fn domain_close(fid: *mut fid) -> c_int {
    ret::code("fi_close", None, || {
        // SAFETY: one of our domains.
        unsafe { Domain::close(fid) }?;
        Ok(0)
    })
}

pub unsafe extern "C" fn domain_bind(fid: *mut fid, queue: *mut fid, flags: u64) -> c_int {
    ret::code("fi_domain_bind", None, || {
        // SAFETY: one of our domains.
        let domain = unsafe { Domain::from_c(fid) }?;
        // SAFETY: NULL or an open object.
        unsafe { domain.bind(queue, flags) }?;
        Ok(0)
    })
}

pub unsafe extern "C" fn domain_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    match command {
        // SAFETY: the argument of that command.
        FI_MAP_RAW_MR => ret::code("fi_mr_map_raw", None, || unsafe {
            map_raw(fid, arg.cast())
        }),
        FI_UNMAP_KEY => ret::code("fi_mr_unmap_key", None, || {
            // SAFETY: one of our domains.
            let domain = unsafe { Domain::from_c(fid) }?;
            // SAFETY: the argument of that command.
            let key = unsafe { arg.cast::<u64>().as_ref() }.ok_or(invalid("the key is NULL"))?;
            domain.keys.unmap(*key)?;
            Ok(0)
        }),
        _ => not_there("fi_control"),
    }
}

unsafe fn map_raw(fid: *mut fid, arg: *const fi_mr_map_raw) -> Result<c_int, Failure> {
    // SAFETY: one of our domains.
    let domain = unsafe { Domain::from_c(fid) }?;
    // SAFETY: the argument of that command.
    let arg = unsafe { arg.as_ref() }.ok_or(invalid("the argument is NULL"))?;
    if arg.raw_key.is_null() || arg.key.is_null() {
        return Err(invalid("the raw key or the place for the key is NULL"));
    }
    if arg.key_size > raw_key::size(raw_key::IOV_LIMIT) {
        return Err(invalid(
            "the raw key's size is not that of a raw key of this library",
        ));
    }
    // SAFETY: the application's raw key, of that size.
    let bytes = unsafe { slice::from_raw_parts(arg.raw_key, arg.key_size) };
    let key = domain.map(bytes, arg.base_addr, arg.flags)?;
    // SAFETY: the application's.
    unsafe { arg.key.write(key) };
    Ok(0)
}

/// The one body of the three registering calls.
#[inline(always)]
unsafe fn register_in(
    call: &'static str,
    fid: *mut fid,
    mr: *mut *mut fid_mr,
    what: impl FnOnce(&Domain) -> Result<(Buffers, Wish), Failure>,
) -> c_int {
    ret::code(call, Some(Counter::RegFailed), || {
        // SAFETY: one of our domains.
        let domain = unsafe { Domain::from_c(fid) }?;
        if mr.is_null() {
            return Err(invalid("the place for the region is NULL"));
        }
        let (buffers, wish) = what(domain)?;
        // SAFETY: the application's, readable as well as writable.
        let before = unsafe { mr.read() };
        // SAFETY: as above.
        let publish = unsafe { Publish::to(mr) };
        register(call, domain, buffers, &wish, &publish).inspect_err(|_| {
            // SAFETY: as above. What failed after all leaves no region behind.
            unsafe { mr.write(before) };
        })?;
        Ok(0)
    })
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
    // SAFETY: one of our domains.
    let domain = unsafe { Domain::look(fid) };
    if flags | offset == 0
        && !mr.is_null()
        && let Some(region) = fast::register(domain, buf.addr(), len, access, context)
    {
        // SAFETY: the application's.
        unsafe { mr.write(region) };
        return 0;
    }
    // SAFETY: the caller's word.
    unsafe {
        reg_slowly(
            fid,
            buf,
            len,
            access,
            offset,
            requested_key,
            flags,
            mr,
            context,
        )
    }
}

/// A function of its own, so that the short way has a small frame.
#[inline(never)]
unsafe extern "C" fn reg_slowly(
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
    let wish = Wish {
        access,
        offset,
        requested_key,
        flags,
        context,
    };
    let what = |_: &Domain| Ok((attributes::one(buf.cast_mut(), len)?, wish));
    // SAFETY: the caller's word.
    unsafe { register_in("fi_mr_reg", fid, mr, what) }
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
    // SAFETY: the caller's word.
    let what = |_: &Domain| Ok((unsafe { attributes::several(iov, count) }?, wish));
    // SAFETY: the caller's word.
    unsafe { register_in("fi_mr_regv", fid, mr, what) }
}

pub unsafe extern "C" fn regattr(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    let what = |domain: &Domain| {
        // SAFETY: the caller's word.
        unsafe { attributes::read(attr, flags, domain.mode().api_version) }
    };
    // SAFETY: the caller's word.
    unsafe { register_in("fi_mr_regattr", fid, mr, what) }
}

pub unsafe extern "C" fn region_close(fid: *mut fid) -> c_int {
    // SAFETY: one of our regions.
    let region = unsafe { Region::from_c(fid) };
    if fast::close(region) {
        return 0;
    }
    // SAFETY: as above.
    unsafe { region_close_slowly(fid) }
}

#[inline(never)]
unsafe extern "C" fn region_close_slowly(fid: *mut fid) -> c_int {
    ret::code("fi_close", Some(Counter::DeregFailed), || {
        // SAFETY: one of our regions.
        close(unsafe { Region::from_c(fid) })?;
        Ok(0)
    })
}

pub unsafe extern "C" fn region_bind(fid: *mut fid, with: *mut fid, flags: u64) -> c_int {
    ret::code("fi_mr_bind", None, || {
        // SAFETY: one of our regions.
        unsafe { Region::from_c(fid) }.check()?;
        // SAFETY: NULL, or an open object.
        let with = unsafe { with.as_ref() };
        let with = with.ok_or(invalid("the queue or counter is NULL"))?;
        if ![FI_CLASS_EQ, FI_CLASS_CNTR].contains(&with.fclass) {
            return Err(invalid("a region is bound to an event queue or a counter"));
        }
        // FI_WRITE is what the flag was called before 1.0.
        if flags == 0 || flags & !(FI_REMOTE_WRITE | FI_WRITE) != 0 {
            return Err(refused(
                FI_EBADFLAGS,
                "a region is bound with FI_REMOTE_WRITE and no other flag",
            ));
        }
        Err(refused(
            FI_ENOSYS,
            "a verbs device does not say when a peer has written to a region",
        ))
    })
}

pub unsafe extern "C" fn region_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    match command {
        FI_ENABLE => ret::code("fi_mr_enable", None, || {
            // SAFETY: one of our regions. They are enabled from the start.
            unsafe { Region::from_c(fid) }.check_registered()?;
            Ok(0)
        }),
        FI_REFRESH => ret::code("fi_mr_refresh", None, || {
            // SAFETY: one of our regions.
            unsafe { Region::from_c(fid) }.check()?;
            Err(refused(
                FI_ENOSYS,
                "a region's pages are pinned when it is registered: close it and register anew",
            ))
        }),
        // SAFETY: the argument of that command.
        FI_GET_RAW_MR => ret::code("fi_mr_raw_attr", None, || unsafe {
            raw_attr(fid, arg.cast())
        }),
        _ => not_there("fi_control"),
    }
}

unsafe fn raw_attr(fid: *mut fid, arg: *const fi_mr_raw_attr) -> Result<c_int, Failure> {
    // SAFETY: one of our regions.
    let region = unsafe { Region::from_c(fid) };
    region.check_registered()?;
    // SAFETY: the argument of that command.
    let arg = unsafe { arg.as_ref() }.ok_or(invalid("the argument is NULL"))?;
    if arg.flags != 0 {
        return Err(refused(FI_EBADFLAGS, "a raw key is got without flags"));
    }
    if arg.base_addr.is_null() || arg.key_size.is_null() {
        return Err(invalid(
            "the place for the base address or for the size is NULL",
        ));
    }
    // SAFETY: the application's.
    let room = unsafe { arg.key_size.read() };
    let mut none = [];
    let out = if arg.raw_key.is_null() {
        &mut none[..]
    } else {
        // SAFETY: the application's, of that size.
        unsafe {
            slice::from_raw_parts_mut(arg.raw_key, room.min(raw_key::size(raw_key::IOV_LIMIT)))
        }
    };
    let (size, written) = region.write_raw_key(out);
    // SAFETY: the application's.
    unsafe { arg.key_size.write(size) };
    written?;
    // SAFETY: as above.
    unsafe { arg.base_addr.write(region.base) };
    Ok(0)
}

pub unsafe extern "C" fn queue_close(fid: *mut fid) -> c_int {
    ret::code("fi_close", None, || {
        // SAFETY: one of our queues.
        unsafe { Queue::close(fid.cast()) }?;
        Ok(0)
    })
}

pub unsafe extern "C" fn queue_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    if command != FI_GETWAIT && command != FI_GETWAITOBJ {
        return not_there("fi_control");
    }
    ret::code("fi_control", None, || {
        // SAFETY: one of our queues.
        let queue = unsafe { Queue::from_c(fid.cast()) }?;
        if arg.is_null() {
            return Err(invalid("the argument is NULL"));
        }
        let answer = if command == FI_GETWAIT {
            queue.fd()?
        } else {
            queue.wait_object()
        };
        // SAFETY: the argument of both commands is an int.
        unsafe { arg.cast::<c_int>().write(answer) };
        Ok(0)
    })
}

/// Room for an event.
unsafe fn room<'a>(buf: *mut c_void, len: usize) -> &'a mut [u8] {
    if buf.is_null() {
        return &mut [];
    }
    // SAFETY: the application's, of that size.
    unsafe { slice::from_raw_parts_mut(buf.cast(), len) }
}

/// Hands over an event that was read.
unsafe fn event(out: *mut u32, read: Result<(u32, usize), Failure>) -> Result<ssize_t, Failure> {
    let (event, size) = read?;
    if !out.is_null() {
        // SAFETY: the application's.
        unsafe { out.write(event) };
    }
    Ok(size as ssize_t)
}

pub unsafe extern "C" fn queue_read(
    eq: *mut fid_eq,
    out: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> ssize_t {
    silent("fi_eq_read", || {
        // SAFETY: one of our queues.
        let queue = unsafe { Queue::from_c(eq) }?;
        // SAFETY: the application's.
        let room = unsafe { room(buf, len) };
        // SAFETY: as above.
        unsafe { event(out, queue.read(room, flags)) }
    })
}

pub unsafe extern "C" fn queue_sread(
    eq: *mut fid_eq,
    out: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> ssize_t {
    silent("fi_eq_sread", || {
        // SAFETY: one of our queues.
        let queue = unsafe { Queue::from_c(eq) }?;
        // SAFETY: the application's.
        let room = unsafe { room(buf, len) };
        // SAFETY: as above.
        unsafe { event(out, queue.read_waiting(room, timeout, flags)) }
    })
}

pub unsafe extern "C" fn queue_readerr(
    eq: *mut fid_eq,
    out: *mut fi_eq_err_entry,
    flags: u64,
) -> ssize_t {
    silent("fi_eq_readerr", || {
        // SAFETY: one of our queues.
        let queue = unsafe { Queue::from_c(eq) }?;
        // SAFETY: the application's.
        let size = unsafe { queue.read_error(out, flags) }?;
        Ok(size as ssize_t)
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
        // SAFETY: one of our queues.
        let queue = unsafe { Queue::from_c(eq) }?;
        if buf.is_null() && len > 0 {
            return Err(invalid("the event is NULL"));
        }
        let bytes = if len == 0 {
            &[]
        } else {
            // SAFETY: the application's, of that size.
            unsafe { slice::from_raw_parts(buf.cast::<u8>(), len) }
        };
        queue.write(event, bytes, flags)?;
        Ok(len as ssize_t)
    })
}

/// Reading: that nothing, or an error, is there is no failure that has a reason.
fn silent(call: &'static str, body: impl FnOnce() -> Result<ssize_t, Failure>) -> ssize_t {
    ret::code(call, None, || match body() {
        Err(failure) if [FI_EAGAIN, FI_EAVAIL].contains(&errors::code(failure.error)) => {
            Ok(-errors::code(failure.error) as ssize_t)
        }
        result => result,
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
    // SAFETY: the application's, of that size.
    unsafe { buf.copy_from_nonoverlapping(words.as_ptr(), fits) };
    // SAFETY: as above: at most the last byte.
    unsafe { buf.wrapping_add(fits).write(0) };
    words.as_ptr()
}
