// SPDX-License-Identifier: MIT OR Apache-2.0
//! The key of a registration, by which a region is found: domain, pages, access.

use crate::region::state::Seen;
use rdmamr_next::Pd;
use rdmamr_policy::Range;
use rdmamr_sys::pages::PageRange;

/// The bits that the address of a region's first page may have. The bits above are 0 in user space,
/// and the bits below are 0 in the address of a page.
pub(super) const START: u64 = (1 << (u64::BITS - ABOVE)) - (1 << 12);
const ABOVE: u32 = 8;

/// The largest number of a domain that those other bits hold. It also stands for all larger
/// numbers: the cache keeps no region of such a domain. The kernel gives a domain the smallest
/// number that is free in its file.
pub(super) const LARGE: u32 = (1 << (ABOVE + 12)) - 1;

/// A protection domain, as a region stores it. The address alone may by now be that of another
/// domain: a provider frees a parent domain without a call that reaches the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Domain {
    /// The address of the program's object.
    pub pd: u64,
    /// The address of its device's object.
    pub(super) context: u64,
    /// The kernel's number of the domain in its device's file, as a region's `start` holds it.
    pub(super) number: u64,
}

impl Domain {
    /// No domain, for a monitored range.
    pub const NONE: Domain = Domain {
        pd: 0,
        context: 0,
        number: 0,
    };

    #[inline(always)]
    pub fn of(pd: Pd) -> Domain {
        Domain::new(pd.address(), pd.context().addr(), pd.handle())
    }

    /// The domain at an address, with its device's address and the kernel's number.
    #[inline(always)]
    pub fn new(pd: usize, context: usize, handle: u32) -> Domain {
        Domain {
            pd: pd as u64,
            context: context as u64,
            number: u64::from(handle.min(LARGE)).rotate_right(ABOVE),
        }
    }
}

/// The properties that a registration asks for. A region serves if it has these, and at most `spare`
/// bytes more behind its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LookupKey {
    pub domain: Domain,
    pub page_range: PageRange,
    pub access: u32,
    /// At most [`rdmamr_policy::spare`].
    pub spare: u64,
    /// A region serves only if it has no user.
    pub unshared: bool,
    /// A region serves only if it is of the GPU's allocation of this number; 0 for other memory.
    pub allocation: u64,
}

impl LookupKey {
    /// Whether a region can hold the memory's address and the domain's number.
    pub fn can_be_kept(&self) -> bool {
        self.page_range.start & !START == 0 && self.domain.number != !START
    }

    /// Whether this key allows sharing a region with its current users, if it has any.
    #[inline(always)]
    pub fn may_share(&self, seen: Seen) -> bool {
        !self.unshared || seen.users() == 0
    }
}

/// A range in the form that the rule of `src/policy/` takes.
#[inline(always)]
pub fn range(pd: u64, page_range: PageRange, access: u32) -> Range {
    Range {
        pd,
        start: page_range.start,
        end: page_range.end,
        access,
    }
}
