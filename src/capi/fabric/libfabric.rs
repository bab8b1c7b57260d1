// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric's calls for memory and event queues, as symbols. libfabric itself has these calls only
//! as `static inline` functions. Each call goes through the object's table of functions, so it
//! serves the objects of any provider.
//!
//! # Safety
//! **Open objects**, the contract of fi_mr(3) and fi_eq(3), kept by the C caller: a pointer to an
//! object is NULL, or the object is open. An open object begins with a `struct fid`, its class
//! states its type, and its tables are NULL or its provider's.

use crate::capi::export::versioned;
use crate::capi::ret;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use libc::{iovec, ssize_t};
use rdmamr_abi::libfabric::*;
use rdmamr_fabric::refusals::*;
use rdmamr_mr::Error;

/// The table of functions of an object, if the object has the class.
unsafe fn ops<'a>(object: *mut fid, class: Option<usize>) -> Result<&'a fi_ops, Error> {
    // SAFETY: open objects: `object` is NULL or an open object.
    let object = unsafe { object.as_ref() }.ok_or(NULL_OBJECT)?;
    if class.is_some_and(|class| class != object.fclass) {
        return Err(OTHER_CLASS);
    }
    // SAFETY: open objects: the table is NULL or the provider's.
    unsafe { object.ops.as_ref() }.ok_or(NO_SLOT)
}

/// The table of a domain's functions for memory.
unsafe fn memory<'a>(domain: *mut fid_domain) -> Result<&'a fi_ops_mr, Error> {
    // SAFETY: open objects: `domain` is NULL or an open object.
    unsafe { ops(domain.cast(), Some(FI_CLASS_DOMAIN)) }?;
    // SAFETY: open objects: the class, which `ops` has checked, says that this object is a domain.
    let table = unsafe { (*domain).mr };
    // SAFETY: open objects: the table is NULL or the provider's.
    unsafe { table.as_ref() }.ok_or(NO_SLOT)
}

/// An object as a region, if the object is a region.
unsafe fn region<'a>(mr: *mut fid_mr) -> Option<&'a fid_mr> {
    // SAFETY: open objects: `mr` is NULL or an open object, which begins with a `struct fid`.
    let class = unsafe { mr.cast::<fid>().as_ref() }?.fclass;
    if class != FI_CLASS_MR {
        return None;
    }
    // SAFETY: open objects: the class says that this object is a region.
    unsafe { mr.as_ref() }
}

/// The table of a queue's functions.
unsafe fn queue<'a>(eq: *mut fid_eq) -> Result<&'a fi_ops_eq, Error> {
    // SAFETY: open objects: `eq` is NULL or an open object.
    unsafe { ops(eq.cast(), Some(FI_CLASS_EQ)) }?;
    // SAFETY: open objects: the class, which `ops` has checked, says that this object is a queue.
    let table = unsafe { (*eq).ops };
    // SAFETY: open objects: the table is NULL or the provider's.
    unsafe { table.as_ref() }.ok_or(NO_SLOT)
}

/// Calls the function in a slot of a table with these arguments. If the slot is empty, fails as the
/// call `$name`.
macro_rules! slot {
    ($name:literal, $table:expr, $slot:ident($($argument:expr),*)) => {
        // SAFETY: open objects: the macro's caller forwards the pointer of its C caller.
        match unsafe { $table }.and_then(|table| table.$slot.ok_or(NO_SLOT)) {
            // SAFETY: the function comes from the table of this open object, and gets the C
            // caller's arguments unchanged, or the argument that its command takes.
            Ok(function) => unsafe { function($($argument),*) },
            Err(refusal) => ret::code($name, None, || Err(refusal.into())),
        }
    };
}

