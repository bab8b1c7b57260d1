// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first use of relaxed registration in a process: the pool's memory, the watch, the cleaner.

use super::account::Amount;
use super::cleaner::{self, Cleaner};
use super::lock::Lock;
use super::pool::Pool;
use super::shared_memory::Sharing;
use super::watch::Watch;
use super::{INSTANCE, Instance, existing};
use crate::config::config;
use crate::report::stats;
use crate::sys::loaded_files;
use crate::sys::pages::PageRange;
use crate::sys::proc::{self, Mapping};
use crate::sys::process::{FAR_AWAY, PerProcess};
use crate::sys::thread;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// The thread that makes the instance holds this lock.
static STARTING: PerProcess<Lock> = PerProcess::new();

unsafe extern "C" fn forget() {
    STARTING.forget();
    INSTANCE.forget();
}

/// The addresses of the pool's objects, in this process or in the process that it was forked from:
/// the first address, and the end. No other object lies between the two.
static OBJECTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Whether an object is or was an object of a pool, of this process or of its parent.
#[inline(always)]
pub fn is_object(address: usize) -> bool {
    address < OBJECTS[1].load(Relaxed) && address >= OBJECTS[0].load(Relaxed)
}

/// Whether this process is a child of one that had a pool. Such a child has no pool, and makes
/// none.
#[inline(always)]
pub fn is_of_parent() -> bool {
    existing().is_none() && OBJECTS[1].load(Relaxed) != 0
}

/// This process's instance. The first call makes it. `None` in a child whose parent had one, in a
/// signal handler that interrupted the library, and if memory is short.
pub fn current() -> Option<&'static Instance> {
    if let Some(relaxed) = existing() {
        return Some(relaxed);
    }
    if is_of_parent() || thread::is_inside() {
        return None;
    }
    let _inside = thread::enter();
    let _starting = STARTING
        .get_or_make(|| Box::new(Lock::new()), forget)
        .lock();
    if let Some(relaxed) = existing() {
        return Some(relaxed);
    }
    let pool = map_pool()?;
    let linger = &config().relaxed;
    let cleaner: &'static Cleaner = Box::leak(Box::new(Cleaner::new(
        linger.linger_remote,
        linger.linger_local,
    )));
    let relaxed = Instance {
        pool,
        watch: Watch::start(pool),
        cleaner,
        counters: stats::counters(),
        may_pin_all: may_pin().is_none(),
    };
    pool.account.set_limit(limit());
    let relaxed: &'static Instance = Box::leak(Box::new(relaxed));
    if cleaner::start(relaxed) {
        cleaner.runs();
    }
    let objects = pool.objects();
    OBJECTS[0].store(objects.start, Relaxed);
    OBJECTS[1].store(objects.end, Relaxed);
    INSTANCE.publish(relaxed, forget);
    // From here on the interposed calls write new mappings to the log. Earlier mappings are in the
    // maps.
    read_shared_memory(relaxed);
    Some(relaxed)
}

/// Maps the pool's memory: as much address space as the pool may ever need. The kernel supplies
/// pages as they are touched.
fn map_pool() -> Option<&'static Pool> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let far = core::ptr::without_provenance_mut(FAR_AWAY + (1 << 24));
    // The pool may have to be moved up within the mapping, to be aligned.
    let size = size_of::<Pool>() + align_of::<Pool>();
    // SAFETY: a new mapping at an address that the kernel accepts touches no other memory: the
    // flags lack MAP_FIXED.
    let memory = unsafe { libc::mmap(far, size, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return None;
    }
    let up = memory.addr().wrapping_neg() % align_of::<Pool>();
    // SAFETY: the memory is zeroed, aligned, large enough and never unmapped, and all zeros is a
    // valid pool.
    Some(unsafe { &*memory.wrapping_byte_add(up).cast::<Pool>() })
}

/// How many bytes the process may pin. `None` if no limit applies.
pub(super) fn may_pin() -> Option<u64> {
    proc::memlock_limit().filter(|_| !proc::Status::read().may_lock)
}

