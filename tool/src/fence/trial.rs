// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trial that the service makes before it serves: changes of memory of its own must be counted
//! on its own line, as a process will see it.

use crate::userfaultfd;
use anyhow::{Context, Result, bail, ensure};
use rdmamr_fence::{MOVES, SIZE, index, line};
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::sleep;
use std::time::Duration;

const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const MODE_MISSING: u64 = 1;
const PAGE: usize = 4096;
const TRIES: usize = 5;

/// Maps memory. Few callers unmap it: this happens a few times in a process.
pub fn map(length: usize, access: i32, flags: i32, file: i32) -> Result<*mut u8> {
    // SAFETY: no address is given, so no other memory is touched.
    let at = unsafe { libc::mmap(null_mut(), length, access, flags, file, 0) };
    ensure!(at != libc::MAP_FAILED, "mmap: {}", Error::last_os_error());
    Ok(at.cast())
}

/// The counters as a process sees them.
pub struct View(*const u8);

impl View {
    pub fn of(counters: &OwnedFd) -> Result<View> {
        let file = counters.as_raw_fd();
        let at = map(SIZE, libc::PROT_READ, libc::MAP_SHARED, file)?;
        Ok(View(at))
    }

    fn read(&self, offset: usize) -> u64 {
        assert!(offset + 8 <= SIZE && offset % 8 == 0);
        // SAFETY: the offset is in the mapping and aligned, as just checked.
        let number = unsafe { self.0.add(offset) }.cast::<AtomicU64>();
        // SAFETY: the mapping is never unmapped, and only atomic operations write it.
        unsafe { &*number }.load(SeqCst)
    }
}

/// Tries more than once: the kernel may skip a count on a processor where it has preempted a task
/// inside a program.
pub fn run(view: &View) -> Result<()> {
    for _ in 1..TRIES {
        if once(view).is_ok() {
            return Ok(());
        }
        sleep(Duration::from_millis(10));
    }
    once(view)
}

/// Unmaps a watched page, and moves another one.
fn once(view: &View) -> Result<()> {
    let line = line(index(std::process::id()));
    let (watch, _) = userfaultfd::open(0).context("userfaultfd(2)")?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let memory = map(2 * PAGE, access, flags, -1)?;
    let page = |number: usize| memory.wrapping_add(number * PAGE).cast();
    let mut register = [memory as u64, 2 * PAGE as u64, MODE_MISSING, 0];
    // SAFETY: the structure is the one of UFFDIO_REGISTER.
    if unsafe { libc::ioctl(watch.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()) } != 0 {
        bail!("UFFDIO_REGISTER: {}", Error::last_os_error());
    }
    let changes: [(&str, &dyn Fn() -> bool); 2] = [
        ("munmap", &|| {
            // SAFETY: nothing uses this page.
            unsafe { libc::munmap(page(1), PAGE) == 0 }
        }),
        ("mremap", &|| {
            // Without an unmap, which would be counted too: of the old place, or of a chosen new one.
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
            let anywhere = null_mut::<u8>();
            // SAFETY: nothing uses this page, and the kernel chooses an unused place.
            unsafe { libc::mremap(page(0), PAGE, PAGE, flags, anywhere) != libc::MAP_FAILED }
        }),
    ];
    for (call, change) in changes {
        let before = view.read(line + MOVES);
        ensure!(change(), "{call}: {}", Error::last_os_error());
        let is_counted = view.read(line + MOVES) != before;
        ensure!(is_counted, "the kernel did not count a change by {call}");
    }
    Ok(())
}
