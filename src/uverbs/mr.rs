// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's two calls for a memory region, in the bytes that rdma-core sends.
//!
//! Registration is the command REG_MR inside the ioctl INVOKE_WRITE, never the newer
//! `UVERBS_METHOD_REG_MR`. As first released, the newer method passes the driver no private bytes,
//! which crashes irdma, and never tells rxe the address, so that every access to the region fails.

use super::context::{Facts, KnownFacts};
use super::{bundle::Bundle, kernel::Kernel};
use errno::Errno;
use rdmamr_abi::uapi::*;

/// The memory and the rights of a registration.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    pub start: u64,
    pub length: u64,
    /// The address at which remote peers reach `start`.
    pub hca_va: u64,
    pub pd_handle: u32,
    pub access: u32,
}

/// The kernel's answer to a registration.
pub type Answered = Result<ib_uverbs_reg_mr_resp, Errno>;

/// The core's answer, followed by the driver's if rdma-core's siw provider has one too.
#[repr(C)]
struct Answer {
    core: ib_uverbs_reg_mr_resp,
    private: [u8; 8],
}

/// Registers memory on the device behind `fd`. `facts` must name its driver.
#[inline(always)]
pub fn register(
    kernel: &impl Kernel,
    fd: i32,
    facts: Facts,
    registration: &Registration,
) -> Answered {
    let driver = facts.driver().ok_or(Errno(libc::EOPNOTSUPP))?;
    // SAFETY: an answer consists of numbers.
    let mut answer: Answer = unsafe { core::mem::zeroed() };
    let command = ib_uverbs_reg_mr {
        // Only write() uses the address, but rdma-core's ioctl sends it too.
        response: &raw mut answer as u64,
        start: registration.start,
        length: registration.length,
        hca_va: registration.hca_va,
        pd_handle: registration.pd_handle,
        access_flags: registration.access,
    };
    if facts.contains(Facts::REG_BY_WRITE) {
        let bytes = WriteCommand::new(
            IB_USER_VERBS_CMD_REG_MR,
            command,
            driver.private_in,
            size_of::<ib_uverbs_reg_mr_resp>() as u16 + driver.private_out,
        );
        // SAFETY: `response` is the address of `answer`, which has room for both answers.
        unsafe { kernel.write(fd, bytes.as_bytes()) }?;
    } else {
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
    }
    Ok(answer.core)
}

/// Registers memory of the open dma-buf `file`, in which `registration.start` is an offset. No driver
/// has private bytes for this.
pub fn register_dmabuf(
    kernel: &impl Kernel,
    fd: i32,
    facts: Facts,
    registration: &Registration,
    file: i32,
) -> Answered {
    let driver = facts.driver().ok_or(Errno(libc::EOPNOTSUPP))?;
    let (mut lkey, mut rkey) = (0u32, 0u32);
    let mut bundle = Bundle::<9>::new(driver.id, UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR);
    bundle.handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, 0);
    bundle.handle(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, registration.pd_handle);
    bundle.inline(UVERBS_ATTR_REG_DMABUF_MR_OFFSET, 8, registration.start);
    bundle.inline(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, 8, registration.length);
    bundle.inline(UVERBS_ATTR_REG_DMABUF_MR_IOVA, 8, registration.hca_va);
    bundle.inline(UVERBS_ATTR_REG_DMABUF_MR_FD, 4, u64::from(file as u32));
    let access = u64::from(registration.access);
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

/// Deregisters a region. Records in `known` if the kernel has no ioctl for this.
#[inline(always)]
pub fn deregister(
    kernel: &impl Kernel,
    fd: i32,
    known: &KnownFacts,
    handle: u32,
) -> Result<(), Errno> {
    let facts = known.get();
    let driver_id = facts.driver().map_or(0, |driver| driver.id);
    if !facts.contains(Facts::DEREG_BY_WRITE) {
        let mut bundle = Bundle::<1>::new(driver_id, UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY);
        bundle.handle(UVERBS_ATTR_DESTROY_MR_HANDLE, handle);
        // SAFETY: the bundle holds no address.
        match unsafe { kernel.ioctl(fd, bundle.as_mut_ptr()) } {
            // The kernel has no such call.
            Err(Errno(libc::EPROTONOSUPPORT)) => known.add(Facts::DEREG_BY_WRITE),
            // The number means another file, into which the command must not be written: a kernel
            // without this ioctl has registered nothing for the library. The program has closed
            // the device's file, and the kernel has ended the region.
            Err(Errno(libc::ENOTTY)) => return Ok(()),
            result => return result,
        }
    }
    let command = ib_uverbs_dereg_mr { mr_handle: handle };
    let bytes = WriteCommand::new(IB_USER_VERBS_CMD_DEREG_MR, command, 0, 0);
    // SAFETY: the command holds no address.
    unsafe { kernel.write(fd, bytes.as_bytes()) }
}

/// A command of the write() interface: header, the core's structure, the driver's private bytes.
#[repr(C)]
struct WriteCommand<T> {
    header: ib_uverbs_cmd_hdr,
    core: T,
    private: [u8; 8],
}

impl<T: Copy> WriteCommand<T> {
    /// `answer` is the size of the expected answer, core and driver together.
    fn new(command: u32, core: T, private_in: u16, answer: u16) -> Self {
        // The structure has no padding, so all its bytes are initialised.
        const { assert!(size_of::<WriteCommand<T>>() == size_of::<T>() + 16) };
        let size = (size_of::<ib_uverbs_cmd_hdr>() + size_of::<T>()) as u16 + private_in;
        let header = ib_uverbs_cmd_hdr {
            command,
            in_words: size / 4,
            out_words: answer / 4,
        };
        WriteCommand {
            header,
            core,
            private: [0; 8],
        }
    }

