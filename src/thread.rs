// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is this thread's: whether it is inside the map of devices, its number, and the
//! reason of its last failure.
//!
//! All of it is constant-initialised and without a destructor, so that it works at any time: in a
//! constructor of another library, in a signal handler, after the thread's own destructors have run.

use crate::explain::Reason;
use crate::text::Text;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*, compiler_fence};

/// The size of a reason in words.
pub const REASON_SIZE: usize = 1024;

struct Thread {
    inside: AtomicBool,
    number: Cell<u32>,
    reason: Cell<Option<Reason>>,
    words: RefCell<Text<REASON_SIZE>>,
}

const NO_NUMBER: u32 = u32::MAX;

thread_local! {
    static THREAD: Thread = const {
        Thread {
            inside: AtomicBool::new(false),
            number: Cell::new(NO_NUMBER),
            reason: Cell::new(None),
            words: RefCell::new(Text::new()),
        }
    };
}

/// Held while this thread holds a lock of the map of devices. A signal handler that interrupts it and calls us
/// would wait for ever for a lock that its own thread holds; it finds [`is_inside`] and passes on.
pub struct Inside(());

/// Marks this thread as inside until the value is dropped.
#[inline]
pub fn enter() -> Inside {
    THREAD.with(|thread| thread.inside.store(true, Relaxed));
    // The handler runs on this very thread: only the compiler could reorder what it sees.
    compiler_fence(SeqCst);
    Inside(())
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        THREAD.with(|thread| thread.inside.store(false, Relaxed));
    }
}

/// Whether this thread was interrupted while it was inside.
#[inline]
pub fn is_inside() -> bool {
    THREAD.with(|thread| thread.inside.load(Relaxed))
}

/// A thread's number: threads are numbered as they come.
#[derive(Clone, Copy)]
pub struct Number(u32);

impl Number {
    /// As an index.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// This thread's number.
#[inline]
pub fn number() -> Number {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    THREAD.with(|thread| {
        if thread.number.get() == NO_NUMBER {
            thread
                .number
                .set(NEXT.fetch_add(1, Relaxed) & (NO_NUMBER >> 1));
        }
        Number(thread.number.get())
    })
}

/// Remembers why a call of this thread failed.
pub fn set_reason(reason: Reason) {
    THREAD.with(|thread| thread.reason.set(Some(reason)));
}

/// The reason of this thread's last failure, in words that end with a NUL. Finding the cause takes system
/// calls, so it is done when asked, once.
pub fn reason_in_words() -> *const u8 {
    THREAD.with(|thread| {
        let Ok(mut words) = thread.words.try_borrow_mut() else {
            // A signal handler interrupted this very function.
            return c"".as_ptr().cast();
        };
        if let Some(reason) = thread.reason.take() {
            words.clear();
            reason.write(&mut *words);
            words.terminate();
        }
        words.as_bytes().as_ptr()
    })
}
