// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the kernel counts the changes that are in flight.
//!
//! Since Linux 5.15 `mmap_changing` (fs/userfaultfd.c) is a count. Before, it is a flag, which the
//! first of two concurrent changes clears when it ends: the fence passes while the second one is in
//! flight, and a hit beside it may be stale. Distributions with older numbers may have the later
//! code (RHEL 9 has 5.14), so a kernel with an older number is tried.

use crate::watch::userfaultfd::{Fence, Message, Userfaultfd};
use core::ffi::{c_int, c_void};
use core::time::Duration;
use rdmamr_sys::helper_thread::{self, Ending};
use rdmamr_sys::memory::has_page;
use rdmamr_sys::pages::{PageRange, page_size};
use rdmamr_sys::{futex, kernel};

/// Whether the fence of this new file tells of every change in flight. No other thread reads the
/// file.
pub fn are_counted(file: Userfaultfd) -> bool {
    !kernel::is_before(5, 15) || fence_tells_of_the_second(file)
}

/// Makes two changes, lets the first one end, and asks the fence.
fn fence_tells_of_the_second(file: Userfaultfd) -> bool {
    let made = [(); 2].map(|()| Unmapping::start(file));
    let threads = made.iter().flatten();
    let are_both_in_flight = threads.clone().count() == 2
        && within_a_second(|| threads.clone().all(Unmapping::has_begun));
    let read = || file.read(&mut [Message::default()]);
    let tells = are_both_in_flight
        && within_a_second(|| read() == Ok(1))
        && within_a_second(|| threads.clone().any(|one| one.thread.has_ended()))
        && file.fence() == Fence::Pending;
    while !threads.clone().all(|one| one.thread.has_ended()) {
        let _ = read();
        futex::pause(Duration::from_micros(50));
    }
    made.into_iter().flatten().for_each(|one| one.thread.join());
    tells
}

/// A thread that unmaps a page that the file watches, and so waits for the file's reader.
struct Unmapping {
    thread: Ending,
    page: *mut c_void,
}

impl Unmapping {
    fn start(file: Userfaultfd) -> Option<Unmapping> {
        let page = helper_thread::map(page_size() as usize)?;
        let start = page.addr() as u64;
        file.register(PageRange::new(start, start + page_size()))
            .ok()?;
        // SAFETY: `unmap_page` makes one system call. Nothing else uses the page.
        let thread = unsafe { helper_thread::start_ending(unmap_page, page) }?;
        Some(Unmapping { thread, page })
    }

    /// The kernel marks the change before it unmaps the page.
    fn has_begun(&self) -> bool {
        has_page(self.page.addr()).is_none()
    }
}

extern "C" fn unmap_page(page: *mut c_void) -> c_int {
    // SAFETY: `Unmapping::start` mapped this page, and nothing uses it.
    unsafe { helper_thread::unmap(page, page_size() as usize) };
    0
}

fn within_a_second(mut is_so: impl FnMut() -> bool) -> bool {
    (0..20_000).any(|_| {
        is_so() || {
            futex::pause(Duration::from_micros(50));
            false
        }
    })
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    /// (Linux 5.10 fails this test, as it should.)
    #[test]
    fn this_kernel_counts_them() {
        let Ok(file) = Userfaultfd::open() else {
            return;
        };
        for _ in 0..20 {
            assert!(fence_tells_of_the_second(file));
            assert_eq!(file.fence(), Fence::Passed);
        }
        file.close();
    }
}
