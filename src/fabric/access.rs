// SPDX-License-Identifier: MIT OR Apache-2.0
//! Translates the access bits of fi_mr_reg(3) into a device's access flags.

use super::errors::Result;
use super::refusals::UNKNOWN_ACCESS;
use rdmamr_abi::libfabric::*;
use rdmamr_mr::Access;

const LOCAL: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
const KNOWN: u64 = LOCAL | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// The device's access flags, for local and for remote access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Whether the process itself uses the memory.
    pub is_local: bool,
    pub local: Access,
    pub remote: Access,
}

/// The rights that a registration asks for.
///
/// Access that only reads the memory (FI_SEND, FI_WRITE) needs no flag, because a device may always
/// read registered memory. Read-only memory can therefore be registered, and no remote peer can
/// write to it. By contrast, libfabric's verbs provider with its cache gives every region every
/// right. With an access of 0, which the verbs provider accepts too, the region allows local reads
/// only. A device without atomic operations, which `granted` lacks, grants FI_REMOTE_WRITE without
/// them.
pub fn map(access: u64, iwarp: bool, granted: Access) -> Result<Rights> {
    let (local, remote) = flags_of(access, iwarp).ok_or(UNKNOWN_ACCESS)?;
    Ok(Rights {
        is_local: access & LOCAL != 0 || access == 0,
        local,
        remote: remote & granted,
    })
}

/// The flags for local access, and the flags for remote access. `None` if `access` has an unknown
/// bit.
#[inline(always)]
pub fn flags_of(access: u64, iwarp: bool) -> Option<(Access, Access)> {
    let (mut local, mut remote) = (Access::empty(), Access::empty());
    if access & (FI_RECV | FI_READ) != 0 {
        local |= Access::LOCAL_WRITE;
    }
    // An iWARP device answers a read by writes into the reader's tagged buffer (RFC 5040, 5.4).
    if access & FI_READ != 0 && iwarp {
        local |= Access::REMOTE_WRITE;
    }
    if access & FI_REMOTE_READ != 0 {
        remote |= Access::REMOTE_READ;
    }
    if access & FI_REMOTE_WRITE != 0 {
        remote |= Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    }
    (access & !KNOWN == 0).then_some((local, remote))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(access: u64, iwarp: bool) -> u32 {
        let rights = map(access, iwarp, Access::all()).unwrap();
        (rights.local | rights.remote).bits()
    }

    #[test]
    fn no_right_is_given_that_was_not_asked_for() {
        assert_eq!(mapped(0, true), 0);
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
        let map = |access| map(access, false, Access::all()).unwrap();
        let rights = map(FI_READ | FI_REMOTE_READ);
        assert_eq!((rights.local.bits(), rights.remote.bits()), (1, 4));
        assert!(rights.is_local);
        assert!(!map(FI_REMOTE_WRITE).is_local);
        assert!(map(FI_SEND).is_local);
        assert!(map(0).is_local);
    }

    #[test]
    fn a_device_without_atomic_operations_is_not_asked_for_them() {
        let granted = Access::all().difference(Access::REMOTE_ATOMIC);
        let rights = map(FI_REMOTE_WRITE | FI_REMOTE_READ, false, granted).unwrap();
        assert_eq!(rights.remote.bits(), 1 | 2 | 4);
    }

    #[test]
    fn unknown_bits_are_refused() {
        for bit in (0..64).filter(|bit| !(8..14).contains(bit)) {
            let rights = map(FI_SEND | 1 << bit, false, Access::all());
            assert!(rights.is_err(), "{bit}");
        }
    }
}
