// SPDX-License-Identifier: MIT OR Apache-2.0
//! The statistics. [`rdmamr_stats`] is their one list: a counter is the position of a field in that
//! structure, and the JSON that `RDMAMR_STATS` writes has its field names. The C header is
//! generated from the structure.
//!
//! Each thread counts on cache lines of its own, without a locked instruction. A reader adds the
//! counts up. The counters lie in the live page (`live.rs`), where other processes can read them
//! while the program runs, or in the process's own memory if it has no such page.

use super::live;
use super::text::Text;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering::*};
use rdmamr_live_page::{DEVICES, NAMES, Page, SHARDS, Shard, TraceSwitch};
use rdmamr_sys::allocator::zeroed;
use rdmamr_sys::process::PerProcess;
use rdmamr_sys::seccomp::is_filtered;
use rdmamr_sys::{aside, clock, thread};
use std::alloc::{Layout, handle_alloc_error};
use std::ffi::CString;

/// Counts of what the library has done in this process. A forked child starts with all fields 0.
///
/// Later versions add fields at the end and never change the existing fields.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct rdmamr_stats {
    /// Registrations that the library made by its own call of the kernel.
    pub reg_kernel: u64,
    /// Registrations that libibverbs made because the library forwarded them: dma-bufs, devices and
    /// kernels that the library does not serve, and RDMAMR_DISABLE=1.
    pub reg_next: u64,
    /// Registrations that failed, in the library or in libibverbs.
    pub reg_failed: u64,
    /// Deregistrations that the library made by its own call of the kernel.
    pub dereg_kernel: u64,
    /// Deregistrations that libibverbs made, of regions that the library had not made.
    pub dereg_next: u64,
    /// Deregistrations that failed, in the library or in libibverbs.
    pub dereg_failed: u64,
    /// Regions of the library that are registered and in use now.
    pub live: u64,
    /// The sum of the lengths of the regions in `live`, in bytes, modulo 2^64.
    pub live_bytes: u64,
    /// Regions of the library that ended without its ibv_dereg_mr: the program deregistered the
    /// region by a function that it had looked up in libibverbs, or closed the region's device.
    pub ended_elsewhere: u64,
    /// Registrations, relaxed ones and plain ones under RDMAMR_CACHE, that a region of the cache
    /// served without a call of the kernel (hits).
    pub hits: u64,
    /// Such registrations for which the cache made a new region that it may reuse (misses).
    pub misses: u64,
    /// Hits on a region that another registration was using at that moment.
    pub shared: u64,
    /// Idle regions now: they stay registered in the cache, and no registration uses them.
    pub idle: u64,
    /// The sum of the lengths of the idle regions, in bytes; each length is a whole number of
    /// pages.
    pub idle_bytes: u64,
    /// Regions that the cache deregistered because of ibv_flush_relaxed_mr, ibv_dealloc_pd or
    /// ibv_close_device.
    pub flushed_flush: u64,
    /// Regions that the cache deregistered because more were idle than RDMAMR_CACHE_MAX_IDLE,
    /// RDMAMR_CACHE_MAX_IDLE_BYTES, or the memory, control group or device allows.
    pub flushed_watermark: u64,
    /// Regions that the cache deregistered because their linger time was over
    /// (RDMAMR_CACHE_LINGER).
    pub flushed_linger: u64,
    /// Regions that the cache deregistered because a resource was short: a registration had failed,
    /// or mappings ran short. A fork counts too: it would copy their pages.
    pub flushed_pressure: u64,
    /// Regions that the cache deregistered because the program changed their memory by a call that
    /// the library interposes (munmap and its kin).
    pub flushed_hook: u64,
    /// Regions that the cache deregistered because userfaultfd reported a change of their memory.
    pub flushed_event: u64,
    /// Regions that could not stay in the cache, and were deregistered, because a change of memory
    /// was under way when they were registered.
    pub flushed_fence: u64,
    /// Regions that the cache invalidated because of an interposed memory call.
    pub stale_avoided_hook: u64,
    /// Regions that the cache invalidated because of an event of userfaultfd.
    pub stale_avoided_event: u64,
    /// Hits that the cache gave up because the kernel said that a change of memory was under way.
    pub stale_avoided_fence: u64,
    /// The bypassed_ fields count relaxed registrations whose regions the cache does not hold, and
    /// plain registrations that the cache does not serve although RDMAMR_CACHE is set. This field:
    /// bypassed because of the access flags (on-demand paging, zero-based, memory windows, huge
    /// pages; with RDMAMR_CACHE=local also remote access).
    pub bypassed_access: u64,
    /// Bypassed because libibverbs serves the device, or because of RDMAMR_DISABLE=1.
    pub bypassed_device: u64,
    /// Bypassed because the memory can change unseen (shared mappings, files, System V segments,
    /// device memory, memory that another userfaultfd watches), or because it is on the main thread's
    /// stack.
    pub bypassed_memory: u64,
    /// Bypassed because the kernel refuses userfaultfd to this process, because a filter or valgrind
    /// would end it at the cache's calls, because the program has closed the library's descriptor, or
    /// because dlopen loaded the library.
    pub bypassed_watch: u64,
    /// Bypassed because libibverbs keeps registered memory from children (ibv_fork_init), or
    /// because the process was forked from a process that had a cache.
    pub bypassed_fork: u64,
    /// Bypassed because the process is short of mappings (vm.max_map_count), or because the cache
    /// is full.
    pub bypassed_limit: u64,
    /// Bypassed because a change of the memory was under way, because the kernel has not said yet
    /// what memory it is, because another thread was starting the cache, or because a signal
    /// handler interrupted the library.
    pub bypassed_busy: u64,
    /// Plain registrations under RDMAMR_CACHE only: bypassed because the device's address (iova)
    /// differs from the address of the memory.
    pub bypassed_address: u64,
    /// Plain registrations under RDMAMR_CACHE only: bypassed because the range comes for the first
    /// time, or for the first time since its memory has changed. The cache holds the region from
    /// the second registration of the range on: with the same protection domain, first page and
    /// access, and no longer than the first.
    pub bypassed_first: u64,
    /// Registrations of a GPU's memory as a dma-buf, after the kernel had refused the address. Each
    /// counts in reg_next as well.
    pub reg_gpu: u64,
    /// Registrations of a GPU's memory that failed, since it could not be registered as a dma-buf
    /// either. Each counts in reg_failed as well.
    pub reg_gpu_failed: u64,
    /// Registrations past the library: by mlx5dv_reg_dmabuf_mr, mlx5dv_devx_umem_reg and
    /// mlx5dv_devx_umem_reg_ex, which libmlx5 serves. No other field counts them.
    pub reg_past: u64,
    /// The sum of the lengths of the registrations in `reg_past`, in bytes, modulo 2^64.
    pub reg_past_bytes: u64,
    /// Always 0. It counted for the service rdmamr fence of 0.3.0, which is retired, and stays for
    /// programs that were compiled with it.
    pub fence_asked: u64,
}

