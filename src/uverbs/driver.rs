// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver table: what each kernel driver wants beside the core's registration command, and
//! which registrations rdma-core makes. Each driver has one row; adding a row adds the driver.

use rdmamr_abi::uapi::*;

/// The library that registers memory on a driver's devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// This library, by the core's own command.
    Direct,
    /// This library, unless the address is null or the length is 0: then rdma-core's provider
    /// answers by itself.
    DirectUnlessEmpty,
    /// rdma-core.
    Forward,
}

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Driver {
    /// The kernel's number for the driver, `enum rdma_driver_id`.
    pub id: u32,
    /// The driver's name in rdma-core.
    pub name: &'static str,
    /// The size of the private input, all zeros. At most eight bytes, so that it fits in the
    /// attribute.
    pub private_in: u16,
    /// The size of the private output, which this library does not use.
    pub private_out: u16,
    /// The library that registers.
    pub way: Way,
    /// The errnos of its refusals.
    pub says: Says,
    /// Why the row is as it is.
    pub why: &'static str,
}

impl Driver {
    /// Whether a queue's memory is the program's, which the kernel pins (`ib_umem_get`). These
    /// drivers allocate it in the kernel (hw/*, sw/*, sw/rdmavt: `vmalloc_user`, `dma_alloc_coherent`).
    pub fn pins_queues(&self) -> bool {
        let kernels = ["rxe", "siw", "efa", "hfi1", "qib", "cxgb4", "ocrdma"];
        !kernels.contains(&self.name)
    }
}

/// The errnos by which a driver refuses a registration. Where its releases differ, the row has the
/// errno that is not the core's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Says {
    /// The device has no key left.
    pub full: i32,
    /// The memory would exceed RLIMIT_MEMLOCK.
    pub over_limit: i32,
    /// The memory is not mapped, or not with the rights that the access flags need.
    pub unmapped: i32,
}

/// The answers of `ib_umem_get`, handed on (drivers/infiniband/core/umem.c).
pub const CORE_SAYS: Says = Says {
    full: libc::ENOMEM,
    over_limit: libc::ENOMEM,
    unmapped: libc::EFAULT,
};

impl Says {
    const fn full(self, full: i32) -> Says {
        Says { full, ..self }
    }

    const fn over_limit(self, over_limit: i32) -> Says {
        Says { over_limit, ..self }
    }

    const fn unmapped(self, unmapped: i32) -> Says {
        Says { unmapped, ..self }
    }
}

const fn direct(id: u32, name: &'static str, why: &'static str) -> Driver {
    Driver {
        id,
        name,
        private_in: 0,
        private_out: 0,
        way: Way::Direct,
        says: CORE_SAYS,
        why,
    }
}

/// drivers/infiniband/sw/rxe/rxe_pool.c: `__rxe_add_to_pool` returns EINVAL if all keys are in use;
/// in Linux 6.1 ENOMEM.
const RXE_SAYS: Says = CORE_SAYS.full(libc::EINVAL);

/// drivers/infiniband/hw/bnxt_re: `bnxt_qplib_rcfw_send_message` returns EIO for whatever the
/// firmware refuses, and `bnxt_re_reg_user_mr` of Linux 6.1 EFAULT for whatever `ib_umem_get` does.
const BNXT_RE_SAYS: Says = CORE_SAYS.full(libc::EIO).over_limit(libc::EFAULT);

/// drivers/infiniband/hw/qedr/verbs.c: `qedr_reg_user_mr` returns EFAULT for whatever `ib_umem_get`
/// does, and EINVAL if the device is "Out of MR resources".
const QEDR_SAYS: Says = CORE_SAYS.full(libc::EINVAL).over_limit(libc::EFAULT);

/// drivers/infiniband/hw/ocrdma: `ocrdma_reg_user_mr` returns EFAULT for whatever `ib_umem_get` does,
/// and `ocrdma_get_mbx_errno` EAGAIN if the firmware is out of resources.
const OCRDMA_SAYS: Says = CORE_SAYS.full(libc::EAGAIN).over_limit(libc::EFAULT);

/// drivers/infiniband/hw/mana/mr.c: `mana_ib_gd_create_mr` returns EPROTO for whatever the firmware
/// refuses.
const MANA_SAYS: Says = CORE_SAYS.full(libc::EPROTO);

/// drivers/infiniband/hw/vmw_pvrdma/pvrdma_cmd.c: `pvrdma_cmd_post` returns EFAULT for whatever the
/// hypervisor refuses.
const PVRDMA_SAYS: Says = CORE_SAYS.full(libc::EFAULT);

/// `hns_roce_mr.c` (`hns_roce_mtr_create`) and cxgb4's `mem.c` (`c4iw_reg_user_mr`) return ENOMEM
/// for whatever `ib_umem_get` does.
const UMEM_IS_ENOMEM: Says = CORE_SAYS.unmapped(libc::ENOMEM);

