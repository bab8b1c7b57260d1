// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of bpf(2) that the service makes. No crate loads the programs: aya and libbpf-rs load
//! objects that clang has compiled, and libbpf-rs links the C library libbpf too. The service has
//! three programs of some 25 instructions, which it makes for the running kernel itself.

use super::programs::Program;
use crate::files::{owned, result};
use anyhow::{Context, Result, anyhow};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;

const MAP_CREATE: i32 = 0;
const PROG_LOAD: i32 = 5;
const RAW_TRACEPOINT_OPEN: i32 = 17;
const MAP_FREEZE: i32 = 22;

const MAP_TYPE_ARRAY: u32 = 2;
const PROG_TYPE_TRACING: u32 = 26;
/// User space may map the array (BPF_F_MMAPABLE).
const MAPPABLE: u32 = 0x400;

/// bpf(2) with the structure that this call takes. Its result is a file, or 0.
///
/// # Safety
/// The structure is the call's, and its pointers are valid.
unsafe fn bpf<T>(call: i32, argument: &T) -> std::io::Result<i32> {
    // SAFETY: this function's contract.
    let value = result(unsafe { libc::syscall(libc::SYS_bpf, call, argument, size_of::<T>()) })?;
    Ok(value as i32)
}

fn reason(error: Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::PermissionDenied => anyhow!(
            "bpf(2): {error}. It needs root, or CAP_BPF and CAP_PERFMON, and a kernel that is not locked down"
        ),
        ErrorKind::Unsupported => {
            anyhow!("bpf(2): {error}. The kernel lacks it (CONFIG_BPF_SYSCALL)")
        }
        _ => anyhow!("bpf(2): {error}"),
    }
}

/// An array of one element.
pub fn array(size: usize) -> Result<OwnedFd> {
    // The kind, the sizes of a key and of a value, the number of elements, and the flags.
    let map = [MAP_TYPE_ARRAY, 4, u32::try_from(size)?, 1, MAPPABLE];
    // SAFETY: the structure is the one of BPF_MAP_CREATE, as far as it is used.
    unsafe { bpf(MAP_CREATE, &map) }
        .and_then(owned)
        .map_err(reason)
}

/// The numbers of an array, as a process sees them.
pub fn view(array: &OwnedFd, size: usize) -> Result<&'static [AtomicU64]> {
    // SAFETY: no address is given, so no other memory is touched.
    let at = unsafe {
        mmap(
            null_mut(),
            size,
            ProtFlags::READ,
            MapFlags::SHARED,
            array,
            0,
        )
    }?;
    // SAFETY: the mapping has `size` bytes and stays, and only atomic operations write it.
    Ok(unsafe { std::slice::from_raw_parts(at.cast(), size / 8) })
}

/// From now on only programs write the array. A file that cannot write would not do: its owner could
/// pin the array in a bpffs of its own, and open it there for writing.
pub fn freeze(array: &OwnedFd) -> Result<()> {
    let file = array.as_raw_fd() as u32;
    // SAFETY: the structure of BPF_MAP_FREEZE begins with the file, and the rest may lack.
    unsafe { bpf(MAP_FREEZE, &file) }.map(drop).map_err(reason)
}

/// Loads a program and attaches it. It stays attached while the file is open.
pub fn attach(program: &Program) -> Result<OwnedFd> {
    #[repr(C)]
    #[derive(Default)]
    struct Load {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        version_and_flags: [u32; 2],
        name: [u8; 16],
        interface: u32,
        how: u32,
        debug_information: [u32; 8],
        line_count: u32,
        target: u32,
    }
    let instructions = program.code.instructions();
    let mut log = vec![0; 1 << 16];
    let mut load = Load {
        kind: PROG_TYPE_TRACING,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr().expose_provenance() as u64,
        license: c"Dual MIT/GPL".as_ptr().expose_provenance() as u64,
        how: program.how,
        target: program.target,
        ..Load::default()
    };
    let name = "rdmamr_".bytes().chain(program.name.bytes());
    for (to, from) in load.name[..15].iter_mut().zip(name) {
        *to = from;
    }
    // SAFETY: the structure is the one of BPF_PROG_LOAD, and its pointers lead to what outlives it.
    let mut loaded = unsafe { bpf(PROG_LOAD, &load) };
    if loaded.is_err() {
        (load.log_level, load.log_size) = (1, log.len() as u32);
        load.log = log.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: likewise, and the log has as many bytes.
        loaded = unsafe { bpf(PROG_LOAD, &load) };
    }
    let loaded = loaded.and_then(owned).map_err(|error| {
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.trim_end_matches(['\0', '\n']).lines().collect();
        match lines[lines.len().saturating_sub(5)..].join("\n  ") {
            said if said.is_empty() => reason(error),
            said => reason(error).context(format!("the kernel's verifier: {said}")),
        }
    });
    let loaded = loaded.with_context(|| format!("loading the program for {}", program.name))?;
    let open = [0, loaded.as_raw_fd() as u64];
    // SAFETY: the structure of BPF_RAW_TRACEPOINT_OPEN has no name, as the program has its target, and
    // the program's file.
    unsafe { bpf(RAW_TRACEPOINT_OPEN, &open) }
        .and_then(owned)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::E2BIG) => reason(error).context(
                "too many programs: processes hold those of 38 services that have ended, until they end",
            ),
            _ => reason(error),
        })
        .with_context(|| format!("attaching to {}", program.name))
}
