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
    /// Why the row is as it is.
    pub why: &'static str,
}

const fn direct(id: u32, name: &'static str, why: &'static str) -> Driver {
    Driver {
        id,
        name,
        private_in: 0,
        private_out: 0,
        way: Way::Direct,
        why,
    }
}

/// All drivers, the most common first: each context's device is probed once, in this order.
#[rustfmt::skip]
pub const DRIVERS: &[Driver] = &[
    direct(RDMA_DRIVER_MLX5, "mlx5", "the provider adds nothing to the core's command"),
    direct(RDMA_DRIVER_RXE, "rxe", "the provider adds nothing to the core's command"),
    direct(RDMA_DRIVER_EFA, "efa", "the provider adds nothing, and the kernel refuses private bytes"),
    Driver { private_in: 8, ..direct(RDMA_DRIVER_IRDMA, "irdma", "irdma_mem_reg_req, type 0: user memory; EINVAL without it") },
    direct(RDMA_DRIVER_BNXT_RE, "bnxt_re", "the provider adds nothing to the core's command"),
    direct(RDMA_DRIVER_MLX4, "mlx4", "the provider adds nothing to the core's command"),
    Driver { way: Way::DirectUnlessEmpty, ..direct(RDMA_DRIVER_HNS, "hns", "the provider refuses a null address and a length of 0 without asking the kernel") },
    direct(RDMA_DRIVER_ERDMA, "erdma", "the provider adds nothing to the core's command"),
    direct(RDMA_DRIVER_MANA, "mana", "the provider adds nothing to the core's command"),
    direct(RDMA_DRIVER_IONIC, "ionic", "the provider adds nothing to the core's command"),
    Driver { private_in: 8, private_out: 8, ..direct(RDMA_DRIVER_SIW, "siw", "siw_ureq_reg_mr and siw_uresp_reg_mr; EINVAL without them") },
    direct(RDMA_DRIVER_QEDR, "qedr", "the provider adds nothing to the core's command"),
    direct(RDMA_DRIVER_CXGB4, "cxgb4", "the provider adds nothing; its own table of regions is never read"),
    direct(RDMA_DRIVER_HFI1, "hfi1", "the provider adds nothing to the core's command"),
    direct(RDMA_DRIVER_QIB, "qib", "the provider adds nothing to the core's command"),
    direct(RDMA_DRIVER_VMW_PVRDMA, "vmw_pvrdma", "the provider adds nothing to the core's command"),
    direct(RDMA_DRIVER_OCRDMA, "ocrdma", "the provider adds nothing to the core's command"),
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
