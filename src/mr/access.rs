// SPDX-License-Identifier: MIT OR Apache-2.0
//! Access flags of a region, ibv_reg_mr(3), and the rules that the kernel has for them.
//! The kernel decides; what is here passes flags on unchanged and puts refusals in words.

use bitflags::bitflags;
use core::fmt;

bitflags! {
    /// Access flags as C passes them. Bits without a name are kept: the kernel judges them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Access: u32 {
        const LOCAL_WRITE = 1;
        const REMOTE_WRITE = 1 << 1;
        const REMOTE_READ = 1 << 2;
        const REMOTE_ATOMIC = 1 << 3;
        const MW_BIND = 1 << 4;
        const ZERO_BASED = 1 << 5;
        const ON_DEMAND = 1 << 6;
        const HUGETLB = 1 << 7;
        const FLUSH_GLOBAL = 1 << 8;
        const FLUSH_PERSISTENT = 1 << 9;
        const RELAXED_ORDERING = 1 << 20;
        /// Bits 20 to 29 ask for what a device may ignore. libibverbs clears the whole range on kernels
        /// before 5.6, which would refuse it.
        const OPTIONAL_RANGE = 0x3ff0_0000;
        const _ = !0;
    }
}

/// The flags of rdma-core 44, by their C names, for the comparison with its header.
#[cfg(test)]
pub const FLAGS: &[(&str, u32)] = &[
    ("IBV_ACCESS_LOCAL_WRITE", Access::LOCAL_WRITE.bits()),
    ("IBV_ACCESS_REMOTE_WRITE", Access::REMOTE_WRITE.bits()),
    ("IBV_ACCESS_REMOTE_READ", Access::REMOTE_READ.bits()),
    ("IBV_ACCESS_REMOTE_ATOMIC", Access::REMOTE_ATOMIC.bits()),
    ("IBV_ACCESS_MW_BIND", Access::MW_BIND.bits()),
    ("IBV_ACCESS_ZERO_BASED", Access::ZERO_BASED.bits()),
    ("IBV_ACCESS_ON_DEMAND", Access::ON_DEMAND.bits()),
    ("IBV_ACCESS_HUGETLB", Access::HUGETLB.bits()),
    (
        "IBV_ACCESS_RELAXED_ORDERING",
        Access::RELAXED_ORDERING.bits(),
    ),
    ("IBV_ACCESS_OPTIONAL_RANGE", Access::OPTIONAL_RANGE.bits()),
];

impl Access {
    /// What some kernel understands: every named flag and the whole optional range.
    const KNOWN: Access = Access::from_bits_retain(0x3ff | Access::OPTIONAL_RANGE.bits());

    /// Whether the region is paged on demand: nothing is pinned, and fork needs no care.
    pub const fn on_demand(self) -> bool {
        self.contains(Access::ON_DEMAND)
    }

    /// Whether a bit of the optional range is set.
    pub const fn has_optional(self) -> bool {
        self.intersects(Access::OPTIONAL_RANGE)
    }

    /// Whether the kernel pins the pages for writing (`ib_access_writable`, include/rdma/ib_verbs.h).
    pub const fn pins_for_writing(self) -> bool {
        self.intersects(
            Access::LOCAL_WRITE
                .union(Access::REMOTE_WRITE)
                .union(Access::REMOTE_ATOMIC)
                .union(Access::MW_BIND),
        )
    }

    /// Why no kernel would accept these flags (`ib_check_mr_access`, include/rdma/ib_verbs.h).
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

/// `local_write|remote_read`, and `0x...` for bits without a name.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: &[(Access, &str)] = &[
            (Access::LOCAL_WRITE, "local_write"),
            (Access::REMOTE_WRITE, "remote_write"),
            (Access::REMOTE_READ, "remote_read"),
            (Access::REMOTE_ATOMIC, "remote_atomic"),
            (Access::MW_BIND, "mw_bind"),
            (Access::ZERO_BASED, "zero_based"),
            (Access::ON_DEMAND, "on_demand"),
            (Access::HUGETLB, "hugetlb"),
            (Access::FLUSH_GLOBAL, "flush_global"),
            (Access::FLUSH_PERSISTENT, "flush_persistent"),
            (Access::RELAXED_ORDERING, "relaxed_ordering"),
        ];
        if self.is_empty() {
            return f.write_str("none");
        }
        let mut rest = *self;
        let mut separator = "";
        for &(flag, name) in NAMES {
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
