// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the process has one thread, so that a hit needs no fence (W3).

use core::num::NonZeroUsize;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicUsize, Ordering::*};
use rdmamr_sys::loaded_files;
use rdmamr_sys::symbols::{self, Scope};

/// The words that show whether the process has one thread.
#[derive(Clone, Copy)]
pub struct OneThread {
    /// `__libc_single_threaded` (glibc 2.32): not 0 while the C library has made no thread.
    single_threaded: &'static AtomicU8,
    /// `_r_debug.r_version` (glibc 2.35): 1 while the linker has one namespace, and so the process
    /// one C library. The linker raises it before a new namespace's code runs, and never lowers it.
    version: &'static AtomicI32,
}

/// The addresses of the two words; 0 if the process cannot know that it has one thread.
static WORDS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Looks for the two words. Called when the library is loaded.
pub fn look() {
    // The function came with glibc 2.35, as the second word's meaning did.
    if loaded_files::linker().is_none() {
        return;
    }
    // The linker writes its own `_r_debug` only. A program that names the symbol has a copy, which
    // stays as it was at the start. So the library does not look for the symbol in the program.
    let words = [
        symbols::find(Scope::Program, c"__libc_single_threaded", None),
        symbols::find(Scope::Next, c"_r_debug", None),
    ];
    for (word, found) in WORDS.iter().zip(words) {
        word.store(found.map_or(0, NonZeroUsize::get), Relaxed);
    }
}

impl OneThread {
    /// `None` if the process cannot know that it has one thread: before glibc 2.35.
    pub fn find() -> Option<OneThread> {
        let [single_threaded, version] = WORDS.each_ref().map(|word| word.load(Relaxed));
        Some(OneThread {
            // SAFETY: the symbol is a `char` of the C library, which lives as long as the process.
            // Only the C library writes it.
            single_threaded: unsafe {
                with_exposed_provenance::<AtomicU8>(single_threaded).as_ref()?
            },
            // SAFETY: the symbol is the linker's `struct r_debug`, whose first field is an `int`.
            // It lives as long as the process, and only the linker writes it.
            version: unsafe { with_exposed_provenance::<AtomicI32>(version).as_ref()? },
        })
    }

    #[inline(always)]
    pub fn holds(self) -> bool {
        self.single_threaded.load(Relaxed) != 0 && self.version.load(Relaxed) == 1
    }
}
