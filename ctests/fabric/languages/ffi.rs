// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric's memory calls from Rust, by `extern "C"` alone: in libfabric they are static inline
//! functions, which only C can call; here they are symbols. One file, no crate, no shim of C:
//!
//!     rustc --edition 2024 ffi.rs -L FOLDER -l rdmamr -l ibverbs
//!
//! The device is CHECK_DEVICE. Prints TAP.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Debug;
use std::mem::size_of;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

const PAGE: usize = 4096;
const READ: u64 = 1 << 8;
const WRITE: u64 = 1 << 9;
const RECV: u64 = 1 << 10;
const SEND: u64 = 1 << 11;
const REMOTE_READ: u64 = 1 << 12;
const REMOTE_WRITE: u64 = 1 << 13;
const ALL: u64 = READ | WRITE | RECV | SEND | REMOTE_READ | REMOTE_WRITE;
const REG_MR: u64 = 1 << 59;
const KEY_NOTAVAIL: u64 = u64::MAX;
const CLASS_DOMAIN: usize = 2;
const CLASS_MR: usize = 12;
const MR_COMPLETE: u32 = 4;
const WAIT_UNSPEC: c_int = 1;
// libfabric's errors are errno's, and some of its own.
const EAGAIN: isize = 11;
const EFAULT: c_int = 14;
const EBUSY: c_int = 16;
const EINVAL: c_int = 22;
const ETOOSMALL: c_int = 257;
const EAVAIL: isize = 259;
const ENOKEY: c_int = 266;

#[repr(C)]
struct Fid {
    fclass: usize,
    context: *mut c_void,
    ops: *mut c_void,
}

#[repr(C)]
struct Mr {
    fid: Fid,
    mem_desc: *mut c_void,
    key: u64,
}

#[repr(C)]
struct Domain {
    fid: Fid,
    ops: *mut c_void,
    mr: *mut c_void,
}

#[repr(C)]
struct Queue {
    fid: Fid,
    ops: *mut c_void,
}

#[repr(C)]
struct Iovec {
    base: *mut c_void,
    length: usize,
}

#[repr(C)]
struct EqAttr {
    size: usize,
    flags: u64,
    wait_obj: c_int,
    signaling_vector: c_int,
    wait_set: *mut c_void,
}

#[repr(C)]
struct EqEntry {
    fid: *mut Fid,
    context: *mut c_void,
    data: u64,
}

#[repr(C)]
struct EqError {
    fid: *mut Fid,
    context: *mut c_void,
    data: u64,
    err: c_int,
    prov_errno: c_int,
    err_data: *mut c_void,
    err_data_size: usize,
}

