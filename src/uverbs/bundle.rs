// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attributes of one uverbs ioctl, built on the stack. The ioctl itself and the meaning of the
//! attributes are elsewhere.

use rdmamr_abi::uapi::*;

/// A header and room for `N` attributes. The header's length counts only the attributes in use, as
/// the kernel wants it, so a bundle may hold fewer than `N`. Inlined, a bundle is made where it stays.
#[repr(C)]
pub struct Bundle<const N: usize> {
    header: ib_uverbs_ioctl_hdr,
    attrs: [ib_uverbs_attr; N],
}

impl<const N: usize> Bundle<N> {
    /// A bundle without attributes, for a device of the driver with that number.
    #[inline(always)]
    pub const fn new(driver_id: u32, object: u16, method: u16) -> Self {
        const { assert!(size_of::<ib_uverbs_ioctl_hdr>() + N * size_of::<ib_uverbs_attr>() <= 4096) };
        Bundle {
            header: ib_uverbs_ioctl_hdr {
                length: size_of::<ib_uverbs_ioctl_hdr>() as u16,
                object_id: object,
                method_id: method,
                num_attrs: 0,
                reserved1: 0,
                driver_id,
                reserved2: 0,
            },
            // SAFETY: an attribute consists of numbers.
            attrs: unsafe { core::mem::zeroed() },
        }
    }

    /// A bundle with a command of the write() interface, inside an ioctl.
    #[inline(always)]
    pub const fn of_command(driver_id: u32, command: u32) -> Self {
        let mut bundle = Self::new(driver_id, UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
        bundle.inline(UVERBS_ATTR_WRITE_CMD, 8, command as u64);
        bundle
    }

    /// Adds input of at most eight bytes. The kernel reads it from the attribute itself, and would
    /// take a pointer there for the data.
    #[inline(always)]
    pub const fn inline(&mut self, id: u16, len: u16, data: u64) {
        assert!(len <= 8);
        self.push(id, len, data);
    }

    /// Adds input of more than eight bytes, by address. The value must stay there until the ioctl
    /// has returned.
    #[inline(always)]
    pub fn input<T>(&mut self, id: u16, value: &T) {
        const { assert!(size_of::<T>() > 8 && size_of::<T>() <= 4096) };
        self.push(id, size_of::<T>() as u16, value as *const T as u64);
    }

    /// Adds output of any size, by address. The value must stay there until the ioctl has returned.
    #[inline(always)]
    pub fn output<T>(&mut self, id: u16, value: &mut T) {
        const { assert!(size_of::<T>() <= 4096) };
        self.push(id, size_of::<T>() as u16, value as *mut T as u64);
    }

    /// Adds an object's handle. Its length must be 0.
    #[inline(always)]
    pub const fn handle(&mut self, id: u16, handle: u32) {
        self.push(id, 0, handle as u64);
    }

    #[inline(always)]
    const fn push(&mut self, id: u16, len: u16, data: u64) {
        let used = self.header.num_attrs as usize;
        self.attrs[used] = ib_uverbs_attr {
            attr_id: id,
            len,
            flags: UVERBS_ATTR_F_MANDATORY,
            attr_data: 0,
            data,
        };
        self.header.num_attrs += 1;
        self.header.length += size_of::<ib_uverbs_attr>() as u16;
    }

    /// The handle of the object that the ioctl has made, of the attribute that was added first.
    pub const fn new_handle(&self) -> u32 {
        self.attrs[0].data as u32
    }

    /// The argument of the ioctl. The kernel writes to it: attribute flags, new handles.
    pub fn as_mut_ptr(&mut self) -> *mut ib_uverbs_ioctl_hdr {
        // The attributes follow the header (`repr(C)`, both of alignment 8), so one pointer serves
        // both. It is derived from the whole, so that writes after the header are allowed.
        (self as *mut Self).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_that_of_the_attributes_in_use() {
        let mut bundle = Bundle::<3>::new(14, UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY);
        assert_eq!((bundle.header.length, bundle.header.num_attrs), (24, 0));
        bundle.handle(0, 0x1_0000);
        assert_eq!((bundle.header.length, bundle.header.num_attrs), (40, 1));
        assert_eq!((bundle.attrs[0].len, bundle.attrs[0].data), (0, 0x1_0000));
        assert_eq!(core::mem::offset_of!(Bundle<3>, attrs), 24);
    }
}
