// SPDX-License-Identifier: MIT OR Apache-2.0
//! Our own calls beside libfabric's.
//!
//! # Safety
//! C's contract: a pointer that is not NULL is to an open object, or to memory of the size that its type has.

use super::tables::tables;
use crate::abi::libfabric::*;
use crate::abi::libfabric_provider::{FI_LOCAL_MR, FI_VERSION_1_0};
use crate::abi::rdma_core::ibv_pd;
use crate::capi::export::versioned;
use crate::capi::ret;
use crate::capi::verbs::NULL_PD;
use crate::fabric::attributes::{MR_KEY, MR_OFFSET};
use crate::fabric::domain::Mode;
use crate::fabric::errors::{Failure, invalid};
use crate::fabric::raw_key::IOV_LIMIT;
use crate::fabric::segment::{Room, Segment};
use crate::fabric::{Domain, Queue, Region};
use crate::mr::Pd;
use core::ffi::{c_int, c_void};
use core::slice;

/// How many buffers fi_mr_regv() takes.
pub const RDMAMR_MR_IOV_LIMIT: usize = 16;
const _: () = assert!(RDMAMR_MR_IOV_LIMIT == IOV_LIMIT);
/// Of fi_mr_reg() and its kin: the region is to have the requested key. FI_MR_KEY of libfabric before 1.0;
/// since then a domain says whether keys are the application's.
pub const RDMAMR_MR_KEY: u64 = 1u64 << 58;
const _: () = assert!(RDMAMR_MR_KEY == MR_KEY);
/// Of fi_mr_reg() and its kin: the region's base address is the offset, and older regions of that kind that it
/// overlaps are replaced. FI_MR_OFFSET of libfabric before 1.0.
pub const RDMAMR_MR_OFFSET: u64 = 1u64 << 59;
const _: () = assert!(RDMAMR_MR_OFFSET == MR_OFFSET);
/// Of `mode`: keys and addresses are the provider's. FI_PROV_MR_ATTR of libfabric before 1.0.
pub const RDMAMR_PROV_MR_ATTR: u64 = 1u64 << 2;
/// Of `mode`: the application registers the memory that it uses itself. FI_LOCAL_MR of libfabric before 1.5.
pub const RDMAMR_LOCAL_MR: u64 = 1u64 << 55;
const _: () = assert!(RDMAMR_LOCAL_MR == FI_LOCAL_MR);
/// Of `caps`: memory may be registered before it is mapped. FI_DYNAMIC_MR of libfabric before 1.0.
pub const RDMAMR_DYNAMIC_MR: u64 = 1u64 << 57;
/// Of `flags`: regions are registered as by ibv_reg_mr_relaxed().
pub const RDMAMR_DOMAIN_RELAXED: u64 = 1u64 << 0;

/// How a domain is to be. Fill with zeros what is not set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdmamr_domain_attr {
    /// sizeof(struct rdmamr_domain_attr)
    pub size: usize,
    /// FI_VERSION(major, minor) of the interface that the program is written for, FI_VERSION(1, 0) if 0: what
    /// struct fi_mr_attr did not have then is not read.
    pub api_version: u32,
    /// FI_MR_PROV_KEY | FI_MR_VIRT_ADDR or FI_MR_BASIC: keys are the device's, addresses virtual. 0 or
    /// FI_MR_SCALABLE: keys are the application's, addresses begin at 0. FI_MR_VIRT_ADDR: keys are the
    /// application's, addresses virtual. With FI_MR_RAW peers get raw keys. FI_MR_LOCAL and FI_MR_ALLOCATED
    /// say what the program does, and change nothing.
    pub mr_mode: i32,
    /// RDMAMR_PROV_MR_ATTR: as FI_MR_PROV_KEY | FI_MR_VIRT_ADDR. RDMAMR_LOCAL_MR: as FI_MR_LOCAL.
    pub mode: u64,
    /// RDMAMR_DYNAMIC_MR
    pub caps: u64,
    /// RDMAMR_DOMAIN_RELAXED
    pub flags: u64,
    /// The size of the application's keys in bytes, 1 to 8; 8 if 0.
    pub mr_key_size: usize,
}

/// A piece of memory, for a work request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdmamr_segment {
    /// Where it begins: of rdmamr_resolve() for the peer's device, of rdmamr_mr_segments() in this process.
    pub addr: u64,
    /// In bytes.
    pub length: u64,
    /// 0 where it is a peer's.
    pub lkey: u32,
    pub rkey: u32,
}
const _: () = assert!(size_of::<rdmamr_segment>() == size_of::<Segment>());
const _: () =
    assert!(core::mem::offset_of!(rdmamr_segment, rkey) == core::mem::offset_of!(Segment, rkey));

