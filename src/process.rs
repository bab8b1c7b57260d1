// SPDX-License-Identifier: MIT OR Apache-2.0
//! A value that each process has for itself: a forked child finds none, whatever its parent had.
//!
//! A child must not touch what is its parent's: regions are registered for the parent's memory, a lock may
//! have been held by a thread that the child has not got. So the pointer to such a value lies on a page
//! that the kernel gives a child as zeros (MADV_WIPEONFORK, Linux 4.14): the child starts anew at its first
//! use, at the cost of one load and with no call at the fork.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::*};

/// Where our own mappings go, if the kernel has room there: far from the program's, so that none comes to
/// lie in a hole that the program has just made.
pub const FAR_AWAY: usize = 0x2d72_0000_0000;

/// The largest page that a kernel of this architecture may have.
const PAGE_SIZE: usize = if cfg!(target_arch = "aarch64") {
    65536
} else {
    4096
};

/// A value of each process, as a static. It fills a page of .bss, and is not mapped when needed: a mapping
/// could come to lie in a hole that the program has just made, and change what a later call finds there.
#[repr(C)]
#[cfg_attr(target_arch = "aarch64", repr(align(65536)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(align(4096)))]
pub struct PerProcess<T: 'static> {
    value: AtomicPtr<T>,
    rest: [u8; PAGE_SIZE - size_of::<usize>()],
}
const _: () = assert!(align_of::<PerProcess<u8>>() == PAGE_SIZE);
const _: () = assert!(size_of::<PerProcess<u8>>() == PAGE_SIZE);

impl<T: Sync> PerProcess<T> {
    /// No value.
    #[allow(clippy::new_without_default, reason = "a static needs a const fn")]
    pub const fn new() -> Self {
        PerProcess {
            value: AtomicPtr::new(null_mut()),
            rest: [0; PAGE_SIZE - size_of::<usize>()],
        }
    }

    /// This process's, if there is one.
    #[inline]
    pub fn get(&'static self) -> Option<&'static T> {
        // SAFETY: null, or a box that `make` leaked in this process.
        unsafe { self.value.load(Acquire).as_ref() }
    }

    /// This process's, made by `make` if there is none. `forget` calls [`PerProcess::forget`]: it runs in
    /// children where the kernel does not wipe pages.
    #[inline]
    pub fn get_or_make(
        &'static self,
        make: fn() -> Box<T>,
        forget: unsafe extern "C" fn(),
    ) -> &'static T {
        self.get().unwrap_or_else(|| self.make(make, forget))
    }

    /// Apart, and with `make` called in here: a value is larger than some threads' stacks, and where it is only looked
    /// up there must be no room for one.
    #[cold]
    #[inline(never)]
    fn make(&'static self, make: fn() -> Box<T>, forget: unsafe extern "C" fn()) -> &'static T {
        let new = Box::into_raw(make());
        // SAFETY: just leaked.
        let published = self.publish(unsafe { &*new }, forget);
        if !core::ptr::eq(published, new) {
            // SAFETY: `new` was not published, so it is ours alone.
            drop(unsafe { Box::from_raw(new) });
        }
        published
    }

    /// This process's; `value` if there is none.
    pub fn publish(&'static self, value: &'static T, forget: unsafe extern "C" fn()) -> &'static T {
        let page = (&raw const *self).cast_mut().cast();
        // SAFETY: the page is whole, ours, and holds nothing else.
        if unsafe { libc::madvise(page, PAGE_SIZE, libc::MADV_WIPEONFORK) } != 0 {
            // Linux before 4.14, or larger pages: let the fork itself run one store.
            // SAFETY: the handler is a function of this library, which is never unloaded.
            unsafe { libc::pthread_atfork(None, None, Some(forget)) };
        }
        let value: *const T = value;
        let exchanged = self
            .value
            .compare_exchange(null_mut(), value.cast_mut(), AcqRel, Acquire);
        let published = match exchanged {
            Ok(_) => value,
            Err(other) => other,
        };
        // SAFETY: what is published is never freed.
        unsafe { &*published }
    }

    /// Makes as if there were none.
    pub fn forget(&self) {
        self.value.store(null_mut(), Release);
    }
}

#[cfg(test)]
mod tests {
    use super::PerProcess;

    static NUMBER: PerProcess<u32> = PerProcess::new();

    unsafe extern "C" fn forget() {
        NUMBER.forget();
    }

    #[test]
    fn a_child_has_none_of_its_parents() {
        assert_eq!(NUMBER.get(), None);
        assert_eq!(NUMBER.get_or_make(|| Box::new(7), forget), &7);
        assert_eq!(NUMBER.get_or_make(|| Box::new(8), forget), &7);
        // SAFETY: the child calls nothing that another thread's locks could stop.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = NUMBER.get().map_or(42, |_| 1);
            // SAFETY: ends the child.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: the status is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 42);
        assert_eq!(NUMBER.get(), Some(&7));
    }
}