/// The number of fields of [`rdmamr_stats`]. All are `u64`.
const FIELDS: usize = size_of::<rdmamr_stats>() / size_of::<u64>();
/// The live page has room for as many names.
const _: () = assert!(rdmamr_live_page::COUNTERS >= FIELDS);

/// The counters that the table for people has in its first lines.
const IN_FIRST_LINES: &str = "reg_kernel reg_next reg_failed dereg_kernel dereg_next dereg_failed live live_bytes \
                              hits misses idle idle_bytes";

impl rdmamr_stats {
    /// Calls `each` with the name and the value of each field, in order. They come from the output of
    /// `#[derive(Debug)]`: a second list of the names would have to be kept in step.
    fn each(&self, mut each: impl FnMut(&str, &str) -> fmt::Result) -> fmt::Result {
        let mut text = Text::<2048>::new();
        write!(text, "{self:?}")?;
        let (_, fields) = text.as_str().split_once("{ ").unwrap_or_default();
        let fields = fields.trim_end_matches(" }").split(", ");
        fields
            .filter_map(|field| field.split_once(": "))
            .try_for_each(|(name, value)| each(name, value))
    }

    /// Writes a JSON object that has the fields by name and in order.
    pub fn write_json(&self, out: &mut impl Write) -> fmt::Result {
        let mut before = '{';
        self.each(|name, value| {
            write!(out, "{before}\"{name}\":{value}")?;
            before = ',';
            Ok(())
        })?;
        out.write_char('}')
    }

