// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric's memory calls from Rust, by `extern "C"` alone: in libfabric they are static inline
//! functions, which only C can call. One file, no crate, no shim of C:
//!
//!     rustc --edition 2024 ffi.rs -L FOLDER -l rdmamr -l ibverbs
//!
//! The device is CHECK_DEVICE. Prints TAP.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Debug;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

const PAGE: usize = 4096;
/// FI_READ, FI_WRITE, FI_RECV, FI_SEND, FI_REMOTE_READ, FI_REMOTE_WRITE.
const ALL: u64 = 0x3f00;
const EFAULT: c_int = 14;
const EBUSY: c_int = 16;
const EINVAL: c_int = 22;
/// An error of libfabric's own.
const ENOKEY: c_int = 266;

type Opaque = *mut c_void;

/// The size, the version, and 0 for each other field.
#[repr(C)]
struct DomainAttr(usize, u32, i32, [u64; 4]);

#[repr(C)]
#[derive(Default)]
struct Segment {
    addr: u64,
    length: u64,
    lkey: u32,
    rkey: u32,
}

#[rustfmt::skip]
unsafe extern "C" {
    fn ibv_get_device_list(count: *mut c_int) -> *mut Opaque;
    fn ibv_get_device_name(device: Opaque) -> *const c_char;
    fn ibv_open_device(device: Opaque) -> Opaque;
    fn ibv_close_device(context: Opaque) -> c_int;
    fn ibv_alloc_pd(context: Opaque) -> Opaque;
    fn ibv_dealloc_pd(pd: Opaque) -> c_int;
    fn mmap(at: Opaque, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> Opaque;

    fn rdmamr_domain_open(pd: Opaque, attr: *const DomainAttr, domain: *mut Opaque, context: Opaque) -> c_int;
    fn rdmamr_resolve(domain: Opaque, key: u64, offset: u64, length: usize, segments: *mut Segment, count: *mut usize) -> c_int;
    fn rdmamr_last_reason() -> *const c_char;
    fn fi_mr_reg(domain: Opaque, buf: *const c_void, len: usize, access: u64, offset: u64, key: u64, flags: u64, mr: *mut Opaque, context: Opaque) -> c_int;
    fn fi_mr_key(mr: Opaque) -> u64;
    fn fi_mr_desc(mr: Opaque) -> Opaque;
    fn fi_close(fid: Opaque) -> c_int;
}

static COUNT: AtomicU32 = AtomicU32::new(0);

fn is<T: PartialEq + Debug>(got: T, want: T, name: &str) {
    let number = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    if got == want {
        println!("ok {number} - {name}");
    } else {
        println!("not ok {number} - {name}\n# got {got:?}, want {want:?}");
    }
}

/// Whether the reason of the last failure has a word.
fn says(word: &str) {
    // SAFETY: the string is the library's, and valid until the thread asks again.
    let reason = unsafe { CStr::from_ptr(rdmamr_last_reason()) }.to_string_lossy();
    is(reason.contains(word), true, &format!("in words: {reason}"));
}

fn main() {
    let attr = DomainAttr(size_of::<DomainAttr>(), 1 << 16 | 17, 0, [0; 4]);
    let wanted = std::env::var("CHECK_DEVICE").unwrap();
    let (mut domain, mut mr, mut none) = (null_mut(), null_mut(), null_mut());
    let (mut segment, mut count) = (Segment::default(), 1);
    // SAFETY: the device's list ends with a NULL; objects are open until they are closed; the calls
    // write to variables of the right types.
    unsafe {
        let mut device = ibv_get_device_list(null_mut());
        while CStr::from_ptr(ibv_get_device_name(*device)).to_string_lossy() != wanted {
            device = device.add(1);
        }
        let context = ibv_open_device(*device);
        let pd = ibv_alloc_pd(context);
        let at = mmap(null_mut(), 16 * PAGE, 3, 0x22, -1, 0);

        let ret = rdmamr_domain_open(null_mut(), null(), &mut domain, null_mut());
        is(ret, -EINVAL, "a domain without a PD is EINVAL");
        says("NULL");
        let ret = rdmamr_domain_open(pd, &attr, &mut domain, null_mut());
        is(ret, 0, "a domain");
        let register = |at, length, key, mr: &mut Opaque| {
            fi_mr_reg(domain, at, length, ALL, 0, key, 0, mr, null_mut())
        };
        is(register(at, 16 * PAGE, 0x77, &mut mr), 0, "fi_mr_reg");
        let ret = register(0x1000 as Opaque, PAGE, 0x78, &mut none);
        is(ret, -EFAULT, "unmapped memory is EFAULT");
        says("mapped");
        is(none, null_mut(), "and no region is written");
        is(fi_mr_key(mr), 0x77, "fi_mr_key is the requested key");
        is(fi_mr_desc(mr).is_null(), false, "fi_mr_desc is an lkey");
        let mut resolve = |key, offset, length| {
            rdmamr_resolve(domain, key, offset, length, &mut segment, &mut count)
        };
        is(resolve(0x99, 0, 8), -ENOKEY, "an unknown key is ENOKEY");
        is(resolve(0x77, 100, 50), 0, "rdmamr_resolve");
        let found = (segment.length, segment.addr as usize % PAGE);
        is(found, (50, (at as usize + 100) % PAGE), "is the range");
        is(segment.rkey != 0, true, "with an rkey");
        is(fi_close(domain), -EBUSY, "the domain is busy");
        let closed = (
            fi_close(mr),
            fi_close(domain),
            ibv_dealloc_pd(pd),
            ibv_close_device(context),
        );
        is(closed, (0, 0, 0, 0), "everything is closed");
    }
    println!("1..{}", COUNT.load(Ordering::Relaxed));
}
