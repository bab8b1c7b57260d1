// SPDX-License-Identifier: MIT OR Apache-2.0
//! ROCm, by the functions of its runtime's library (hsa.h, hsa_ext_amd.h).

use super::runtime::find;
use super::{Export, Runtime, Way};
use crate::outcome::{RuntimeKind, Why};
use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, without_provenance};
use core::sync::atomic::AtomicUsize;
use rdmamr_sys::loaded_files::Object;
use rdmamr_sys::pages::PageRange;
use std::os::fd::{FromRawFd, OwnedFd};

const SUCCESS: c_int = 0;

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

type PointerInfoFn = unsafe extern "C" fn(
    *const c_void,
    *mut PointerInfo,
    Option<unsafe extern "C" fn(usize) -> *mut c_void>,
    *mut u32,
    *mut *mut u64,
) -> c_int;
type AgentInfoFn = unsafe extern "C" fn(u64, c_int, *mut c_void) -> c_int;
type ExportFn = unsafe extern "C" fn(*const c_void, usize, *mut c_int, *mut u64) -> c_int;

/// The runtime's library.
pub struct Rocm(Object);

impl Rocm {
    fn info(&self, addr: u64) -> Option<PointerInfo> {
        // SAFETY: hsa_ext_amd.h declares the function so.
        let ask: PointerInfoFn = unsafe { self.0.function(c"hsa_amd_pointer_info") }?;
        let mut info = PointerInfo {
            size: size_of::<PointerInfo>() as u32,
            ..PointerInfo::default()
        };
        let addr = without_provenance(addr as usize);
        // SAFETY: `info` says its own size, and the function takes any address. It is asked for no
        // list of agents.
        let asked = unsafe { ask(addr, &raw mut info, None, null_mut(), null_mut()) };
        (asked == SUCCESS && ALLOCATED.contains(&info.kind)).then_some(info)
    }

    fn is_gpu(&self, agent: u64) -> bool {
        // SAFETY: hsa.h declares the function so.
        let Some(ask) = (unsafe { self.0.function::<AgentInfoFn>(c"hsa_agent_get_info") }) else {
            return false;
        };
        let mut kind: c_int = -1;
        // SAFETY: `kind` has room for the attribute, and the runtime itself named the agent.
        let asked = unsafe { ask(agent, AGENT_DEVICE, (&raw mut kind).cast()) };
        asked == SUCCESS && kind == GPU
    }
}

impl Runtime for Rocm {
    const KIND: RuntimeKind = RuntimeKind::Rocm;

    fn find() -> Option<Rocm> {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        find(c"libhsa-runtime64.so.1", b"libhsa-runtime64.so", &LAST).map(Rocm)
    }

    fn has(&self, addr: u64) -> bool {
        self.info(addr).is_some_and(|info| self.is_gpu(info.owner))
    }

    fn export(&self, range: PageRange, _: Way) -> Result<Export, Why> {
        // SAFETY: hsa_ext_amd.h declares the function so.
        let export: Option<ExportFn> =
            unsafe { self.0.function(c"hsa_amd_portable_export_dmabuf") };
        let export = export.ok_or(Why::NoFunction)?;
        let (mut file, mut offset) = (-1, 0);
        let start = without_provenance(range.start as usize);
        let (size, to, at) = (range.bytes() as usize, &raw mut file, &raw mut offset);
        // SAFETY: `file` and `offset` have room for the answers, and the function takes any range.
        match unsafe { export(start, size, to, at) } {
            SUCCESS if file >= 0 => Ok(Export {
                // SAFETY: the call has just opened this file for its caller.
                file: unsafe { OwnedFd::from_raw_fd(file) },
                offset,
            }),
            error => Err(Why::Export(error)),
        }
    }

    fn allocation(&self, addr: u64) -> Option<PageRange> {
        let info = self.info(addr)?;
        PageRange::around(info.agent_base, info.bytes as u64)
    }

    fn cause(&self, _: u64, _: u64) -> Option<Why> {
        None
    }
}