/// Registers a buffer with a domain, fi_mr_reg(3).
///
/// `len` is in bytes. `acs` is any of FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ and
/// FI_REMOTE_WRITE; 0 allows local reads only. `offset` is 0, unless `flags` has RDMAMR_MR_OFFSET.
/// `requested_key` has an effect only on domains whose keys the application chooses. Domains with
/// the rules from before 1.0 (struct rdmamr_domain_attr) ignore both without their flags. The
/// function writes the region to `mr`; the caller owns the region until fi_close(). A domain that is bound
/// to an event queue registers in the background: the event FI_MR_COMPLETE, which carries
/// `context`, then says that the region is registered.
///
/// Any thread may call this function at any time. A signal handler must not call it.
///
/// Returns 0, or a negative code. On a domain of this library rdmamr_last_reason() has the reason
/// in words, and the codes mean:
/// -FI_EINVAL: `acs` has an unknown bit, `offset` is not 0 without its flag, `len` is 0, the range
/// goes past the end of the address space, a pointer is NULL, or the domain belongs to the process
/// that forked this one.
/// -FI_EBADFLAGS: `flags` has an unsupported flag, or RDMAMR_MR_KEY where the provider chooses the
/// keys.
/// -FI_ENOKEY: another region has the requested key.
/// -FI_EKEYREJECTED: the requested key is out of range.
/// -FI_EFAULT: part of the memory is not mapped, or is read-only although the access would write.
/// -FI_ENOMEM: the process cannot pin more memory (RLIMIT_MEMLOCK), or the device ran out of a
/// resource.
/// Other codes are the errnos of ibv_reg_mr(3), as negative FI_E... codes.
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
    slot! {
        "fi_mr_reg", memory(domain),
        reg(domain.cast(), buf, len, acs, offset, requested_key, flags, mr, context)
    }
}
versioned!(fi_mr_reg, "RDMAMR_1.0");

/// Registers up to 16 buffers as one region, fi_mr_reg(3).
///
/// `count` is the number of elements of `iov`. Consecutive buffers that are adjacent in memory
/// become one buffer. If more than one buffer is left, the region is a composite: the addresses of
/// remote peers run from the base through all the buffers, end to end; remote peers need
/// rdmamr_resolve() to use them. fi_mr_desc() of a composite is NULL; rdmamr_mr_segments() returns
/// each buffer's keys for local use.
///
/// Returns as fi_mr_reg(). -FI_EINVAL also means: no buffer, more than 16 buffers, or an empty
/// buffer. After a failure none of the buffers is registered.
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
    slot! {
        "fi_mr_regv", memory(domain),
        regv(domain.cast(), iov, count, acs, offset, requested_key, flags, mr, context)
    }
}
versioned!(fi_mr_regv, "RDMAMR_1.0");

/// Registers the buffers that the attributes name, fi_mr_reg(3).
///
/// The function reads only the fields of `attr` that existed in the api_version of the domain. It
/// ignores `iface` and `device`, since the domains have no FI_HMEM, and takes `page_size` as a
/// hint.
///
/// Returns as fi_mr_regv(). -FI_ENOSYS: `attr` has an authorization key (fields of 1.5 and later)
/// or a base_mr (a field of 2.0 and later).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_regattr(
    domain: *mut fid_domain,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    slot! { "fi_mr_regattr", memory(domain), regattr(domain.cast(), attr, flags, mr) }
}
versioned!(fi_mr_regattr, "RDMAMR_1.0");

/// Closes a region, a domain, an event queue, or any other object of libfabric.
///
/// Closing a region deregisters it, or returns it to the cache if its domain uses the cache. If the
/// region is being registered in the background, the function stops that registration or waits for
/// it; the program reads no event of the region afterwards.
///
/// Returns 0, or a negative code.
/// -FI_EBUSY: the domain still has regions or mapped keys, or the queue still has a domain.
/// -FI_EINVAL: `fid` is NULL, or the region is closed already (a double free), as far as the
/// library can tell.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_close(fid: *mut fid) -> c_int {
    slot!("fi_close", ops(fid, None), close(fid))
}
versioned!(fi_close, "RDMAMR_1.0");

/// Returns the descriptor that the application passes with local buffers. The descriptor of a
/// region of this library is the lkey.
///
/// Returns NULL if `mr` is NULL, is another object, is a composite, or is not registered yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_desc(mr: *mut fid_mr) -> *mut c_void {
    // SAFETY: open objects: `mr` is NULL or an open object.
    unsafe { region(mr) }.map_or(null_mut(), |mr| mr.mem_desc)
}
versioned!(fi_mr_desc, "RDMAMR_1.0");

/// Returns the key by which remote peers reach a region: the rkey, or the key that the application
/// requested.
///
/// Returns FI_KEY_NOTAVAIL if `mr` is NULL or another object, if the region is not registered yet
/// or was replaced, if the region is a composite whose key the provider would choose, and on a
/// domain with FI_MR_RAW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_key(mr: *mut fid_mr) -> u64 {
    // SAFETY: open objects: `mr` is NULL or an open object.
    unsafe { region(mr) }.map_or(FI_KEY_NOTAVAIL, |mr| mr.key)
}
versioned!(fi_mr_key, "RDMAMR_1.0");

