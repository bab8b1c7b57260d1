// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that reads the events of userfaultfd. A thread that changes watched memory waits for
//! the reader. So the reader waits for no thread. `helper_thread.rs` has the rules that it obeys.
//!
//! The reader has a table of descriptors of its own, in which it closes all files but its own. POSIX
//! locks belong to a table, so the program keeps its locks. `helper_thread::leave_table` says how long
//! the table holds copies of the program's files.
//!
//! A tracer stops the threads one after the other, and waits for each: for ever, if one waits for a
//! reader that it has stopped (py-spy did in each recording of a program with two threads that frees
//! large blocks, docs/limits.md). It takes the threads in the order of their start. So the reader is the
//! newest thread: while it has events, it looks for a newer one ten times a second, and then
//! [passes its work on](pass_on) to a thread that is newer still.

use crate::watch::ring::{Event, Kind, Ring};
use crate::watch::userfaultfd::{self, Message, Report, Userfaultfd};
use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*, fence};
use core::time::Duration;
use errno::Errno;
use rdmamr_sys::futex::{self, Remaining};
use rdmamr_sys::helper_thread::Place;
use rdmamr_sys::pages::PageRange;
use rdmamr_sys::seccomp::is_filtered;
use rdmamr_sys::{clock, helper_thread, thread};

/// 0 until the reader has tried to get a table of descriptors of its own; then [`APART`], or the errno
/// of the refusal.
static OWN_TABLE: AtomicU32 = AtomicU32::new(0);
const APART: u32 = u32::MAX;

/// Not 0 once the reader reads events: it has closed its copies of the program's files.
static READY: AtomicU32 = AtomicU32::new(0);

/// Not 0 while the reader may make a system call other than the one in which it waits for events.
static BUSY: AtomicU32 = AtomicU32::new(0);

/// The reader's argument. Leak checkers do not look at the reader's stack, so the pointer lies here.
static READER: AtomicPtr<Reader> = AtomicPtr::new(null_mut());

struct Reader {
    receivers: Receivers,
    /// The file, by its number in the program's table.
    file: Userfaultfd,
    /// Where readers run, in turn: the first one in the second place.
    places: [Place; 2],
}

impl Reader {
    /// Where the reader after that of this turn runs, and where the one before it ran.
    fn other_place(&self, turn: usize) -> &Place {
        &self.places[turn % 2]
    }
}

/// The receivers of the reader's reports.
#[derive(Clone, Copy)]
pub struct Receivers {
    pub ring: &'static Ring,
    /// Called when the ring has new events. The function obeys the rules of `helper_thread.rs`, and
    /// waits for no thread.
    pub heard: fn(),
}

/// Starts the reader. Returns whether it has a table of its own, so that the program's may lose this
/// number of the file. An error is the kernel's refusal of a thread or of a table, or EPERM: the
/// program is about to filter its system calls.
pub fn start(file: Userfaultfd, receivers: Receivers) -> Result<bool, Errno> {
    // Either this thread finds that the cache has ended, or the thread that ends it waits for the
    // reader's rest (`ended.rs`).
    BUSY.store(1, SeqCst);
    fence(SeqCst);
    let refused = |errno| {
        BUSY.store(0, Relaxed);
        Err(errno)
    };
    if is_filtered() {
        return refused(Errno(libc::EPERM));
    }
    OWN_TABLE.store(0, Relaxed);
    // Another thread may have forked this process beside a start of its parent's.
    READY.store(0, Relaxed);
    let (Some(one), Some(other)) = (Place::map(), Place::map()) else {
        return refused(errno::errno());
    };
    let argument = Box::into_raw(Box::new(Reader {
        receivers,
        file,
        places: [one, other],
    }));
    READER.store(argument, Relaxed);
    // SAFETY: the box is freed only if there is no thread.
    let place = unsafe { &*argument }.other_place(1);
    // SAFETY: `run` keeps to the rules of `helper_thread.rs`, and the place is new.
    if unsafe { place.start(run, null_mut()) }.is_none() {
        let errno = errno::errno();
        READER.store(null_mut(), Relaxed);
        // SAFETY: the box was made above, and nothing uses it.
        drop(unsafe { Box::from_raw(argument) });
        return refused(errno);
    }
    let mut remaining = Remaining::new(Duration::from_secs(1), Duration::from_millis(10));
    while OWN_TABLE.load(Acquire) == 0 && !remaining.is_over() {
        remaining.wait(&OWN_TABLE, 0);
    }
    match OWN_TABLE.load(Acquire) {
        APART => Ok(true),
        // The thread is stopped. No memory is watched before it goes on.
        0 => Ok(false),
        errno => refused(Errno(errno as i32)),
    }
}

/// Waits until the started reader is ready. Waits in vain only once.
#[cold]
pub fn wait_until_ready() {
    static WAITED: AtomicBool = AtomicBool::new(false);
    // The closing of a file may wait for a server of its file system, which may be this process.
    // Until the reader is ready, no memory is watched.
    const WAITS: u32 = 10;
    for _ in 0..WAITS {
        if is_ready() || WAITED.load(Relaxed) {
            return;
        }
        futex::wait(&READY, 0, Some(Duration::from_millis(10)));
    }
    WAITED.store(true, Relaxed);
}

