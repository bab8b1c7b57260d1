// SPDX-License-Identifier: MIT OR Apache-2.0
//! An event queue, fi_eq(3). It holds the results of asynchronous registrations, and the events
//! that the application writes.

use super::errors::{self, Result, ensure, may_allocate};
use super::object::{Head, Hold, Process, Tables, lock};
use super::refusals::*;
use super::region::Region;
use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering::*};
use core::time::Duration;
use errno::errno;
use rdmamr_abi::libfabric::*;
use rdmamr_abi::libfabric_provider::{FI_VERSION_1_5, FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_UNSPEC};
use rdmamr_mr::Error;
use rdmamr_mr::explain::Reason;
use rdmamr_sys::thread;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Condvar, Mutex, PoisonError};

/// An event queue.
#[repr(C)]
pub struct Queue {
    // The fields of `struct fid_eq`.
    _fid: Head,
    rest: &'static fi_ops_eq,
    // The private fields.
    process: Process,
    api_version: u32,
    may_write: bool,
    /// An eventfd that is readable while the queue is not empty. Without it no thread can wait.
    fd: Option<File>,
    /// The number of domains that are bound to the queue.
    pub holds: AtomicUsize,
    events: Mutex<Events>,
    filled: Condvar,
    /// Keeps the fabric open that opened the queue, if a fabric did.
    _fabric: Option<Hold>,
}
const _: () = assert!(offset_of!(Queue, process) >= size_of::<fid_eq>());
const _: () = assert!(offset_of!(Queue, rest) == offset_of!(fid_eq, ops));

#[derive(Default)]
struct Events {
    waiting: VecDeque<Event>,
    /// The number of registrations under way. Each will put one event into the queue, and `waiting`
    /// has room for it already.
    promised: usize,
    /// The text of the error that was read last.
    words: Vec<u8>,
}

impl Events {
    /// Makes room for one more event than those that are promised.
    fn reserve(&mut self) -> Result<(), Error> {
        let events = self.promised + 1;
        self.waiting.try_reserve(events).map_err(|_| Error::Memory)
    }
}

/// Why a registration has failed.
struct Refusal {
    code: i32,
    errno: i32,
    words: Vec<u8>,
}

enum Event {
    /// A registration has completed, or failed.
    Registration {
        region: usize,
        context: usize,
        failed: Option<Refusal>,
    },
    /// An event that the application wrote.
    Written { event: u32, bytes: Vec<u8> },
}

impl Queue {
    /// Opens a queue.
    ///
    /// # Safety
    /// `attr` is NULL or readable.
    pub unsafe fn open(
        tables: &'static Tables,
        api_version: u32,
        attr: *const fi_eq_attr,
        context: *mut c_void,
        fabric: Option<Hold>,
    ) -> Result<*mut fid_eq> {
        may_allocate()?;
        // SAFETY: the caller promised that `attr` is NULL or readable.
        let attr = unsafe { attr.as_ref() };
        let (flags, wait) = attr.map_or((0, FI_WAIT_UNSPEC), |attr| (attr.flags, attr.wait_obj));
        ensure(flags & !FI_WRITE == 0, QUEUE_FLAGS)?;
        let fd = match wait {
            FI_WAIT_NONE => None,
            FI_WAIT_UNSPEC | FI_WAIT_FD => Some(event_fd()?),
            _ => return Err(QUEUE_WAIT_OBJECT.into()),
        };
        let queue = Box::new(Queue {
            _fid: Head::new(FI_CLASS_EQ, context, &tables.queue),
            rest: &tables.queue_rest,
            process: Process::this(),
            api_version,
            may_write: flags & FI_WRITE != 0,
            fd,
            holds: AtomicUsize::new(0),
            events: Mutex::new(Events::default()),
            filled: Condvar::new(),
            _fabric: fabric,
        });
        Ok(Box::into_raw(queue).cast())
    }

    /// The queue that C names. A queue that the parent process made is refused.
    ///
    /// # Safety
    /// `eq` is an open queue of this library.
    pub unsafe fn from_c<'a>(eq: *mut fid_eq) -> Result<&'a Queue> {
        // SAFETY: the caller promised an open queue: only queues have the table that led here.
        let queue = unsafe { &*eq.cast::<Queue>() };
        queue.process.check()?;
        Ok(queue)
    }

