// SPDX-License-Identifier: MIT OR Apache-2.0
//! A limit, and how much of it is used.

use crate::report::units;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Limit {
    /// RLIMIT_MEMLOCK; memory.max, hca_object and mr_mem of a control group; max_mr of a device.
    pub name: Cow<'static, str>,
    /// The device, if the limit is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Whether both numbers are bytes.
    pub bytes: bool,
    pub used: u64,
    pub most: u64,
}

impl Limit {
    /// A limit on memory.
    pub fn of_bytes(name: &'static str, used: u64, most: u64) -> Limit {
        Limit {
            name: name.into(),
            device: None,
            bytes: true,
            used,
            most,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |number: u64| match self.bytes {
            true => units::bytes(number),
            false => number.to_string(),
        };
        write!(f, "{} of {}", words(self.used), words(self.most))
    }
}
