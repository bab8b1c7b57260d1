// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric's calls for memory and event queues, which it has only as `static inline`, as symbols. They go
//! through the object's own functions, so that they serve any provider's objects.
//!
//! # Safety
//! C's contract, fi_mr(3) and fi_eq(3): an object that is not NULL is an open one.

use crate::abi::libfabric::*;
use crate::capi::export::versioned;
use crate::capi::ret;
use crate::fabric::errors::{Failure, invalid, refused};
use core::ffi::{c_char, c_int, c_void};
use core::ptr::{null, null_mut};
use libc::{iovec, ssize_t};

const NO_SLOT: Failure = refused(
    FI_ENOSYS,
    "the object's provider has not implemented the call",
);

/// The object's own functions, if it is of the class.
#[inline(always)]
unsafe fn ops<'a>(object: *mut fid, class: Option<usize>) -> Result<&'a fi_ops, Failure> {
    // SAFETY: the caller's word.
    let object = unsafe { object.as_ref() }.ok_or(invalid("the object is NULL"))?;
    if class.is_some_and(|class| class != object.fclass) {
        return Err(invalid("the object is of another class, or closed"));
    }
    // SAFETY: an open object's.
    unsafe { object.ops.as_ref() }.ok_or(NO_SLOT)
}

/// Its functions for memory.
#[inline(always)]
unsafe fn memory<'a>(domain: *mut fid_domain) -> Result<&'a fi_ops_mr, Failure> {
    // SAFETY: the caller's word.
    unsafe { ops(domain.cast(), Some(FI_CLASS_DOMAIN)) }?;
    // SAFETY: a domain.
    let table = unsafe { (*domain).mr };
    // SAFETY: an open domain's.
    unsafe { table.as_ref() }.ok_or(NO_SLOT)
}

/// An object, if it is a region.
unsafe fn region<'a>(mr: *mut fid_mr) -> Option<&'a fid_mr> {
    // SAFETY: the caller's word: every object begins with a `struct fid`.
    let class = unsafe { mr.cast::<fid>().as_ref() }?.fclass;
    if class == FI_CLASS_MR {
        // SAFETY: a region, by its class.
        unsafe { mr.as_ref() }
    } else {
        None
    }
}

/// A queue's functions.
unsafe fn queue<'a>(eq: *mut fid_eq) -> Result<&'a fi_ops_eq, Failure> {
    // SAFETY: the caller's word.
    unsafe { ops(eq.cast(), Some(FI_CLASS_EQ)) }?;
    // SAFETY: an event queue.
    let table = unsafe { (*eq).ops };
    // SAFETY: an open queue's.
    unsafe { table.as_ref() }.ok_or(NO_SLOT)
}

/// The function of a slot, or the code of a failure, as whose call's.
macro_rules! slot {
    ($name:literal, $table:expr, $slot:ident) => {
        // SAFETY: the caller's word.
        match unsafe { $table }.and_then(|table| table.$slot.ok_or(NO_SLOT)) {
            Ok(function) => function,
            Err(failure) => return ret::code($name, None, || Err(failure)),
        }
    };
}

/// Registers a buffer with a domain, fi_mr_reg(3).
///
/// `access` is of FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ and FI_REMOTE_WRITE; `offset` is 0, unless
/// `flags` has RDMAMR_MR_OFFSET; `requested_key` counts on domains whose keys are the application's.
/// The region is written to `mr`; it is the caller's until fi_close(). On a domain that is bound to an event
/// queue it is registered in the background, and FI_MR_COMPLETE says when; `context` comes with that event.
///
/// Any thread may call this at any time, a signal handler not.
///
/// Returns 0, or of a domain of this library (rdmamr_last_reason() has it in words):
/// -FI_EINVAL: no access or an unknown one, an offset without the flag, a length of 0, a range past the end of the
/// address space, NULL, a domain of the process that this one was forked from.
/// -FI_EBADFLAGS: a flag that is not supported, or RDMAMR_MR_KEY where keys are the provider's.
/// -FI_ENOKEY: the requested key is in use. -FI_EKEYREJECTED: it is out of range.
/// -FI_EFAULT: part of the memory is not mapped, or is read-only and the access would write.
/// -FI_ENOMEM: more memory cannot be pinned (RLIMIT_MEMLOCK), or the device has run out of something.
/// Others as by ibv_reg_mr(3), as negative FI_E... .
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_reg(
    domain: *mut fid_domain,
    buf: *const c_void,
    len: usize,
    acs: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let reg = slot!("fi_mr_reg", memory(domain), reg);
    // SAFETY: the object's own function, with the caller's arguments.
    unsafe {
        reg(
            domain.cast(),
            buf,
            len,
            acs,
            offset,
            requested_key,
            flags,
            mr,
            context,
        )
    }
}
versioned!(fi_mr_reg, "RDMAMR_1.0");

