// SPDX-License-Identifier: MIT OR Apache-2.0
//! ROCm, by the functions of its runtime's library (hsa.h, hsa_ext_amd.h).

use super::runtime::calls;
use super::{Export, Runtime, SUCCESS, Way};
use crate::outcome::{RuntimeKind, Why};
use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, without_provenance};
use rdmamr_sys::loaded_files::{Object, Sought};
use rdmamr_sys::pages::PageRange;

/// `hsa_amd_pointer_info_t`. Later versions are longer: `size` says how much the caller has.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PointerInfo {
    size: u32,
    kind: c_int,
    agent_base: u64,
    host_base: u64,
    bytes: usize,
    user_data: u64,
    owner: u64,
    global_flags: u32,
    registered: bool,
}

/// `HSA_EXT_POINTER_TYPE_HSA` and `HSA_EXT_POINTER_TYPE_HSA_VMEM`: memory that the runtime has allocated,
/// the latter by `hipMemCreate`. `hipMallocManaged` has none of these types: its pages move, and the
/// kernel registers them by their address.
const ALLOCATED: [c_int; 2] = [1, 6];
/// `HSA_AGENT_INFO_DEVICE`, and `HSA_DEVICE_TYPE_GPU`.
const AGENT_DEVICE: c_int = 17;
const GPU: c_int = 1;

type Allocate = Option<unsafe extern "C" fn(usize) -> *mut c_void>;

/// The runtime's library.
pub struct Rocm(Object);

calls! { Rocm:
    fn pointer_info(
        addr: *const c_void, info: *mut PointerInfo, allocate: Allocate, count: *mut u32, agents: *mut *mut u64
    ) = c"hsa_amd_pointer_info";
    fn agent_info(agent: u64, attribute: c_int, value: *mut c_void) = c"hsa_agent_get_info";
    fn export_dmabuf(
        start: *const c_void, size: usize, file: *mut c_int, offset: *mut u64
    ) = c"hsa_amd_portable_export_dmabuf";
}

impl Rocm {
    fn info(&self, addr: u64) -> Option<PointerInfo> {
        let mut info = PointerInfo {
            size: size_of::<PointerInfo>() as u32,
            ..PointerInfo::default()
        };
        let addr = without_provenance(addr as usize);
        // `info` says its own size. The function is asked for no list of agents.
        let asked = self.pointer_info(addr, &raw mut info, None, null_mut(), null_mut())?;
        (asked == SUCCESS && ALLOCATED.contains(&info.kind)).then_some(info)
    }

    fn is_gpu(&self, agent: u64) -> bool {
        let mut kind: c_int = -1;
        let asked = self.agent_info(agent, AGENT_DEVICE, (&raw mut kind).cast());
        asked == Some(SUCCESS) && kind == GPU
    }
}

impl Runtime for Rocm {
    const KIND: RuntimeKind = RuntimeKind::Rocm;

    fn find() -> Option<Rocm> {
        static LIBRARY: Sought = Sought::new(c"libhsa-runtime64.so.1", b"libhsa-runtime64.so");
        LIBRARY.find().map(Rocm)
    }

    fn has(&self, addr: u64) -> bool {
        self.info(addr).is_some_and(|info| self.is_gpu(info.owner))
    }

    fn export(&self, range: PageRange, _: Way) -> Result<Export, Why> {
        let (mut file, mut offset) = (-1, 0);
        let start = without_provenance(range.start as usize);
        let size = range.bytes() as usize;
        let answer = self.export_dmabuf(start, size, &raw mut file, &raw mut offset);
        // SAFETY: `file` is what the call has opened.
        unsafe { Export::made(answer, file, offset) }
    }

    fn allocation(&self, addr: u64) -> Option<PageRange> {
        let info = self.info(addr)?;
        PageRange::around(info.agent_base, info.bytes as u64)
    }
}