#[repr(C)]
struct DomainAttr {
    size: usize,
    api_version: u32,
    mr_mode: i32,
    mode: u64,
    caps: u64,
    flags: u64,
    mr_key_size: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Segment {
    addr: u64,
    length: u64,
    lkey: u32,
    rkey: u32,
}

type Opaque = *mut c_void;

unsafe extern "C" {
    fn ibv_get_device_list(count: *mut c_int) -> *mut Opaque;
    fn ibv_free_device_list(list: *mut Opaque);
    fn ibv_get_device_name(device: Opaque) -> *const c_char;
    fn ibv_open_device(device: Opaque) -> Opaque;
    fn ibv_close_device(context: Opaque) -> c_int;
    fn ibv_alloc_pd(context: Opaque) -> Opaque;
    fn ibv_dealloc_pd(pd: Opaque) -> c_int;
    fn mmap(
        at: Opaque,
        length: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> Opaque;

    fn rdmamr_domain_open(
        pd: Opaque,
        attr: *const DomainAttr,
        domain: *mut *mut Domain,
        context: Opaque,
    ) -> c_int;
    fn rdmamr_eq_open(
        api_version: u32,
        attr: *const EqAttr,
        eq: *mut *mut Queue,
        context: Opaque,
    ) -> c_int;
    fn rdmamr_resolve(
        domain: *mut Domain,
        key: u64,
        offset: u64,
        length: usize,
        segments: *mut Segment,
        count: *mut usize,
    ) -> c_int;
    fn rdmamr_mr_segments(mr: *mut Mr, segments: *mut Segment, count: *mut usize) -> c_int;
    fn rdmamr_last_reason() -> *const c_char;
    fn fi_mr_reg(
        domain: *mut Domain,
        buf: *const c_void,
        len: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        flags: u64,
        mr: *mut *mut Mr,
        context: Opaque,
    ) -> c_int;
    fn fi_mr_regv(
        domain: *mut Domain,
        iov: *const Iovec,
        count: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        flags: u64,
        mr: *mut *mut Mr,
        context: Opaque,
    ) -> c_int;
    fn fi_mr_key(mr: *mut Mr) -> u64;
    fn fi_mr_desc(mr: *mut Mr) -> Opaque;
    fn fi_mr_enable(mr: *mut Mr) -> c_int;
    fn fi_mr_raw_attr(
        mr: *mut Mr,
        base: *mut u64,
        raw: *mut u8,
        size: *mut usize,
        flags: u64,
    ) -> c_int;
    fn fi_mr_map_raw(
        domain: *mut Domain,
        base: u64,
        raw: *mut u8,
        size: usize,
        key: *mut u64,
        flags: u64,
    ) -> c_int;
    fn fi_mr_unmap_key(domain: *mut Domain, key: u64) -> c_int;
    fn fi_domain_bind(domain: *mut Domain, fid: *mut Fid, flags: u64) -> c_int;
    fn fi_eq_read(eq: *mut Queue, event: *mut u32, buf: Opaque, len: usize, flags: u64) -> isize;
    fn fi_eq_sread(
        eq: *mut Queue,
        event: *mut u32,
        buf: Opaque,
        len: usize,
        timeout: c_int,
        flags: u64,
    ) -> isize;
    fn fi_eq_readerr(eq: *mut Queue, buf: *mut EqError, flags: u64) -> isize;
    fn fi_close(fid: *mut Fid) -> c_int;
}

static COUNT: AtomicU32 = AtomicU32::new(0);

fn ok(passed: bool, name: &str) {
    let number = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    println!("{}ok {number} - {name}", if passed { "" } else { "not " });
}

fn is<T: PartialEq + Debug>(got: T, want: T, name: &str) {
    let equal = got == want;
    ok(equal, name);
    if !equal {
        println!("# got {got:?}, want {want:?}");
    }
}

fn must(condition: bool, what: &str) {
    if !condition {
        println!("Bail out! {what}");
        std::process::exit(1);
    }
}

fn reason() -> String {
    // SAFETY: the string is the library's, and valid until the thread asks again.
    unsafe { CStr::from_ptr(rdmamr_last_reason()) }
        .to_string_lossy()
        .into_owned()
}

fn open_device() -> Opaque {
    let wanted = std::env::var("CHECK_DEVICE").unwrap_or_default();
    let mut found = null_mut();
    // SAFETY: the list ends with a NULL, and its devices are valid until it is freed.
    unsafe {
        let list = ibv_get_device_list(null_mut());
        must(!list.is_null(), "ibv_get_device_list");
        let mut next = list;
        while !(*next).is_null() {
            if CStr::from_ptr(ibv_get_device_name(*next)).to_string_lossy() == wanted {
                found = ibv_open_device(*next);
            }
            next = next.add(1);
        }
        ibv_free_device_list(list);
    }
    must(!found.is_null(), "there is no device CHECK_DEVICE");
    found
}

/// The bytes that the kernel counts as pinned.
fn pinned() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok())
        .map_or(usize::MAX, |kib| kib * 1024)
}

fn register(
    domain: *mut Domain,
    at: Opaque,
    length: usize,
    access: u64,
    key: u64,
    context: usize,
) -> (c_int, *mut Mr) {
    let mut mr = null_mut();
    // SAFETY: the domain is open; the address need not be mapped.
    let ret = unsafe {
        fi_mr_reg(
            domain,
            at,
            length,
            access,
            0,
            key,
            0,
            &mut mr,
            context as Opaque,
        )
    };
    (ret, mr)
}

fn pieces_of(mr: *mut Mr) -> Result<Vec<Segment>, c_int> {
    let (mut segments, mut count) = ([Segment::default(); 16], 16);
    // SAFETY: the region is open; there is room for `count`.
    let ret = unsafe { rdmamr_mr_segments(mr, segments.as_mut_ptr(), &mut count) };
    if ret == 0 {
        Ok(segments[..count].to_vec())
    } else {
        Err(ret)
    }
}