    /// Closes the queue.
    ///
    /// # Safety
    /// `eq` is an open queue of this library. After success the caller does not use it again.
    pub unsafe fn close(eq: *mut fid_eq) -> Result<()> {
        // SAFETY: the caller promised an open queue of this library.
        let queue = unsafe { Queue::from_c(eq) }?;
        ensure(queue.holds.load(Acquire) == 0, QUEUE_IN_USE)?;
        // SAFETY: `open` made the box, and the caller promised not to use the queue again.
        drop(unsafe { Box::from_raw(eq.cast::<Queue>()) });
        Ok(())
    }

    /// Reserves room for the event of one more registration. The event then cannot be lost.
    pub fn promise(&self) -> Result<()> {
        let mut events = lock(&self.events);
        events.reserve()?;
        events.promised += 1;
        Ok(())
    }

    /// Takes a promise back.
    pub fn release(&self) {
        lock(&self.events).promised -= 1;
    }

    /// Puts in the event of a registration that has completed, or failed for that reason. `promise`
    /// has reserved the room.
    pub fn report(&self, region: &Region, failed: Option<&Reason>) {
        let refusal = |reason: &Reason| Refusal {
            code: errors::code(reason.error),
            errno: reason.error.errno(),
            words: format!("{reason}\0").into_bytes(),
        };
        let event = Event::Registration {
            region: region.address(),
            context: region.context().expose_provenance(),
            failed: failed.map(refusal),
        };
        let mut events = lock(&self.events);
        events.promised -= 1;
        self.put(&mut events, event);
    }

    fn put(&self, events: &mut Events, event: Event) {
        if events.waiting.is_empty() {
            self.signal(true);
        }
        events.waiting.push_back(event);
        self.filled.notify_all();
    }

    /// Makes the descriptor readable, or ends its readability.
    fn signal(&self, readable: bool) {
        let Some(mut fd) = self.fd.as_ref() else {
            return;
        };
        let _uncancelled = thread::uncancelled();
        let _ = match readable {
            true => fd.write(&1u64.to_ne_bytes()),
            false => fd.read(&mut [0; size_of::<u64>()]),
        };
    }

    fn remove(&self, events: &mut Events, remove: impl FnOnce(&mut VecDeque<Event>)) {
        let had_any = !events.waiting.is_empty();
        remove(&mut events.waiting);
        if had_any && events.waiting.is_empty() {
            self.signal(false);
        }
    }

    /// Removes the events of a region that is being closed.
    pub fn forget(&self, closed: &Region) {
        let is_of = |event: &Event| match event {
            Event::Registration { region, .. } => *region == closed.address(),
            Event::Written { .. } => false,
        };
        self.remove(&mut lock(&self.events), |waiting| {
            waiting.retain(|event| !is_of(event))
        });
    }

    /// Reads the next event. Returns its number and its size in bytes.
    pub fn read(&self, out: &mut [u8], flags: u64) -> Result<(u32, usize)> {
        self.read_locked(&mut lock(&self.events), out, flags)
    }

    fn read_locked(&self, events: &mut Events, out: &mut [u8], flags: u64) -> Result<(u32, usize)> {
        ensure(flags & !FI_PEEK == 0, READ_FLAGS)?;
        let completed;
        let (event, bytes): (u32, &[u8]) = match events.waiting.front().ok_or(QUEUE_EMPTY)? {
            Event::Registration {
                failed: Some(_), ..
            } => return Err(ERROR_FIRST.into()),
            Event::Registration {
                region, context, ..
            } => {
                // The `struct fi_eq_entry`.
                completed = [region.to_ne_bytes(), context.to_ne_bytes(), [0; 8]];
                (FI_MR_COMPLETE, completed.as_flattened())
            }
            Event::Written { event, bytes } => (*event, bytes),
        };
        let size = bytes.len();
        let out = out.get_mut(..size).ok_or(EVENT_TOO_LARGE)?;
        out.copy_from_slice(bytes);
        if flags & FI_PEEK == 0 {
            self.remove(events, |waiting| drop(waiting.pop_front()));
        }
        Ok((event, size))
    }