/// The size of the fields without which attributes are none.
const LEAST: usize = core::mem::offset_of!(rdmamr_domain_attr, mr_mode);

/// Reads the attributes of a program that may know fewer fields, or more.
unsafe fn read(attr: *const rdmamr_domain_attr) -> Result<Option<rdmamr_domain_attr>, Failure> {
    if attr.is_null() {
        return Ok(None);
    }
    // SAFETY: the first field is always there.
    let size = unsafe { (*attr).size };
    /// More than this is a mistake, not a later version.
    const MOST: usize = 4096;
    if !(LEAST..MOST).contains(&size) {
        return Err(invalid(
            "the attributes' size is not sizeof(struct rdmamr_domain_attr)",
        ));
    }
    // SAFETY: the caller's bytes.
    let bytes = unsafe { slice::from_raw_parts(attr.cast::<u8>(), size) };
    let known = size.min(size_of::<rdmamr_domain_attr>());
    if bytes[known..].iter().any(|&byte| byte != 0) {
        return Err(invalid(
            "the attributes ask for what this version of the library does not know",
        ));
    }
    // SAFETY: all zeros is a value.
    let mut whole: rdmamr_domain_attr = unsafe { core::mem::zeroed() };
    let to: *mut u8 = (&raw mut whole).cast();
    // SAFETY: as many bytes as both have.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), known) };
    Ok(Some(whole))
}

fn mode(attr: Option<rdmamr_domain_attr>) -> Result<Mode, Failure> {
    let Some(attr) = attr else {
        return Mode::agreed(FI_VERSION_1_0, FI_MR_PROV_KEY | FI_MR_VIRT_ADDR);
    };
    if attr.mode & !(RDMAMR_PROV_MR_ATTR | RDMAMR_LOCAL_MR) != 0 {
        return Err(invalid(
            "the mode has a bit that the library does not serve",
        ));
    }
    if attr.caps & !RDMAMR_DYNAMIC_MR != 0 {
        return Err(invalid(
            "the capabilities have a bit that the library does not serve",
        ));
    }
    if attr.flags & !RDMAMR_DOMAIN_RELAXED != 0 {
        return Err(invalid(
            "the flags have a bit that the library does not serve",
        ));
    }
    let version = attr.api_version.max(FI_VERSION_1_0);
    let mr_mode = match attr.mode & RDMAMR_PROV_MR_ATTR {
        0 => attr.mr_mode,
        _ if attr.mr_mode == FI_MR_SCALABLE => {
            return Err(invalid(
                "FI_PROV_MR_ATTR and FI_MR_SCALABLE exclude each other",
            ));
        }
        _ if attr.mr_mode == FI_MR_BASIC => FI_MR_BASIC,
        _ => attr.mr_mode | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR,
    };
    let bytes = if attr.mr_key_size == 0 {
        8
    } else {
        attr.mr_key_size
    };
    Ok(Mode {
        on_demand: attr.caps & RDMAMR_DYNAMIC_MR != 0,
        relaxed: attr.flags & RDMAMR_DOMAIN_RELAXED != 0,
        ..Mode::agreed(version, mr_mode)?.with_key_size(bytes)?
    })
}

/// Opens a domain of libfabric's kind over a verbs protection domain.
///
/// `pd` stays the program's, and must be there as long as the domain is. With NULL as `attr`, keys and addresses
/// are the provider's and registration is plain. `context` becomes the object's. The domain is written to
/// `domain`; fi_close() ends it. Any thread may use it.
///
/// Returns 0, or -FI_EINVAL: NULL, or attributes that are unknown or exclude each other. -FI_ENOSYS:
/// RDMAMR_DYNAMIC_MR, and the device has no on-demand paging. rdmamr_last_reason() has it in words.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdmamr_domain_open(
    pd: *mut ibv_pd,
    attr: *const rdmamr_domain_attr,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    ret::code("rdmamr_domain_open", None, || {
        // SAFETY: C's contract.
        let pd = unsafe { Pd::from_c(pd) }.ok_or(NULL_PD)?;
        if domain.is_null() {
            return Err(invalid("the place for the domain is NULL"));
        }
        // SAFETY: C's contract.
        let mode = mode(unsafe { read(attr) }?)?;
        let opened = Domain::open(tables(), pd, mode, context, None)?;
        // SAFETY: C's contract.
        unsafe { domain.write(opened) };
        Ok(0)
    })
}
versioned!(rdmamr_domain_open, "RDMAMR_1.0");

