// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of the errors that a registration may return.

use rdmamr_abi::names::ERRNOS;

pub fn name(errno: u16) -> String {
    match ERRNOS.iter().find(|row| row.0 == i32::from(errno)) {
        Some(row) => row.1.to_string(),
        None => format!("errno {errno}"),
    }
}