    fn as_bytes(&self) -> &[u8] {
        let size = usize::from(self.header.in_words) * 4;
        debug_assert!(size <= size_of_val(self));
        // SAFETY: `in_words` counts header, structure and at most eight private bytes, all of them
        // initialised parts of `self`.
        unsafe { core::slice::from_raw_parts((self as *const Self).cast(), size) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::context::identify;
    use super::super::scripted_tests::{Scripted, ScriptedCall};
    use super::*;

    const REGISTRATION: Registration = Registration {
        start: 0x1000,
        length: 0x2000,
        hca_va: 0x7000,
        pd_handle: 5,
        access: 7,
    };

    fn facts(driver_id: u32) -> Facts {
        let kernel = Scripted::new(move |call| {
            Err(Errno(if call.driver_id() == driver_id {
                libc::ENOSPC
            } else {
                libc::EINVAL
            }))
        });
        identify(&kernel, 3).unwrap()
    }

    fn known(facts: Facts) -> KnownFacts {
        let known = KnownFacts::new();
        known.set(facts);
        known
    }

    /// Answers a registration as the kernel would.
    fn answers(call: &ScriptedCall) -> Result<(), Errno> {
        if let ScriptedCall::Ioctl(..) = call {
            let out = call.attr(UVERBS_ATTR_CORE_OUT).unwrap();
            assert_eq!(out.len, 12);
            let answer = ib_uverbs_reg_mr_resp {
                mr_handle: 0,
                lkey: 0x11,
                rkey: 0x22,
            };
            // SAFETY: the bundle's output address is valid for the size that it states.
            unsafe { (out.data as *mut ib_uverbs_reg_mr_resp).write_unaligned(answer) };
        }
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
        let ScriptedCall::Ioctl(header, attrs) = &calls[0] else {
            panic!("an ioctl is expected")
        };
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
            let ScriptedCall::Ioctl(header, _) = &call else {
                panic!("an ioctl is expected")
            };
            assert_eq!(header.length, len);
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
    fn without_invoke_write_the_command_is_written() {
        let kernel = Scripted::new(|_| Ok(()));
        let facts = facts(RDMA_DRIVER_SIW) | Facts::REG_BY_WRITE;
        register(&kernel, 3, facts, &REGISTRATION).unwrap();
        let ScriptedCall::Write(bytes) = &kernel.take()[0] else {
            panic!("a write is expected")
        };
        assert_eq!(bytes.len(), 56);
        assert_eq!(bytes[..8], [9, 0, 0, 0, 14, 0, 5, 0]);
        assert_eq!(bytes[16..24], 0x1000u64.to_ne_bytes());
        assert_eq!(bytes[48..], [0; 8]);
    }

    #[test]
    fn deregistration_falls_back_to_write_once_and_for_all() {
        let kernel = Scripted::new(|call| match call {
            ScriptedCall::Ioctl(..) => Err(Errno(libc::EPROTONOSUPPORT)),
            ScriptedCall::Write(_) => Ok(()),
        });
        let known = known(facts(RDMA_DRIVER_MLX4));
        assert_eq!(deregister(&kernel, 3, &known, 0x0102), Ok(()));
        let learned = facts(RDMA_DRIVER_MLX4) | Facts::DEREG_BY_WRITE;
        assert_eq!(known.get(), learned);
        assert_eq!(deregister(&kernel, 3, &known, 0x0102), Ok(()));
        assert_eq!(known.get(), learned);
        let calls = kernel.take();
        assert_eq!(calls.len(), 3, "ioctl, write, write");
        for call in &calls[1..] {
            let ScriptedCall::Write(bytes) = call else {
                panic!("a write is expected")
            };
            assert_eq!(bytes[..], [13, 0, 0, 0, 3, 0, 0, 0, 2, 1, 0, 0]);
        }
    }

    #[test]
    fn nothing_is_written_to_another_file_at_the_devices_number() {
        let kernel = Scripted::new(|call| match call {
            ScriptedCall::Ioctl(..) => Err(Errno(libc::ENOTTY)),
            ScriptedCall::Write(_) => panic!("the program's file"),
        });
        let known = known(facts(RDMA_DRIVER_MLX4));
        assert_eq!(deregister(&kernel, 3, &known, 1), Ok(()));
        assert_eq!(known.get(), facts(RDMA_DRIVER_MLX4));
    }

    #[test]
    fn the_kernels_error_is_the_error() {
        for errno in [libc::EINVAL, libc::EBUSY, libc::EIO, libc::ENOENT] {
            let kernel = Scripted::new(move |_| Err(Errno(errno)));
            let facts = facts(RDMA_DRIVER_RXE);
            let known = known(facts);
            assert_eq!(deregister(&kernel, 3, &known, 1), Err(Errno(errno)));
            assert_eq!(known.get(), facts);
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
                    if let ScriptedCall::Ioctl(_, attrs) = call {
                        const OUTPUTS: [u16; 2] = [UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_UHW_OUT];
                        let is_output = |attr: &&ib_uverbs_attr| OUTPUTS.contains(&attr.attr_id);
                        for attr in attrs.iter().filter(is_output) {
                            for n in 0..u64::from(attr.len) {
                                // SAFETY: the bundle's output address is valid for the size that it
                                // states.
                                unsafe { ((attr.data + n) as *mut u8).write(next()) };
                            }
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
                let _ = deregister(&kernel, 3, &known(facts), handle);
                let _ = most(&kernel, 3, facts);
            },
        );
    }
}
