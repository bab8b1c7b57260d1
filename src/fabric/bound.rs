// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue to which a domain reports its registrations, fi_domain_bind(3).

use super::errors::Failure;
use super::foreign_queue::ForeignQueue;
use super::object::{Hold, Tables};
use super::queue::Queue;
use super::region::Region;
use rdmamr_abi::libfabric::*;

/// The queue of a domain.
pub enum Bound {
    /// A queue of this library, which the domain keeps open.
    Queue {
        queue: &'static Queue,
        _hold: Hold,
    },
    Foreign(ForeignQueue),
}

impl Bound {
    /// # Safety
    /// `eq` is an open queue, and stays open as long as a domain is bound to it.
    pub unsafe fn to(eq: *mut fid_eq, tables: &Tables) -> Result<Bound, Failure> {
        // SAFETY: the caller promised an open queue.
        if unsafe { Queue::is_ours(eq, tables) } {
            // SAFETY: `is_ours` found this library's table; the hold keeps the queue open.
            let queue: &'static Queue = unsafe { Queue::from_c(eq) }?;
            let _hold = queue.hold();
            Ok(Bound::Queue { queue, _hold })
        } else {
            // SAFETY: the caller promised that the queue stays open.
            unsafe { ForeignQueue::try_out(eq) }.map(Bound::Foreign)
        }
    }

    /// The queue, if it is of this library: registrations are then made in the background.
    pub fn queue(&self) -> Option<&'static Queue> {
        match self {
            Bound::Queue { queue, .. } => Some(queue),
            Bound::Foreign(_) => None,
        }
    }

    /// Reports a completed registration. A queue of this library has promised room for the event.
    pub fn completed(&self, region: &Region) -> Result<(), Failure> {
        match self {
            Bound::Queue { queue, .. } => {
                queue.completed(region.address(), region.context());
                Ok(())
            }
            Bound::Foreign(queue) => queue.completed(region.as_ptr(), region.context()),
        }
    }
}