/// Waits, a second at most, until the reader waits for events. No memory is watched any more, so the
/// reader then waits for ever.
pub fn wait_to_rest() {
    const TIMES: u32 = 1000;
    let moment = Duration::from_millis(1);
    let mut waited = false;
    for _ in 0..TIMES {
        let is_busy = BUSY.load(Acquire) != 0;
        if !is_busy && !waited {
            return;
        }
        // Once more after it has come to rest: between the mark and the kernel lies the call itself.
        futex::pause(moment);
        waited = is_busy;
    }
}

/// Whether the reader reads events.
pub fn is_ready() -> bool {
    READY.load(Acquire) != 0
}

extern "C" fn run(_: *mut c_void) -> c_int {
    // SAFETY: `start` left it there, and never frees it while the reader runs.
    let file = unsafe { &*READER.load(Relaxed) }.file;
    let own_table = helper_thread::leave_table(file.fd()).map(Userfaultfd::of_fd);
    OWN_TABLE.store(
        own_table.map_or_else(|errno| errno.0 as u32, |_| APART),
        Release,
    );
    // At once, since the copies hold the program's files. If one waits while it is closed, the starting
    // thread finds the store.
    let mut only_one = own_table.ok().and_then(Userfaultfd::as_only_one);
    futex::wake(&OWN_TABLE, 1);
    let Ok(file) = own_table else {
        helper_thread::leave();
        return 0;
    };
    helper_thread::set_name(c"rdmamr-uffd");
    helper_thread::run_anywhere();
    let file = loop {
        if let Some(file) = only_one {
            break file;
        }
        // The program has lowered RLIMIT_NOFILE meanwhile. No memory is watched yet.
        futex::pause(Duration::from_secs(1));
        only_one = file.as_only_one();
    };
    // This runs beside the start, in the reader's own table, so the program never sees these files.
    userfaultfd::look_whether_files_are_apart();
    READY.store(1, Release);
    futex::wake(&READY, i32::MAX);
    read_events(file, 0);
    0
}

/// Reads events until another thread does. `turn` is how many did before.
fn read_events(file: Userfaultfd, turn: usize) {
    // SAFETY: as in `run`.
    let reader = unsafe { &*READER.load(Relaxed) };
    let Receivers { ring, heard, .. } = reader.receivers;
    let mut messages = [Message::default(); 32];
    let before = reader.other_place(turn);
    let mut looked = 0;
    loop {
        // The end of the reader before, too, is a call that a filter may forbid.
        let ready = if before.is_free() {
            rests(file)
        } else {
            futex::pause(Duration::from_micros(100));
            true
        };
        // The announcement precedes the read: as soon as the reader has read an event, the thread
        // that caused it goes on.
        ring.announce();
        let drained = drain(file, ring, &mut messages);
        let failed = drained.is_err() || !ready;
        if failed {
            // Written each time, because the ring may have been full the last time.
            write(ring, PageRange::ALL, Kind::Broken);
        }
        ring.finish();
        heard();
        if failed {
            // The program's descriptor keeps the file open, so threads would wait for ever if this
            // thread stopped reading. It tries again.
            futex::pause(Duration::from_millis(10));
        }
        let now = clock::monotonic_by_kernel();
        if now.saturating_sub(looked) >= LOOK {
            looked = now;
            if pass_on(before, turn + 1) {
                return;
            }
        }
    }
}

/// How often the reader looks whether it is the newest thread, in ns. The look takes 10 us.
const LOOK: u64 = 100_000_000;

/// Has a newer thread read the events from now on, in that place, unless this one is the newest. Returns
/// whether it does. The two read one after the other, so one of them announces and writes each event.
fn pass_on(place: &Place, turn: usize) -> bool {
    // The look comes first: the child of `permitted.rs` makes it too, where no thread may end.
    if is_filtered()
        || !place.is_free()
        || thread::is_newest() != Some(false)
        || !helper_thread::may_end()
    {
        return false;
    }
    // SAFETY: `go_on` keeps the rules of `helper_thread.rs`, its argument is a number, and no thread has
    // the place.
    let next = unsafe { place.start(go_on, without_provenance_mut(turn)) };
    if next.is_some() {
        helper_thread::leave();
    }
    next.is_some()
}

extern "C" fn go_on(turn: *mut c_void) -> c_int {
    read_events(Userfaultfd::ONLY, turn.addr());
    0
}

/// Waits for an event. False if the file cannot be waited for. Its number is below 64
/// ([`Userfaultfd::as_only_one`]).
fn rests(file: Userfaultfd) -> bool {
    BUSY.store(0, Release);
    let ready = userfaultfd::wait_for(file);
    BUSY.store(1, Relaxed);
    ready
}

/// Reads all events.
fn drain(file: Userfaultfd, ring: &Ring, messages: &mut [Message]) -> Result<(), Errno> {
    loop {
        let count = file.read(messages)?;
        for message in messages.iter().take(count) {
            match message.report() {
                Report::Unmapped(range) => {
                    write(ring, range, Kind::Changed);
                }
                Report::Dropping(range) => {
                    let at = clock::monotonic_by_kernel();
                    write(ring, range, Kind::Dropping { at });
                }
                Report::Moved(from, to) => {
                    write(ring, from, Kind::Changed);
                    write(ring, to, Kind::Changed);
                }
                Report::Other => {}
            }
        }
        if count == 0 {
            return Ok(());
        }
    }
}

fn write(ring: &Ring, range: PageRange, kind: Kind) {
    ring.write(Event { range, kind });
}
