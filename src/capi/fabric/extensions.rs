// SPDX-License-Identifier: MIT OR Apache-2.0
//! This library's extensions: calls of its family that libfabric does not have.
//!
//! # Safety
//! The C caller keeps these two contracts.
//!
//! - **Open objects**: a pointer to an object is NULL, or the object is open.
//! - **Caller's memory**: any other pointer is NULL, or points to readable (for results: writable)
//!   memory of the size of its type, or of the size that another argument states.

use super::tables::TABLES;
use crate::capi::export::versioned;
use crate::capi::ret;
use crate::capi::verbs::NULL_PD;
use core::ffi::{c_int, c_void};
use core::slice;
use rdmamr_abi::libfabric::*;
use rdmamr_abi::libfabric_provider::{FI_LOCAL_MR, FI_VERSION_1_0, FI_VERSION_1_5};
use rdmamr_abi::rdma_core::ibv_pd;
use rdmamr_fabric::attributes::{MR_KEY, MR_OFFSET};
use rdmamr_fabric::domain::Domain;
use rdmamr_fabric::errors::{Result, ensure};
use rdmamr_fabric::mode::Mode;
use rdmamr_fabric::queue::Queue;
use rdmamr_fabric::raw_key::IOV_LIMIT;
use rdmamr_fabric::refusals::*;
use rdmamr_fabric::region::Region;
use rdmamr_fabric::segment::{Found, Segment};
use rdmamr_next::Pd;

/// The most buffers that one call of fi_mr_regv() takes.
pub const RDMAMR_MR_IOV_LIMIT: usize = 16;
const _: () = assert!(RDMAMR_MR_IOV_LIMIT == IOV_LIMIT);
/// Flag of fi_mr_reg(), fi_mr_regv() and fi_mr_regattr(): the region gets the requested key.
/// libfabric before 1.0 called the flag FI_MR_KEY. Since 1.0 the domain decides whether the
/// application chooses the keys.
pub const RDMAMR_MR_KEY: u64 = 1u64 << 58;
const _: () = assert!(RDMAMR_MR_KEY == MR_KEY);
/// Flag of fi_mr_reg(), fi_mr_regv() and fi_mr_regattr(): the offset becomes the base address of
/// the region, and the region replaces older regions with this flag that it overlaps. libfabric
/// before 1.0 called the flag FI_MR_OFFSET.
pub const RDMAMR_MR_OFFSET: u64 = 1u64 << 59;
const _: () = assert!(RDMAMR_MR_OFFSET == MR_OFFSET);
/// Bit of `mode`: the provider chooses keys and addresses. libfabric before 1.0 called the bit
/// FI_PROV_MR_ATTR.
pub const RDMAMR_PROV_MR_ATTR: u64 = 1u64 << 2;
/// Bit of `mode`: the application registers the memory that it uses itself. libfabric before 1.5
/// called the bit FI_LOCAL_MR.
pub const RDMAMR_LOCAL_MR: u64 = 1u64 << 55;
const _: () = assert!(RDMAMR_LOCAL_MR == FI_LOCAL_MR);
/// Bit of `caps`: the application may register memory before it maps the memory. libfabric before
/// 1.0 called the bit FI_DYNAMIC_MR.
pub const RDMAMR_DYNAMIC_MR: u64 = 1u64 << 57;
/// Bit of `flags`: the domain registers its regions as ibv_reg_mr_relaxed() does.
pub const RDMAMR_DOMAIN_CACHE: u64 = 1u64 << 0;

