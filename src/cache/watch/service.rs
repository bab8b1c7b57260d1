// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection to the service `rdmamr fence`, which gives the counters of begun changes
//! (`counts.rs`), in the reader's thread and in its table of descriptors: `helper_thread.rs` has the
//! rules. The service is asked once, at the start, and nothing waits for its answer: until the
//! counters are proven, and if anything about them is unexpected, each fence asks the kernel. What
//! is proven, `rdmamr_fence` says.
//!
//! The links of the programs that count stay open in the reader's table. While this process lives,
//! they stay attached, whatever becomes of the service. A forked child inherits neither the files
//! nor the mapping.

use crate::watch::counts::{Counters, Word, counters, word};
use crate::watch::userfaultfd::{Userfaultfd, wait_for};
use crate::watch::watch_fd::WATCH_FD;
use core::mem::offset_of;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::Ordering::*;
use libc::{c_int, syscall};
use rdmamr_fence::{About, FILES, LINES, LINKS, MAGIC, MOST_LINKS, SIZE, SOCKET, line};
use rdmamr_stats::log::{self, Level};
use rdmamr_sys::pages::{FAR_AWAY, PageRange, page_size};
use rdmamr_sys::seccomp::is_filtered;
use rdmamr_sys::{helper_thread, proc};

/// The address of the mapping if the kernel has room there.
const PLACE: usize = FAR_AWAY + (1 << 22);

/// How long the answer may take.
const LIMIT: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// How often the process changes memory of its own at the start, to find its line.
const TRIES: usize = 16;

/// The service has been asked, and has not answered.
pub struct Question {
    socket: c_int,
    limit: libc::timespec,
}

/// Asks the service. `None` if there is none: then there is a line in the log.
pub fn ask() -> Option<Question> {
    let mut address = libc::sockaddr_un {
        sun_family: libc::AF_UNIX as libc::sa_family_t,
        sun_path: [0; 108],
    };
    for (to, byte) in address.sun_path.iter_mut().zip(SOCKET.bytes()) {
        *to = byte as libc::c_char;
    }
    begin(&address).map_err(refuse).ok()
}

/// The process does without the counters. Closes all that the service sent.
fn refuse(reason: &str) {
    helper_thread::close_from(1);
    if log::wants(Level::Info) {
        log::soon(format_args!(
            "the service rdmamr fence counts no changes for this process: {reason}"
        ));
    }
}

fn begin(address: &libc::sockaddr_un) -> Result<Question, &'static str> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let socket = unsafe { syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return Err("no socket");
    }
    let (at, size) = (&raw const *address, size_of_val(address));
    // SAFETY: the kernel reads the address.
    if unsafe { syscall(libc::SYS_connect, socket, at, size) } != 0 {
        return Err("it does not run, or accepts no connection");
    }
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: 0,
    };
    let mut size = size_of_val(&peer) as libc::socklen_t;
    let (peer_at, size_at) = (&raw mut peer, &raw mut size);
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the kernel writes at most `size` bytes of `peer`, and then `size`.
    unsafe {
        syscall(
            libc::SYS_getsockopt,
            socket,
            level,
            option,
            peer_at,
            size_at,
        )
    };
    if peer.uid != 0 {
        return Err("it does not run as root");
    }
    let (socket, limit) = (socket as c_int, LIMIT);
    Ok(Question { socket, limit })
}

impl Question {
    /// Waits until `events` can be read, which returns true, or until the answer is there or too
    /// late.
    pub fn waits_for(&mut self, events: Userfaultfd) -> bool {
        let (events, answer) = (1 << events.fd(), 1 << self.socket);
        let ready = wait_for(events | answer, Some(&mut self.limit));
        ready.is_some_and(|ready| ready & events != 0)
    }

    /// Reads the answer. If the counters are proven, hits use them from now on. Returns the count of
    /// changes.
    pub fn read_answer(self) -> u64 {
        let proven = receive(self.socket);
        // SAFETY: the number is this thread's own.
        unsafe { syscall(libc::SYS_close, self.socket) };
        match proven {
            Err(reason) => refuse(reason),
            Ok((first, own)) => {
                // SAFETY: `map` has mapped both lines for good.
                unsafe { WATCH_FD.counts.set(first, own) };
                if log::wants(Level::Info) {
                    log::soon(format_args!(
                        "relaxed regions: the service rdmamr fence counts changes of memory"
                    ));
                }
            }
        }
        let counters = WATCH_FD.counts.get();
        counters.map_or(0, |counters| counters.moves.get(Acquire))
    }
}

