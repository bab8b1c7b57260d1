// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel that answers as a test tells it, and records the calls that it gets.

use super::kernel::Kernel;
use errno::Errno;
use rdmamr_abi::uapi::*;
use std::sync::Mutex;

/// An ioctl as the kernel got it: its header and attributes.
pub struct ScriptedCall {
    pub header: ib_uverbs_ioctl_hdr,
    pub attrs: Vec<ib_uverbs_attr>,
}

impl ScriptedCall {
    /// The attribute with that id.
    pub fn attr(&self, id: u16) -> Option<ib_uverbs_attr> {
        self.attrs.iter().find(|attr| attr.attr_id == id).copied()
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
        let call = ScriptedCall { header, attrs };
        let answer = (self.answer)(&call);
        self.calls.lock().unwrap().push(call);
        answer
    }
}