    /// Writes a short table for people: how many registrations the kernel and libibverbs made, and
    /// each other counter that is not 0.
    pub fn write_table(&self, out: &mut impl Write) -> fmt::Result {
        let mut row = |name: &str, cells: [&dyn fmt::Display; 3]| {
            let [kernel, libibverbs, failed] = cells;
            writeln!(out, "  {name:<16}{kernel:>14}{libibverbs:>14}{failed:>14}")
        };
        row("", [&"by the kernel", &"by libibverbs", &"failed"])?;
        row(
            "registered",
            [&self.reg_kernel, &self.reg_next, &self.reg_failed],
        )?;
        row(
            "deregistered",
            [&self.dereg_kernel, &self.dereg_next, &self.dereg_failed],
        )?;
        let (live, bytes) = (self.live, self.live_bytes);
        writeln!(out, "  still registered: {live} regions, {bytes} bytes")?;
        if self.hits + self.misses > 0 {
            writeln!(
                out,
                "  the cache: {} hits, {} misses, {} idle regions with {} bytes",
                self.hits, self.misses, self.idle, self.idle_bytes
            )?;
        }
        self.each(|name, value| {
            if value == "0" || IN_FIRST_LINES.split(' ').any(|it| it == name) {
                return Ok(());
            }
            writeln!(out, "  {name}: {value} ({})", words_of(name))
        })
    }
}

/// What a counter counts, in the words of the table for people: behind its name, or behind the
/// common beginning of several names.
const WORDS: &str = "\
ended_elsewhere regions that ended without ibv_dereg_mr
shared hits on a region in use
flushed_ regions that the cache deregistered
stale_avoided_ regions whose memory had changed
bypassed_access plain: the access flags
bypassed_device plain: libibverbs serves the device
bypassed_memory plain: shared memory, files, a device's, the stack
bypassed_watch plain: userfaultfd is refused
bypassed_fork plain: fork support, or a forked child
bypassed_limit plain: mappings or regions ran out
bypassed_busy plain: a change of memory was under way
bypassed_address plain: the iova is another address
bypassed_first plain: the range came for the first time
reg_gpu memory of a GPU, as a dma-buf
reg_past past the library, by libmlx5
fence_asked always 0";

fn words_of(name: &str) -> &'static str {
    let mut rows = WORDS.lines().filter_map(|row| row.split_once(' '));
    let row = rows.find(|(begins, _)| name.starts_with(begins));
    row.map_or("", |(_, words)| words)
}

/// A statistic that only grows, as the position of its field in [`rdmamr_stats`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter(usize);

impl Counter {
    /// The counter whose field has this offset in bytes; for the macro [`counter`].
    pub const fn at(offset: usize) -> Counter {
        Counter(offset / size_of::<u64>())
    }
}

/// The counter of a field of [`rdmamr_stats`].
#[macro_export]
macro_rules! counter {
    ($field:ident) => {
        const { $crate::Counter::at(core::mem::offset_of!($crate::rdmamr_stats, $field)) }
    };
}

/// The counters of a process. The first threads have a shard each. All later threads share the last
/// shard.
pub struct Counters(Page);

/// The cache's idle regions of each device, and the sum of their lengths.
#[derive(Default)]
pub struct Idle([[u64; 2]; DEVICES]);

impl Idle {
    /// Adds a region.
    pub fn add(&mut self, device: Device, bytes: u64) {
        let [regions, sum] = &mut self.0[device.0];
        *regions += 1;
        *sum += bytes;
    }
}

/// A change of the registered memory of a device: the number of regions and the sum of their
/// lengths, each modulo 2^64.
#[derive(Clone, Copy)]
pub struct Change {
    pub regions: u64,
    pub bytes: u64,
}

impl Change {
    /// A region more.
    pub fn more(bytes: u64) -> Change {
        Change { regions: 1, bytes }
    }

    /// A region less.
    pub fn less(bytes: u64) -> Change {
        let [regions, bytes] = [1, bytes].map(u64::wrapping_neg);
        Change { regions, bytes }
    }
}

impl Counters {
    /// Adds to a word of this thread's shard.
    #[inline(always)]
    fn add_to(&self, thread: thread::Number, amount: u64, word: impl Fn(&Shard) -> &AtomicU64) {
        if let Some(shard) = self.0.shards[..SHARDS - 1].get(thread.index()) {
            // Only one thread writes to this shard. On x86, LLVM makes the load and the store one
            // instruction, which a signal cannot divide. Elsewhere a signal handler's count may be
            // lost.
            let word = word(shard);
            word.store(word.load(Relaxed).wrapping_add(amount), Relaxed);
        } else {
            word(&self.0.shards[SHARDS - 1]).fetch_add(amount, Relaxed);
        }
    }