/// Registers up to 16 buffers as one region, fi_mr_reg(3).
///
/// Buffers that touch in their order are registered as one. If more than one is left, the region is a
/// composite: its peers' addresses run from the base through all of them, end to end, and need
/// rdmamr_resolve(); fi_mr_desc() is NULL, and rdmamr_mr_segments() has what each needs for local use.
///
/// As fi_mr_reg(); -FI_EINVAL also for no buffers, more than 16, or an empty one. After a failure none is
/// registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_regv(
    domain: *mut fid_domain,
    iov: *const iovec,
    count: usize,
    acs: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let regv = slot!("fi_mr_regv", memory(domain), regv);
    // SAFETY: the object's own function, with the caller's arguments.
    unsafe {
        regv(
            domain.cast(),
            iov,
            count,
            acs,
            offset,
            requested_key,
            flags,
            mr,
            context,
        )
    }
}
versioned!(fi_mr_regv, "RDMAMR_1.0");

/// Registers what the attributes say, fi_mr_reg(3).
///
/// Of `attr` only the fields are read that the domain's api_version had. `iface` and `device` are not looked at,
/// since the domains have no FI_HMEM, and `page_size` is a hint.
///
/// As fi_mr_regv(); -FI_ENOSYS for an authorization key (from 1.5 on) or a base_mr (from 2.0 on).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_regattr(
    domain: *mut fid_domain,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    let regattr = slot!("fi_mr_regattr", memory(domain), regattr);
    // SAFETY: the object's own function, with the caller's arguments.
    unsafe { regattr(domain.cast(), attr, flags, mr) }
}
versioned!(fi_mr_regattr, "RDMAMR_1.0");

/// Closes a region, a domain, an event queue, or any object of libfabric's.
///
/// A region is deregistered, or goes back to the pool if its domain is relaxed. One that is being
/// registered is stopped, or waited for; no event of it can be read afterwards.
///
/// Returns 0, or a negative code. -FI_EBUSY: a domain still has regions or mapped keys, a queue a domain.
/// -FI_EINVAL: NULL; a region that is closed already, as far as it can be told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_close(fid: *mut fid) -> c_int {
    let close = slot!("fi_close", ops(fid, None), close);
    // SAFETY: the object's own function.
    unsafe { close(fid) }
}
versioned!(fi_close, "RDMAMR_1.0");

/// What the application gives with local buffers: of this library's regions the lkey.
///
/// NULL of NULL and of another object, of a composite, and of a region that is not registered yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_desc(mr: *mut fid_mr) -> *mut c_void {
    // SAFETY: the caller's word.
    unsafe { region(mr) }.map_or(null_mut(), |mr| mr.mem_desc)
}
versioned!(fi_mr_desc, "RDMAMR_1.0");

/// The key by which peers reach a region: the rkey, or the one that the application has requested.
///
/// FI_KEY_NOTAVAIL of NULL and of another object, of a region that is not registered yet or was replaced, of
/// a composite whose key would be the provider's, and on domains with FI_MR_RAW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_key(mr: *mut fid_mr) -> u64 {
    // SAFETY: the caller's word.
    unsafe { region(mr) }.map_or(FI_KEY_NOTAVAIL, |mr| mr.key)
}
versioned!(fi_mr_key, "RDMAMR_1.0");

