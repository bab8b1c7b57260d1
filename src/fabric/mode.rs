// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules on which the application and the library agree when a domain is opened.

use super::errors::{Result, ensure};
use super::refusals::*;
use rdmamr_abi::libfabric::*;

/// The rules of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The version of the interface for which the application was written.
    pub api_version: u32,
    /// The device chooses the keys; else the application does.
    pub provider_keys: bool,
    /// Remote peers name a byte by its virtual address; else by its offset.
    pub virtual_addresses: bool,
    /// Remote peers receive raw keys.
    pub raw: bool,
    /// The device pages memory on demand.
    pub on_demand: bool,
    /// The cache may serve regions.
    pub cached: bool,
    /// The largest key that the application may choose.
    pub last_key: u64,
    /// As before libfabric 1.0, a requested key and an offset count only with their flags.
    pub by_flags: bool,
}

impl Mode {
    /// Translates libfabric's `mr_mode`.
    pub fn agreed(api_version: u32, mr_mode: i32) -> Result<Mode> {
        const KNOWN: i32 =
            FI_MR_LOCAL | FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        let bits = match mr_mode {
            FI_MR_BASIC => FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY,
            FI_MR_SCALABLE => 0,
            bits => bits,
        };
        ensure(bits & !KNOWN == 0, UNKNOWN_MR_MODE)?;
        let (provider_keys, virtual_addresses) =
            (bits & FI_MR_PROV_KEY != 0, bits & FI_MR_VIRT_ADDR != 0);
        ensure(!provider_keys || virtual_addresses, KEYS_NEED_ADDRESSES)?;
        Ok(Mode {
            api_version,
            provider_keys,
            virtual_addresses,
            raw: bits & FI_MR_RAW != 0,
            on_demand: false,
            cached: false,
            // The next value is FI_KEY_NOTAVAIL, which is not a key.
            last_key: FI_KEY_NOTAVAIL - 1,
            by_flags: false,
        })
    }

    /// Limits the application's keys to a number of bytes, 1 to 8; 0 means 8.
    pub fn with_key_size(self, bytes: usize) -> Result<Mode> {
        let last_key = match bytes {
            0 | 8 => FI_KEY_NOTAVAIL - 1,
            1..8 => (1 << (8 * bytes)) - 1,
            _ => return Err(KEY_SIZE.into()),
        };
        Ok(Mode { last_key, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_bytes_that_were_agreed() {
        let mode = Mode::agreed(0, FI_MR_SCALABLE).unwrap();
        let last_key = |bytes| mode.with_key_size(bytes).map(|mode| mode.last_key).ok();
        assert_eq!(last_key(1), Some(0xff));
        assert_eq!(last_key(4), Some(0xffff_ffff));
        // The next value is FI_KEY_NOTAVAIL.
        assert_eq!(
            (last_key(8), last_key(0)),
            (Some(u64::MAX - 1), Some(u64::MAX - 1))
        );
        assert_eq!(last_key(9), None);
    }
}
