// SPDX-License-Identifier: MIT OR Apache-2.0
//! The facts about an open device that a registration needs: its driver, and what the kernel knows.
//! The library asks the kernel once for each context, through the device file itself.
//!
//! The kernel refuses an ioctl with a wrong driver number with EINVAL before it looks at anything
//! else (`ib_uverbs_cmd_verbs`, drivers/infiniband/core/uverbs_ioctl.c). A harmless, incomplete
//! command therefore tells the driver: with the right number it gets ENOSPC (the command lacks its
//! input), with a wrong number EINVAL. It is the command with which libibverbs itself probes at
//! open. No private ABI is needed.

use super::bundle::Bundle;
use super::driver::{DRIVERS, Driver, Way};
use super::kernel::Kernel;
use bitflags::bitflags;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use errno::Errno;
use rdmamr_abi::uapi::*;

bitflags! {
    /// The facts in one word, so that one load reads them all. The low byte is the row of the
    /// driver table, or a reason for having no row.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Facts: u32 {
        /// The kernel accepts the optional range of access flags.
        const OPTIONAL_ACCESS = 1 << 8;
        /// The device is gone: unplugged, or unbound from its driver.
        const GONE = 1 << 9;
        const ROW = 0xff;
    }
}

/// The reasons for which a context has no row, each with its low byte of [`Facts`].
const NO_ROW: [(u32, &str); 3] = [
    (0xff, "no driver that we know answers for it"),
    (
        0xfe,
        "its kernel has no ioctl for a registration (before 5.0)",
    ),
    (
        0xfd,
        "it has no kernel file: its provider registers by other means",
    ),
];

impl Facts {
    const UNKNOWN_DRIVER: Facts = Facts::from_bits_retain(NO_ROW[0].0);
    const NO_IOCTL: Facts = Facts::from_bits_retain(NO_ROW[1].0);
    /// The device's context has no file of the kernel.
    pub const NO_KERNEL_FILE: Facts = Facts::from_bits_retain(NO_ROW[2].0);

    fn of_row(row: usize) -> Facts {
        Facts::from_bits_retain(row as u32)
    }

    /// The driver, if known.
    #[inline]
    pub fn driver(self) -> Option<&'static Driver> {
        DRIVERS.get((self.bits() & Facts::ROW.bits()) as usize)
    }

    /// Why rdma-core registers memory on this device; `None` if this library does.
    pub fn why_forwarded(self) -> Option<&'static str> {
        match self.driver() {
            Some(driver) => (driver.way == Way::Forward).then_some(driver.why),
            None => {
                let row = self.bits() & Facts::ROW.bits();
                NO_ROW.iter().find(|it| it.0 == row).map(|it| it.1)
            }
        }
    }
}

/// The facts of an open device, for all threads.
pub struct KnownFacts(AtomicU32);

impl KnownFacts {
    /// No driver is known.
    pub const fn new() -> KnownFacts {
        KnownFacts(AtomicU32::new(NO_ROW[0].0))
    }

    #[inline(always)]
    pub fn get(&self) -> Facts {
        Facts::from_bits_retain(self.0.load(Relaxed))
    }

    /// Replaces the facts after a new probe.
    pub fn set(&self, facts: Facts) {
        self.0.store(facts.bits(), Relaxed);
    }

    pub fn add(&self, facts: Facts) {
        self.0.fetch_or(facts.bits(), Relaxed);
    }
}

/// Asks the kernel about an open device. An error says nothing lasting about the device: its file
/// is closed, the device is gone, or a filter refuses the call.
pub fn identify(kernel: &impl Kernel, fd: i32) -> Result<Facts, Errno> {
    if fd < 0 {
        return Ok(Facts::NO_KERNEL_FILE);
    }
    for (row, driver) in DRIVERS.iter().enumerate() {
        match probe(kernel, fd, driver.id).0 {
            libc::EINVAL => continue,
            libc::ENOSPC => {}
            // Before 4.16 there is no ioctl, before 5.0 no INVOKE_WRITE.
            libc::ENOTTY | libc::EPROTONOSUPPORT => return Ok(Facts::NO_IOCTL),
            other => return Err(Errno(other)),
        }
        let mut facts = Facts::of_row(row);
        let knows_optional = knows_query_mr(kernel, fd, driver.id);
        facts.set(Facts::OPTIONAL_ACCESS, knows_optional);
        return Ok(facts);
    }
    Ok(Facts::UNKNOWN_DRIVER)
}

