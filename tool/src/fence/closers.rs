// SPDX-License-Identifier: MIT OR Apache-2.0
//! The threads that close the connections of processes. What a process has sent is closed with its
//! connection, in the thread that closes. A socket with SO_LINGER keeps that thread in the kernel
//! until its data has gone, for as long as the process wishes, or until a signal: so a timer
//! interrupts a thread that is in the kernel for long. A file whose file system is gone may keep a
//! thread for ever. It is one of several, and a user can leave no more than [`CLOSERS`] of them.

use anyhow::{Context, Result};
use rustix::thread::gettid;
use std::ffi::c_long;
use std::io::Error;
use std::mem::zeroed;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// How many threads close.
const CLOSERS: usize = 8;
/// After how many ns a thread is interrupted, again and again.
pub const LONG: c_long = 10_000_000;
const SIGNAL: i32 = libc::SIGUSR1;

pub struct Closers {
    close: Sender<RawFd>,
    closed: Receiver<RawFd>,
}

impl Closers {
    pub fn start() -> Result<Closers> {
        let (close, next) = channel();
        let (done, closed) = channel();
        let next = Arc::new(Mutex::new(next));
        for _ in 0..CLOSERS {
            let (next, done) = (next.clone(), done.clone());
            let closes = move || {
                let Ok(interrupter) = Interrupter::of_this_thread() else {
                    return;
                };
                loop {
                    // In a statement of its own, so that the others may take the next.
                    let next = next.lock().map(|next| next.recv());
                    let Ok(Ok(socket)) = next else { return };
                    interrupter.set(LONG);
                    // SAFETY: the service has given this connection away.
                    unsafe { libc::close(socket) };
                    interrupter.set(0);
                    if done.send(socket).is_err() {
                        return;
                    }
                }
            };
            let started = std::thread::Builder::new().spawn(closes);
            started.context("starting a thread")?;
        }
        Ok(Closers { close, closed })
    }

    /// Has a thread close the connection.
    pub fn close(&self, socket: RawFd) {
        // The threads do not end before the service.
        let _ = self.close.send(socket);
    }

    /// A connection that has been closed. Its number may be another's meanwhile.
    pub fn closed(&self) -> Option<RawFd> {
        self.closed.try_recv().ok()
    }
}

/// A timer that interrupts the calling thread.
pub struct Interrupter(i32);

impl Interrupter {
    pub fn of_this_thread() -> Result<Interrupter> {
        extern "C" fn nothing(_: i32) {}
        // SAFETY: all zeros is a valid action: no flags, so that no call is restarted.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        // SAFETY: the action is valid, and the old one is not asked for.
        unsafe { libc::sigaction(SIGNAL, &action, null_mut()) };
        // SAFETY: all zeros is a valid event.
        let mut event: libc::sigevent = unsafe { zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGNAL;
        event.sigev_notify_thread_id = gettid().as_raw_nonzero().get();
        let mut timer = 0;
        let (clock, event) = (libc::CLOCK_MONOTONIC, &raw const event);
        // The timers of the wheel's glibc, 2.28, are in another library.
        // SAFETY: the kernel reads the event and writes one number.
        match unsafe { libc::syscall(libc::SYS_timer_create, clock, event, &raw mut timer) } {
            0 => Ok(Interrupter(timer)),
            _ => Err(Error::last_os_error()).context("timer_create"),
        }
    }

    /// From now on, calls that wait are interrupted after each `ns`; with 0 none is.
    pub fn set(&self, ns: c_long) {
        // The interval, then the first time, each in seconds and ns.
        let times = [0, ns, 0, ns];
        let (call, times) = (libc::SYS_timer_settime, &raw const times);
        // SAFETY: the timer is this value's, and `struct itimerspec` is four such numbers.
        unsafe { libc::syscall(call, self.0, 0, times, null_mut::<c_long>()) };
    }
}
