// SPDX-License-Identifier: MIT OR Apache-2.0
//! A value that each process has for itself: a forked child finds no value, whatever its parent
//! had.
//!
//! A child must not touch its parent's state: regions are registered for the parent's memory, and a
//! lock may have been held by a thread that does not exist in the child. The pointer to such a
//! value therefore lies on a page that the kernel gives to a child as zeros (MADV_WIPEONFORK, Linux
//! 4.14). The child starts anew at its first use. The cost is one load, and nothing runs at the
//! fork.

use super::pages::LARGEST_PAGE;
use super::thread::keep_errno;
pub use super::thread::process_id as id;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

/// A value of each process, as a static. The static fills a page of .bss. A mapping made when
/// needed could fill a hole that the program has just made, and change what a later call finds
/// there.
#[cfg_attr(target_arch = "aarch64", repr(align(65536)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(align(4096)))]
pub struct PerProcess<T: 'static> {
    value: AtomicPtr<T>,
}
const _: () = assert!(align_of::<PerProcess<u8>>() == LARGEST_PAGE);
const _: () = assert!(size_of::<PerProcess<u8>>() == LARGEST_PAGE);

impl<T: Sync> PerProcess<T> {
    /// No value.
    pub const fn new() -> Self {
        PerProcess {
            value: AtomicPtr::new(null_mut()),
        }
    }

    /// The value of this process, if there is one.
    pub fn get(&'static self) -> Option<&'static T> {
        // SAFETY: the pointer is null, or to a value of this process that is never freed: a box that
        // `make` leaked, or what `publish` or `replace` was given.
        unsafe { self.value.load(Acquire).as_ref() }
    }

    /// The value of this process; `make` makes it if there is none.
    pub fn get_or_make(&'static self, make: fn() -> Box<T>) -> &'static T {
        self.get().unwrap_or_else(|| self.make(make))
    }

    /// A separate function: a mere lookup must not reserve stack space for what `make` needs. A
    /// value that is larger than some threads' stacks is allocated as zeros, and never lies on a
    /// stack.
    #[cold]
    #[inline(never)]
    fn make(&'static self, make: fn() -> Box<T>) -> &'static T {
        let new = Box::into_raw(make());
        // SAFETY: the box was just leaked.
        let published = self.publish(unsafe { &*new });
        if !core::ptr::eq(published, new) {
            // SAFETY: `new` was not published, so no other thread knows it.
            drop(unsafe { Box::from_raw(new) });
        }
        published
    }

    /// The value of this process; publishes `value` if there is none.
    pub fn publish(&'static self, value: &'static T) -> &'static T {
        self.end_at_fork();
        let (none, new) = (null_mut(), (&raw const *value).cast_mut());
        match self.value.compare_exchange(none, new, AcqRel, Acquire) {
            Ok(_) => value,
            // SAFETY: a published value is never freed.
            Err(other) => unsafe { &*other },
        }
    }

    fn end_at_fork(&'static self) {
        if !self.wipe_at_fork() {
            self.clear_at_fork();
        }
    }

    /// Has the kernel give the page to children as zeros. False if the kernel refuses. The kernel is asked
    /// once: children inherit the answer, and a filter that the program sets later may kill at the question.
    pub fn wipe_at_fork(&'static self) -> bool {
        let page = (&raw const *self).cast_mut();
        if WIPED.iter().any(|wiped| wiped.load(Relaxed) == page.addr()) {
            return true;
        }
        // SAFETY: the page is whole, belongs to this static, and holds nothing else.
        let ask =
            || unsafe { libc::madvise(page.cast(), LARGEST_PAGE, libc::MADV_WIPEONFORK) == 0 };
        let is_wiped = keep_errno(ask);
        if is_wiped {
            let take = |wiped: &AtomicUsize| {
                (wiped.compare_exchange(0, page.addr(), Relaxed, Relaxed)).is_ok()
            };
            WIPED.iter().any(take);
        }
        is_wiped
    }

    /// Has a fork handler clear the pointer: before Linux 4.14, or with larger pages.
    #[cold]
    fn clear_at_fork(&'static self) {
        let own = (&raw const self.value).cast_mut().cast();
        INHERITED.iter().any(|place| {
            let taken = place.compare_exchange(null_mut(), own, AcqRel, Acquire);
            taken.is_ok() || taken == Err(own)
        });
        // SAFETY: the handler is a function of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(clear)) };
    }

    /// Publishes another value. The one before is not freed: a thread may be using it.
    pub fn replace(&'static self, value: Box<T>) {
        self.end_at_fork();
        self.value.store(Box::into_raw(value), Release);
    }
}

/// The pages that the kernel gives to children as zeros.
static WIPED: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];

/// The pointers that a child would inherit, where the kernel does not wipe their pages.
static INHERITED: [AtomicPtr<AtomicPtr<c_void>>; 16] = [const { AtomicPtr::new(null_mut()) }; 16];

/// Drops these pointers, in a child, as if no value had been made.
unsafe extern "C" fn clear() {
    for pointer in &INHERITED {
        // SAFETY: NULL, or a pointer of a static.
        if let Some(pointer) = unsafe { pointer.load(Acquire).as_ref() } {
            pointer.store(null_mut(), Release);
        }
    }
}

/// The number of calls that are under way in this process, as a static. A forked child begins with
/// none: the other threads of its parent, whose calls these may be, do not exist there. So a handler
/// of pthread_atfork(3) calls [`CallsUnderWay::forget`] in the child.
pub struct CallsUnderWay {
    /// The number of calls, and in the upper half a number that the process's parent does not have.
    /// 0 before the first call. One word, since a signal handler may fork between any two.
    word: AtomicU64,
}

/// A call that is counted, by the number of its process. A signal handler may fork in a call, which
/// then ends in the child too, where it does not count.
pub struct CountedCall(u64);

impl CallsUnderWay {
    const PROCESS: u32 = 32;