    /// Adds to a counter.
    pub fn add(&self, thread: thread::Number, counter: Counter, amount: u64) {
        self.add_to(thread, amount, |shard| &shard.counters[counter.0]);
    }

    /// The place of a device of that name.
    #[inline(never)]
    pub fn enter_device(&self, name: &[u8; 64]) -> Device {
        Device(self.0.enter(name) % DEVICES)
    }

    /// Counts a registration on a device.
    pub fn count_on(&self, thread: thread::Number, device: Device) {
        self.add_to(thread, 1, |shard| &shard.devices[device.0].registrations);
    }

    /// Counts a change of the program's own regions.
    #[inline(never)]
    pub fn change(&self, thread: thread::Number, Device(n): Device, change: Change) {
        self.add_to(thread, change.regions, |shard| &shard.devices[n].regions);
        self.add_to(thread, change.bytes, |shard| &shard.devices[n].bytes);
    }

    /// Counts a change of the cache's regions.
    #[inline(never)]
    pub fn change_of_cache(&self, thread: thread::Number, Device(n): Device, change: Change) {
        self.add_to(thread, change.regions, |shard| {
            &shard.devices[n].cache_regions
        });
        self.add_to(thread, change.bytes, |shard| &shard.devices[n].cache_bytes);
    }

    /// Publishes the cache's idle regions, and the number of hits. `hits` may miss some of them, so
    /// the published number never falls.
    pub fn show_idle(&self, idle: &Idle, hits: u64) {
        for (to, from) in self.0.idle.of_device.iter().zip(&idle.0) {
            to[0].store(from[0], Relaxed);
            to[1].store(from[1], Relaxed);
        }
        self.0.idle.hits.fetch_max(hits, Relaxed);
    }

    /// The switch by which another process asks this one to record its calls.
    pub fn trace_switch(&self) -> &TraceSwitch {
        &self.0.trace
    }

    /// Begins to measure the time of a registration of `bytes` bytes. Two reads of the clock take
    /// 40 ns, a small part of the time of a large region. Of the small regions only the first of
    /// each thread and then one in 16 are measured; each of the latter counts for 16.
    #[inline(never)]
    pub fn start_clock(&self, thread: thread::Number, bytes: usize) -> Option<Measuring> {
        let shard = &self.0.shards[thread.index().min(SHARDS - 1)];
        let before = shard.counters[counter!(reg_kernel).0].load(Relaxed);
        let weight = if bytes >= LARGE || before < FIRST {
            1
        } else if before.wrapping_mul(SCATTER) >> (u64::BITS - 4) == 0 {
            16
        } else {
            return None;
        };
        Some((clock::monotonic(), weight))
    }

    /// Ends the measurement of a registration.
    pub fn stop_clock(&self, thread: thread::Number, measuring: Option<Measuring>) {
        if let Some((began, weight)) = measuring {
            let time = clock::monotonic().saturating_sub(began);
            self.add_to(thread, time * weight, |shard| &shard.nanoseconds);
        }
    }

    /// Adds 1 to a counter, for a thread of the program.
    pub fn count(&self, counter: Counter) {
        self.add(thread::number(), counter, 1);
    }

    /// The sum of all shards. Fields that are not counters are 0.
    pub fn sums(&self) -> rdmamr_stats {
        let sums: [u64; FIELDS] = core::array::from_fn(|field| self.get(Counter(field)));
        // SAFETY: the structure has `FIELDS` fields of type `u64` and nothing else, so any such
        // array is one.
        unsafe { core::mem::transmute(sums) }
    }

    /// A counter's value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0.shards.iter().fold(0, |sum, shard| {
            sum.wrapping_add(shard.counters[counter.0].load(Relaxed))
        })
    }
}

/// A registration whose time is measured: its start, and for how many registrations it counts.
pub type Measuring = (u64, u64);

/// Every region of this size or more is measured.
const LARGE: usize = 64 << 10;
/// The number of registrations of a thread that are measured at its start.
const FIRST: u64 = 64;
/// Scatters the numbers of registrations: in a program that alternates between two kinds of
/// regions, both kinds must be measured. The upper four bits of the product are 0 for one number in
/// 16.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The place of a device in the counters.
#[derive(Clone, Copy)]
pub struct Device(usize);

impl Device {
    /// The device at this index.
    pub fn at(index: u32) -> Device {
        Device(index as usize % DEVICES)
    }

