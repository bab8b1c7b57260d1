// SPDX-License-Identifier: MIT OR Apache-2.0
//! libfabric's public structures for memory regions and event queues, as of libfabric 2.6. The
//! originals are in `<rdma/fabric.h>`, `<rdma/fi_domain.h>`, `<rdma/fi_eq.h>` and
//! `<rdma/fi_errno.h>`. cbindgen makes `include/rdmamr/fi_mr.h` from this file, for machines
//! without libfabric.
//!
//! A table of functions begins with its size and grows at its end. An attribute structure grows at
//! its end too, but carries no size: the library must not read a field that the caller's version
//! lacks (`fabric/attributes.rs`).

use crate::fields;
#[cfg(test)]
use crate::libfabric_provider::*;
use core::ffi::{c_char, c_int, c_void};
use libc::{iovec, ssize_t};

/// The class of an object and its functions. Every object begins with this structure.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid {
    /// FI_CLASS_...
    pub fclass: usize,
    /// The application's pointer, from the call that made the object.
    pub context: *mut c_void,
    pub ops: *mut fi_ops,
}
fields!(
    "struct fid",
    fid {
        fclass,
        context,
        ops
    }
);

/// The functions that every object has.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops {
    pub size: usize,
    pub close: Option<unsafe extern "C" fn(fid: *mut fid) -> c_int>,
    pub bind: Option<unsafe extern "C" fn(fid: *mut fid, bfid: *mut fid, flags: u64) -> c_int>,
    pub control:
        Option<unsafe extern "C" fn(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int>,
    pub ops_open: Option<
        unsafe extern "C" fn(
            fid: *mut fid,
            name: *const c_char,
            flags: u64,
            ops: *mut *mut c_void,
            context: *mut c_void,
        ) -> c_int,
    >,
    /// Since libfabric 1.7.
    pub tostr: Option<unsafe extern "C" fn(fid: *const fid, buf: *mut c_char, len: usize) -> c_int>,
    /// Since libfabric 1.12.
    pub ops_set: Option<
        unsafe extern "C" fn(
            fid: *mut fid,
            name: *const c_char,
            flags: u64,
            ops: *mut c_void,
            context: *mut c_void,
        ) -> c_int,
    >,
}
fields!(
    "struct fi_ops",
    fi_ops {
        size,
        close,
        bind,
        control,
        ops_open,
        tostr,
        ops_set
    }
);

/// A domain. Regions are registered in a domain.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *mut fi_ops_domain,
    pub mr: *mut fi_ops_mr,
}
fields!("struct fid_domain", fid_domain { fid, ops, mr });

/// The functions that register memory in a domain.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_mr {
    pub size: usize,
    pub reg: Option<
        unsafe extern "C" fn(
            fid: *mut fid,
            buf: *const c_void,
            len: usize,
            access: u64,
            offset: u64,
            requested_key: u64,
            flags: u64,
            mr: *mut *mut fid_mr,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub regv: Option<
        unsafe extern "C" fn(
            fid: *mut fid,
            iov: *const iovec,
            count: usize,
            access: u64,
            offset: u64,
            requested_key: u64,
            flags: u64,
            mr: *mut *mut fid_mr,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub regattr: Option<
        unsafe extern "C" fn(
            fid: *mut fid,
            attr: *const fi_mr_attr,
            flags: u64,
            mr: *mut *mut fid_mr,
        ) -> c_int,
    >,
}
fields!(
    "struct fi_ops_mr",
    fi_ops_mr {
        size,
        reg,
        regv,
        regattr
    }
);

/// A memory region.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_mr {
    pub fid: fid,
    /// The value that fi_mr_desc() returns.
    pub mem_desc: *mut c_void,
    /// The value that fi_mr_key() returns.
    pub key: u64,
}
fields!("struct fid_mr", fid_mr { fid, mem_desc, key });

/// The argument of fi_mr_regattr(). Set every field that you do not use to zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_attr {
    pub mr_iov: *const iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    /// Since libfabric 1.5.
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    /// Since libfabric 1.9.
    pub iface: c_int,
    pub device: u64,
    /// Since libfabric 1.19.
    pub hmem_data: *mut c_void,
    /// Since libfabric 1.22.
    pub page_size: usize,
    /// Since libfabric 2.0.
    pub base_mr: *const fid_mr,
    pub sub_mr_cnt: usize,
}
fields!("struct fi_mr_attr", fi_mr_attr {
    mr_iov, iov_count, access, offset, requested_key, context,
    auth_key_size @ FI_VERSION_1_5, auth_key @ FI_VERSION_1_5,
    iface @ FI_VERSION_1_9, device @ FI_VERSION_1_9,
    hmem_data @ FI_VERSION_1_19, page_size @ FI_VERSION_1_22,
    base_mr @ FI_VERSION_2_0, sub_mr_cnt @ FI_VERSION_2_0
});

