// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is this thread's: whether it is inside the table of regions, its share of the counters, and the
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
    shard: Cell<u32>,
    reason: Cell<Option<Reason>>,
    words: RefCell<Text<REASON_SIZE>>,
}

const NO_SHARD: u32 = u32::MAX;

thread_local! {
    static THREAD: Thread = const {
        Thread {
            inside: AtomicBool::new(false),
            shard: Cell::new(NO_SHARD),
            reason: Cell::new(None),
            words: RefCell::new(Text::new()),
        }
    };
}

/// Held while this thread holds a lock of the table. A signal handler that interrupts it and calls us
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

/// This thread's share of the counters: threads take the shards in turn.
#[inline]
pub fn shard() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    THREAD.with(|thread| {
        if thread.shard.get() == NO_SHARD {
            thread
                .shard
                .set(NEXT.fetch_add(1, Relaxed) & (NO_SHARD >> 1));
        }
        thread.shard.get()
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