    /// The index of the device.
    pub fn index(self) -> u32 {
        self.0 as u32
    }
}

static COUNTERS: PerProcess<Counters> = PerProcess::new();

/// The path of this process's live page.
static FILE: PerProcess<CString> = PerProcess::new();

/// The counters of this process. The first call makes them. A forked child starts with all counters
/// 0.
pub fn counters() -> &'static Counters {
    let make = || thread::keep_errno(|| aside::run(make).unwrap_or_else(make));
    COUNTERS.get().unwrap_or_else(make)
}

/// The program is about to filter its system calls: asks what [`counters`] would ask.
pub fn before_filter() {
    COUNTERS.wipe_at_fork();
}

/// The counters in a live page, or else in the process's own memory. Once the program filters its system
/// calls, there is no page: the filter may kill at the calls that make one.
#[cold]
#[inline(never)]
fn make() -> &'static Counters {
    let mut names = Text::<NAMES>::new();
    let listed = rdmamr_stats::default().each(|name, _| writeln!(names, "{name}"));
    // A child does not inherit the page's mapping, so it must not look for counters there.
    let may_make = listed.is_ok() && !is_filtered() && COUNTERS.wipe_at_fork();
    let made = may_make.then(|| live::make(&names));
    let Some(made) = made.flatten() else {
        return COUNTERS.get_or_make(in_own_memory);
    };
    let page: *const Page = made.page;
    // SAFETY: `Counters` has the one field, and a page is mapped for good.
    let counters = unsafe { &*page.cast::<Counters>() };
    let published = COUNTERS.publish(counters);
    if !core::ptr::eq(published, counters) {
        made.discard();
    } else if let Some(path) = made.publish() {
        FILE.publish(Box::leak(Box::new(path)));
    }
    published
}

fn in_own_memory() -> Box<Counters> {
    // SAFETY: zeros are a valid `Counters`, which is a page of numbers.
    let counters = unsafe { zeroed() };
    counters.unwrap_or_else(|| handle_alloc_error(Layout::new::<Counters>()))
}

/// Removes this process's live page, at its exit. If the program filters its system calls, the page stays
/// until another process of the user makes one.
pub fn exiting() {
    if let Some(path) = FILE.get().filter(|_| !is_filtered()) {
        live::remove(path);
    }
}

/// The counters of this process, if it has counted anything.
pub fn existing() -> Option<&'static Counters> {
    COUNTERS.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_of_the_table_has_words() {
        // SAFETY: the structure has `FIELDS` fields of type `u64` and nothing else.
        let stats: rdmamr_stats = unsafe { core::mem::transmute([7u64; FIELDS]) };
        let mut table = String::new();
        stats.write_table(&mut table).unwrap();
        let counters: Vec<_> = table.lines().skip(5).collect();
        assert_eq!(counters.len(), FIELDS - 12);
        assert!(!table.contains("()"), "{table}");
    }

    #[test]
    fn json_has_each_field_once_and_in_order() {
        let mut raw = [0u64; FIELDS];
        for (n, field) in raw.iter_mut().enumerate() {
            *field = n as u64;
        }
        // SAFETY: the structure has `FIELDS` fields of type `u64` and nothing else.
        let stats: rdmamr_stats = unsafe { core::mem::transmute(raw) };
        let mut json = String::new();
        stats.write_json(&mut json).unwrap();
        let inside = json
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        let fields: Vec<_> = inside.unwrap().split(',').collect();
        assert_eq!(fields.len(), FIELDS);
        for (n, field) in fields.iter().enumerate() {
            let (name, value) = field.split_once(':').unwrap();
            assert!(name.starts_with('"') && name.ends_with('"') && name.len() > 5);
            assert_eq!(value, n.to_string());
        }
        assert!(json.starts_with("{\"reg_kernel\":0,\"reg_next\":1,"));
    }

    #[test]
    fn threads_add_up() {
        let counters = in_own_memory();
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| {
                    for _ in 0..100 {
                        counters.add(thread::number(), counter!(reg_kernel), 1);
                    }
                    counters.add(thread::number(), counter!(dereg_kernel), 30);
                });
            }
        });
        assert_eq!(counters.get(counter!(reg_kernel)), 200 * SHARDS as u64);
        assert_eq!(counters.get(counter!(dereg_kernel)), 60 * SHARDS as u64);
    }
}