    /// No call.
    pub const fn new() -> Self {
        CallsUnderWay {
            word: AtomicU64::new(0),
        }
    }

    /// A call begins.
    pub fn begin(&self) -> CountedCall {
        /// A child goes on from its parent's number.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut word = self.word.load(Relaxed);
        loop {
            let process = match word >> Self::PROCESS {
                0 => NEXT.fetch_add(1, Relaxed),
                process => process,
            };
            let count = u64::from(word as u32) + 1;
            let new = process << Self::PROCESS | count;
            match self.word.compare_exchange(word, new, SeqCst, Relaxed) {
                Ok(_) => return CountedCall(process),
                Err(other) => word = other,
            }
        }
    }

    /// The call has ended.
    pub fn end(&self, call: &CountedCall) {
        let is_here = |word: u64| word >> Self::PROCESS == call.0;
        let fewer = |word: u64| is_here(word).then(|| word - 1);
        let _ = self.word.fetch_update(Release, Relaxed, fewer);
    }

    /// Whether no call is under way.
    pub fn is_none(&self) -> bool {
        self.word.load(Acquire) as u32 == 0
    }

    /// Forgets the calls, as if none had been made.
    pub fn forget(&self) {
        self.word.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{CallsUnderWay, PerProcess, Release};

    static NUMBER: PerProcess<u32> = PerProcess::new();

    #[test]
    fn a_child_has_none_of_its_parents() {
        assert_eq!(NUMBER.get(), None);
        assert_eq!(NUMBER.get_or_make(|| Box::new(7)), &7);
        assert_eq!(NUMBER.get_or_make(|| Box::new(8)), &7);
        assert!(holds_in_a_child(|| NUMBER.get().is_none()));
        assert_eq!(NUMBER.get(), Some(&7));
    }

    #[test]
    fn a_handler_clears_what_the_kernel_does_not() {
        static VALUE: PerProcess<u32> = PerProcess::new();
        static SEVEN: u32 = 7;
        // No page is wiped: `publish` has not been called.
        VALUE.value.store((&raw const SEVEN).cast_mut(), Release);
        (0..2).for_each(|_| VALUE.clear_at_fork());
        assert!(holds_in_a_child(|| VALUE.get().is_none()));
        assert_eq!(VALUE.get(), Some(&7));
    }

    fn holds_in_a_child(check: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child calls no function that could wait for another thread's lock.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = if check() { 42 } else { 1 };
            // SAFETY: _exit ends the child.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WEXITSTATUS(status) == 42
    }

    static CALLS: CallsUnderWay = CallsUnderWay::new();

    unsafe extern "C" fn forget_calls() {
        CALLS.forget();
    }

    #[test]
    fn a_child_has_no_call_of_its_parents() {
        // SAFETY: the handler is a function of this program.
        unsafe { libc::pthread_atfork(None, None, Some(forget_calls)) };
        let of_parent = CALLS.begin();
        assert!(!CALLS.is_none());
        assert!(holds_in_a_child(|| {
            let had_none = CALLS.is_none();
            // A signal handler has forked in the parent's call.
            CALLS.end(&of_parent);
            let own = CALLS.begin();
            CALLS.end(&of_parent);
            let counts_its_own = !CALLS.is_none();
            CALLS.end(&own);
            had_none && counts_its_own && CALLS.is_none()
        }));
        assert!(!CALLS.is_none());
        CALLS.end(&of_parent);
        assert!(CALLS.is_none());
    }
}
