// SPDX-License-Identifier: MIT OR Apache-2.0
//! What NVIDIA's library says of each GPU. It opens devices, makes threads and may hang on a broken
//! GPU, so a child process asks it, for a limited time.

use crate::verbs::Loaded;
use serde::{Deserialize, Serialize};
use std::env;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::io::Read;
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
    /// As sysfs writes it: "0000:17:00.0".
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
    let words: Vec<_> = env::args_os().skip(1).collect();
    (words == [COMMAND]).then(|| {
        println!("{}", serde_json::to_string(&gpus())?);
        Ok(())
    })
}

/// Asks by a child.
pub fn ask() -> Answer {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let child = Command::new(program)
        .arg(COMMAND)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(|error| error.to_string())?;
    let mut answers = child.stdout.take().ok_or("a process without its pipe")?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = answers.read_to_string(&mut text);
        let _ = sender.send(text);
    });
    let Ok(text) = receiver.recv_timeout(LIMIT) else {
        // A child that hangs in the kernel does not even end by SIGKILL, so nobody waits for it.
        let _ = child.kill();
        return Err(format!("it did not answer within {} s", LIMIT.as_secs()));
    };
    let status = child.wait().map_err(|error| error.to_string())?;
    serde_json::from_str(&text)
        .unwrap_or_else(|_| Err(format!("the process that asked it ended: {status}")))
}

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
const DMA_BUF_SUPPORTED: c_int = 124;
/// "00000000:17:00.0" and its NUL.
const ADDRESS: usize = 32;

fn gpus() -> Answer {
    let library = Loaded::open(c"libcuda.so.1").map_err(|_| "libcuda.so.1 is not installed")?;
    macro_rules! function {
        ($name:literal, $($argument:ty),+) => {
            // SAFETY: cuda.h declares the function so.
            unsafe { library.function::<unsafe extern "C" fn($($argument),+) -> c_int>($name) }
                .ok_or_else(|| format!("it has no {}", $name.to_string_lossy()))
        };
    }
    let done = |name: &str, status: c_int| match status {
        0 => Ok(()),
        status => Err(format!("{name}: error {status}")),
    };
    let init = function!(c"cuInit", c_uint)?;
    // SAFETY: the call takes no memory of ours.
    done("cuInit", unsafe { init(0) })?;
    let count = function!(c"cuDeviceGetCount", *mut c_int)?;
    let get = function!(c"cuDeviceGet", *mut c_int, c_int)?;
    let attribute = function!(c"cuDeviceGetAttribute", *mut c_int, c_int, c_int)?;
    let address = function!(c"cuDeviceGetPCIBusId", *mut c_char, c_int, c_int)?;
    let memory = function!(c"cuDeviceTotalMem_v2", *mut usize, c_int);
    let mut number = 0;
    // SAFETY: the number is writable.
    done("cuDeviceGetCount", unsafe { count(&raw mut number) })?;
    let gpu = |ordinal| {
        let (mut device, mut has_dma_buf, mut bytes) = (0, 0, 0);
        let mut text: [c_char; ADDRESS] = [0; ADDRESS];
        // SAFETY: the device is writable.
        let got = unsafe { get(&raw mut device, ordinal) };
        // SAFETY: the call writes at most as many characters as it is told, with a NUL.
        let named = unsafe { address(text.as_mut_ptr(), ADDRESS as c_int, device) };
        done("cuDeviceGetPCIBusId", got.max(named))?;
        // SAFETY: the value is writable. A driver that does not know the attribute refuses it.
        let known = unsafe { attribute(&raw mut has_dma_buf, DMA_BUF_SUPPORTED, device) };
        if let Ok(memory) = &memory {
            // SAFETY: the size is writable.
            unsafe { memory(&raw mut bytes, device) };
        }
        // SAFETY: the array ends with a NUL, since its last element is one.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Ok(Asked {
            address: address_of_sysfs(&text.to_string_lossy()),
            has_dma_buf: known == 0 && has_dma_buf == 1,
            memory: bytes as u64,
        })
    };
    (0..number).map(gpu).collect()
}

/// CUDA writes hexadecimal digits in capitals, and older versions eight for the domain.
fn address_of_sysfs(address: &str) -> String {
    let address = address.to_lowercase();
    match address.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 => {
            let zeros = domain.len() - 4;
            match domain[..zeros].bytes().all(|digit| digit == b'0') {
                true => format!("{}:{rest}", &domain[zeros..]),
                false => address,
            }
        }
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_in_sysfs() {
        assert_eq!(address_of_sysfs("0000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(address_of_sysfs("00000000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(address_of_sysfs("00010000:1b:00.0"), "00010000:1b:00.0");
    }
}
