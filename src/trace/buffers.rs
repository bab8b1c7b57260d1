// SPDX-License-Identifier: MIT OR Apache-2.0
//! The records that are not in the file yet. A thread writes to a buffer that nobody else is writing to: as a
//! rule the same each time, and another where a second thread or a signal handler finds that one in use. Nobody
//! waits; where all are in use, the call is not written down, and counted.

use super::format::{Call, Header};
use crate::thread;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// So many buffers there are; more threads than that share them.
const BUFFERS: usize = 64;
/// So many records are a block at most. A call costs 100 ns with 256, of which 10 are to open the file and close it.
const RECORDS: usize = 1024;
/// A call that finds the buffer's last block so old, in ns, writes the next: at that rate a write of 2 us is
/// nothing, and little is lost with a program that is killed.
const OLD: u64 = 10_000_000;

/// A block of the file, as it is being filled.
#[repr(C)]
pub struct Block {
    pub header: Header,
    calls: [Call; RECORDS],
    /// How many there are. Not part of the file.
    count: usize,
    /// When the last one was written.
    written: u64,
}

impl Block {
    /// How many records it has.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.count
    }

    fn is_old(&self, now: u64) -> bool {
        now.saturating_sub(self.written) >= OLD
    }

    /// The records, behind the header.
    pub fn bytes(&self) -> &[u8] {
        let length = size_of::<Header>() + self.count * size_of::<Call>();
        // SAFETY: header and records lie behind each other without a gap, and consist of numbers.
        unsafe { core::slice::from_raw_parts((&raw const *self).cast(), length) }
    }
}

struct Buffer {
    busy: AtomicBool,
    block: UnsafeCell<Block>,
    /// No two share a cache line. Not by alignment: of aligned memory the system's zeros are written once more.
    _apart: [u8; 128],
}

/// The buffers of a process.
pub struct Buffers {
    buffers: Box<[Buffer]>,
    dropped: AtomicU64,
}

// SAFETY: a block is touched only by who has set `busy`.
unsafe impl Sync for Buffers {}

impl Buffers {
    /// Empty ones: memory that the system gives as zeros, of which a program touches what its threads need.
    pub fn new() -> Buffers {
        // SAFETY: all zeros is a buffer that nobody has, with a block of no records; a header is written with the block.
        let buffers = unsafe { Box::new_zeroed_slice(BUFFERS).assume_init() };
        Buffers {
            buffers,
            dropped: AtomicU64::new(0),
        }
    }

    /// Adds a record; `write` gets the blocks that it is time to write, if it is `ready` to.
    pub fn add(&self, record: &Call, now: u64, ready: bool, mut write: impl FnMut(&mut Block)) {
        let first = (thread::pointer() >> 12) % BUFFERS;
        for n in 0..BUFFERS {
            let Some(mut held) = Held::of(&self.buffers[(first + n) % BUFFERS]) else {
                continue;
            };
            let block = held.block();
            if block.count == RECORDS {
                // It could not be written when it became full.
                continue;
            }
            block.calls[block.count] = *record;
            block.count += 1;
            let is_old = block.is_old(now);
            if ready && (is_old || block.count == RECORDS) {
                self.write(block, now, &mut write);
                drop(held);
                if is_old {
                    // Those of threads that have ended, or do something else now.
                    self.flush(now, |block| block.is_old(now), write);
                }
            }
            return;
        }
        self.dropped.fetch_add(1, Relaxed);
    }

    fn write(&self, block: &mut Block, now: u64, write: &mut impl FnMut(&mut Block)) {
        block.written = now;
        block.header.dropped = self.dropped.load(Relaxed);
        write(block);
        block.count = 0;
    }

    /// Hands over the blocks that have records and are `chosen`.
    pub fn flush(
        &self,
        now: u64,
        chosen: impl Fn(&Block) -> bool,
        mut write: impl FnMut(&mut Block),
    ) {
        for buffer in &self.buffers {
            if let Some(mut held) = Held::of(buffer)
                && held.block().count > 0
                && chosen(held.block())
            {
                self.write(held.block(), now, &mut write);
            }
        }
    }
}