/// The attributes of a domain. Set the fields that are not used to 0.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdmamr_domain_attr {
    /// sizeof(struct rdmamr_domain_attr) in the header that the program was compiled with.
    pub size: usize,
    /// FI_VERSION(major, minor) of the interface that the program is written for; 0 and versions
    /// before mean FI_VERSION(1, 0), but see `mr_mode`. The library does not read fields of struct
    /// fi_mr_attr that this version did not have.
    pub api_version: u32,
    /// FI_MR_PROV_KEY | FI_MR_VIRT_ADDR, or FI_MR_BASIC: the device chooses the keys, and
    /// addresses are virtual.
    /// FI_MR_VIRT_ADDR: the application chooses the keys, and addresses are virtual.
    /// FI_MR_SCALABLE: the application chooses the keys, and addresses begin at 0.
    /// 0: with an api_version of 1.5 or later FI_MR_SCALABLE, as in libfabric; else FI_MR_BASIC,
    /// so that zeroed attributes mean what NULL means.
    /// With FI_MR_RAW remote peers get raw keys. FI_MR_LOCAL and FI_MR_ALLOCATED say what the
    /// program does, and change nothing.
    ///
    /// If the device chooses the keys, the library ignores requested_key and refuses RDMAMR_MR_KEY.
    /// If the application chooses them, requested_key counts with that flag and without, as in
    /// libfabric 1.x and 2.x: give each region a key of its own. An offset needs RDMAMR_MR_OFFSET.
    ///
    /// A domain follows the rules from before libfabric 1.0 if api_version is lower than
    /// FI_VERSION(1, 0), or 0, and `mode` or `caps` has a bit. Without RDMAMR_MR_KEY the library
    /// then ignores requested_key, and chooses a key that is free; without RDMAMR_MR_OFFSET it
    /// ignores the offset. An api_version from FI_VERSION(1, 0) on asks for the rules above.
    pub mr_mode: i32,
    /// RDMAMR_PROV_MR_ATTR means FI_MR_PROV_KEY | FI_MR_VIRT_ADDR; RDMAMR_LOCAL_MR means
    /// FI_MR_LOCAL.
    pub mode: u64,
    /// 0 or RDMAMR_DYNAMIC_MR.
    pub caps: u64,
    /// 0 or RDMAMR_DOMAIN_CACHE.
    pub flags: u64,
    /// The size of a key that the application chooses, in bytes: 1 to 8; 0 means 8.
    pub mr_key_size: usize,
}

/// A contiguous piece of memory, for a work request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdmamr_segment {
    /// The address of the first byte: for the remote device from rdmamr_resolve(), in this
    /// process from rdmamr_mr_segments().
    pub addr: u64,
    /// The length in bytes.
    pub length: u64,
    /// The local key; 0 for memory of a remote peer.
    pub lkey: u32,
    /// The remote key.
    pub rkey: u32,
}
const _: () = assert!(size_of::<rdmamr_segment>() == size_of::<Segment>());
const _: () =
    assert!(core::mem::offset_of!(rdmamr_segment, rkey) == core::mem::offset_of!(Segment, rkey));

/// The smallest valid size: that of the fields before `mr_mode`.
const LEAST: usize = core::mem::offset_of!(rdmamr_domain_attr, mr_mode);

/// Reads the attributes. The program may know fewer fields than this library, or more.
unsafe fn read(attr: *const rdmamr_domain_attr) -> Result<Option<rdmamr_domain_attr>> {
    if attr.is_null() {
        return Ok(None);
    }
    // SAFETY: caller's memory: every version of the structure begins with `size`.
    let size = unsafe { (*attr).size };
    /// A larger size is a mistake of the program, not a later version of the structure.
    const MOST: usize = 4096;
    ensure((LEAST..MOST).contains(&size), ATTRIBUTES_SIZE)?;
    // SAFETY: caller's memory: `attr` points to `size` bytes, as its first field says.
    let bytes = unsafe { slice::from_raw_parts(attr.cast::<u8>(), size) };
    let known = size.min(size_of::<rdmamr_domain_attr>());
    let asks_for_more = bytes[known..].iter().any(|&byte| byte != 0);
    ensure(!asks_for_more, ATTRIBUTES_UNKNOWN)?;
    // SAFETY: the structure has integers only, for which all zeros is a valid value.
    let mut whole: rdmamr_domain_attr = unsafe { core::mem::zeroed() };
    let to: *mut u8 = (&raw mut whole).cast();
    // SAFETY: `known` is at most the length of `bytes` and at most the size of `whole`.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), known) };
    Ok(Some(whole))
}