/// The argument that fi_mr_raw_attr() passes with FI_GET_RAW_MR.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_raw_attr {
    pub flags: u64,
    pub base_addr: *mut u64,
    pub raw_key: *mut u8,
    pub key_size: *mut usize,
}
fields!(
    "struct fi_mr_raw_attr",
    fi_mr_raw_attr {
        flags,
        base_addr,
        raw_key,
        key_size
    }
);

/// The argument that fi_mr_map_raw() passes with FI_MAP_RAW_MR.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_map_raw {
    pub flags: u64,
    pub base_addr: u64,
    pub raw_key: *mut u8,
    pub key_size: usize,
    pub key: *mut u64,
}
fields!(
    "struct fi_mr_map_raw",
    fi_mr_map_raw {
        flags,
        base_addr,
        raw_key,
        key_size,
        key
    }
);

/// The argument that fi_mr_refresh() passes with FI_REFRESH.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_modify {
    pub flags: u64,
    pub attr: fi_mr_attr,
}

/// An event queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_eq {
    pub fid: fid,
    pub ops: *mut fi_ops_eq,
}
fields!("struct fid_eq", fid_eq { fid, ops });

/// The functions of an event queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_eq {
    pub size: usize,
    pub read: Option<
        unsafe extern "C" fn(
            eq: *mut fid_eq,
            event: *mut u32,
            buf: *mut c_void,
            len: usize,
            flags: u64,
        ) -> ssize_t,
    >,
    pub readerr: Option<
        unsafe extern "C" fn(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> ssize_t,
    >,
    pub write: Option<
        unsafe extern "C" fn(
            eq: *mut fid_eq,
            event: u32,
            buf: *const c_void,
            len: usize,
            flags: u64,
        ) -> ssize_t,
    >,
    pub sread: Option<
        unsafe extern "C" fn(
            eq: *mut fid_eq,
            event: *mut u32,
            buf: *mut c_void,
            len: usize,
            timeout: c_int,
            flags: u64,
        ) -> ssize_t,
    >,
    pub strerror: Option<
        unsafe extern "C" fn(
            eq: *mut fid_eq,
            prov_errno: c_int,
            err_data: *const c_void,
            buf: *mut c_char,
            len: usize,
        ) -> *const c_char,
    >,
}
fields!(
    "struct fi_ops_eq",
    fi_ops_eq {
        size,
        read,
        readerr,
        write,
        sread,
        strerror
    }
);

/// The attributes of a new event queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_eq_attr {
    /// The number of events that the queue must hold. This library ignores it: its queues hold any
    /// number.
    pub size: usize,
    /// FI_WRITE or 0.
    pub flags: u64,
    /// FI_WAIT_...
    pub wait_obj: c_int,
    pub signaling_vector: c_int,
    pub wait_set: *mut c_void,
}
fields!(
    "struct fi_eq_attr",
    fi_eq_attr {
        size,
        flags,
        wait_obj,
        signaling_vector,
        wait_set
    }
);

/// A pointer to any object.
pub type fid_t = *mut fid;

/// The event FI_MR_COMPLETE.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_eq_entry {
    /// The region.
    pub fid: fid_t,
    /// The context that the registering call gave.
    pub context: *mut c_void,
    pub data: u64,
}
fields!("struct fi_eq_entry", fi_eq_entry { fid, context, data });

/// A registration that failed after its call had returned.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_eq_err_entry {
    pub fid: fid_t,
    pub context: *mut c_void,
    pub data: u64,
    /// A positive FI_E... code.
    pub err: c_int,
    /// The kernel's errno.
    pub prov_errno: c_int,
    /// The reason in words. The text stays valid until the queue is read again.
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}
fields!(
    "struct fi_eq_err_entry",
    fi_eq_err_entry {
        fid,
        context,
        data,
        err,
        prov_errno,
        err_data,
        err_data_size
    }
);

/// The functions of a domain that do not concern memory. This library supports none of them.
pub enum fi_ops_domain {}