/// What the device can have at most, and what it can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Most {
    /// Regions (`max_mr`).
    pub regions: u32,
    /// Bytes of a region (`max_mr_size`).
    pub bytes: u64,
    /// Whether remote peers can do atomic operations (`atomic_cap`).
    pub atomics: bool,
}

/// What the device can have at most, and what it can do. `facts` must name its driver.
pub fn most(kernel: &impl Kernel, fd: i32, facts: Facts) -> Result<Most, Errno> {
    let driver = facts.driver().ok_or(Errno(libc::EOPNOTSUPP))?;
    let mut answer = core::mem::MaybeUninit::<ib_uverbs_query_device_resp>::zeroed();
    let mut bundle = Bundle::<3>::of_command(driver.id, IB_USER_VERBS_CMD_QUERY_DEVICE);
    // The command is an address that only a write() of it would use.
    bundle.inline(UVERBS_ATTR_CORE_IN, 8, 0);
    bundle.output(UVERBS_ATTR_CORE_OUT, &mut answer);
    // SAFETY: `answer` outlives the call, and its attribute states its size.
    unsafe { kernel.ioctl(fd, bundle.as_mut_ptr()) }?;
    // SAFETY: all zeros is a valid value of the structure, and so is what the kernel has written.
    let answer = unsafe { answer.assume_init() };
    Ok(Most {
        regions: answer.max_mr,
        bytes: answer.max_mr_size,
        atomics: answer.atomic_cap != IB_ATOMIC_NONE,
    })
}

/// Whether the facts still hold for that file. They do not if a program closed the device without
/// calling this library and opened another whose context got the same address.
pub fn still_holds(kernel: &impl Kernel, fd: i32, facts: Facts) -> bool {
    facts
        .driver()
        .is_none_or(|driver| probe(kernel, fd, driver.id).0 != libc::EINVAL)
}

/// Whether the device is gone. All commands but those that end an object then fail with EIO
/// (`ib_uverbs_get_ucontext_file`, drivers/infiniband/core/rdma_core.c). The question costs no
/// access to the device: the core answers it from its copy.
pub fn is_gone(kernel: &impl Kernel, fd: i32, facts: Facts) -> bool {
    most(kernel, fd, facts) == Err(Errno(libc::EIO))
}

/// Sends QUERY_DEVICE without its input, for a device of that driver. The command cannot succeed.
fn probe(kernel: &impl Kernel, fd: i32, driver_id: u32) -> Errno {
    let mut bundle = Bundle::<1>::of_command(driver_id, IB_USER_VERBS_CMD_QUERY_DEVICE);
    // SAFETY: the bundle holds no address.
    match unsafe { kernel.ioctl(fd, bundle.as_mut_ptr()) } {
        Ok(()) => Errno(libc::ENOSPC),
        Err(errno) => errno,
    }
}