fn resolved(
    domain: *mut Domain,
    key: u64,
    offset: u64,
    length: usize,
) -> Result<Vec<Segment>, c_int> {
    let (mut segments, mut count) = ([Segment::default(); 16], 16);
    // SAFETY: the domain is open; there is room for `count`.
    let ret = unsafe {
        rdmamr_resolve(
            domain,
            key,
            offset,
            length,
            segments.as_mut_ptr(),
            &mut count,
        )
    };
    if ret == 0 {
        Ok(segments[..count].to_vec())
    } else {
        Err(ret)
    }
}

fn close(fid: *mut impl Sized) -> c_int {
    // SAFETY: every object begins with its fid.
    unsafe { fi_close(fid.cast()) }
}

fn open_domain(pd: Opaque, attr: *const DomainAttr, context: usize) -> *mut Domain {
    let mut domain = null_mut();
    // SAFETY: the attributes are NULL, or have their size.
    is(
        unsafe { rdmamr_domain_open(pd, attr, &mut domain, context as Opaque) },
        0,
        "a domain",
    );
    must(!domain.is_null(), "no domain");
    domain
}

fn regions(pd: Opaque, attr: &DomainAttr, at: usize) {
    let memory = at as Opaque;
    let domain = open_domain(pd, attr, 0x1234);
    // SAFETY: the domain is open.
    let opened = unsafe { &(*domain).fid };
    is(
        (opened.fclass, opened.context as usize),
        (CLASS_DOMAIN, 0x1234),
        "its class and context",
    );

    let (ret, mr) = register(domain, memory, 16 * PAGE, ALL, 0x77, 0x5678);
    is(ret, 0, "fi_mr_reg");
    must(!mr.is_null(), "no region");
    // SAFETY: the region is open.
    unsafe {
        is(fi_mr_key(mr), 0x77, "fi_mr_key is the requested key");
        let bytes = pinned();
        let name =
            format!("the memory is pinned, for the process and for remote peers: {bytes} bytes");
        ok(bytes == 16 * PAGE || bytes == 32 * PAGE, &name);
        let local = pieces_of(mr).unwrap_or_default();
        must(local.len() == 1, "rdmamr_mr_segments: not one piece");
        is(
            (local[0].addr as usize, local[0].length as usize),
            (at, 16 * PAGE),
            "rdmamr_mr_segments is the buffer",
        );
        ok(local[0].lkey != 0 && local[0].rkey != 0, "with its keys");
        is(
            fi_mr_desc(mr) as usize,
            local[0].lkey as usize,
            "fi_mr_desc is its lkey",
        );
        is(
            (
                (*mr).fid.fclass,
                (*mr).fid.context as usize,
                (*mr).key,
                (*mr).mem_desc as usize,
            ),
            (CLASS_MR, 0x5678, 0x77, local[0].lkey as usize),
            "the object's fields are what the functions return",
        );
        is(fi_mr_enable(mr), 0, "fi_mr_enable");
        is(
            register(domain, memory, PAGE, ALL, 0x77, 0).0,
            -ENOKEY,
            "the key is in use",
        );
        ok(!reason().is_empty(), &format!("in words: {}", reason()));
        is(
            register(domain, memory, PAGE, 1, 0x78, 0).0,
            -EINVAL,
            "an unknown access is EINVAL",
        );
        let (ret, none) = register(domain, 0x1000 as Opaque, PAGE, ALL, 0x78, 0);
        is(
            (ret, none),
            (-EFAULT, null_mut()),
            "unmapped memory is EFAULT, and no region is written",
        );
        ok(
            reason().contains("mapped"),
            &format!("in words: {}", reason()),
        );

        let (mut size, mut base, mut raw, mut key) = (0, 99, [0u8; 1024], 0);
        is(
            fi_mr_raw_attr(mr, &mut base, raw.as_mut_ptr(), &mut size, 0),
            -ETOOSMALL,
            "fi_mr_raw_attr without room",
        );
        let needed = size;
        ok(
            needed > 0 && needed < raw.len(),
            &format!("needs {needed} bytes"),
        );
        is(
            fi_mr_raw_attr(mr, &mut base, raw.as_mut_ptr(), &mut size, 0),
            0,
            "fi_mr_raw_attr",
        );
        is((base, size), (0, needed), "offsets begin at 0");
        is(
            fi_mr_map_raw(domain, base, raw.as_mut_ptr(), size, &mut key, 0),
            0,
            "fi_mr_map_raw",
        );
        ok(
            key > u64::from(u32::MAX) && key != KEY_NOTAVAIL,
            &format!("a key that no device has: {key:#x}"),
        );
        for (key, name) in [(key, "the mapped key"), (0x77, "the region's own")] {
            let remote = resolved(domain, key, 100, 50).unwrap_or_default();
            is(
                remote.len(),
                1,
                &format!("rdmamr_resolve of {name}: one segment"),
            );
            let segment = remote.first().copied().unwrap_or_default();
            is(
                (segment.length, segment.rkey),
                (50, local[0].rkey),
                &format!("{name}: 50 bytes, its rkey"),
            );
            is(
                segment.addr as usize % PAGE,
                (at + 100) % PAGE,
                &format!("{name}: 100 bytes into the page"),
            );
        }
        is(
            resolved(domain, key, 16 * PAGE as u64 - 8, 16).err(),
            Some(-EINVAL),
            "past its end is EINVAL",
        );
        is(
            resolved(domain, 0x99, 0, 8).err(),
            Some(-ENOKEY),
            "an unknown key is ENOKEY",
        );
        raw[needed / 2] ^= 1;
        let mut again = 0;
        let ret = fi_mr_map_raw(domain, base, raw.as_mut_ptr(), size, &mut again, 0);
        is(
            (ret, again),
            (-EINVAL, 0),
            "a raw key with one bit changed is EINVAL",
        );
        is(close(domain), -EBUSY, "the domain is busy");
        is(fi_mr_unmap_key(domain, key), 0, "fi_mr_unmap_key");
        is(fi_mr_unmap_key(domain, key), -ENOKEY, "once");

        let part = |offset: usize, length| Iovec {
            base: (at + offset) as Opaque,
            length,
        };
        let iov = [part(0, 100), part(4 * PAGE, PAGE), part(8 * PAGE, 10)];
        let mut pieces = null_mut();
        is(
            fi_mr_regv(
                domain,
                iov.as_ptr(),
                3,
                ALL,
                0,
                0x80,
                0,
                &mut pieces,
                null_mut(),
            ),
            0,
            "fi_mr_regv",
        );
        must(!pieces.is_null(), "no region");
        is(
            (fi_mr_key(pieces), fi_mr_desc(pieces)),
            (0x80, null_mut()),
            "one key, no descriptor",
        );
        let local = pieces_of(pieces).unwrap_or_default();
        let buffers: Vec<_> = local
            .iter()
            .map(|piece| (piece.addr as usize, piece.length as usize))
            .collect();
        is(
            buffers,
            vec![(at, 100), (at + 4 * PAGE, PAGE), (at + 8 * PAGE, 10)],
            "its pieces",
        );
        let remote = resolved(domain, 0x80, 90, PAGE + 20).unwrap_or_default();
        let lengths: Vec<_> = remote.iter().map(|piece| piece.length as usize).collect();
        is(
            lengths,
            vec![10, PAGE, 10],
            "a range is where its bytes lie",
        );
        let keys = |pieces: &[Segment]| pieces.iter().map(|piece| piece.rkey).collect::<Vec<_>>();
        is(keys(&remote), keys(&local), "with the rkey of each");
        is(close(pieces), 0, "fi_close of the pieces");
        is(close(mr), 0, "fi_close of the region");
        is(pinned(), 0, "nothing is pinned");
        is(
            close(null_mut::<Mr>()),
            -EINVAL,
            "fi_close of NULL is EINVAL",
        );
        is(
            fi_mr_key(null_mut()),
            KEY_NOTAVAIL,
            "the key of NULL is FI_KEY_NOTAVAIL",
        );
        is(fi_mr_desc(null_mut()), null_mut(), "nor is its descriptor");
        is(close(domain), 0, "fi_close of the domain");
    }
}

