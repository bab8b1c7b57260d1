// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel that answers as a test tells it, and records the calls that it gets.

use super::kernel::Kernel;
use errno::Errno;
use rdmamr_abi::uapi::*;
use std::sync::Mutex;

/// A call as the kernel got it.
pub enum ScriptedCall {
    /// An ioctl: its header and attributes.
    Ioctl(ib_uverbs_ioctl_hdr, Vec<ib_uverbs_attr>),
    /// A write().
    Write(Vec<u8>),
}

impl ScriptedCall {
    /// The driver number of an ioctl.
    pub fn driver_id(&self) -> u32 {
        match self {
            ScriptedCall::Ioctl(header, _) => header.driver_id,
            ScriptedCall::Write(_) => panic!("a write() names no driver"),
        }
    }

    /// The object of an ioctl.
    pub fn object(&self) -> u16 {
        match self {
            ScriptedCall::Ioctl(header, _) => header.object_id,
            ScriptedCall::Write(_) => panic!("a write() names no object"),
        }
    }

    /// The attribute of an ioctl with that id.
    pub fn attr(&self, id: u16) -> Option<ib_uverbs_attr> {
        match self {
            ScriptedCall::Ioctl(_, attrs) => attrs.iter().find(|attr| attr.attr_id == id).copied(),
            ScriptedCall::Write(_) => panic!("a write() has no attributes"),
        }
    }
}

type Answer = dyn Fn(&ScriptedCall) -> Result<(), Errno>;

/// The scripted kernel.
pub struct Scripted {
    answer: Box<Answer>,
    calls: Mutex<Vec<ScriptedCall>>,
}

impl Scripted {
    /// A kernel whose answers `answer` computes from the call.
    pub fn new(answer: impl Fn(&ScriptedCall) -> Result<(), Errno> + 'static) -> Self {
        Scripted {
            answer: Box::new(answer),
            calls: Mutex::new(Vec::new()),
        }
    }

    /// The number of calls so far.
    pub fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    /// The calls so far.
    pub fn take(self) -> Vec<ScriptedCall> {
        self.calls.into_inner().unwrap()
    }

    fn got(&self, call: ScriptedCall) -> Result<(), Errno> {
        let answer = (self.answer)(&call);
        self.calls.lock().unwrap().push(call);
        answer
    }
}

impl Kernel for Scripted {
    unsafe fn ioctl(&self, _fd: i32, bundle: *mut ib_uverbs_ioctl_hdr) -> Result<(), Errno> {
        // SAFETY: `bundle` points to a header by the contract of `Kernel::ioctl`.
        let header = unsafe { bundle.read() };
        assert_eq!(
            usize::from(header.length),
            24 + 16 * usize::from(header.num_attrs)
        );
        let attrs = bundle.wrapping_add(1).cast::<ib_uverbs_attr>();
        let attrs = (0..usize::from(header.num_attrs))
            // SAFETY: the attributes that the header counts follow it by the contract of
            // `Kernel::ioctl`.
            .map(|n| unsafe { attrs.wrapping_add(n).read() })
            .collect();
        self.got(ScriptedCall::Ioctl(header, attrs))
    }

    unsafe fn write(&self, _fd: i32, command: &[u8]) -> Result<(), Errno> {
        self.got(ScriptedCall::Write(command.to_vec()))
    }
}
