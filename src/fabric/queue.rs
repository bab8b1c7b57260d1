// SPDX-License-Identifier: MIT OR Apache-2.0
//! An event queue, fi_eq(3). It holds the results of asynchronous registrations, and the events
//! that the application writes.

use super::errors::{self, Failure, invalid, may_allocate, refused};
use super::provider::HeldFabric;
use super::{Process, Tables};
use crate::abi::libfabric::*;
use crate::abi::libfabric_provider::{FI_VERSION_1_5, FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_UNSPEC};
use crate::mr::Error;
use crate::mr::explain::Reason;
use crate::sys::thread;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use core::time::Duration;
use errno::{Errno, errno};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

const EMPTY: Failure = refused(FI_EAGAIN, "the queue is empty");
const ERROR_FIRST: Failure = refused(
    FI_EAVAIL,
    "the next event is an error: fi_eq_readerr() reads it",
);

/// An event queue.
#[repr(C)]
pub struct Queue {
    // The fields of `struct fid_eq`.
    fclass: AtomicUsize,
    context: AtomicPtr<c_void>,
    ops: &'static fi_ops,
    rest: &'static fi_ops_eq,
    // The private fields.
    process: Process,
    api_version: u32,
    may_write: bool,
    /// An eventfd that is readable while the queue is not empty. Without it no thread can wait.
    fd: Option<OwnedFd>,
    /// The number of domains that are bound to the queue.
    domains: AtomicUsize,
    events: Mutex<Events>,
    filled: Condvar,
    /// The fabric that opened the queue, if a fabric did.
    _held: Option<HeldFabric>,
}
const _: () = assert!(core::mem::offset_of!(Queue, process) >= size_of::<fid_eq>());
const _: () = assert!(core::mem::offset_of!(Queue, rest) == core::mem::offset_of!(fid_eq, ops));

#[derive(Default)]
struct Events {
    waiting: VecDeque<Event>,
    /// The number of registrations under way. Each will put one event into the queue, and `waiting`
    /// has room for it already.
    promised: usize,
    /// The text of the error that was read last.
    words: Vec<u8>,
}

enum Event {
    /// A registration has completed.
    Completed { region: usize, context: usize },
    /// A registration has failed.
    Failed {
        region: usize,
        context: usize,
        code: i32,
        errno: i32,
        words: Vec<u8>,
    },
    /// An event that the application wrote.
    Written { event: u32, bytes: Vec<u8> },
}

impl Event {
    fn region(&self) -> Option<usize> {
        match self {
            Event::Completed { region, .. } | Event::Failed { region, .. } => Some(*region),
            Event::Written { .. } => None,
        }
    }
}