fn later(pd: Opaque, attr: &DomainAttr, memory: Opaque) {
    let domain = open_domain(pd, attr, 0);
    let waits = EqAttr {
        size: 0,
        flags: 0,
        wait_obj: WAIT_UNSPEC,
        signaling_vector: 0,
        wait_set: null_mut(),
    };
    let mut entry = EqEntry {
        fid: null_mut(),
        context: null_mut(),
        data: 7,
    };
    let (mut queue, mut event, length) = (null_mut(), 77, size_of::<EqEntry>());
    // SAFETY: the calls write to variables of the right types.
    unsafe {
        is(
            rdmamr_eq_open(1 << 16 | 17, &waits, &mut queue, null_mut()),
            0,
            "an event queue",
        );
        must(!queue.is_null(), "no queue");
        is(
            fi_domain_bind(domain, queue.cast(), REG_MR),
            0,
            "the domain registers asynchronously",
        );
        let (ret, mr) = register(domain, memory, PAGE, ALL, 5, 0x9abc);
        is(ret, 0, "fi_mr_reg");
        let got = fi_eq_sread(queue, &mut event, (&raw mut entry).cast(), length, 20000, 0);
        is(got, length as isize, "an event comes");
        is(
            (event, entry.fid.cast(), entry.context as usize, entry.data),
            (MR_COMPLETE, mr, 0x9abc, 0),
            "of that region",
        );
        is(fi_mr_key(mr), 5, "which has its key");
        let (ret, failing) = register(domain, 0x1000 as Opaque, PAGE, ALL, 6, 0xdef0);
        is(ret, 0, "fi_mr_reg of unmapped memory");
        let got = fi_eq_sread(queue, &mut event, (&raw mut entry).cast(), length, 20000, 0);
        is(got, -EAVAIL, "is an error");
        let mut error: EqError = std::mem::zeroed();
        is(
            fi_eq_readerr(queue, &mut error, 0),
            size_of::<EqError>() as isize,
            "which is read",
        );
        is(
            (
                error.fid.cast(),
                error.context as usize,
                error.err,
                error.prov_errno,
            ),
            (failing, 0xdef0, EFAULT, EFAULT),
            "of that region",
        );
        let got = fi_eq_read(queue, &mut event, (&raw mut entry).cast(), length, 0);
        is(got, -EAGAIN, "and no more");
        is(close(queue), -EBUSY, "the queue is busy");
        is(
            (close(mr), close(failing), close(domain), close(queue)),
            (0, 0, 0, 0),
            "everything is closed",
        );
    }
}

