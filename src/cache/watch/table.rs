// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of descriptors in which the cache's numbers are valid: that of its userfaultfd, and
//! those of devices. A thread can have another table: by unshare(2), by a raw clone(2) without
//! CLONE_FILES, or because the thread that made it has one. In another table the numbers mean other
//! files, so such a thread neither hits nor watches, and deregisters no region of the cache. (A process
//! of one thread hits without the number of the watch, and so without this question.)

use crate::watch::listeners::is_filtered;
use core::cell::Cell;
use core::sync::atomic::{AtomicI32, Ordering::*};
use errno::{errno, set_errno};
use rdmamr_sys::helper_thread;
use rdmamr_sys::process;
use rdmamr_sys::thread;

thread_local! {
    static KNOWN: Cell<Known> = const { Cell::new(Known::Nothing) };
}

/// A thread's knowledge about its table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    /// The thread had the cache's table, and has another one, or may have.
    Another,
    Here,
    Elsewhere,
}

/// The table of the thread that made the cleaner, which shares it.
pub static TABLE: Table = Table(AtomicI32::new(0));

/// The number of a thread that shares the table; 0 if there is none.
pub struct Table(AtomicI32);

impl Table {
    /// This thread of the library shares the table from now on, for ever.
    pub fn set(&self, thread: i32) {
        self.0.store(thread, Release);
    }

    /// Whether the calling thread of the program has this table. If kcmp(2) is refused, the answer
    /// is yes for a thread that has not left a table by a call of the C library.
    #[inline(always)]
    pub fn is_here_of_program(&self) -> bool {
        KNOWN.get() == Known::Here || self.look()
    }

    /// As [`Table::is_here_of_program`], for any thread. Those of the library that ask share the
    /// table.
    pub fn is_here(&self) -> bool {
        /// Not inlined: otherwise the compiler may look up the address of a thread-local variable
        /// before the check for a helper thread, and a helper thread dies of that.
        #[inline(never)]
        fn of_program(table: &Table) -> bool {
            table.is_here_of_program()
        }
        helper_thread::is_current() || of_program(self)
    }

    #[cold]
    #[inline(never)]
    fn look(&self) -> bool {
        const KCMP_FILES: i32 = 2;
        let known = KNOWN.get();
        if known == Known::Elsewhere {
            return false;
        }
        let thread = self.0.load(Acquire);
        if thread == 0 || is_filtered() {
            return known == Known::Nothing;
        }
        let before = errno();
        let this = thread::id_by_kernel();
        // SAFETY: the call takes no pointers.
        let same = unsafe { libc::syscall(libc::SYS_kcmp, thread, this, KCMP_FILES, 0, 0) };
        let refused = same < 0 && matches!(errno().0, libc::EPERM | libc::EACCES | libc::ENOSYS);
        set_errno(before);
        let here = same == 0 || (refused && known == Known::Nothing);
        KNOWN.set(if here { Known::Here } else { Known::Elsewhere });
        here
    }

    /// Whether this thread has left the table of descriptors of the program. (The first thread's
    /// table is the process's.)
    pub fn is_left(&self) -> bool {
        !self.is_here() && thread::id_by_kernel() != process::id()
    }

    /// The calling thread may have another table from now on.
    pub fn left(&self) {
        KNOWN.set(Known::Another);
    }
}
