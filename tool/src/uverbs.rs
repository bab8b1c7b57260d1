// SPDX-License-Identifier: MIT OR Apache-2.0
//! How the library asks the kernel about a device, and its table of drivers: its own files, so that the doctor
//! says what the library will do.

#[path = "../../src/uverbs/bundle.rs"]
#[allow(dead_code, reason = "the library needs more of it")]
pub mod bundle;
#[path = "../../src/uverbs/context.rs"]
#[allow(dead_code, reason = "the library needs more of it")]
pub mod context;
#[path = "../../src/uverbs/driver.rs"]
pub mod driver;
#[path = "../../src/uverbs/kernel.rs"]
#[allow(dead_code, reason = "the library needs more of it")]
pub mod kernel;
#[cfg(test)]
#[path = "../../src/uverbs/scripted.rs"]
#[allow(dead_code, reason = "the library's tests need more of it")]
mod scripted;
