// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel that answers as a test tells it, and remembers what it was sent.

use super::kernel::Kernel;
use crate::abi::uapi::*;
use errno::Errno;
use std::sync::Mutex;

/// A call as the kernel got it.
pub enum Call {
    /// An ioctl: its header and attributes.
    Ioctl(ib_uverbs_ioctl_hdr, Vec<ib_uverbs_attr>),
    /// A write().
    Write(Vec<u8>),
}

impl Call {
    /// The driver number of an ioctl.
    pub fn driver_id(&self) -> u32 {
        match self {
            Call::Ioctl(header, _) => header.driver_id,
            Call::Write(_) => panic!("a write() names no driver"),
        }
    }

    /// The object of an ioctl.
    pub fn object(&self) -> u16 {
        match self {
            Call::Ioctl(header, _) => header.object_id,
            Call::Write(_) => panic!("a write() names no object"),
        }
    }

    /// The attribute of an ioctl with that id.
    pub fn attr(&self, id: u16) -> Option<ib_uverbs_attr> {
        match self {
            Call::Ioctl(_, attrs) => attrs.iter().find(|attr| attr.attr_id == id).copied(),
            Call::Write(_) => panic!("a write() has no attributes"),
        }
    }
}

type Answer = dyn Fn(&Call) -> Result<(), Errno>;

/// The scripted kernel.
pub struct Scripted {
    answer: Box<Answer>,
    calls: Mutex<Vec<Call>>,
}

impl Scripted {
    /// One that answers by a function of the call.
    pub fn new(answer: impl Fn(&Call) -> Result<(), Errno> + 'static) -> Self {
        Scripted {
            answer: Box::new(answer),
            calls: Mutex::new(Vec::new()),
        }
    }

    /// How many calls it got.
    pub fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    /// The calls that it got.
    pub fn take(self) -> Vec<Call> {
        self.calls.into_inner().unwrap()
    }

    fn got(&self, call: Call) -> Result<(), Errno> {
        let answer = (self.answer)(&call);
        self.calls.lock().unwrap().push(call);
        answer
    }
}

impl Kernel for Scripted {
    unsafe fn ioctl(&self, _fd: i32, bundle: *mut ib_uverbs_ioctl_hdr) -> Result<(), Errno> {
        // SAFETY: the caller vouches for the header...
        let header = unsafe { bundle.read() };
        assert_eq!(
            usize::from(header.length),
            24 + 16 * usize::from(header.num_attrs)
        );
        let attrs = bundle.wrapping_add(1).cast::<ib_uverbs_attr>();
        let attrs = (0..usize::from(header.num_attrs))
            // SAFETY: ...and for the attributes that it counts.
            .map(|n| unsafe { attrs.wrapping_add(n).read() })
            .collect();
        self.got(Call::Ioctl(header, attrs))
    }

    unsafe fn write(&self, _fd: i32, command: &[u8]) -> Result<(), Errno> {
        self.got(Call::Write(command.to_vec()))
    }
}