/// erdma (`erdma_alloc_idx`) and ionic (`ida_alloc_range`) count keys in a bitmap.
const FULL_IS_ENOSPC: Says = CORE_SAYS.full(libc::ENOSPC);

/// All drivers, the most common first: each context's device is probed once, in this order.
#[rustfmt::skip]
pub const DRIVERS: &[Driver] = &[
    direct(RDMA_DRIVER_MLX5, "mlx5", "the provider adds nothing to the core's command"),
    Driver { says: RXE_SAYS, ..direct(RDMA_DRIVER_RXE, "rxe", "the provider adds nothing to the core's command") },
    direct(RDMA_DRIVER_EFA, "efa", "the provider adds nothing, and the kernel refuses private bytes that are not zero"),
    Driver { private_in: 8, ..direct(RDMA_DRIVER_IRDMA, "irdma", "irdma_mem_reg_req, type 0: user memory; EINVAL without it") },
    Driver { says: BNXT_RE_SAYS, ..direct(RDMA_DRIVER_BNXT_RE, "bnxt_re", "the provider adds nothing, and kernels from 7.2 refuse private bytes that are not zero") },
    direct(RDMA_DRIVER_MLX4, "mlx4", "the provider adds nothing to the core's command"),
    Driver { way: Way::DirectUnlessEmpty, says: UMEM_IS_ENOMEM, ..direct(RDMA_DRIVER_HNS, "hns", "the provider refuses a null address and a length of 0 without asking the kernel") },
    Driver { says: FULL_IS_ENOSPC, ..direct(RDMA_DRIVER_ERDMA, "erdma", "the provider adds nothing to the core's command") },
    Driver { says: MANA_SAYS, ..direct(RDMA_DRIVER_MANA, "mana", "the provider adds nothing to the core's command") },
    Driver { says: FULL_IS_ENOSPC, ..direct(RDMA_DRIVER_IONIC, "ionic", "the provider adds nothing to the core's command") },
    Driver { private_in: 8, private_out: 8, ..direct(RDMA_DRIVER_SIW, "siw", "siw_ureq_reg_mr and siw_uresp_reg_mr; EINVAL without them") },
    Driver { says: QEDR_SAYS, ..direct(RDMA_DRIVER_QEDR, "qedr", "the provider adds nothing to the core's command") },
    Driver { says: UMEM_IS_ENOMEM, ..direct(RDMA_DRIVER_CXGB4, "cxgb4", "the provider adds nothing; its own table of regions is never read") },
    direct(RDMA_DRIVER_HFI1, "hfi1", "the provider adds nothing to the core's command"),
    direct(RDMA_DRIVER_QIB, "qib", "the provider adds nothing to the core's command"),
    Driver { says: PVRDMA_SAYS, ..direct(RDMA_DRIVER_VMW_PVRDMA, "vmw_pvrdma", "the provider adds nothing to the core's command") },
    Driver { says: OCRDMA_SAYS, ..direct(RDMA_DRIVER_OCRDMA, "ocrdma", "the provider adds nothing to the core's command") },
    Driver { private_in: 8, ..direct(RDMA_DRIVER_MTHCA, "mthca", "mthca_reg_mr, no attributes; the kernel logs a warning without it") },
    Driver { way: Way::Forward, ..direct(RDMA_DRIVER_CXGB3, "cxgb3", "rdma-core has dropped its provider: nothing to be equal to") },
    Driver { way: Way::Forward, ..direct(RDMA_DRIVER_NES, "nes", "rdma-core has dropped its provider: nothing to be equal to") },
    Driver { way: Way::Forward, ..direct(RDMA_DRIVER_USNIC, "usnic", "rdma-core has no provider for it") },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_one_row() {
        let mut ids: Vec<u32> = DRIVERS.iter().map(|driver| driver.id).collect();
        ids.sort();
        assert_eq!(
            ids,
            (RDMA_DRIVER_MLX5..=RDMA_DRIVER_IONIC).collect::<Vec<_>>()
        );
    }

    #[test]
    fn rdma_core_registers_where_it_has_no_provider_and_where_hns_is_asked_for_nothing() {
        let by = |way: Way| -> Vec<&str> {
            let of_way = DRIVERS.iter().filter(|driver| driver.way == way);
            of_way.map(|driver| driver.name).collect()
        };
        assert_eq!(by(Way::Forward), ["cxgb3", "nes", "usnic"]);
        assert_eq!(by(Way::DirectUnlessEmpty), ["hns"]);
    }

    #[test]
    fn private_bytes_fit_into_the_attribute() {
        for driver in DRIVERS {
            assert!(
                driver.private_in <= 8 && driver.private_out <= 8,
                "{}",
                driver.name
            );
            assert!(
                driver.private_in % 4 == 0 && driver.private_out % 4 == 0,
                "{}",
                driver.name
            );
        }
    }
}