/// Binds a region to a counter or a queue, fi_mr(3). No region of this library can be bound.
///
/// Returns for a region of this library:
/// -FI_ENOSYS: `flags` is FI_REMOTE_WRITE or FI_WRITE; a device does not say when a remote peer has
/// written.
/// -FI_EBADFLAGS: `flags` has other flags.
/// -FI_EINVAL: a pointer is NULL, or an object has another class.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_bind(mr: *mut fid_mr, bfid: *mut fid, flags: u64) -> c_int {
    slot! { "fi_mr_bind", ops(mr.cast(), Some(FI_CLASS_MR)), bind(mr.cast(), bfid, flags) }
}
versioned!(fi_mr_bind, "RDMAMR_1.0");

/// The body of a call that gives an object a command.
macro_rules! command {
    ($name:literal, $mr:expr, $class:expr, $command:expr, $arg:expr) => {
        slot! { $name, ops($mr.cast(), Some($class)), control($mr.cast(), $command, $arg) }
    };
}

/// Enables a region. Regions of this library are enabled from the start.
///
/// Returns for a region of this library 0, or a negative code.
/// -FI_EOPBADSTATE: the region is not registered, or not registered yet.
/// -FI_EINVAL: `mr` is NULL or another object, or the region is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_enable(mr: *mut fid_mr) -> c_int {
    command!("fi_mr_enable", mr, FI_CLASS_MR, FI_ENABLE, null_mut())
}
versioned!(fi_mr_enable, "RDMAMR_1.0");

/// Tells the provider that the pages of a region have changed.
///
/// Returns -FI_ENOSYS for a region of this library, since its pages are pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_refresh(
    mr: *mut fid_mr,
    iov: *const iovec,
    count: usize,
    flags: u64,
) -> c_int {
    // SAFETY: the structure consists of numbers and pointers, for which zeros are valid.
    let none: fi_mr_attr = unsafe { core::mem::zeroed() };
    let attr = fi_mr_attr {
        mr_iov: iov,
        iov_count: count,
        ..none
    };
    let mut modify = fi_mr_modify { flags, attr };
    let arg = (&raw mut modify).cast();
    command!("fi_mr_refresh", mr, FI_CLASS_MR, FI_REFRESH, arg)
}
versioned!(fi_mr_refresh, "RDMAMR_1.0");

/// Writes what a remote peer needs to reach a region: its base address, and a raw key for
/// fi_mr_map_raw().
///
/// On entry `key_size` is the size of `raw_key` in bytes; on return it is the size that the raw key
/// needs: 48 bytes for one buffer, and 24 more for each further buffer of a composite. A NULL
/// `raw_key` asks for that size.
///
/// Returns 0, or a negative code.
/// -FI_ETOOSMALL: `raw_key` is too small; `key_size` is the size that the raw key needs.
/// -FI_EOPBADSTATE: the region is not registered, or not registered yet.
/// -FI_EBADFLAGS: `flags` is not 0.
/// -FI_EINVAL: a pointer other than `raw_key` is NULL.
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

/// Maps a raw key that a remote peer has sent to a key for rdmamr_resolve(), and writes that key to
/// `key`.
///
/// `base_addr` and `raw_key` are the values that fi_mr_raw_attr() wrote in the remote peer;
/// `key_size` is the size of `raw_key` in bytes. fi_mr_unmap_key() ends the mapping.
///
/// Returns 0, or a negative code.
/// -FI_EINVAL: a byte of the raw key is wrong, `base_addr` is not the raw key's, or a pointer is
/// NULL.
/// -FI_EBADFLAGS: `flags` is not 0.
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

/// Ends the mapping of a raw key. Returns 0, or -FI_ENOKEY: `key` is not a mapped key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_mr_unmap_key(domain: *mut fid_domain, key: u64) -> c_int {
    let mut key = key;
    let arg = (&raw mut key).cast();
    command! { "fi_mr_unmap_key", domain, FI_CLASS_DOMAIN, FI_UNMAP_KEY, arg }
}
versioned!(fi_mr_unmap_key, "RDMAMR_1.0");

/// Binds a domain to an event queue with FI_REG_MR, fi_domain(3). The domain then registers memory
/// in the background.
///
/// Returns for a domain of this library 0, or a negative code.
/// -FI_EBADFLAGS: `flags` has other flags.
/// -FI_EINVAL: a pointer is NULL, or `fid` is not an event queue of this library.
/// -FI_EBUSY: the domain is bound already.
/// -FI_EOPBADSTATE: the domain has regions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_domain_bind(
    domain: *mut fid_domain,
    fid: *mut fid,
    flags: u64,
) -> c_int {
    slot! {
        "fi_domain_bind", ops(domain.cast(), Some(FI_CLASS_DOMAIN)),
        bind(domain.cast(), fid, flags)
    }
}
versioned!(fi_domain_bind, "RDMAMR_1.0");