fn mode(attr: Option<rdmamr_domain_attr>) -> Result<Mode> {
    let Some(attr) = attr else {
        return Mode::agreed(FI_VERSION_1_0, FI_MR_PROV_KEY | FI_MR_VIRT_ADDR);
    };
    let known_mode = RDMAMR_PROV_MR_ATTR | RDMAMR_LOCAL_MR;
    ensure(attr.mode & !known_mode == 0, UNKNOWN_MODE)?;
    ensure(attr.caps & !RDMAMR_DYNAMIC_MR == 0, UNKNOWN_CAPS)?;
    ensure(attr.flags & !RDMAMR_DOMAIN_CACHE == 0, UNKNOWN_FLAGS)?;
    let version = attr.api_version.max(FI_VERSION_1_0);
    let mr_mode = match (attr.mode & RDMAMR_PROV_MR_ATTR, attr.mr_mode) {
        // As without attributes. Before 1.5 an unspecified mode leaves the choice to the provider.
        (0, FI_MR_UNSPEC) if version < FI_VERSION_1_5 => FI_MR_BASIC,
        (0, mr_mode) => mr_mode,
        (_, FI_MR_SCALABLE) => return Err(MODES_EXCLUDE.into()),
        (_, FI_MR_BASIC) => FI_MR_BASIC,
        (_, mr_mode) => mr_mode | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR,
    };
    Ok(Mode {
        on_demand: attr.caps & RDMAMR_DYNAMIC_MR != 0,
        cached: attr.flags & RDMAMR_DOMAIN_CACHE != 0,
        by_flags: attr.api_version < FI_VERSION_1_0 && attr.mode | attr.caps != 0,
        ..Mode::agreed(version, mr_mode)?.with_key_size(attr.mr_key_size)?
    })
}

/// Opens a libfabric domain over a verbs protection domain.
///
/// The program owns `pd`, and must not deallocate `pd` before the domain is closed. If `attr` is
/// NULL, the device chooses keys and addresses, and registration is plain (without the cache).
/// `context` becomes the context of the object. The function writes the domain to `domain`; the
/// caller owns the domain and closes it by fi_close(). Any thread may use the domain.
///
/// Returns 0, or a negative code; rdmamr_last_reason() then has the reason in words.
/// -FI_EINVAL: `pd` or `domain` is NULL, or the attributes are unknown or exclude each other.
/// -FI_ENOSYS: `attr` has RDMAMR_DYNAMIC_MR, and the device has no on-demand paging.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdmamr_domain_open(
    pd: *mut ibv_pd,
    attr: *const rdmamr_domain_attr,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    ret::done("rdmamr_domain_open", || {
        // SAFETY: open objects: `pd` is NULL or an allocated domain.
        let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
        ensure(!domain.is_null(), NULL_DOMAIN_PLACE)?;
        // SAFETY: caller's memory: `attr` is NULL or points to the size that its first field says.
        let mode = mode(unsafe { read(attr) }?)?;
        let opened = Domain::open(&TABLES, pd, mode, context, None)?;
        // SAFETY: caller's memory: `domain` is not NULL, so it points to a writable pointer.
        unsafe { domain.write(opened) };
        Ok(())
    })
}
versioned!(rdmamr_domain_open, "RDMAMR_1.0");

/// Opens an event queue, for a program that has no fabric object for fi_eq_open(3).
///
/// `attr` is as for fi_eq_open(). If `attr` is NULL, the program can wait for the queue and cannot
/// write to the queue. `api_version` is FI_VERSION(major, minor) of the interface that the program
/// is written for. `context` becomes the context of the object. The function writes the queue to
/// `eq`; the caller owns the queue and closes it by fi_close(). The queue holds any number of
/// events.
///
/// Returns 0, or a negative code; rdmamr_last_reason() then has the reason in words.
/// -FI_EINVAL: `eq` is NULL.
/// -FI_EBADFLAGS: `attr` has a flag other than FI_WRITE.
/// -FI_ENOSYS: `attr` has a wait object other than FI_WAIT_NONE, FI_WAIT_UNSPEC and FI_WAIT_FD.
/// Other codes are the errnos of eventfd(2), negated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdmamr_eq_open(
    api_version: u32,
    attr: *const fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    ret::done("rdmamr_eq_open", || {
        ensure(!eq.is_null(), NULL_QUEUE_PLACE)?;
        // SAFETY: caller's memory: `attr` is NULL or points to queue attributes.
        let opened = unsafe { Queue::open(&TABLES, api_version, attr, context, None) }?;
        // SAFETY: caller's memory: `eq` is not NULL, so it points to a writable pointer.
        unsafe { eq.write(opened) };
        Ok(())
    })
}
versioned!(rdmamr_eq_open, "RDMAMR_1.0");

