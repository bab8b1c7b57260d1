// SPDX-License-Identifier: MIT OR Apache-2.0
//! What NVIDIA's library says of each GPU. It opens devices, makes threads and may hang on a broken
//! GPU, so a child process asks it, for a limited time.

use crate::style;
use crate::verbs::Loaded;
use serde::{Deserialize, Serialize};
use std::env;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The hidden command of the child, absent from help and completions.
const COMMAND: &str = "gpu-child";
/// A machine with eight GPUs that nobody uses takes seconds to answer.
const LIMIT: Duration = Duration::from_secs(20);

/// A GPU as the library sees it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    /// As sysfs writes it, "0000:17:00.0"; older versions have eight digits for the domain.
    pub address: String,
    pub has_dma_buf: bool,
    /// In bytes; 0 if the library does not tell.
    pub memory: u64,
}

/// The GPUs, or why the library does not answer.
pub type Answer = Result<Vec<Asked>, String>;

/// Answers for a parent that has started this process by the hidden command. `None` if there is no
/// such parent.
pub fn as_child() -> Option<anyhow::Result<()>> {
    env::args_os().skip(1).eq([COMMAND]).then(|| {
        // The parent gives up earlier.
        // SAFETY: alarm has no preconditions. Nobody handles the signal: this process ends.
        unsafe { libc::alarm(LIMIT.as_secs() as u32 + 1) };
        style::print(&(serde_json::to_string(&gpus())? + "\n"))
    })
}

/// Asks by a child.
pub fn ask() -> Answer {
    let (sender, receiver) = mpsc::channel();
    // A child that hangs in the kernel does not even end by a signal, so nobody waits for it.
    std::thread::spawn(move || {
        let output = env::current_exe().and_then(|program| {
            let mut child = Command::new(program);
            child.arg(COMMAND).env_remove("LD_PRELOAD");
            child.stdin(Stdio::null()).stderr(Stdio::null()).output()
        });
        let _ = sender.send(output);
    });
    match receiver.recv_timeout(LIMIT) {
        Ok(Ok(output)) => serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
            let status = output.status;
            Err(format!("the process that asked it ended: {status}"))
        }),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("it did not answer within {} s", LIMIT.as_secs())),
    }
}

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
const DMA_BUF_SUPPORTED: c_int = 124;
/// "00000000:17:00.0" and its NUL.
const ADDRESS: usize = 32;

fn gpus() -> Answer {
    let library = Loaded::open(c"libcuda.so.1").map_err(|_| "libcuda.so.1 is not installed")?;
    macro_rules! call {
        ($name:literal, $($value:expr => $type:ty),+) => {{
            // SAFETY: cuda.h declares the function so.
            let function = unsafe { library.function::<unsafe extern "C" fn($($type),+) -> c_int>($name) };
            let function = function.map_err(|error| error.to_string())?;
            // SAFETY: what the call writes to is writable, and it is told how much that is.
            match unsafe { function($($value),+) } {
                0 => Ok(()),
                status => Err(format!("{}: error {status}", $name.to_string_lossy())),
            }
        }};
    }
    let (mut number, mut gpus) = (0, Vec::new());
    call!(c"cuInit", 0 => c_uint)?;
    call!(c"cuDeviceGetCount", &raw mut number => *mut c_int)?;
    for ordinal in 0..number {
        let (mut device, mut has_dma_buf, mut memory) = (0, 0, 0);
        let mut text: [c_char; ADDRESS] = [0; ADDRESS];
        call!(c"cuDeviceGet", &raw mut device => *mut c_int, ordinal => c_int)?;
        call!(c"cuDeviceGetPCIBusId", text.as_mut_ptr() => *mut c_char, ADDRESS as c_int => c_int, device => c_int)?;
        // A driver that does not know the attribute refuses it.
        let known = call!(c"cuDeviceGetAttribute", &raw mut has_dma_buf => *mut c_int, DMA_BUF_SUPPORTED => c_int, device => c_int);
        let _: Result<(), String> =
            call!(c"cuDeviceTotalMem_v2", &raw mut memory => *mut usize, device => c_int);
        // SAFETY: the array ends with a NUL, since its last element is one.
        let address = unsafe { CStr::from_ptr(text.as_ptr()) };
        gpus.push(Asked {
            address: address.to_string_lossy().to_lowercase(),
            has_dma_buf: known.is_ok() && has_dma_buf == 1,
            memory: memory as u64,
        });
    }
    Ok(gpus)
}
