// SPDX-License-Identifier: MIT OR Apache-2.0
//! CUDA, by the functions of its driver's library (cuda.h, "Memory Management", "Unified
//! Addressing").

use super::runtime::calls;
use super::{Allocation, Export, Runtime, SUCCESS, Way};
use crate::outcome::{Address, RuntimeKind, Why};
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use core::ptr::null_mut;
use rdmamr_sys::loaded_files::{Object, Sought};
use rdmamr_sys::pages::PageRange;

type Context = *mut c_void;

/// `CUpointer_attribute`.
mod pointer {
    use super::c_int;
    pub const CONTEXT: c_int = 1;
    pub const MEMORY_TYPE: c_int = 2;
    pub const BUFFER_ID: c_int = 7;
    pub const IS_MANAGED: c_int = 8;
    pub const DEVICE_ORDINAL: c_int = 9;
    pub const RANGE_START_ADDR: c_int = 11;
    pub const RANGE_SIZE: c_int = 12;
    pub const IS_GPU_DIRECT_RDMA_CAPABLE: c_int = 15;
    pub const MAPPING_SIZE: c_int = 18;
    pub const MAPPING_BASE_ADDR: c_int = 19;
}

/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE_MEMORY: c_uint = 2;

/// `CUdevice_attribute`.
mod device {
    use super::c_int;
    /// The processor and the GPU share page tables: the platform is coherent.
    pub const PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES: c_int = 100;
    pub const DMA_BUF_SUPPORTED: c_int = 124;
}

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: c_int = 1;
/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`, since CUDA 12.8.
const BY_PCIE: c_ulonglong = 1;

/// The driver's library.
pub struct Cuda(Object);

calls! { Cuda:
    fn pointer_attribute(data: *mut c_void, attribute: c_int, addr: u64) = c"cuPointerGetAttribute";
    fn pointer_attributes(
        count: c_uint, attributes: *mut c_int, data: *mut *mut c_void, addr: u64
    ) = c"cuPointerGetAttributes";
    fn device_attribute(value: *mut c_int, attribute: c_int, device: c_int) = c"cuDeviceGetAttribute";
    fn address_range(base: *mut u64, size: *mut usize, addr: u64) = c"cuMemGetAddressRange_v2";
    fn handle_for_range(
        file: *mut c_int, addr: u64, size: usize, kind: c_int, flags: c_ulonglong
    ) = c"cuMemGetHandleForAddressRange";
    fn current(context: *mut Context) = c"cuCtxGetCurrent";
    fn current_device(device: *mut c_int) = c"cuCtxGetDevice";
    fn push(context: Context) = c"cuCtxPushCurrent_v2";
    fn pop(context: *mut Context) = c"cuCtxPopCurrent_v2";
    fn primary_state(
        device: c_int, flags: *mut c_uint, active: *mut c_int
    ) = c"cuDevicePrimaryCtxGetState";
    fn retain_primary(context: *mut Context, device: c_int) = c"cuDevicePrimaryCtxRetain";
    fn release_primary(device: c_int) = c"cuDevicePrimaryCtxRelease_v2";
}

impl Cuda {
    /// An attribute of the memory at an address.
    fn attribute<T: Copy>(&self, attribute: c_int, addr: u64, mut value: T) -> Option<T> {
        let asked = self.pointer_attribute((&raw mut value).cast(), attribute, addr)?;
        (asked == SUCCESS).then_some(value)
    }

    /// The allocation that the memory lies in, if it is the GPU's, of `cuMemAlloc`. Such memory belongs
    /// to a context; that of pools and of `cuMemMap` does not. Pools hand the same memory out under new
    /// numbers, and CUDA frees both without a call that unmaps their addresses. The pages of managed
    /// memory move under one number.
    ///
    /// On an H200 (driver 580) the call took 0.12 us. No number came back in 20 000 allocations, also at
    /// the same address, from a pool, and after another `cuMemMap` of the same handle.
    pub fn numbered(&self, addr: u64, length: u64) -> Option<Allocation> {
        let (mut kind, mut context, mut id): (c_uint, Context, u64) = (0, null_mut(), 0);
        let (mut start, mut size, mut is_managed) = (0u64, 0usize, 0 as c_uint);
        let wanted: [(c_int, *mut c_void); 6] = [
            (pointer::MEMORY_TYPE, (&raw mut kind).cast()),
            (pointer::IS_MANAGED, (&raw mut is_managed).cast()),
            (pointer::CONTEXT, (&raw mut context).cast()),
            (pointer::BUFFER_ID, (&raw mut id).cast()),
            (pointer::RANGE_START_ADDR, (&raw mut start).cast()),
            (pointer::RANGE_SIZE, (&raw mut size).cast()),
        ];
        let (mut attributes, mut data) = (wanted.map(|it| it.0), wanted.map(|it| it.1));
        let asked = self.pointer_attributes(6, attributes.as_mut_ptr(), data.as_mut_ptr(), addr)?;
        let is_fixed = kind == DEVICE_MEMORY && is_managed == 0 && !context.is_null();
        let (end, ends) = (start.checked_add(size as u64)?, addr.checked_add(length)?);
        if asked != SUCCESS || !is_fixed || id == 0 || addr < start || ends > end {
            return None;
        }
        let pages = PageRange::around(start, size as u64)?;
        Some(Allocation { id, pages })
    }

    /// Whether processor and GPU share page tables.
    fn is_coherent(&self, addr: u64) -> bool {
        let attribute = device::PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES;
        self.of_device(addr, attribute) == Some(1)
    }

    /// The primary context of a device. Nothing makes one for a thread that has another context:
    /// it takes much of the GPU's memory.
    fn primary(&self, device: c_int, has_current: bool) -> Option<Context> {
        let (mut flags, mut active) = (0, 0);
        let asked = self.primary_state(device, &raw mut flags, &raw mut active);
        if has_current && (asked != Some(SUCCESS) || active == 0) {
            return None;
        }
        let mut primary: Context = null_mut();
        (self.retain_primary(&raw mut primary, device) == Some(SUCCESS)).then_some(primary)
    }

    fn device(&self, addr: u64) -> Option<c_int> {
        self.attribute(pointer::DEVICE_ORDINAL, addr, 0)
    }

    fn of_device(&self, addr: u64, attribute: c_int) -> Option<c_int> {
        let mut value = 0;
        let asked = self.device_attribute(&raw mut value, attribute, self.device(addr)?)?;
        (asked == SUCCESS).then_some(value)
    }

    fn export_by(&self, range: PageRange, flags: c_ulonglong) -> Result<Export, Why> {
        let mut file = -1;
        let size = range.bytes() as usize;
        let answer = self.handle_for_range(&raw mut file, range.start, size, DMA_BUF_FD, flags);
        // SAFETY: `file` is what the call has opened.
        unsafe { Export::made(answer, file, 0) }
    }
}

impl Runtime for Cuda {
    const KIND: RuntimeKind = RuntimeKind::Cuda;

    fn find() -> Option<Cuda> {
        static LIBRARY: Sought = Sought::new(c"libcuda.so.1", b"libcuda.so");
        LIBRARY.find().map(Cuda)
    }

    fn has(&self, addr: u64) -> bool {
        self.attribute::<c_uint>(pointer::MEMORY_TYPE, addr, 0) == Some(DEVICE_MEMORY)
    }

    fn export(&self, range: PageRange, way: Way) -> Result<Export, Why> {
        if way == Way::First && self.is_coherent(range.start) {
            if let Ok(export) = self.export_by(range, BY_PCIE) {
                return Ok(export);
            }
        }
        self.export_by(range, 0)
    }

    fn has_second_way(&self, addr: u64) -> bool {
        self.is_coherent(addr)
    }

    fn allocation(&self, addr: u64) -> Option<PageRange> {
        let (mut base, mut size) = (0, 0);
        let asked = self.address_range(&raw mut base, &raw mut size, addr)?;
        (asked == SUCCESS).then(|| PageRange::around(base, size as u64))?
    }

    fn cause(&self, addr: u64, length: u64) -> Option<Why> {
        let is = |attribute| self.attribute::<c_uint>(attribute, addr, 0);
        if is(pointer::IS_MANAGED) == Some(1) {
            return Some(Why::Managed);
        }
        if self.of_device(addr, device::DMA_BUF_SUPPORTED) == Some(0) {
            return Some(Why::DriverExportsNone);
        }
        let base = self.attribute::<u64>(pointer::MAPPING_BASE_ADDR, addr, 0);
        let size = self.attribute::<usize>(pointer::MAPPING_SIZE, addr, 0);
        let mapping = base.zip(size);
        let end = mapping.and_then(|(base, size)| base.checked_add(size as u64));
        if let Some(end) = end.filter(|&end| addr < end && end < addr + length) {
            return Some(if self.has(end) {
                Why::Handles(Address(end))
            } else {
                Why::Ends(Address(end))
            });
        }
        (is(pointer::IS_GPU_DIRECT_RDMA_CAPABLE) == Some(0)).then_some(Why::NotCapable)
    }

    /// A thread without a context of the memory's GPU gets the memory's own for the call: CUDA does
    /// not find memory under the context of another GPU. Memory of a pool and of `cuMemMap` belongs
    /// to no context: for that it is the device's primary one.
    fn in_context<T>(&self, addr: u64, body: impl FnOnce() -> T) -> T {
        let mut current: Context = null_mut();
        if self.current(&raw mut current) != Some(SUCCESS) {
            return body();
        }
        let has_current = !current.is_null();
        let device = self.device(addr);
        let mut current_device = -1;
        if has_current
            && self.current_device(&raw mut current_device) == Some(SUCCESS)
            && device == Some(current_device)
        {
            return body();
        }
        let own = self
            .attribute::<Context>(pointer::CONTEXT, addr, null_mut())
            .filter(|own| !own.is_null());
        let primary = match own {
            Some(_) => None,
            None => device.and_then(|device| self.primary(device, has_current)),
        };
        let context = own.or(primary);
        let is_pushed = context.is_some_and(|context| self.push(context) == Some(SUCCESS));
        let value = body();
        if is_pushed {
            self.pop(&raw mut current);
        }
        if let (Some(_), Some(device)) = (primary, device) {
            self.release_primary(device);
        }
        value
    }
}