/// The provider's keys, which are the default.
fn provider_keys(pd: Opaque, at: usize) {
    let domain = open_domain(pd, null(), 0);
    let (ret, mr) = register(domain, (at + 8) as Opaque, 100, ALL, 7, 0);
    is(ret, 0, "fi_mr_reg for the provider's key");
    must(!mr.is_null(), "no region");
    // SAFETY: the region is open.
    let key = unsafe { fi_mr_key(mr) };
    let local = pieces_of(mr)
        .unwrap_or_default()
        .first()
        .copied()
        .unwrap_or_default();
    is(
        (local.addr as usize, local.length, u64::from(local.rkey)),
        (at + 8, 100, key),
        "its key is the rkey",
    );
    let remote = resolved(domain, key, at as u64 + 16, 8)
        .unwrap_or_default()
        .first()
        .copied()
        .unwrap_or_default();
    let found = (remote.addr as usize, remote.length, u64::from(remote.rkey));
    is(
        found,
        (at + 16, 8, key),
        "remote peers use the address unchanged",
    );
    is((close(mr), close(domain)), (0, 0), "everything is closed");
}

fn main() {
    let attr = DomainAttr {
        size: size_of::<DomainAttr>(),
        api_version: 1 << 16 | 17,
        mr_mode: 0,
        mode: 0,
        caps: 0,
        flags: 0,
        mr_key_size: 0,
    };
    let context = open_device();
    // SAFETY: the device is open; the memory is private, anonymous, and used by nothing else.
    let (pd, memory) = unsafe {
        (
            ibv_alloc_pd(context),
            mmap(null_mut(), 16 * PAGE, 3, 0x22, -1, 0),
        )
    };
    must(
        !pd.is_null() && memory as usize != usize::MAX,
        "a protection domain and memory",
    );
    // SAFETY: no device writes to the memory.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), 16 * PAGE) };
    bytes.fill(0x55);

    regions(pd, &attr, memory as usize);
    later(pd, &attr, memory);
    provider_keys(pd, memory as usize);
    ok(
        bytes.iter().all(|byte| *byte == 0x55),
        "the memory is unchanged",
    );
    // SAFETY: none of these objects is in use.
    let closed = unsafe { (ibv_dealloc_pd(pd), ibv_close_device(context)) };
    is(
        closed,
        (0, 0),
        "the protection domain and the device are not in use",
    );
    println!("1..{}", COUNT.load(Ordering::Relaxed));
}