/// Lets `fill` write to the caller's array of segments, and tells the caller how many segments
/// there are.
unsafe fn with_segments(
    segments: *mut rdmamr_segment,
    count: *mut usize,
    fill: impl FnOnce(&mut Found) -> Result<()>,
) -> Result<()> {
    // SAFETY: caller's memory: `count` is NULL or points to a writable number.
    let count = unsafe { count.as_mut() }.ok_or(NULL_COUNT)?;
    let segments = if segments.is_null() || *count == 0 {
        &mut []
    } else {
        // SAFETY: caller's memory: `segments` points to `count` writable segments; the asserts
        // above prove that both types have one layout.
        unsafe { slice::from_raw_parts_mut(segments.cast::<Segment>(), *count) }
    };
    let mut found = Found { segments, count: 0 };
    let filled = fill(&mut found);
    if found.count > 0 {
        *count = found.count;
    }
    filled
}

/// The domain, if this library made it in this process.
unsafe fn domain_of_this_library(domain: *mut fid_domain) -> Result<&'static Domain> {
    // SAFETY: open objects: `domain` is NULL or an open object, which begins with a `struct fid`.
    let fid = unsafe { domain.cast::<fid>().as_ref() }.ok_or(NULL_DOMAIN)?;
    ensure(core::ptr::eq(fid.ops, &TABLES.domain), OTHER_DOMAIN)?;
    // SAFETY: the table is that of this library's domains, and the caller keeps the domain open.
    unsafe { Domain::of_this_process(domain.cast()) }
}

/// Finds where a remote peer's memory lies, for the work requests of an RDMA operation.
///
/// `key` is a key that fi_mr_map_raw() returned, or the key of a region of `domain`, or, on a
/// domain whose provider chooses the keys, any rkey. `offset` addresses the first byte as the
/// remote domain addresses memory, and `length` is in bytes. The range becomes one segment for each
/// registration in which a part of it lies: at most 16. On entry `count` is the number of elements
/// of `segments`; on return it is the number of segments of the range. Any thread may call this
/// function at any time.
///
/// Returns 0, or a negative code; rdmamr_last_reason() then has the reason in words.
/// -FI_ENOKEY: the domain has no such key, or the region of the key is not registered.
/// -FI_EINVAL: `length` is 0, the range does not lie within the region, or a pointer is NULL.
/// -FI_ETOOSMALL: `segments` has too few elements; `count` is the number that the range needs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdmamr_resolve(
    domain: *mut fid_domain,
    key: u64,
    offset: u64,
    length: usize,
    segments: *mut rdmamr_segment,
    count: *mut usize,
) -> c_int {
    ret::done("rdmamr_resolve", || {
        // SAFETY: open objects: `domain` is NULL or an open object.
        let domain = unsafe { domain_of_this_library(domain) }?;
        let resolve = |found: &mut Found| domain.resolve(key, offset, length as u64, found);
        // SAFETY: caller's memory: `segments` is NULL or has `count` elements.
        unsafe { with_segments(segments, count, resolve) }
    })
}
versioned!(rdmamr_resolve, "RDMAMR_1.0");

/// Writes the segments of a region, for local use.
///
/// The segments are the buffers of the region in their order, each with its lkey and rkey; adjacent
/// buffers are one segment. On entry `count` is the number of elements of `segments`; on return it
/// is the number of segments of the region.
///
/// Returns 0, or a negative code; rdmamr_last_reason() then has the reason in words.
/// -FI_ETOOSMALL: `segments` has too few elements; `count` is the number that the region needs.
/// -FI_EOPBADSTATE: the region is not registered, or not yet.
/// -FI_EINVAL: a pointer is NULL, or `mr` is not a region of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdmamr_mr_segments(
    mr: *mut fid_mr,
    segments: *mut rdmamr_segment,
    count: *mut usize,
) -> c_int {
    ret::done("rdmamr_mr_segments", || {
        // SAFETY: open objects: `mr` is NULL or an open object, which begins with a `struct fid`.
        let fid = unsafe { mr.as_ref() }.ok_or(NULL_REGION)?.fid;
        let ours = fid.fclass == FI_CLASS_MR && core::ptr::eq(fid.ops, &TABLES.region);
        ensure(ours, OTHER_REGION)?;
        // SAFETY: the class and the table of this open object say that this library made the
        // region.
        let region = unsafe { Region::from_c(mr.cast()) };
        region.check_registered()?;
        // SAFETY: caller's memory: `segments` is NULL or has `count` elements.
        unsafe { with_segments(segments, count, |found| region.segments(found)) }
    })
}
versioned!(rdmamr_mr_segments, "RDMAMR_1.0");