/// Checks that the kernel still counts. It stops without a word if an administrator sets
/// kernel.ftrace_enabled to 0, and it counts on another line once a task that shares the memory and
/// is no thread of this process has inherited the memory.
///
/// The reader has read an event of a change that the kernel counts before the event. If the count is
/// the same as after the events before (`last`), either the change was counted before those were
/// read, or it was not counted. If not because a processor skips counts, hits ask the kernel from
/// now on.
pub fn check(last: &mut u64) {
    let Some(counters) = WATCH_FD.counts.get() else {
        return;
    };
    let is_same = counters.moves.get(Acquire) == *last;
    let gaps = counters.gaps.get(Acquire);
    let skips = || counters.open.get(Acquire) != 0 || counters.gaps.get(Acquire) != gaps;
    if is_same && !skips() && !is_proven(&counters) && !skips() {
        WATCH_FD.counts.forget();
        if log::wants(Level::Warn) {
            log::soon(format_args!(
                "cannot verify that the kernel still counts changes for this process (kernel.ftrace_enabled=0, or a limit of the process?): from now on each hit asks the kernel"
            ));
        }
    }
    *last = counters.moves.get(Acquire);
}

/// Receives the files of the answer, and proves their counters ([`map`]).
fn receive(socket: c_int) -> Result<(*mut u8, *mut u8), &'static str> {
    const HEAD: usize = size_of::<libc::cmsghdr>();
    #[repr(C, align(8))]
    struct Control {
        head: [u8; HEAD],
        /// One more than is right.
        files: [c_int; *FILES.end() + 1],
    }
    // The kernel writes the head of the only control message, and the files right behind it.
    const _: () = assert!(offset_of!(Control, files) == HEAD && HEAD % 8 == 0);
    let mut control = Control {
        head: [0; HEAD],
        files: [-1; *FILES.end() + 1],
    };
    // A longer packet is not the answer.
    let mut packet = [0u8; MAGIC.len() + 1];
    let mut part = libc::iovec {
        iov_base: packet.as_mut_ptr().cast(),
        iov_len: packet.len(),
    };
    // SAFETY: all zeros is a message without a part.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the kernel writes to `packet` and `control`, no more than their sizes.
    let read = unsafe { syscall(libc::SYS_recvmsg, socket, &raw mut message, flags) };
    let count = (message.msg_controllen as usize).saturating_sub(HEAD) / size_of::<c_int>();
    let received = control.files.iter().take(count);
    let count = received.take_while(|&&file| file >= 0).count();
    match usize::try_from(read) {
        Err(_) => Err("it gave no answer in time"),
        Ok(0) => Err("it refuses this process"),
        Ok(read) if packet.get(..read) != Some(&MAGIC) => Err("its answer is of another version"),
        _ if message.msg_flags & libc::MSG_CTRUNC != 0 || !FILES.contains(&count) => {
            Err("not all its files could be received")
        }
        _ => map(&control.files[..count]),
    }
}

/// What the kernel says of a file of that name; nothing if it is another's, or if that cannot be read.
/// The lines alone do not tell: a user can give a dma-buf a name that has lines in it.
fn about(file: c_int, name: &[u8]) -> About {
    let mut about = About::default();
    let read = u8::try_from(file).is_ok_and(|fd| {
        proc::is_anonymous(fd, name) && proc::each_line_about(fd, |line| about.read(line))
    });
    if read { about } else { About::default() }
}

/// Maps the counters and proves them. Returns the two lines that this process reads.
fn map(files: &[c_int]) -> Result<(*mut u8, *mut u8), &'static str> {
    let [file, links @ ..] = files else {
        return Err("not all its files could be received");
    };
    if !about(*file, b"anon_inode:bpf-map").is_counters() {
        return Err("its counters are not the kernel's, or /proc does not show what they are");
    }
    let (rights, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    // SAFETY: the call makes a new mapping and touches no other.
    let mapped = unsafe { syscall(libc::SYS_mmap, PLACE, SIZE, rights, flags, *file, 0isize) };
    if mapped == -1 {
        return Err("its counters cannot be mapped");
    }
    let first = with_exposed_provenance_mut::<u8>(mapped as usize);
    // SAFETY: the mapping is the one just made. A child does without it.
    let kept = unsafe { syscall(libc::SYS_madvise, first, SIZE, libc::MADV_DONTFORK) } == 0;
    let is_named = |n: usize| {
        let link = links.get(n);
        let link = link.map_or(Some(0), |&link| about(link, b"anon_inode:bpf_link").link());
        // SAFETY: the word is in the mapping, and a reference is not used once it ends.
        link == Some(unsafe { word(first, LINKS + 8 * n) }.get(Relaxed))
    };
    let proven = if !(0..MOST_LINKS).all(is_named) {
        Err("its programs are not those that its counters name")
    } else if is_filtered() || !kept {
        Err("the process ends its cache")
    } else {
        // SAFETY: the mapping is of the whole counters.
        unsafe { find(first) }.ok_or("its counters do not show each change")
    };
    if proven.is_err() {
        // SAFETY: the mapping is the one made above, and nothing uses it.
        unsafe { syscall(libc::SYS_munmap, first, SIZE) };
    }
    proven.map(|own| (first, own))
}