/// A buffer that is the caller's.
struct Held<'a>(&'a Buffer);

impl Held<'_> {
    fn of(buffer: &Buffer) -> Option<Held<'_>> {
        let free = !buffer.busy.load(Relaxed) && !buffer.busy.swap(true, Acquire);
        free.then(|| Held(buffer))
    }

    fn block(&mut self) -> &mut Block {
        // SAFETY: `of` has found it free and set `busy`, so it is this one's alone until the drop.
        unsafe { &mut *self.0.block.get() }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::NOTHING;

    fn call(time: u64) -> Call {
        Call { time, ..NOTHING }
    }

    /// How many records there are in all.
    fn rest(buffers: &Buffers) -> usize {
        let mut count = 0;
        buffers.flush(0, |_| true, |block| count += block.count());
        count
    }

    #[test]
    fn a_full_block_and_an_old_one_are_written() {
        let buffers = Buffers::new();
        let mut blocks = Vec::new();
        for n in 0..RECORDS as u64 + 3 {
            buffers.add(&call(n), n, true, |block| blocks.push(block.count()));
        }
        assert_eq!(blocks, [RECORDS]);
        let mut times = Vec::new();
        buffers.add(&call(7), OLD + RECORDS as u64, true, |block| {
            times = block.calls[..block.count]
                .iter()
                .map(|call| call.time)
                .collect();
            let length = size_of::<Header>() + 4 * size_of::<Call>();
            assert_eq!(block.bytes().len(), length);
        });
        assert_eq!(times, [1024, 1025, 1026, 7]);
        assert_eq!(rest(&buffers), 0);
    }

    #[test]
    fn who_writes_an_old_block_writes_those_of_others() {
        let buffers = Buffers::new();
        let others = || buffers.add(&call(1), 1, true, |_| panic!("it is new"));
        std::thread::scope(|scope| scope.spawn(others).join().unwrap());
        let mut blocks = Vec::new();
        buffers.add(&call(2), OLD, true, |block| blocks.push(block.count()));
        buffers.add(&call(3), 2 * OLD, true, |block| blocks.push(block.count()));
        assert_eq!(blocks.iter().sum::<usize>(), 3);
        assert_eq!(rest(&buffers), 0);
    }

    #[test]
    fn who_is_not_ready_writes_nothing_and_a_full_buffer_is_left() {
        let buffers = Buffers::new();
        for n in 0..RECORDS as u64 + 1 {
            buffers.add(&call(n), OLD, false, |_| panic!("not ready"));
        }
        assert_eq!(rest(&buffers), RECORDS + 1);
    }

    #[test]
    fn who_interrupts_a_thread_finds_another_buffer() {
        let buffers = Buffers::new();
        buffers.add(&call(1), OLD, true, |_| {
            for n in 0..BUFFERS as u64 {
                buffers.add(&call(n), 0, true, |_| {});
            }
        });
        assert_eq!(
            (rest(&buffers), buffers.dropped.load(Relaxed)),
            (BUFFERS, 0)
        );
    }

    #[test]
    fn what_finds_no_buffer_is_counted() {
        let buffers = Buffers::new();
        let _held: Vec<_> = buffers.buffers.iter().map(Held::of).collect();
        buffers.add(&call(1), 0, true, |_| panic!("all are held"));
        assert_eq!(buffers.dropped.load(Relaxed), 1);
    }

    #[test]
    fn records_of_many_threads_arrive_once() {
        let buffers = Buffers::new();
        let total = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for n in 0..10_000 {
                        buffers.add(&call(n), n, true, |block| {
                            total.fetch_add(block.count() as u64, Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner() + rest(&buffers) as u64, 80_000);
    }
}