    /// Reads the next event. Waits up to `timeout` milliseconds for it, or for ever if `timeout` is
    /// negative.
    pub fn read_waiting(&self, out: &mut [u8], timeout: i32, flags: u64) -> Result<(u32, usize)> {
        ensure(self.fd.is_some(), NO_WAITING)?;
        let empty = |events: &mut Events| events.waiting.is_empty();
        // A wait that ends beyond what the clock counts to has no end (std's futex).
        let limit = u64::try_from(timeout).map_or(Duration::MAX, Duration::from_millis);
        let waited = self
            .filled
            .wait_timeout_while(lock(&self.events), limit, empty);
        let mut events = waited.unwrap_or_else(PoisonError::into_inner).0;
        self.read_locked(&mut events, out, flags)
    }

    /// Reads the next event, which must be an error.
    ///
    /// # Safety
    /// `out` is writable. For applications of version 1.5 and later, its `err_data` and
    /// `err_data_size` are set.
    pub unsafe fn read_error(&self, out: *mut fi_eq_err_entry, flags: u64) -> Result<usize> {
        ensure(!out.is_null(), NULL_BUFFER)?;
        ensure(flags & !FI_PEEK == 0, READ_ERROR_FLAGS)?;
        let mut events = lock(&self.events);
        let Some(Event::Registration {
            region,
            context,
            failed: Some(failed),
        }) = events.waiting.front()
        else {
            return Err(NO_ERROR_FIRST.into());
        };
        let mut error = fi_eq_err_entry {
            fid: core::ptr::with_exposed_provenance_mut(*region),
            context: core::ptr::with_exposed_provenance_mut(*context),
            data: 0,
            err: failed.code,
            prov_errno: failed.errno,
            err_data: null_mut(),
            err_data_size: 0,
        };
        let words = failed.words.clone();
        if self.api_version >= FI_VERSION_1_5 {
            // SAFETY: the caller promised that `out` is valid, and since version 1.5 that it is
            // set. Before 1.5 the queue only returned these two fields.
            let given = unsafe { out.read() };
            (error.err_data, error.err_data_size) = (given.err_data, given.err_data_size);
        }
        if error.err_data.is_null() || error.err_data_size == 0 {
            events.words = words;
            error.err_data = events.words.as_mut_ptr().cast();
            error.err_data_size = events.words.len();
        } else {
            error.err_data_size = words.len().min(error.err_data_size);
            let (data, size) = (error.err_data.cast::<u8>(), error.err_data_size);
            // SAFETY: the application set `err_data` to room for `err_data_size` bytes; `size` is
            // no more.
            unsafe { data.copy_from_nonoverlapping(words.as_ptr(), size) };
        }
        // SAFETY: the caller promised that `out` is writable.
        unsafe { out.write(error) };
        if flags & FI_PEEK == 0 {
            self.remove(&mut events, |waiting| drop(waiting.pop_front()));
        }
        Ok(size_of::<fi_eq_err_entry>())
    }

    /// Puts in an event of the application.
    pub fn write(&self, event: u32, bytes: &[u8], flags: u64) -> Result<()> {
        ensure(self.may_write, NOT_WRITABLE)?;
        ensure(flags == 0, WRITE_FLAGS)?;
        let mut events = lock(&self.events);
        events.reserve()?;
        // The application chose the length, so the allocation may fail.
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes.len())
            .map_err(|_| Error::Memory)?;
        copy.extend_from_slice(bytes);
        self.put(&mut events, Event::Written { event, bytes: copy });
        Ok(())
    }

    /// The descriptor that is readable while the queue is not empty.
    pub fn fd(&self) -> Result<i32> {
        let fd = self.fd.as_ref().map(AsRawFd::as_raw_fd);
        fd.ok_or(NO_DESCRIPTOR.into())
    }

    /// The FI_WAIT_... value of the queue.
    pub fn wait_object(&self) -> i32 {
        self.fd.as_ref().map_or(FI_WAIT_NONE, |_| FI_WAIT_FD)
    }

    /// Whether the queue holds no event.
    pub fn is_empty(&self) -> bool {
        lock(&self.events).waiting.is_empty()
    }
}

fn event_fd() -> Result<File> {
    // SAFETY: eventfd takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(Error::Kernel(errno()).into());
    }
    // SAFETY: eventfd has just returned `fd`, which no other code owns.
    Ok(unsafe { File::from_raw_fd(fd) })
}