/// The only line that rises at each change that this process makes.
///
/// # Safety
/// `first` begins counters that stay mapped during the call.
unsafe fn find(first: *mut u8) -> Option<*mut u8> {
    let own = |index| first.wrapping_add(line(index));
    // SAFETY: each line is in the mapping (this function's contract).
    let of = |index| unsafe { counters(first, own(index)) };
    let size = LINES as usize * size_of::<u64>();
    let memory = helper_thread::map(size)?;
    // The lines that have risen at each change: an index, and the lower half of the count.
    // SAFETY: the memory is as large, this function's own, and all zeros are numbers.
    let lines = unsafe { core::slice::from_raw_parts_mut(memory.cast::<u64>(), LINES as usize) };
    let pair = |index: u64| index << 32 | of(index as u32).moves.get(Acquire) & 0xffff_ffff;
    let mut found = None;
    let mut left = 0;
    for _ in 0..TRIES {
        if left == 0 {
            (0..)
                .zip(&mut *lines)
                .for_each(|(index, it)| *it = index << 32);
            left = lines.len();
        }
        let Counters { gaps, open, .. } = of(0);
        let before = gaps.get(Acquire);
        let skips = open.get(Acquire) != 0;
        let changed = changes(|change| {
            lines[..left]
                .iter_mut()
                .for_each(|it| *it = pair(*it >> 32));
            let changed = change();
            let mut risen = 0;
            for n in 0..left {
                if pair(lines[n] >> 32) != lines[n] {
                    lines[risen] = lines[n];
                    risen += 1;
                }
            }
            left = risen;
            changed
        });
        if skips || gaps.get(Acquire) != before {
            // The process's own line may have missed a count.
            left = 0;
        } else if !changed || left < 2 {
            found = (changed && left == 1).then(|| own((lines[0] >> 32) as u32));
            break;
        }
    }
    // SAFETY: the memory is this function's own, and nothing uses it.
    unsafe { helper_thread::unmap(memory, size) };
    found
}

/// Whether the counters show each kind of change of watched memory at once.
fn is_proven(counters: &Counters<'_>) -> bool {
    changes(|change| {
        let before = counters.moves.get(Acquire);
        change() && counters.moves.get(Acquire) != before
    })
}

/// Makes each kind of change of watched memory by `make`. Whether all have been made, and `make`
/// has returned true for each.
fn changes(mut make: impl FnMut(&dyn Fn() -> bool) -> bool) -> bool {
    let size = page_size() as usize;
    let Some(one) = helper_thread::map(3 * size) else {
        return false;
    };
    let [two, three] = [1, 2].map(|page| one.wrapping_byte_add(page * size));
    // SAFETY: the page is this function's own, and nothing uses it.
    unsafe { helper_thread::unmap(three, size) };
    let start = one.addr() as u64;
    let watched = PageRange::new(start, start + 2 * page_size());
    // No thread waits for a reader of this file.
    let file = Userfaultfd::open_without_events();
    let is_watched = file.is_some_and(|file| file.register(watched).is_ok());
    let unmapped = make(&|| {
        // SAFETY: the page is this function's own, and nothing uses it.
        unsafe { helper_thread::unmap(two, size) };
        true
    });
    let new = core::cell::Cell::new(-1);
    let moved = make(&|| {
        // Without an unmap, which would be counted too: of the old place, or of a fixed new one.
        // The hint keeps the page away from places that the program has just unmapped: it may map
        // something there, which must not end with this page.
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
        // SAFETY: the page is this function's own, and the kernel chooses an unused place.
        new.set(unsafe { syscall(libc::SYS_mremap, one, size, size, how, three) });
        new.get() != -1
    });
    if new.get() != -1 {
        // SAFETY: the kernel has mapped a page there, and nothing uses it.
        unsafe { helper_thread::unmap(with_exposed_provenance_mut(new.get() as usize), size) };
    }
    // SAFETY: the page is this function's own, and nothing uses it.
    unsafe { helper_thread::unmap(one, size) };
    if let Some(file) = file {
        file.close();
    }
    is_watched && unmapped && moved
}