/// Opens an event queue, for programs that have no fabric object to open one by fi_eq_open(3).
///
/// `attr` is as for fi_eq_open(), NULL for a queue that can be waited for and not written to. `api_version` is
/// FI_VERSION(major, minor) of the interface that the program is written for. `context` becomes the
/// object's. The queue is written to `eq`; fi_close() ends it. It holds any number of events.
///
/// Returns 0, or -FI_EINVAL: NULL. -FI_EBADFLAGS: another flag than FI_WRITE. -FI_ENOSYS: another wait object
/// than FI_WAIT_NONE, FI_WAIT_UNSPEC and FI_WAIT_FD. Others of eventfd(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdmamr_eq_open(
    api_version: u32,
    attr: *const fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    ret::code("rdmamr_eq_open", None, || {
        if eq.is_null() {
            return Err(invalid("the place for the queue is NULL"));
        }
        // SAFETY: C's contract.
        let opened = unsafe { Queue::open(tables(), api_version, attr, context, None) }?;
        // SAFETY: C's contract.
        unsafe { eq.write(opened) };
        Ok(0)
    })
}
versioned!(rdmamr_eq_open, "RDMAMR_1.0");

/// The caller's room for segments, and how many there are.
unsafe fn with_room(
    segments: *mut rdmamr_segment,
    count: *mut usize,
    fill: impl FnOnce(&mut Room) -> Result<(), Failure>,
) -> Result<c_int, Failure> {
    // SAFETY: C's contract.
    let count = unsafe { count.as_mut() }.ok_or(invalid("the count is NULL"))?;
    let segments = if segments.is_null() || *count == 0 {
        &mut []
    } else {
        // SAFETY: the caller's, of that many.
        unsafe { slice::from_raw_parts_mut(segments.cast::<Segment>(), *count) }
    };
    let mut room = Room { segments, count: 0 };
    let filled = fill(&mut room);
    if room.count > 0 {
        *count = room.count;
    }
    filled?;
    Ok(0)
}

/// The domain, if it is one of ours.
unsafe fn own(domain: *mut fid_domain) -> Result<&'static Domain, Failure> {
    // SAFETY: C's contract.
    let fid = unsafe { domain.as_ref() }
        .ok_or(invalid("the domain is NULL"))?
        .fid;
    // SAFETY: an open object, which is a domain if its class says so.
    if fid.fclass != FI_CLASS_DOMAIN || !unsafe { Domain::is_ours(domain, tables()) } {
        return Err(invalid("the object is no domain of this library"));
    }
    // SAFETY: one of our domains.
    unsafe { Domain::from_c(domain.cast()) }
}

/// Finds where a peer's memory is, for the work requests of an RDMA operation.
///
/// `key` is one of fi_mr_map_raw(), or a key of the domain's own regions, or, where keys are the provider's, any rkey. The
/// `length` bytes from `offset` on, which counts as the peer's domain addresses memory, are one segment
/// each for as many registrations as they lie in: at most 16. `count` is the room in `segments`, and
/// becomes how many there are. Any thread may call this at any time.
///
/// Returns 0, or -FI_ENOKEY: no such key. -FI_EINVAL: the range is not within the region; NULL.
/// -FI_ETOOSMALL: `count` says how many there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdmamr_resolve(
    domain: *mut fid_domain,
    key: u64,
    offset: u64,
    length: usize,
    segments: *mut rdmamr_segment,
    count: *mut usize,
) -> c_int {
    ret::code("rdmamr_resolve", None, || {
        // SAFETY: C's contract.
        let domain = unsafe { own(domain) }?;
        let resolve = |room: &mut Room| domain.resolve(key, offset, length as u64, room);
        // SAFETY: C's contract.
        unsafe { with_room(segments, count, resolve) }
    })
}
versioned!(rdmamr_resolve, "RDMAMR_1.0");

/// What a region consists of, for local use: its buffers in order, those that touch as one, each with its
/// lkey and rkey.
///
/// `count` is the room in `segments`, and becomes how many there are.
///
/// Returns 0, or -FI_ETOOSMALL: `count` says how many there are. -FI_EOPBADSTATE: the region is not
/// registered (yet). -FI_EINVAL: NULL, or no region of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdmamr_mr_segments(
    mr: *mut fid_mr,
    segments: *mut rdmamr_segment,
    count: *mut usize,
) -> c_int {
    ret::code("rdmamr_mr_segments", None, || {
        // SAFETY: C's contract.
        let fid = unsafe { mr.as_ref() }
            .ok_or(invalid("the region is NULL"))?
            .fid;
        if fid.fclass != FI_CLASS_MR || !core::ptr::eq(fid.ops, &tables().region) {
            return Err(invalid(
                "the object is no region of this library, or closed",
            ));
        }
        // SAFETY: one of our regions.
        let region = unsafe { Region::from_c(mr.cast()) };
        region.check_registered()?;
        // SAFETY: C's contract.
        unsafe {
            with_room(segments, count, |room| {
                region.segments(room);
                room.check()
            })
        }
    })
}
versioned!(rdmamr_mr_segments, "RDMAMR_1.0");
