// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver table: what each kernel driver wants beside the core's registration command, and which
//! registrations are left to rdma-core. One row a driver; adding a row adds the driver.

use crate::abi::uapi::*;

/// Who registers memory on a driver's devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// We do, by the core's own command.
    Own,
    /// We do, but rdma-core's provider answers a null address or a length of 0 by itself.
    OwnUnlessEmpty,
    /// rdma-core does.
    PassOn,
}

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Driver {
    /// The kernel's number for it, `enum rdma_driver_id`.
    pub id: u32,
    /// Its name in rdma-core.
    pub name: &'static str,
    /// Private bytes that go in, all zero. At most eight, so that they travel inside the attribute.
    pub private_in: u16,
    /// Private bytes that come out, and are of no use to us.
    pub private_out: u16,
    /// Who registers.
    pub way: Way,
    /// Why the row is as it is.
    pub why: &'static str,
}

const fn own(id: u32, name: &'static str, why: &'static str) -> Driver {
    Driver {
        id,
        name,
        private_in: 0,
        private_out: 0,
        way: Way::Own,
        why,
    }
}

/// All drivers, those that are met most often first: a device is asked in this order, once a context.
#[rustfmt::skip]
pub const DRIVERS: &[Driver] = &[
    own(RDMA_DRIVER_MLX5, "mlx5", "the provider adds nothing to the core's command"),
    own(RDMA_DRIVER_RXE, "rxe", "the provider adds nothing to the core's command"),
    own(RDMA_DRIVER_EFA, "efa", "the provider adds nothing, and the kernel refuses private bytes"),
    Driver { private_in: 8, ..own(RDMA_DRIVER_IRDMA, "irdma", "irdma_mem_reg_req, type 0: user memory; EINVAL without it") },
    own(RDMA_DRIVER_BNXT_RE, "bnxt_re", "the provider adds nothing to the core's command"),
    own(RDMA_DRIVER_MLX4, "mlx4", "the provider adds nothing to the core's command"),
    Driver { way: Way::OwnUnlessEmpty, ..own(RDMA_DRIVER_HNS, "hns", "the provider refuses a null address and a length of 0 without asking the kernel") },
    own(RDMA_DRIVER_ERDMA, "erdma", "the provider adds nothing to the core's command"),
    own(RDMA_DRIVER_MANA, "mana", "the provider adds nothing to the core's command"),
    own(RDMA_DRIVER_IONIC, "ionic", "the provider adds nothing to the core's command"),
    Driver { private_in: 8, private_out: 8, ..own(RDMA_DRIVER_SIW, "siw", "siw_ureq_reg_mr and siw_uresp_reg_mr; EINVAL without them") },
    own(RDMA_DRIVER_QEDR, "qedr", "the provider adds nothing to the core's command"),
    own(RDMA_DRIVER_CXGB4, "cxgb4", "the provider adds nothing; its own table of regions is never read"),
    own(RDMA_DRIVER_HFI1, "hfi1", "the provider adds nothing to the core's command"),
    own(RDMA_DRIVER_QIB, "qib", "the provider adds nothing to the core's command"),
    own(RDMA_DRIVER_VMW_PVRDMA, "vmw_pvrdma", "the provider adds nothing to the core's command"),
    own(RDMA_DRIVER_OCRDMA, "ocrdma", "the provider adds nothing to the core's command"),
    Driver { private_in: 8, ..own(RDMA_DRIVER_MTHCA, "mthca", "mthca_reg_mr, no attributes; the kernel logs a warning without it") },
    Driver { way: Way::PassOn, ..own(RDMA_DRIVER_CXGB3, "cxgb3", "rdma-core has dropped its provider: nothing to be equal to") },
    Driver { way: Way::PassOn, ..own(RDMA_DRIVER_NES, "nes", "rdma-core has dropped its provider: nothing to be equal to") },
    Driver { way: Way::PassOn, ..own(RDMA_DRIVER_USNIC, "usnic", "rdma-core has no provider for it") },
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