/// Binds a region to a counter or a queue, fi_mr(3).
///
/// Of this library's regions: -FI_ENOSYS with FI_REMOTE_WRITE or FI_WRITE, since a device does not say when a
/// peer has written; -FI_EBADFLAGS with other flags; -FI_EINVAL with NULL or another object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_bind(mr: *mut fid_mr, bfid: *mut fid, flags: u64) -> c_int {
    let bind = slot!("fi_mr_bind", ops(mr.cast(), Some(FI_CLASS_MR)), bind);
    // SAFETY: the object's own function, with the caller's arguments.
    unsafe { bind(mr.cast(), bfid, flags) }
}
versioned!(fi_mr_bind, "RDMAMR_1.0");

/// One of the calls that are commands to a region.
macro_rules! command {
    ($name:literal, $mr:expr, $class:expr, $command:expr, $arg:expr) => {{
        let control = slot!($name, ops($mr.cast(), Some($class)), control);
        // SAFETY: the object's own function, with the argument of that command.
        unsafe { control($mr.cast(), $command, $arg) }
    }};
}

/// Enables a region. This library's are enabled from the start: 0, or -FI_EOPBADSTATE while one is being
/// registered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_enable(mr: *mut fid_mr) -> c_int {
    command!("fi_mr_enable", mr, FI_CLASS_MR, FI_ENABLE, null_mut())
}
versioned!(fi_mr_enable, "RDMAMR_1.0");

/// Says that the pages of a region have changed. Of this library's, whose pages are pinned: -FI_ENOSYS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_refresh(
    mr: *mut fid_mr,
    iov: *const iovec,
    count: usize,
    flags: u64,
) -> c_int {
    let mut modify = fi_mr_modify {
        flags,
        attr: fi_mr_attr {
            mr_iov: iov,
            iov_count: count,
            access: 0,
            offset: 0,
            requested_key: 0,
            context: null_mut(),
            auth_key_size: 0,
            auth_key: null_mut(),
            iface: 0,
            device: 0,
            hmem_data: null_mut(),
            page_size: 0,
            base_mr: null(),
            sub_mr_cnt: 0,
        },
    };
    let arg = (&raw mut modify).cast();
    command!("fi_mr_refresh", mr, FI_CLASS_MR, FI_REFRESH, arg)
}
versioned!(fi_mr_refresh, "RDMAMR_1.0");

/// Writes all that a peer must know of a region: its base address, and a raw key that fi_mr_map_raw() takes.
///
/// `key_size` is the room in bytes, and becomes what is needed: 48 for one buffer, 24 more for each other
/// of a composite. Returns 0, -FI_ETOOSMALL, -FI_EOPBADSTATE for a region that is not registered (yet),
/// -FI_EBADFLAGS for flags, -FI_EINVAL for NULL (but a NULL `raw_key` asks for the size).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_raw_attr(
    mr: *mut fid_mr,
    base_addr: *mut u64,
    raw_key: *mut u8,
    key_size: *mut usize,
    flags: u64,
) -> c_int {
    let mut attr = fi_mr_raw_attr {
        flags,
        base_addr,
        raw_key,
        key_size,
    };
    let arg = (&raw mut attr).cast();
    command!("fi_mr_raw_attr", mr, FI_CLASS_MR, FI_GET_RAW_MR, arg)
}
versioned!(fi_mr_raw_attr, "RDMAMR_1.0");

/// Maps a raw key that a peer has sent to one for rdmamr_resolve().
///
/// Returns 0, or -FI_EINVAL: a byte of it is wrong, or the base address is not its own; NULL. -FI_EBADFLAGS
/// for flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_map_raw(
    domain: *mut fid_domain,
    base_addr: u64,
    raw_key: *mut u8,
    key_size: usize,
    key: *mut u64,
    flags: u64,
) -> c_int {
    let mut map = fi_mr_map_raw {
        flags,
        base_addr,
        raw_key,
        key_size,
        key,
    };
    let arg = (&raw mut map).cast();
    command!("fi_mr_map_raw", domain, FI_CLASS_DOMAIN, FI_MAP_RAW_MR, arg)
}
versioned!(fi_mr_map_raw, "RDMAMR_1.0");

