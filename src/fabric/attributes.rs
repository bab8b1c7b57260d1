// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the buffers and the other attributes of a registration from the arguments of the three
//! calls.
//!
//! `struct fi_mr_attr` has grown from 48 to 112 bytes and does not carry its size. The version of
//! the interface for which the application was written decides which fields the library reads.
//! libfabric 1.17's `ofi_mr_regattr` reads past the end of an old application's structure.

use super::errors::{Result, ensure};
use super::raw_key::IOV_LIMIT;
use super::refusals::*;
use core::ffi::c_void;
use libc::iovec;
use rdmamr_abi::libfabric::*;
use rdmamr_abi::libfabric_provider::*;

/// The region takes the requested key. The flag stems from libfabric before 1.0.
pub const MR_KEY: u64 = 1 << 58;
/// Remote peers see the region begin at the given offset. The flag stems from libfabric before 1.0.
pub const MR_OFFSET: u64 = 1 << 59;

/// Refuses flags that this library does not know.
#[inline(always)]
pub fn check_flags(flags: u64) -> Result<()> {
    ensure(flags & !(MR_KEY | MR_OFFSET) == 0, REGISTER_FLAGS)
}

/// A buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub addr: *mut c_void,
    pub length: usize,
}

// SAFETY: the application keeps the memory mapped; the library uses the address as a number only.
unsafe impl Send for Buffer {}

/// The arguments that the three calls share.
#[derive(Clone, Copy)]
pub struct Wish {
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub flags: u64,
    pub context: *mut c_void,
}

/// The buffer of fi_mr_reg().
#[inline(always)]
pub fn one(addr: *mut c_void, length: usize) -> Result<Buffer> {
    ensure(length != 0, NO_LENGTH)?;
    ensure(addr.addr().checked_add(length).is_some(), BUFFER_PAST_END)?;
    Ok(Buffer { addr, length })
}

/// The buffers of fi_mr_regv(). Adjacent buffers become one. The buffers form one region, in this
/// order.
///
/// # Safety
/// `iov` is NULL or points to `count` elements.
pub unsafe fn several(iov: *const iovec, count: usize) -> Result<Vec<Buffer>> {
    ensure(!iov.is_null(), NULL_BUFFERS)?;
    ensure((1..=IOV_LIMIT).contains(&count), BUFFER_COUNT)?;
    // SAFETY: `iov` is not NULL, and the caller promised that it points to `count` elements.
    let given = unsafe { core::slice::from_raw_parts(iov, count) };
    let mut buffers: Vec<Buffer> = Vec::with_capacity(count);
    let mut sum = 0usize;
    for next in given {
        let next = one(next.iov_base, next.iov_len)?;
        sum = sum.checked_add(next.length).ok_or(SUM_OF_LENGTHS)?;
        match buffers.last_mut() {
            Some(last) if last.addr.addr() + last.length == next.addr.addr() => {
                last.length += next.length;
            }
            _ => buffers.push(next),
        }
    }
    Ok(buffers)
}

/// The arguments of fi_mr_regattr().
///
/// # Safety
/// `attr` is NULL or points to the `struct fi_mr_attr` of an application of `api_version`. Its
/// `mr_iov` is NULL or points to `iov_count` elements.
pub unsafe fn read(
    attr: *const fi_mr_attr,
    flags: u64,
    api_version: u32,
) -> Result<(Vec<Buffer>, Wish)> {
    ensure(!attr.is_null(), NULL_ATTRIBUTES)?;
    // Flags decide what `mr_iov` points to (FI_MR_DMABUF).
    check_flags(flags)?;
    macro_rules! field {
        ($field:ident) => {
            // SAFETY: every version has the field, or `api_version` says that this application's
            // structure has it.
            unsafe { (&raw const (*attr).$field).read() }
        };
    }
    let authorization = api_version >= FI_VERSION_1_5 && field!(auth_key_size) != 0;
    ensure(!authorization, AUTHORIZATION)?;
    // `iface` and `device` count only on a domain with FI_HMEM, which this library does not offer.
    // `page_size` is a hint.
    let sub_region = api_version >= FI_VERSION_2_0 && !field!(base_mr).is_null();
    ensure(!sub_region, SUB_REGION)?;
    let wish = Wish {
        access: field!(access),
        offset: field!(offset),
        requested_key: field!(requested_key),
        flags,
        context: field!(context),
    };
    let (iov, count) = (field!(mr_iov), field!(iov_count));
    // SAFETY: the caller promised that `iov` is NULL or points to `count` elements.
    let buffers = unsafe { several(iov, count) }?;
    Ok((buffers, wish))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(buffers: &[(usize, usize)]) -> Vec<iovec> {
        let one = |&(at, iov_len): &(usize, usize)| iovec {
            iov_base: core::ptr::without_provenance_mut(at),
            iov_len,
        };
        buffers.iter().map(one).collect()
    }

    fn merged(buffers: &[(usize, usize)]) -> Option<Vec<(usize, usize)>> {
        let iov = vector(buffers);
        // SAFETY: the vector has `iov.len()` elements.
        let merged = unsafe { several(iov.as_ptr(), iov.len()) }.ok()?;
        let plain = |buffer: &Buffer| (buffer.addr.addr(), buffer.length);
        Some(merged.iter().map(plain).collect())
    }

    #[test]
    fn what_touches_becomes_one() {
        assert_eq!(
            merged(&[(100, 5), (105, 5), (110, 1)]),
            Some(vec![(100, 11)])
        );
        assert_eq!(
            merged(&[(100, 5), (106, 5)]),
            Some(vec![(100, 5), (106, 5)])
        );
        assert_eq!(
            merged(&[(105, 5), (100, 5)]),
            Some(vec![(105, 5), (100, 5)])
        );
        assert_eq!(
            merged(&[(100, 5), (100, 5)]),
            Some(vec![(100, 5), (100, 5)])
        );
    }

    #[test]
    fn what_is_no_memory_is_refused() {
        assert_eq!(merged(&[]), None);
        assert_eq!(merged(&[(1, 1); 17]), None);
        assert_eq!(merged(&[(1, 1), (3, 0)]), None);
        assert_eq!(merged(&[(usize::MAX, 2)]), None);
        assert_eq!(merged(&[(0, usize::MAX - 5), (0, 6)]), None);
    }

    #[test]
    fn what_a_version_did_not_have_is_not_looked_at() {
        let iov = vector(&[(100, 5)]);
        let mut attr = fi_mr_attr {
            mr_iov: iov.as_ptr(),
            iov_count: 1,
            access: 1,
            offset: 2,
            requested_key: 3,
            context: core::ptr::without_provenance_mut(4),
            auth_key_size: 1,
            auth_key: core::ptr::null_mut(),
            iface: 9,
            device: 9,
            hmem_data: core::ptr::without_provenance_mut(9),
            page_size: 9,
            base_mr: core::ptr::without_provenance(9),
            sub_mr_cnt: 9,
        };
        // SAFETY: `attr` has all fields of the newest version.
        let read = |attr: &fi_mr_attr, version| unsafe { read(attr, 0, version) }.map(|_| ());
        assert!(read(&attr, FI_VERSION_1_0).is_ok());
        assert!(read(&attr, FI_VERSION_1_5).is_err());
        attr.auth_key_size = 0;
        assert!(read(&attr, FI_VERSION_1_22).is_ok());
        assert!(read(&attr, FI_VERSION_2_0).is_err());
    }
}
