// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the access bits of fi_mr_reg(3) mean to a device.

use super::errors::{Failure, invalid};
use crate::abi::libfabric::*;
use crate::mr::Access;

/// The device's access flags for a registration.
///
/// What is only read from (FI_SEND, FI_WRITE) asks for nothing, so that read-only memory can be
/// registered and no peer can write to it: a device may always read what is registered. libfabric's verbs
/// provider with its cache gives every region every right.
pub fn map(access: u64, iwarp: bool) -> Result<Access, Failure> {
    const KNOWN: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    if access & !KNOWN != 0 {
        return Err(invalid(
            "the access holds a bit that fi_mr(3) does not know",
        ));
    }
    if access == 0 {
        return Err(invalid("the access is 0"));
    }
    let mut flags = Access::empty();
    if access & (FI_RECV | FI_READ) != 0 {
        flags |= Access::LOCAL_WRITE;
    }
    // An iWARP read is answered by writes into the tagged buffer of whoever reads (RFC 5040, 5.4).
    if access & FI_READ != 0 && iwarp {
        flags |= Access::REMOTE_WRITE;
    }
    if access & FI_REMOTE_READ != 0 {
        flags |= Access::REMOTE_READ;
    }
    if access & FI_REMOTE_WRITE != 0 {
        flags |= Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(access: u64, iwarp: bool) -> u32 {
        map(access, iwarp).unwrap().bits()
    }

    #[test]
    fn no_right_is_given_that_was_not_asked_for() {
        assert_eq!(mapped(FI_SEND, false), 0);
        assert_eq!(mapped(FI_WRITE, true), 0);
        assert_eq!(mapped(FI_RECV, false), 1);
        assert_eq!(mapped(FI_READ, false), 1);
        assert_eq!(mapped(FI_READ, true), 1 | 2);
        assert_eq!(mapped(FI_REMOTE_READ, false), 4);
        assert_eq!(mapped(FI_REMOTE_WRITE, false), 1 | 2 | 8);
        assert_eq!(mapped(0x3f00, false), 15);
    }

    #[test]
    fn nothing_and_unknown_bits_are_refused() {
        assert!(map(0, false).is_err());
        for bit in (0..64).filter(|bit| !(8..14).contains(bit)) {
            assert!(map(FI_SEND | 1 << bit, false).is_err(), "{bit}");
        }
    }
}