/// Access: an RMA read of this process writes into the buffer.
pub const FI_READ: u64 = 1u64 << 8;
/// Access: the buffer is the source of RMA writes. As a flag of a queue: fi_eq_write() is allowed.
pub const FI_WRITE: u64 = 1u64 << 9;
/// Access: the buffer receives messages.
pub const FI_RECV: u64 = 1u64 << 10;
/// Access: this process sends messages from the buffer.
pub const FI_SEND: u64 = 1u64 << 11;
/// Access: remote peers may read the buffer.
pub const FI_REMOTE_READ: u64 = 1u64 << 12;
/// Access: remote peers may write the buffer and change it by atomic operations.
pub const FI_REMOTE_WRITE: u64 = 1u64 << 13;
/// Flag of fi_eq_read(): leave the event in the queue.
pub const FI_PEEK: u64 = 1u64 << 19;
/// Flag of fi_domain_bind(): the queue reports registrations.
pub const FI_REG_MR: u64 = 1u64 << 59;
/// The key is not known, or not known yet.
pub const FI_KEY_NOTAVAIL: u64 = 0xffff_ffff_ffff_ffffu64;

/// mr_mode: none of the others. From api_version 1.5 on the application chooses the keys, and
/// addresses begin at 0; before, the device chooses both.
pub const FI_MR_UNSPEC: i32 = 0;
/// mr_mode before libfabric 1.5: the provider chooses the keys, remote peers use virtual addresses,
/// and memory must be mapped.
pub const FI_MR_BASIC: i32 = 1;
/// mr_mode before libfabric 1.5: the application chooses the keys, and addresses begin at 0.
pub const FI_MR_SCALABLE: i32 = 2;
/// mr_mode: the application registers the memory that it uses itself.
pub const FI_MR_LOCAL: i32 = 1 << 2;
/// mr_mode: remote peers need fi_mr_raw_attr() and fi_mr_map_raw().
pub const FI_MR_RAW: i32 = 1 << 3;
/// mr_mode: remote peers address a region by its virtual address.
pub const FI_MR_VIRT_ADDR: i32 = 1 << 4;
/// mr_mode: memory must be mapped when it is registered.
pub const FI_MR_ALLOCATED: i32 = 1 << 5;
/// mr_mode: the provider chooses the keys.
pub const FI_MR_PROV_KEY: i32 = 1 << 6;
/// Not supported by this library.
pub const FI_MR_MMU_NOTIFY: i32 = 1 << 7;
/// Not supported by this library.
pub const FI_MR_RMA_EVENT: i32 = 1 << 8;
/// Not supported by this library.
pub const FI_MR_ENDPOINT: i32 = 1 << 9;
/// Not supported by this library.
pub const FI_MR_HMEM: i32 = 1 << 10;
/// Not supported by this library.
pub const FI_MR_COLLECTIVE: i32 = 1 << 11;

/// No object.
pub const FI_CLASS_UNSPEC: usize = 0;
/// The class of struct fid_fabric.
pub const FI_CLASS_FABRIC: usize = 1;
/// The class of struct fid_domain.
pub const FI_CLASS_DOMAIN: usize = 2;
/// Not used by this library.
pub const FI_CLASS_EP: usize = 3;
/// Not used by this library.
pub const FI_CLASS_SEP: usize = 4;
/// Not used by this library.
pub const FI_CLASS_RX_CTX: usize = 5;
/// Not used by this library.
pub const FI_CLASS_SRX_CTX: usize = 6;
/// Not used by this library.
pub const FI_CLASS_TX_CTX: usize = 7;
/// Not used by this library.
pub const FI_CLASS_STX_CTX: usize = 8;
/// Not used by this library.
pub const FI_CLASS_PEP: usize = 9;
/// Not used by this library.
pub const FI_CLASS_INTERFACE: usize = 10;
/// Not used by this library.
pub const FI_CLASS_AV: usize = 11;
/// The class of struct fid_mr.
pub const FI_CLASS_MR: usize = 12;
/// The class of struct fid_eq.
pub const FI_CLASS_EQ: usize = 13;
/// Not used by this library.
pub const FI_CLASS_CQ: usize = 14;
/// The class of struct fid_cntr.
pub const FI_CLASS_CNTR: usize = 15;
/// Not used by this library.
pub const FI_CLASS_WAIT: usize = 16;
/// Not used by this library.
pub const FI_CLASS_POLL: usize = 17;

/// An event for the application's own use.
pub const FI_NOTIFY: u32 = 0;
/// An endpoint's event. Not used by this library.
pub const FI_CONNREQ: u32 = 1;
/// An endpoint's event. Not used by this library.
pub const FI_CONNECTED: u32 = 2;
/// An endpoint's event. Not used by this library.
pub const FI_SHUTDOWN: u32 = 3;
/// A registration has completed.
pub const FI_MR_COMPLETE: u32 = 4;
/// An address vector's event. Not used by this library.
pub const FI_AV_COMPLETE: u32 = 5;
/// A multicast event. Not used by this library.
pub const FI_JOIN_COMPLETE: u32 = 6;

