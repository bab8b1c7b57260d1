// SPDX-License-Identifier: MIT OR Apache-2.0
//! Access flags of a region, ibv_reg_mr(3), and the kernel's rules for them. The kernel decides:
//! this file forwards flags unchanged and puts refusals in words.

use super::devices::most_of;
use bitflags::bitflags;
use core::fmt;
use rdmamr_abi::names;
use rdmamr_abi::rdma_core::*;
use rdmamr_config::disabled;
use rdmamr_next::Pd;
use rdmamr_sys::thread::keep_errno;

bitflags! {
    /// Access flags as C passes them. Unnamed bits are kept, and the kernel judges them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Access: u32 {
        const LOCAL_WRITE = IBV_ACCESS_LOCAL_WRITE;
        const REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE;
        const REMOTE_READ = IBV_ACCESS_REMOTE_READ;
        const REMOTE_ATOMIC = IBV_ACCESS_REMOTE_ATOMIC;
        const MW_BIND = IBV_ACCESS_MW_BIND;
        const ON_DEMAND = IBV_ACCESS_ON_DEMAND;
        const HUGETLB = IBV_ACCESS_HUGETLB;
        const FLUSH_GLOBAL = IBV_ACCESS_FLUSH_GLOBAL;
        const FLUSH_PERSISTENT = IBV_ACCESS_FLUSH_PERSISTENT;
        const RELAXED_ORDERING = IBV_ACCESS_RELAXED_ORDERING;
        /// Bits 20 to 29 ask for features that a device may ignore. Kernels before 5.6 would refuse
        /// these bits, so libibverbs clears the whole range there.
        const OPTIONAL_RANGE = IBV_ACCESS_OPTIONAL_RANGE;
        const _ = !0;
    }
}

impl Access {
    /// The flags that some kernel understands: every named flag and the whole optional range.
    const KNOWN: Access = Access::from_bits_retain(0x3ff | Access::OPTIONAL_RANGE.bits());

    /// The flags that the domain's device can grant. EFA, which has no atomic operations, refuses
    /// their flag. If the kernel does not tell, the device counts as able. Leaves errno as it was.
    pub fn granted_by(pd: Pd) -> Access {
        let most = || most_of(pd.device()?);
        if disabled() || keep_errno(most).is_none_or(|most| most.atomics) {
            Access::all()
        } else {
            Access::all().difference(Access::REMOTE_ATOMIC)
        }
    }

    /// Whether the region is paged on demand. The kernel pins none of its pages, and fork needs no
    /// care.
    pub const fn on_demand(self) -> bool {
        self.contains(Access::ON_DEMAND)
    }

    /// Without the hints that the kernel takes for memory and refuses for a dma-buf
    /// (`UVERBS_METHOD_REG_DMABUF_MR`, uverbs_std_types_mr.c).
    pub const fn of_dmabuf(self) -> Access {
        let hints = Access::OPTIONAL_RANGE
            .difference(Access::RELAXED_ORDERING)
            .union(Access::HUGETLB);
        self.difference(hints)
    }

    /// Whether the kernel pins the pages for writing (`ib_access_writable`,
    /// include/rdma/ib_verbs.h).
    pub const fn pins_for_writing(self) -> bool {
        self.intersects(
            Access::LOCAL_WRITE
                .union(Access::REMOTE_WRITE)
                .union(Access::REMOTE_ATOMIC)
                .union(Access::MW_BIND),
        )
    }

    /// The reason why no kernel would accept these flags (`ib_check_mr_access`,
    /// include/rdma/ib_verbs.h). `None` if a kernel may.
    pub const fn refusal(self) -> Option<&'static str> {
        if self.intersects(Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC))
            && !self.contains(Access::LOCAL_WRITE)
        {
            return Some("remote write and remote atomic need local write as well");
        }
        if !Access::KNOWN.contains(self) {
            return Some("the access flags hold a bit that no kernel knows");
        }
        None
    }
}

/// Writes `local_write|remote_read`, and `0x...` for unnamed bits.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let mut rest = *self;
        let mut separator = "";
        for &(flag, name) in names::ACCESS {
            let flag = Access::from_bits_retain(flag);
            if rest.contains(flag) {
                write!(f, "{separator}{name}")?;
                separator = "|";
                rest.remove(flag);
            }
        }
        if !rest.is_empty() {
            write!(f, "{separator}{:#x}", rest.bits())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Access;

    #[test]
    fn bits_without_a_name_survive() {
        for bits in [1u32 << 10, 1 << 31, 0x3ff0_0000, u32::MAX] {
            assert_eq!(Access::from_bits_retain(bits).bits(), bits);
        }
    }

    #[test]
    fn refusals_are_the_kernels() {
        let refused = |bits| Access::from_bits_retain(bits).refusal().is_some();
        assert!(refused(2) && refused(8) && refused(2 | 4));
        assert!(!refused(0) && !refused(1) && !refused(3) && !refused(4) && !refused(0x10));
        assert!(refused(1 << 10) && refused(1 << 19) && refused(1 << 30));
        assert!(!refused(1 << 20) && !refused(1 << 29));
    }

    #[test]
    fn words() {
        assert_eq!(Access::from_bits_retain(0).to_string(), "none");
        assert_eq!(
            Access::from_bits_retain(5).to_string(),
            "local_write|remote_read"
        );
        assert_eq!(
            Access::from_bits_retain(1 | 1 << 21).to_string(),
            "local_write|0x200000"
        );
    }
}
