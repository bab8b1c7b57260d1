// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the access bits of fi_mr_reg(3) mean to a device.

use super::errors::{Failure, invalid};
use crate::abi::libfabric::*;
use crate::mr::Access;

/// The device's access flags, for the process itself and for its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Whether the process itself uses the memory.
    pub is_local: bool,
    pub local: Access,
    pub remote: Access,
}

/// The rights that a registration asks for.
///
/// What is only read from (FI_SEND, FI_WRITE) asks for nothing, so that read-only memory can be
/// registered and no peer can write to it: a device may always read what is registered. libfabric's verbs
/// provider with its cache gives every region every right.
pub fn map(access: u64, iwarp: bool) -> Result<Rights, Failure> {
    const LOCAL: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
    const KNOWN: u64 = LOCAL | FI_REMOTE_READ | FI_REMOTE_WRITE;
    if access & !KNOWN != 0 {
        return Err(invalid(
            "the access holds a bit that fi_mr(3) does not know",
        ));
    }
    if access == 0 {
        return Err(invalid("the access is 0"));
    }
    let (mut local, mut remote) = (Access::empty(), Access::empty());
    if access & (FI_RECV | FI_READ) != 0 {
        local |= Access::LOCAL_WRITE;
    }
    // An iWARP read is answered by writes into the tagged buffer of whoever reads (RFC 5040, 5.4).
    if access & FI_READ != 0 && iwarp {
        local |= Access::REMOTE_WRITE;
    }
    if access & FI_REMOTE_READ != 0 {
        remote |= Access::REMOTE_READ;
    }
    if access & FI_REMOTE_WRITE != 0 {
        remote |= Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    }
    Ok(Rights {
        is_local: access & LOCAL != 0,
        local,
        remote,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(access: u64, iwarp: bool) -> u32 {
        let rights = map(access, iwarp).unwrap();
        (rights.local | rights.remote).bits()
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
    fn sides_are_kept_apart() {
        let rights = map(FI_READ | FI_REMOTE_READ, false).unwrap();
        assert_eq!((rights.local.bits(), rights.remote.bits()), (1, 4));
        assert!(rights.is_local);
        assert!(!map(FI_REMOTE_WRITE, false).unwrap().is_local);
        assert!(map(FI_SEND, false).unwrap().is_local);
    }

    #[test]
    fn nothing_and_unknown_bits_are_refused() {
        assert!(map(0, false).is_err());
        for bit in (0..64).filter(|bit| !(8..14).contains(bit)) {
            assert!(map(FI_SEND | 1 << bit, false).is_err(), "{bit}");
        }
    }
}
