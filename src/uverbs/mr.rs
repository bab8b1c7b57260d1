// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's calls for a memory region: registration by address and deregistration, in the bytes that
//! rdma-core sends, and registration of a dma-buf.
//!
//! Registration is the command REG_MR inside the ioctl INVOKE_WRITE, never the newer
//! `UVERBS_METHOD_REG_MR`. As first released, the newer method passes the driver no private bytes,
//! which crashes irdma, and never tells rxe the address, so that every access to the region fails.

use super::context::Facts;
use super::{bundle::Bundle, kernel::Kernel};
use errno::Errno;
use rdmamr_abi::uapi::*;

/// The kernel's answer to a registration.
pub type Answered = Result<ib_uverbs_reg_mr_resp, Errno>;

/// The core's answer, followed by the driver's if rdma-core's siw provider has one too.
#[repr(C)]
struct Answer {
    core: ib_uverbs_reg_mr_resp,
    private: [u8; 8],
}

/// Registers memory on the device behind `fd`, by a command whose `response` is set here. `facts`
/// must name its driver.
#[inline(always)]
pub fn register(
    kernel: &impl Kernel,
    fd: i32,
    facts: Facts,
    command: &ib_uverbs_reg_mr,
) -> Answered {
    let driver = facts.driver().ok_or(Errno(libc::EOPNOTSUPP))?;
    // SAFETY: an answer consists of numbers.
    let mut answer: Answer = unsafe { core::mem::zeroed() };
    let command = ib_uverbs_reg_mr {
        // Only a write() of the command would use the address, but rdma-core's ioctl sends it too.
        response: &raw mut answer as u64,
        ..*command
    };
    let mut bundle = Bundle::<5>::of_command(driver.id, IB_USER_VERBS_CMD_REG_MR);
    bundle.input(UVERBS_ATTR_CORE_IN, &command);
    bundle.output(UVERBS_ATTR_CORE_OUT, &mut answer.core);
    if driver.private_in > 0 {
        bundle.inline(UVERBS_ATTR_UHW_IN, driver.private_in, 0);
    }
    if driver.private_out > 0 {
        bundle.output(UVERBS_ATTR_UHW_OUT, &mut answer.private);
    }
    // SAFETY: `command` and `answer` outlive the call, and each attribute states its size.
    unsafe { kernel.ioctl(fd, bundle.as_mut_ptr()) }?;
    Ok(answer.core)
}

/// Registers memory of the open dma-buf `file`, in which `command.start` is an offset. No driver
/// has private bytes for this.
pub fn register_dmabuf(
    kernel: &impl Kernel,
    fd: i32,
    facts: Facts,
    command: &ib_uverbs_reg_mr,
    file: i32,
) -> Answered {
    let driver = facts.driver().ok_or(Errno(libc::EOPNOTSUPP))?;
    let (mut lkey, mut rkey) = (0u32, 0u32);
    let mut bundle = Bundle::<9>::new(driver.id, UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR);
    bundle.handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, 0);
    bundle.handle(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, command.pd_handle);
    bundle.inline(UVERBS_ATTR_REG_DMABUF_MR_OFFSET, 8, command.start);
    bundle.inline(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, 8, command.length);
    bundle.inline(UVERBS_ATTR_REG_DMABUF_MR_IOVA, 8, command.hca_va);
    bundle.inline(UVERBS_ATTR_REG_DMABUF_MR_FD, 4, u64::from(file as u32));
    let access = u64::from(command.access_flags);
    bundle.inline(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, 4, access);
    bundle.output(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, &mut lkey);
    bundle.output(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, &mut rkey);
    // SAFETY: both keys outlive the call, and each attribute states its size.
    unsafe { kernel.ioctl(fd, bundle.as_mut_ptr()) }?;
    Ok(ib_uverbs_reg_mr_resp {
        mr_handle: bundle.new_handle(),
        lkey,
        rkey,
    })
}