/// How much may be idle. The default for bytes is an eighth of the machine's memory, and at most
/// half of what the process may pin.
pub(super) fn limit() -> Amount {
    let relaxed = &config().relaxed;
    let (total, _) = proc::memory_kib();
    let eighth = total * 1024 / 8;
    let half = may_pin().map_or(u64::MAX, |limit| limit / 2);
    Amount {
        regions: relaxed.max_idle,
        bytes: relaxed.max_idle_bytes.unwrap_or(eighth.min(half)),
    }
}

/// Reads the mappings. Notes the process's shared mappings, and its mappings of files that can be
/// cut, and admits the new regions that lie on neither.
pub fn read_shared_memory(relaxed: &Instance) {
    let locked = relaxed.pool.lock();
    relaxed.apply(&locked, super::ending::By::Program);
    let added = locked.shared_memory().added();
    let links = locked.links();
    drop(locked);
    let (found, files) = mappings();
    let locked = relaxed.pool.lock();
    relaxed.apply(&locked, super::ending::By::Program);
    let shared_memory = locked.shared_memory();
    // If the counts differ, a mapping has come meanwhile that may be newer than what was read: both
    // count.
    if shared_memory.added() == added {
        shared_memory.clear();
    }
    for (range, sharing) in found {
        shared_memory.add(range, sharing);
    }
    locked.admit(links, |hull| files.iter().any(|file| file.overlaps(hull)));
}

/// Reads the process's mappings. Returns the mappings whose regions are not kept, and the mappings
/// of the program's own files.
pub(super) fn mappings() -> (Vec<(PageRange, Sharing)>, Vec<PageRange>) {
    let mut found = Vec::new();
    let mut files = Vec::new();
    let mut sealed = SealedFiles::default();
    let images = Images::loaded();
    proc::each_mapping(|mapping| {
        let range = PageRange {
            start: mapping.start,
            end: mapping.end,
        };
        let of_file = mapping.inode != 0 && !mapping.huge;
        if of_file && !mapping.shared && images.contain(range) {
            files.push(range);
        } else if (of_file || mapping.shared) && !(mapping.memfd && sealed.contain(mapping)) {
            let sharing = if mapping.segment {
                Sharing::Segment
            } else {
                Sharing::Shared
            };
            found.push((range, sharing));
        }
        true
    });
    (found, files)
}

/// The mappings of the program and its libraries: private mappings of files that nobody cuts while
/// they run. Any other file may be cut, and the kernel then drops the cut pages from private
/// mappings as well.
struct Images(Vec<PageRange>);

impl Images {
    fn loaded() -> Images {
        let mut images = Images(Vec::new());
        loaded_files::each(|file| {
            let parts = file.parts(libc::PT_LOAD, 0);
            let hulls = parts.filter_map(|part| PageRange::hull(part.start, part.end - part.start));
            images.0.extend(hulls);
            ControlFlow::Continue(())
        });
        images
    }

    fn contain(&self, range: PageRange) -> bool {
        self.0.iter().any(|image| image.contains(range))
    }
}

/// Files of memfd_create that nobody can cut or punch, as far as the process still has them open.
#[derive(Default)]
struct SealedFiles(Option<Vec<u64>>);

impl SealedFiles {
    fn contain(&mut self, mapping: &Mapping) -> bool {
        let inodes = self.0.get_or_insert_with(|| {
            let files = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
            let names = files
                .flatten()
                .filter_map(|file| file.file_name().into_string().ok());
            let fds = names.filter_map(|name| name.parse().ok());
            fds.filter(|&fd| is_sealed(fd)).filter_map(inode).collect()
        });
        inodes.contains(&mapping.inode)
    }
}

fn inode(fd: i32) -> Option<u64> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is a local structure that the call may write.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: fstat(2) succeeded, so it has filled the structure.
    Some(unsafe { stat.assume_init() }.st_ino)
}

/// Whether the file's seals keep everybody from cutting it or punching holes into it,
/// memfd_create(2).
pub fn is_sealed(fd: i32) -> bool {
    let errno = errno::errno();
    // SAFETY: the call takes no pointers.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    errno::set_errno(errno);
    // The kernel refuses holes to a file that is sealed against writing, not to a file that is
    // sealed against shrinking.
    let against_holes = libc::F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0 && seals & against_holes != 0
}

/// Linux 5.1.
const F_SEAL_FUTURE_WRITE: i32 = 0x0010;