/// Whether the kernel is 5.9 or later, and so accepts optional access flags. (5.6 accepts them too,
/// but offers no way to tell; there rdma-core decides.) A kernel that has QUERY_MR answers it with
/// EINVAL if its attributes are missing.
fn knows_query_mr(kernel: &impl Kernel, fd: i32, driver_id: u32) -> bool {
    let mut bundle = Bundle::<0>::new(driver_id, UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR);
    // SAFETY: the bundle holds no address.
    let result = unsafe { kernel.ioctl(fd, bundle.as_mut_ptr()) };
    result == Err(Errno(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::super::scripted_tests::Scripted;
    use super::*;

    fn row(name: &str) -> usize {
        DRIVERS
            .iter()
            .position(|driver| driver.name == name)
            .unwrap()
    }

    /// A kernel whose device has that driver: it answers a wrong number with EINVAL before anything
    /// else.
    fn device_of(driver_id: u32, invoke_write: i32, query_mr: i32) -> Scripted {
        Scripted::new(move |call| {
            if call.header.driver_id != driver_id {
                return Err(Errno(libc::EINVAL));
            }
            Err(Errno(if call.header.object_id == UVERBS_OBJECT_MR {
                query_mr
            } else {
                invoke_write
            }))
        })
    }

    #[test]
    fn each_driver_is_found_by_its_number() {
        for driver in DRIVERS {
            let kernel = device_of(driver.id, libc::ENOSPC, libc::EINVAL);
            let facts = identify(&kernel, 3).unwrap();
            assert_eq!(facts.driver(), Some(driver));
            assert!(facts.contains(Facts::OPTIONAL_ACCESS));
            assert_eq!(facts.why_forwarded().is_some(), driver.way == Way::Forward);
        }
    }

    #[test]
    fn an_old_kernel_means_no_optional_flags_and_a_very_old_one_rdma_core() {
        let kernel = device_of(RDMA_DRIVER_MLX4, libc::ENOSPC, libc::EPROTONOSUPPORT);
        assert_eq!(identify(&kernel, 3), Ok(Facts::of_row(row("mlx4"))));
        let kernel = device_of(
            RDMA_DRIVER_MLX4,
            libc::EPROTONOSUPPORT,
            libc::EPROTONOSUPPORT,
        );
        assert_eq!(identify(&kernel, 3), Ok(Facts::NO_IOCTL));
    }

    #[test]
    fn what_cannot_be_asked_is_forwarded_with_a_reason() {
        let unknown = device_of(99, libc::ENOSPC, libc::EINVAL);
        assert_eq!(identify(&unknown, 3), Ok(Facts::UNKNOWN_DRIVER));
        assert_eq!(unknown.calls(), DRIVERS.len());
        let no_ioctl = Scripted::new(|_| Err(Errno(libc::ENOTTY)));
        assert_eq!(identify(&no_ioctl, 3), Ok(Facts::NO_IOCTL));
        assert_eq!(identify(&no_ioctl, -1), Ok(Facts::NO_KERNEL_FILE));
        // Descriptor 0 is valid.
        assert_eq!(identify(&no_ioctl, 0), Ok(Facts::NO_IOCTL));
        for (facts, words) in [
            (Facts::UNKNOWN_DRIVER, "no driver"),
            (Facts::NO_IOCTL, "before 5.0"),
            (Facts::NO_KERNEL_FILE, "no kernel file"),
        ] {
            assert!(facts.driver().is_none());
            // Other facts about the device do not change the reason.
            for facts in [facts, facts | Facts::OPTIONAL_ACCESS] {
                let why = facts.why_forwarded().unwrap();
                assert!(why.contains(words), "{why}");
            }
        }
    }

    #[test]
    fn the_most_is_that_of_the_kernels_answer() {
        let facts = Facts::of_row(row("rxe"));
        let kernel = Scripted::new(|call| {
            let out = call.attr(UVERBS_ATTR_CORE_OUT).unwrap();
            assert_eq!(
                usize::from(out.len),
                size_of::<ib_uverbs_query_device_resp>()
            );
            // SAFETY: the bundle's output address is valid for the size that it states.
            unsafe {
                let answer = &mut *(out.data as *mut ib_uverbs_query_device_resp);
                answer.max_mr = 4711;
                answer.max_mr_size = 1 << 40;
                answer.atomic_cap = 1;
            }
            Ok(())
        });
        let expected = Most {
            regions: 4711,
            bytes: 1 << 40,
            atomics: true,
        };
        assert_eq!(most(&kernel, 3, facts), Ok(expected));
        let refuses = Scripted::new(|_| Err(Errno(libc::EIO)));
        assert_eq!(most(&refuses, 3, facts), Err(Errno(libc::EIO)));
        let unasked = Scripted::new(|_| unreachable!());
        let answer = most(&unasked, 3, Facts::NO_IOCTL);
        assert_eq!(answer, Err(Errno(libc::EOPNOTSUPP)));
    }

    #[test]
    fn a_passing_trouble_is_an_error_and_not_a_fact() {
        for errno in [libc::EIO, libc::EBADF, libc::EPERM] {
            let kernel = Scripted::new(move |_| Err(Errno(errno)));
            assert_eq!(identify(&kernel, 3), Err(Errno(errno)));
        }
    }

    #[test]
    fn another_device_behind_the_same_address_is_noticed() {
        let facts = Facts::of_row(row("rxe"));
        assert!(still_holds(
            &device_of(RDMA_DRIVER_RXE, libc::ENOSPC, 0),
            3,
            facts
        ));
        assert!(!still_holds(
            &device_of(RDMA_DRIVER_SIW, libc::ENOSPC, 0),
            3,
            facts
        ));
    }
}