/// Ends the mapping of a raw key. Returns 0, or -FI_ENOKEY if it is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_unmap_key(domain: *mut fid_domain, key: u64) -> c_int {
    let mut key = key;
    let arg = (&raw mut key).cast();
    command!(
        "fi_mr_unmap_key",
        domain,
        FI_CLASS_DOMAIN,
        FI_UNMAP_KEY,
        arg
    )
}
versioned!(fi_mr_unmap_key, "RDMAMR_1.0");

/// Binds a domain to an event queue with FI_REG_MR, fi_domain(3): registrations complete in the background.
///
/// Of this library's domains: 0; -FI_EBADFLAGS with other flags; -FI_EINVAL: NULL, no event queue, or another
/// provider's that takes no events; -FI_EBUSY: bound already, or another provider's queue that is not empty;
/// -FI_EOPBADSTATE: the domain has regions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_domain_bind(
    domain: *mut fid_domain,
    fid: *mut fid,
    flags: u64,
) -> c_int {
    let bind = slot!(
        "fi_domain_bind",
        ops(domain.cast(), Some(FI_CLASS_DOMAIN)),
        bind
    );
    // SAFETY: the object's own function, with the caller's arguments.
    unsafe { bind(domain.cast(), fid, flags) }
}
versioned!(fi_domain_bind, "RDMAMR_1.0");

/// Gives an object a command, such as FI_GETWAIT to an event queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    let control = slot!("fi_control", ops(fid, None), control);
    // SAFETY: the object's own function, with the caller's arguments.
    unsafe { control(fid, command, arg) }
}
versioned!(fi_control, "RDMAMR_1.0");

/// Reads the next event of a queue, fi_eq(3). Returns its size; -FI_EAGAIN: there is none; -FI_EAVAIL: it is
/// an error;
/// -FI_ETOOSMALL: it stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_eq_read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> ssize_t {
    let read = slot!("fi_eq_read", queue(eq), read);
    // SAFETY: the object's own function, with the caller's arguments.
    unsafe { read(eq, event, buf, len, flags) }
}
versioned!(fi_eq_read, "RDMAMR_1.0");

/// Reads the error that is the next event of a queue, fi_eq(3). Returns its size, or -FI_EAGAIN.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_eq_readerr(
    eq: *mut fid_eq,
    buf: *mut fi_eq_err_entry,
    flags: u64,
) -> ssize_t {
    let readerr = slot!("fi_eq_readerr", queue(eq), readerr);
    // SAFETY: the object's own function, with the caller's arguments.
    unsafe { readerr(eq, buf, flags) }
}
versioned!(fi_eq_readerr, "RDMAMR_1.0");

/// Puts an event of the application's into a queue, fi_eq(3). Returns its size; -FI_EINVAL: the queue was
/// opened without FI_WRITE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_eq_write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    flags: u64,
) -> ssize_t {
    let write = slot!("fi_eq_write", queue(eq), write);
    // SAFETY: the object's own function, with the caller's arguments.
    unsafe { write(eq, event, buf, len, flags) }
}
versioned!(fi_eq_write, "RDMAMR_1.0");

/// As fi_eq_read(), and waits `timeout` milliseconds for an event, or for ever if that is negative.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_eq_sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> ssize_t {
    let sread = slot!("fi_eq_sread", queue(eq), sread);
    // SAFETY: the object's own function, with the caller's arguments.
    unsafe { sread(eq, event, buf, len, timeout, flags) }
}
versioned!(fi_eq_sread, "RDMAMR_1.0");

/// What a provider's error means, in words, fi_eq(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_eq_strerror(
    eq: *mut fid_eq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the caller's word.
    let table = unsafe { queue(eq) };
    match table.ok().and_then(|table| table.strerror) {
        // SAFETY: the object's own function, with the caller's arguments.
        Some(strerror) => unsafe { strerror(eq, prov_errno, err_data, buf, len) },
        None => c"no such queue".as_ptr(),
    }
}
versioned!(fi_eq_strerror, "RDMAMR_1.0");