/// Deregisters a region.
#[inline(always)]
pub fn deregister(kernel: &impl Kernel, fd: i32, facts: Facts, handle: u32) -> Result<(), Errno> {
    let driver_id = facts.driver().map_or(0, |driver| driver.id);
    let mut bundle = Bundle::<1>::new(driver_id, UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY);
    bundle.handle(UVERBS_ATTR_DESTROY_MR_HANDLE, handle);
    // SAFETY: the bundle holds no address.
    match unsafe { kernel.ioctl(fd, bundle.as_mut_ptr()) } {
        // The number means another file: the program has closed the device's file, and the kernel
        // has ended the region.
        Err(Errno(libc::ENOTTY)) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::identify;
    use super::super::scripted_tests::{Scripted, ScriptedCall};
    use super::*;

    const REGISTRATION: ib_uverbs_reg_mr = ib_uverbs_reg_mr {
        response: 0,
        start: 0x1000,
        length: 0x2000,
        hca_va: 0x7000,
        pd_handle: 5,
        access_flags: 7,
    };

    fn facts(driver_id: u32) -> Facts {
        let kernel = Scripted::new(move |call| {
            Err(Errno(if call.header.driver_id == driver_id {
                libc::ENOSPC
            } else {
                libc::EINVAL
            }))
        });
        identify(&kernel, 3).unwrap()
    }

    /// Answers a registration as the kernel would.
    fn answers(call: &ScriptedCall) -> Result<(), Errno> {
        let out = call.attr(UVERBS_ATTR_CORE_OUT).unwrap();
        assert_eq!(out.len, 12);
        let answer = ib_uverbs_reg_mr_resp {
            mr_handle: 0,
            lkey: 0x11,
            rkey: 0x22,
        };
        // SAFETY: the bundle's output address is valid for the size that it states.
        unsafe { (out.data as *mut ib_uverbs_reg_mr_resp).write_unaligned(answer) };
        Ok(())
    }

    #[test]
    fn registration_is_three_attributes_and_handle_0_is_valid() {
        let kernel = Scripted::new(answers);
        let answer = register(&kernel, 3, facts(RDMA_DRIVER_RXE), &REGISTRATION).unwrap();
        assert_eq!(
            (answer.mr_handle, answer.lkey, answer.rkey),
            (0, 0x11, 0x22)
        );
        let calls = kernel.take();
        let ScriptedCall { header, attrs } = &calls[0];
        assert_eq!(
            (calls.len(), header.length, header.driver_id),
            (1, 72, RDMA_DRIVER_RXE)
        );
        let shape: Vec<_> = attrs
            .iter()
            .map(|attr| (attr.attr_id, attr.len, attr.flags))
            .collect();
        assert_eq!(shape, [(2, 8, 1), (0, 40, 1), (1, 12, 1)]);
    }

    #[test]
    fn private_bytes_go_along_where_the_table_says_so() {
        for (id, len, input, output) in [
            (RDMA_DRIVER_IRDMA, 88, true, false),
            (RDMA_DRIVER_MTHCA, 88, true, false),
            (RDMA_DRIVER_SIW, 104, true, true),
            (RDMA_DRIVER_EFA, 72, false, false),
        ] {
            let kernel = Scripted::new(answers);
            register(&kernel, 3, facts(id), &REGISTRATION).unwrap();
            let call = kernel.take().remove(0);
            assert_eq!(call.header.length, len);
            assert_eq!(
                call.attr(UVERBS_ATTR_UHW_IN).map(|a| (a.len, a.data)),
                input.then_some((8, 0))
            );
            assert_eq!(
                call.attr(UVERBS_ATTR_UHW_OUT).map(|a| a.len),
                output.then_some(8)
            );
        }
    }

    #[test]
    fn another_file_at_the_devices_number_has_no_region() {
        let kernel = Scripted::new(|_| Err(Errno(libc::ENOTTY)));
        assert_eq!(deregister(&kernel, 3, facts(RDMA_DRIVER_MLX4), 1), Ok(()));
        assert_eq!(kernel.calls(), 1);
    }

    #[test]
    fn the_kernels_error_is_the_error() {
        for errno in [libc::EINVAL, libc::EBUSY, libc::EIO, libc::ENOENT] {
            let kernel = Scripted::new(move |_| Err(Errno(errno)));
            let facts = facts(RDMA_DRIVER_RXE);
            assert_eq!(deregister(&kernel, 3, facts, 1), Err(Errno(errno)));
            assert_eq!(
                register(&kernel, 3, facts, &REGISTRATION).err(),
                Some(Errno(errno))
            );
            assert_eq!(kernel.calls(), 2);
        }
    }

    /// A kernel that lies: any errno, any bytes in an answer, changed attributes.
    #[test]
    fn fuzz_kernel_replies() {
        use crate::context::most;
        use crate::fuzz_inputs::{Random, each};
        use std::sync::Mutex;
        const ERRNOS: [i32; 8] = [
            0,
            libc::EINVAL,
            libc::ENOSPC,
            libc::EPROTONOSUPPORT,
            libc::ENOTTY,
            libc::EIO,
            i32::MAX,
            i32::MIN,
        ];
        each(
            "fuzz_kernel_replies",
            2000,
            &[&b"?"[..]],
            |input, random| {
                // The bytes of the input first, then random ones.
                let given = input.to_vec();
                let said = Mutex::new((given.into_iter(), Random::new(random.next())));
                let kernel = Scripted::new(move |call| {
                    let (given, random) = &mut *said.lock().unwrap();
                    let mut next = || given.next().unwrap_or_else(|| random.next() as u8);
                    const OUTPUTS: [u16; 2] = [UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_UHW_OUT];
                    let is_output = |attr: &&ib_uverbs_attr| OUTPUTS.contains(&attr.attr_id);
                    for attr in call.attrs.iter().filter(is_output) {
                        for n in 0..u64::from(attr.len) {
                            // SAFETY: the bundle's output address is valid for the size that it
                            // states.
                            unsafe { ((attr.data + n) as *mut u8).write(next()) };
                        }
                    }
                    match ERRNOS[usize::from(next()) % ERRNOS.len()] {
                        0 => Ok(()),
                        errno => Err(Errno(errno)),
                    }
                });
                let Ok(facts) = identify(&kernel, 3) else {
                    return;
                };
                // Whatever the kernel answers, the device has a known driver or a known reason.
                assert!(facts.driver().is_some() || facts.why_forwarded().is_some());
                let registered = register(&kernel, 3, facts, &REGISTRATION);
                assert!(facts.driver().is_some() || registered.is_err());
                let handle = registered.map_or(7, |answer| answer.mr_handle);
                let _ = deregister(&kernel, 3, facts, handle);
                let _ = most(&kernel, 3, facts);
            },
        );
    }
}
