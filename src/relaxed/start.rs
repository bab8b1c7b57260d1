// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first use of relaxed registration in a process: the pool's memory, the watch, the cleaner.

use super::account::Amount;
use super::cleaner::{self, Cleaner};
use super::hull::Range;
use super::lock::Lock;
use super::pool::Pool;
use super::shared_memory::Sharing;
use super::watch::Watch;
use super::{INSTANCE, Instance, existing};
use crate::config::config;
use crate::loaded_files;
use crate::mr::state;
use crate::proc::{self, Mapping};
use crate::process::{FAR_AWAY, PerProcess};
use crate::thread;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// Held by the thread that starts it.
static STARTING: PerProcess<Lock> = PerProcess::new();

unsafe extern "C" fn forget() {
    STARTING.forget();
    INSTANCE.forget();
}

/// Where the objects of the pool are, in this process or in the one that it was forked from: up to the
/// second. No other object is there.
static OBJECTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Whether an object is, or was, one of a pool, of this process or of its parent.
#[inline(always)]
pub fn is_object(address: usize) -> bool {
    address < OBJECTS[1].load(Relaxed) && address >= OBJECTS[0].load(Relaxed)
}

/// Whether this is a child of a process that had a pool: it has none, and makes none.
#[inline(always)]
pub fn is_of_parent() -> bool {
    existing().is_none() && OBJECTS[1].load(Relaxed) != 0
}

/// This process's; made now if it is the first use. `None` in a child whose parent had one, in a signal
/// handler that interrupts the library, and where there is no memory.
pub fn current() -> Option<&'static Instance> {
    if let Some(relaxed) = existing() {
        return Some(relaxed);
    }
    if is_of_parent() || thread::is_inside() {
        return None;
    }
    let state = state::current();
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
        counters: &state.counters,
        may_pin_all: may_pin().is_none(),
        has_spent: AtomicBool::new(false),
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
    // From here the interposed calls write down what is mapped; before it, the maps say.
    read_shared_memory(relaxed);
    Some(relaxed)
}

/// The pool's memory: as much address space as it may ever need, of which the kernel gives pages as they
/// are touched.
fn map_pool() -> Option<&'static Pool> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let far = core::ptr::without_provenance_mut(FAR_AWAY + (1 << 24));
    // More by what it may have to be moved up.
    let size = size_of::<Pool>() + align_of::<Pool>();
    // SAFETY: a new mapping.
    let memory = unsafe { libc::mmap(far, size, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return None;
    }
    let up = memory.addr().wrapping_neg() % align_of::<Pool>();
    // SAFETY: zeroed, aligned, large enough, never unmapped; all zeros is a pool.
    Some(unsafe { &*memory.wrapping_byte_add(up).cast::<Pool>() })
}

/// How many bytes may be pinned; `None` where nothing limits it.
fn may_pin() -> Option<u64> {
    proc::memlock_limit().filter(|_| !proc::Status::read().may_lock)
}

/// How much may be idle: of bytes an eighth of the machine's memory, and half of what may be pinned.
fn limit() -> Amount {
    let relaxed = &config().relaxed;
    let (total, _) = proc::memory_kib();
    let eighth = total * 1024 / 8;
    let half = may_pin().map_or(u64::MAX, |limit| limit / 2);
    Amount {
        regions: relaxed.max_idle,
        bytes: relaxed.max_idle_bytes.unwrap_or(eighth.min(half)),
    }
}

/// Reads where the process has shared mappings, and others of files that can be cut, and admits the new
/// regions that are not there. A System V segment counts as shared unless the stamp looks at its pages: they change only with its attachment.
pub fn read_shared_memory(relaxed: &Instance) {
    let locked = relaxed.pool.lock();
    relaxed.apply(&locked, super::ending::By::Program);
    let added = locked.shared_memory().added();
    let links = locked.links();
    drop(locked);
    let mut found = Vec::new();
    let mut files = Vec::new();
    let mut sealed = SealedFiles::default();
    let images = Images::loaded();
    proc::each_mapping(|mapping| {
        let range = Range {
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
    let locked = relaxed.pool.lock();
    relaxed.apply(&locked, super::ending::By::Program);
    let shared_memory = locked.shared_memory();
    // Otherwise a mapping has come that may be newer than what was read: both count.
    if shared_memory.added() == added {
        shared_memory.clear();
    }
    for (range, sharing) in found {
        if sharing == Sharing::Shared || !relaxed.watch.has_stamp() {
            shared_memory.add(range, sharing);
        }
    }
    locked.admit(links, |hull| files.iter().any(|file| file.overlaps(hull)));
}

/// Where the program and its libraries are: private mappings of files that nobody cuts while they run. Any
/// other file may be cut, and its pages go then from private mappings as well.
struct Images(Vec<Range>);

impl Images {
    fn loaded() -> Images {
        let mut images = Images(Vec::new());
        loaded_files::each(|file| {
            let parts = file.parts(libc::PT_LOAD, 0);
            let hulls = parts.filter_map(|part| Range::hull(part.start, part.end - part.start));
            images.0.extend(hulls);
            ControlFlow::Continue(())
        });
        images
    }

    fn contain(&self, range: Range) -> bool {
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
    // SAFETY: the structure is writable.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled by the call.
    Some(unsafe { stat.assume_init() }.st_ino)
}

/// Whether nobody can cut a file or punch holes into it any more, memfd_create(2).
pub fn is_sealed(fd: i32) -> bool {
    let errno = errno::errno();
    // SAFETY: no pointers.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    errno::set_errno(errno);
    // Holes are refused to what is sealed against writing, not to what is sealed against shrinking.
    let against_holes = libc::F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0 && seals & against_holes != 0
}

/// Linux 5.1.
const F_SEAL_FUTURE_WRITE: i32 = 0x0010;