/// The `struct fi_eq_entry` of a completed registration.
fn entry(region: usize, context: usize) -> [u8; size_of::<fi_eq_entry>()] {
    let mut bytes = [0; size_of::<fi_eq_entry>()];
    bytes[..8].copy_from_slice(&region.to_ne_bytes());
    bytes[8..16].copy_from_slice(&context.to_ne_bytes());
    bytes
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
        held: Option<HeldFabric>,
    ) -> Result<*mut fid_eq, Failure> {
        may_allocate()?;
        // SAFETY: the caller promised that `attr` is NULL or readable.
        let attr = unsafe { attr.as_ref() };
        let (flags, wait) = attr.map_or((0, FI_WAIT_UNSPEC), |attr| (attr.flags, attr.wait_obj));
        if flags & !FI_WRITE != 0 {
            return Err(refused(
                FI_EBADFLAGS,
                "an event queue has no flag but FI_WRITE",
            ));
        }
        let fd = match wait {
            FI_WAIT_NONE => None,
            FI_WAIT_UNSPEC | FI_WAIT_FD => Some(event_fd()?),
            _ => {
                return Err(refused(
                    FI_ENOSYS,
                    "an event queue can be waited for by FI_WAIT_FD only, or not at all",
                ));
            }
        };
        let queue = Box::new(Queue {
            fclass: AtomicUsize::new(FI_CLASS_EQ),
            context: AtomicPtr::new(context),
            ops: &tables.queue,
            rest: &tables.queue_rest,
            process: Process::this(),
            api_version,
            may_write: flags & FI_WRITE != 0,
            fd,
            domains: AtomicUsize::new(0),
            events: Mutex::new(Events::default()),
            filled: Condvar::new(),
            _held: held,
        });
        Ok(Box::into_raw(queue).cast())
    }

    /// The queue that C names. A queue that the parent process made is refused.
    ///
    /// # Safety
    /// `eq` is an open queue of this library.
    pub unsafe fn from_c<'a>(eq: *mut fid_eq) -> Result<&'a Queue, Failure> {
        // SAFETY: the caller promised an open queue: only queues have the table that led here.
        let queue = unsafe { &*eq.cast::<Queue>() };
        queue.process.check()?;
        Ok(queue)
    }

    /// Whether this library made the queue.
    ///
    /// # Safety
    /// `eq` is an open queue of any provider.
    pub unsafe fn is_ours(eq: *mut fid_eq, tables: &Tables) -> bool {
        // SAFETY: the caller promised an open queue.
        let ops = unsafe { (*eq).ops };
        core::ptr::eq(ops, &tables.queue_rest)
    }

    /// Closes the queue.
    ///
    /// # Safety
    /// `eq` is an open queue of this library. After success the caller does not use it again.
    pub unsafe fn close(eq: *mut fid_eq) -> Result<(), Failure> {
        // SAFETY: the caller promised an open queue of this library.
        let queue = unsafe { Queue::from_c(eq) }?;
        if queue.domains.load(Acquire) > 0 {
            return Err(refused(FI_EBUSY, "a domain is still bound to the queue"));
        }
        // SAFETY: `open` made the box, and the caller promised not to use the queue again.
        drop(unsafe { Box::from_raw(eq.cast::<Queue>()) });
        Ok(())
    }

    /// Counts a domain that is bound to the queue.
    pub fn bind(&self) {
        self.domains.fetch_add(1, AcqRel);
    }

    /// Counts a domain off again.
    pub fn unbind(&self) {
        self.domains.fetch_sub(1, AcqRel);
    }

    fn lock(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves room for the event of one more registration. The event then cannot be lost.
    pub fn promise(&self) -> Result<(), Failure> {
        let mut events = self.lock();
        let promised = events.promised + 1;
        events
            .waiting
            .try_reserve(promised)
            .map_err(|_| Error::Memory)?;
        events.promised = promised;
        Ok(())
    }

    /// Takes a promise back.
    pub fn release(&self) {
        self.lock().promised -= 1;
    }

    /// Puts in the event of a completed registration, for which `promise` has reserved room.
    pub fn completed(&self, region: usize, context: *mut c_void) {
        let context = context.expose_provenance();
        self.keep_promise(Event::Completed { region, context });
    }

    /// Puts in the event of a failed registration, for which `promise` has reserved room.
    pub fn failed(&self, region: usize, context: *mut c_void, reason: &Reason) {
        let mut words = reason.to_string().into_bytes();
        words.push(0);
        let code = errors::code(reason.error);
        self.keep_promise(Event::Failed {
            region,
            context: context.expose_provenance(),
            code,
            errno: reason.error.errno(),
            words,
        });
    }

    fn keep_promise(&self, event: Event) {
        let mut events = self.lock();
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
        let Some(fd) = &self.fd else { return };
        let mut count = 1u64;
        let bytes = (&raw mut count).cast();
        let _uncancelled = thread::uncancelled();
        if readable {
            // SAFETY: `bytes` points to the eight bytes of `count`, which outlive the call.
            unsafe { libc::write(fd.as_raw_fd(), bytes, 8) };
        } else {
            // SAFETY: `bytes` points to the eight bytes of `count`, which the call may overwrite.
            unsafe { libc::read(fd.as_raw_fd(), bytes, 8) };
        }
    }

    fn take(&self, events: &mut Events) -> Option<Event> {
        let event = events.waiting.pop_front();
        if event.is_some() && events.waiting.is_empty() {
            self.signal(false);
        }
        event
    }

    /// Removes the events of a region that is being closed.
    pub fn forget(&self, region: usize) {
        let mut events = self.lock();
        if events.waiting.is_empty() {
            return;
        }
        events
            .waiting
            .retain(|event| event.region() != Some(region));
        if events.waiting.is_empty() {
            self.signal(false);
        }
    }

    /// Reads the next event. Returns its number and its size in bytes.
    pub fn read(&self, out: &mut [u8], flags: u64) -> Result<(u32, usize), Failure> {
        self.read_locked(&mut self.lock(), out, flags)
    }

    fn read_locked(
        &self,
        events: &mut Events,
        out: &mut [u8],
        flags: u64,
    ) -> Result<(u32, usize), Failure> {
        if flags & !FI_PEEK != 0 {
            return Err(refused(
                FI_EBADFLAGS,
                "an event is read with no flag but FI_PEEK",
            ));
        }
        let completed;
        let (event, bytes): (u32, &[u8]) = match events.waiting.front().ok_or(EMPTY)? {
            Event::Failed { .. } => return Err(ERROR_FIRST),
            Event::Completed { region, context } => {
                completed = entry(*region, *context);
                (FI_MR_COMPLETE, &completed)
            }
            Event::Written { event, bytes } => (*event, bytes),
        };
        let size = bytes.len();
        let out = out.get_mut(..size).ok_or(refused(
            FI_ETOOSMALL,
            "the event does not fit into the buffer",
        ))?;
        out.copy_from_slice(bytes);
        if flags & FI_PEEK == 0 {
            self.take(events);
        }
        Ok((event, size))
    }

    /// Reads the next event. Waits up to `timeout` milliseconds for it, or for ever if `timeout` is
    /// negative.
    pub fn read_waiting(
        &self,
        out: &mut [u8],
        timeout: i32,
        flags: u64,
    ) -> Result<(u32, usize), Failure> {
        if self.fd.is_none() {
            return Err(invalid(
                "the queue was opened with FI_WAIT_NONE: nobody can wait for it",
            ));
        }
        let until = u64::try_from(timeout)
            .ok()
            .map(|ms| Instant::now() + Duration::from_millis(ms));
        let mut events = self.lock();
        while events.waiting.is_empty() {
            events = match until {
                None => self
                    .filled
                    .wait(events)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(EMPTY);
                    }
                    let waited = self.filled.wait_timeout(events, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        self.read_locked(&mut events, out, flags)
    }

    /// Reads the next event, which must be an error.
    ///
    /// # Safety
    /// `out` is writable. For applications of version 1.5 and later, its `err_data` and
    /// `err_data_size` are set.
    pub unsafe fn read_error(
        &self,
        out: *mut fi_eq_err_entry,
        flags: u64,
    ) -> Result<usize, Failure> {
        if out.is_null() {
            return Err(invalid("the buffer is NULL"));
        }
        if flags & !FI_PEEK != 0 {
            return Err(refused(
                FI_EBADFLAGS,
                "an error is read with no flag but FI_PEEK",
            ));
        }
        let mut events = self.lock();
        let Some(Event::Failed {
            region,
            context,
            code,
            errno,
            words,
        }) = events.waiting.front()
        else {
            return Err(refused(FI_EAGAIN, "the next event is no error"));
        };
        let mut error = fi_eq_err_entry {
            fid: core::ptr::with_exposed_provenance_mut(*region),
            context: core::ptr::with_exposed_provenance_mut(*context),
            data: 0,
            err: *code,
            prov_errno: *errno,
            err_data: null_mut(),
            err_data_size: 0,
        };
        let words = words.clone();
        // Before 1.5 the queue only returned these two fields, and the caller did not set them.
        let theirs = if self.api_version >= FI_VERSION_1_5 {
            // SAFETY: the caller promised that `out` is valid, and since version 1.5 that it is
            // set.
            let given = unsafe { out.read() };
            let (data, size) = (given.err_data, given.err_data_size);
            (!data.is_null() && size > 0).then_some((data, size))
        } else {
            None
        };
        if let Some((data, room)) = theirs {
            let size = words.len().min(room);
            // SAFETY: the application set `err_data` to room for `err_data_size` bytes; `size` is
            // no more.
            unsafe {
                data.cast::<u8>()
                    .copy_from_nonoverlapping(words.as_ptr(), size)
            };
            error.err_data = data;
            error.err_data_size = size;
        } else {
            events.words = words;
            error.err_data = events.words.as_mut_ptr().cast();
            error.err_data_size = events.words.len();
        }
        // SAFETY: the caller promised that `out` is writable.
        unsafe { out.write(error) };
        if flags & FI_PEEK == 0 {
            self.take(&mut events);
        }
        Ok(size_of::<fi_eq_err_entry>())
    }

    /// Puts in an event of the application.
    pub fn write(&self, event: u32, bytes: &[u8], flags: u64) -> Result<(), Failure> {
        if !self.may_write {
            return Err(invalid("the queue was opened without FI_WRITE"));
        }
        if flags != 0 {
            return Err(refused(FI_EBADFLAGS, "an event is written without flags"));
        }
        let mut events = self.lock();
        let room = events.promised + 1;
        events
            .waiting
            .try_reserve(room)
            .map_err(|_| Error::Memory)?;
        // The length is the application's.
        let mut copy = Vec::new();
        copy.try_reserve_exact(bytes.len())
            .map_err(|_| Error::Memory)?;
        copy.extend_from_slice(bytes);
        self.put(&mut events, Event::Written { event, bytes: copy });
        Ok(())
    }

    /// The descriptor that is readable while the queue is not empty.
    pub fn fd(&self) -> Result<i32, Failure> {
        let fd = self.fd.as_ref().map(AsRawFd::as_raw_fd);
        fd.ok_or(refused(
            FI_ENODATA,
            "the queue was opened with FI_WAIT_NONE",
        ))
    }

    /// The FI_WAIT_... value of the queue.
    pub fn wait_object(&self) -> i32 {
        if self.fd.is_some() {
            FI_WAIT_FD
        } else {
            FI_WAIT_NONE
        }
    }

    /// Whether the queue holds no event.
    pub fn is_empty(&self) -> bool {
        self.lock().waiting.is_empty()
    }
}

fn event_fd() -> Result<OwnedFd, Failure> {
    // SAFETY: eventfd takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(Failure::from(Error::Kernel(Errno(errno().0))));
    }
    // SAFETY: eventfd has just returned `fd`, which no other code owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