/// The means of waiting for a queue.
#[repr(C)]
pub enum fi_wait_obj {
    /// No thread can wait for the queue.
    FI_WAIT_NONE,
    /// Any of the others: the library chooses FI_WAIT_FD.
    FI_WAIT_UNSPEC,
    FI_WAIT_SET,
    /// Threads wait with poll(2) for a file descriptor.
    FI_WAIT_FD,
    FI_WAIT_MUTEX_COND,
    FI_WAIT_YIELD,
    FI_WAIT_POLLFD,
}

/// fi_control(): not used by this library.
pub const FI_GETFIDFLAG: i32 = 0;
/// fi_control(): not used by this library.
pub const FI_SETFIDFLAG: i32 = 1;
/// fi_control(): not used by this library.
pub const FI_GETOPSFLAG: i32 = 2;
/// fi_control(): not used by this library.
pub const FI_SETOPSFLAG: i32 = 3;
/// fi_control(): not used by this library.
pub const FI_ALIAS: i32 = 4;
/// fi_control(): reads the file descriptor to wait for, an int.
pub const FI_GETWAIT: i32 = 5;
/// fi_control(): the command of fi_mr_enable().
pub const FI_ENABLE: i32 = 6;
/// fi_control(): not used by this library.
pub const FI_BACKLOG: i32 = 7;
/// fi_control(): the command of fi_mr_raw_attr().
pub const FI_GET_RAW_MR: i32 = 8;
/// fi_control(): the command of fi_mr_map_raw().
pub const FI_MAP_RAW_MR: i32 = 9;
/// fi_control(): the command of fi_mr_unmap_key().
pub const FI_UNMAP_KEY: i32 = 10;
/// fi_control(): not used by this library.
pub const FI_QUEUE_WORK: i32 = 11;
/// fi_control(): not used by this library.
pub const FI_CANCEL_WORK: i32 = 12;
/// fi_control(): not used by this library.
pub const FI_FLUSH_WORK: i32 = 13;
/// fi_control(): the command of fi_mr_refresh().
pub const FI_REFRESH: i32 = 14;
/// fi_control(): not used by this library.
pub const FI_DUP: i32 = 15;
/// fi_control(): reads the FI_WAIT_... value of the queue, an int.
pub const FI_GETWAITOBJ: i32 = 16;

/// No such file or object.
pub const FI_ENOENT: i32 = 2;
/// Not permitted.
pub const FI_EPERM: i32 = 1;
/// The device is gone.
pub const FI_EIO: i32 = 5;
/// Bad file descriptor.
pub const FI_EBADF: i32 = 9;
/// Try again, or the queue is empty.
pub const FI_EAGAIN: i32 = 11;
/// Not enough memory.
pub const FI_ENOMEM: i32 = 12;
/// Access denied.
pub const FI_EACCES: i32 = 13;
/// Bad address.
pub const FI_EFAULT: i32 = 14;
/// The object is still in use.
pub const FI_EBUSY: i32 = 16;
/// No such device.
pub const FI_ENODEV: i32 = 19;
/// Invalid argument.
pub const FI_EINVAL: i32 = 22;
/// Too many open files.
pub const FI_EMFILE: i32 = 24;
/// Not implemented.
pub const FI_ENOSYS: i32 = 38;
/// Nothing matches.
pub const FI_ENODATA: i32 = 61;
/// Not supported.
pub const FI_EOPNOTSUPP: i32 = 95;
/// The operation was cancelled.
pub const FI_ECANCELED: i32 = 125;
/// The key is out of range.
pub const FI_EKEYREJECTED: i32 = 129;
/// An error that has no code of its own.
pub const FI_EOTHER: i32 = 256;
/// The buffer is too small.
pub const FI_ETOOSMALL: i32 = 257;
/// The object's present state does not allow the call.
pub const FI_EOPBADSTATE: i32 = 258;
/// The next event is an error: read it with fi_eq_readerr().
pub const FI_EAVAIL: i32 = 259;
/// The flags are not supported.
pub const FI_EBADFLAGS: i32 = 260;
/// The key is in use, or no such key exists.
pub const FI_ENOKEY: i32 = 266;

/// The size of `struct fi_mr_attr`, from one version (included) to another (excluded).
#[cfg(test)]
pub const FI_MR_ATTR_SIZES: &[(u32, u32, usize)] = &[
    (FI_VERSION_1_0, FI_VERSION_1_5, 48),
    (FI_VERSION_1_9, FI_VERSION_1_19, 80),
    (FI_VERSION_1_22, FI_VERSION_2_0, 96),
    (FI_VERSION_2_0, u32::MAX, size_of::<fi_mr_attr>()),
];