/// Gives an object a command. FI_GETWAIT, for example, writes to `arg` the file descriptor of an
/// event queue, which is readable while the queue has events.
///
/// Returns for an object of this library 0, or a negative code.
/// -FI_ENOSYS: the object does not support the command.
/// -FI_ENODATA: FI_GETWAIT, and the program opened the queue with FI_WAIT_NONE.
/// -FI_EINVAL: a pointer is NULL.
/// Other codes are those of the call that the command stands for, such as fi_mr_enable().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    slot!("fi_control", ops(fid, None), control(fid, command, arg))
}
versioned!(fi_control, "RDMAMR_1.0");

/// Reads the next event of a queue, fi_eq(3).
///
/// `len` is the size of `buf` in bytes. With the flag FI_PEEK the event stays in the queue. Any
/// thread may call this function and the other functions of a queue.
///
/// Returns the size of the event in bytes, or for a queue of this library a negative code.
/// -FI_EAGAIN: the queue is empty.
/// -FI_EAVAIL: the next event is an error, for fi_eq_readerr().
/// -FI_ETOOSMALL: `buf` is too small; the event stays in the queue.
/// -FI_EBADFLAGS: `flags` has a flag other than FI_PEEK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_eq_read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> ssize_t {
    slot!("fi_eq_read", queue(eq), read(eq, event, buf, len, flags))
}
versioned!(fi_eq_read, "RDMAMR_1.0");

/// Reads the next event of a queue if the event is an error, fi_eq(3).
///
/// With the flag FI_PEEK the event stays in the queue. `err_data` of the entry is the reason in
/// words. If the api_version of the queue is 1.5 or later, and `err_data` and `err_data_size` name
/// memory of the caller, a queue of this library writes the words there. Otherwise the words belong
/// to the queue and are valid until the next fi_eq_readerr() or fi_close() of that queue.
///
/// Returns the size of the error entry in bytes, or for a queue of this library a negative code.
/// -FI_EAGAIN: the next event is not an error, or the queue is empty.
/// -FI_EINVAL: a pointer is NULL.
/// -FI_EBADFLAGS: `flags` has a flag other than FI_PEEK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_eq_readerr(
    eq: *mut fid_eq,
    buf: *mut fi_eq_err_entry,
    flags: u64,
) -> ssize_t {
    slot!("fi_eq_readerr", queue(eq), readerr(eq, buf, flags))
}
versioned!(fi_eq_readerr, "RDMAMR_1.0");

/// Writes an event of the application to a queue, fi_eq(3). `len` is the size of the event in
/// bytes.
///
/// Returns `len`, or for a queue of this library a negative code.
/// -FI_EINVAL: the program opened the queue without FI_WRITE, or `buf` is NULL and `len` is not 0.
/// -FI_EBADFLAGS: `flags` is not 0.
/// -FI_ENOMEM: the process has no memory for the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_eq_write(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    flags: u64,
) -> ssize_t {
    slot!("fi_eq_write", queue(eq), write(eq, event, buf, len, flags))
}
versioned!(fi_eq_write, "RDMAMR_1.0");

/// Reads the next event of a queue as fi_eq_read() does, and waits for the event: at most `timeout`
/// milliseconds, or without a limit if `timeout` is negative.
///
/// Returns as fi_eq_read(). -FI_EAGAIN: the time passed without an event. -FI_EINVAL, for a queue
/// of this library: the program opened the queue with FI_WAIT_NONE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_eq_sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> ssize_t {
    slot! { "fi_eq_sread", queue(eq), sread(eq, event, buf, len, timeout, flags) }
}
versioned!(fi_eq_sread, "RDMAMR_1.0");

/// Returns the meaning of a provider's error in words, fi_eq(3), and copies the words to `buf` if
/// `buf` is not NULL. `len` is the size of `buf` in bytes. The provider owns the returned string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_eq_strerror(
    eq: *mut fid_eq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: open objects: `eq` is NULL or an open object.
    let table = unsafe { queue(eq) };
    match table.ok().and_then(|table| table.strerror) {
        // SAFETY: the function comes from the table of this open object, and gets the C caller's
        // arguments unchanged.
        Some(strerror) => unsafe { strerror(eq, prov_errno, err_data, buf, len) },
        None => c"no such queue".as_ptr(),
    }
}
versioned!(fi_eq_strerror, "RDMAMR_1.0");
