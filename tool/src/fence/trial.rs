// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trial that the service makes before it serves: changes of memory of its own must be counted
//! on its own line, as a process will see it.

use super::bpf;
use crate::userfaultfd;
use anyhow::{Context, Result, bail, ensure};
use rdmamr_fence::{MOVES, SIZE, index, line};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
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

/// Tries more than once: the kernel may skip a count on a processor where it has preempted a task
/// inside a program.
pub fn run(counters: &OwnedFd) -> Result<()> {
    let own = (line(index(std::process::id())) + MOVES) / 8;
    let moves = &bpf::view(counters, SIZE)?[own];
    for _ in 1..TRIES {
        if once(moves).is_ok() {
            return Ok(());
        }
        sleep(Duration::from_millis(10));
    }
    once(moves)
}

/// Unmaps a watched page, and moves another one.
fn once(moves: &AtomicU64) -> Result<()> {
    let (watch, _) = userfaultfd::open(0).context("userfaultfd(2)")?;
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: no address is given, so no other memory is touched. A trial leaves what it maps.
    let memory = unsafe { mmap_anonymous(null_mut(), 2 * PAGE, access, flags) }.context("mmap")?;
    let page = |number: usize| memory.wrapping_byte_add(number * PAGE);
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
        let before = moves.load(SeqCst);
        ensure!(change(), "{call}: {}", Error::last_os_error());
        let is_counted = moves.load(SeqCst) != before;
        ensure!(is_counted, "the kernel did not count a change by {call}");
    }
    Ok(())
}
