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

    /// The records, behind the header.
    pub fn bytes(&self) -> &[u8] {
        let length = size_of::<Header>() + self.count * size_of::<Call>();
        // SAFETY: header and records lie behind each other without a gap, and consist of numbers.
        unsafe { core::slice::from_raw_parts((&raw const *self).cast(), length) }
    }
}

#[repr(align(128))]
struct Buffer {
    busy: AtomicBool,
    block: UnsafeCell<Block>,
}

/// The buffers of a process.
pub struct Buffers {
    buffers: Box<[Buffer]>,
    dropped: AtomicU64,
}

// SAFETY: a block is touched only by who has set `busy`.
unsafe impl Sync for Buffers {}

impl Buffers {
    /// Empty ones.
    pub fn new() -> Buffers {
        let buffer = || Buffer {
            busy: AtomicBool::new(false),
            block: UnsafeCell::new(Block {
                header: Header::NONE,
                calls: [super::NOTHING; RECORDS],
                count: 0,
                written: 0,
            }),
        };
        Buffers {
            buffers: (0..BUFFERS).map(|_| buffer()).collect(),
            dropped: AtomicU64::new(0),
        }
    }

    /// Adds a record; `write` gets the block when it is time to.
    pub fn add(&self, record: &Call, now: u64, write: impl FnOnce(&mut Block)) {
        let first = (thread::pointer() >> 12) % BUFFERS;
        for n in 0..BUFFERS {
            let buffer = &self.buffers[(first + n) % BUFFERS];
            let Some(mut held) = Held::of(buffer) else {
                continue;
            };
            let block = held.block();
            block.calls[block.count] = *record;
            block.count += 1;
            if block.count == RECORDS || now.saturating_sub(block.written) >= OLD {
                block.written = now;
                self.write(block, write);
            }
            return;
        }
        self.dropped.fetch_add(1, Relaxed);
    }

    fn write(&self, block: &mut Block, write: impl FnOnce(&mut Block)) {
        block.header.dropped = self.dropped.load(Relaxed);
        write(block);
        block.count = 0;
    }

    /// Hands over what there is.
    pub fn flush(&self, mut write: impl FnMut(&mut Block)) {
        for buffer in &self.buffers {
            if let Some(mut held) = Held::of(buffer)
                && held.block().count > 0
            {
                self.write(held.block(), &mut write);
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

    #[test]
    fn a_full_block_and_an_old_one_are_written() {
        let buffers = Buffers::new();
        let mut blocks = Vec::new();
        for n in 0..RECORDS as u64 + 3 {
            buffers.add(&call(n), n, |block| blocks.push(block.count()));
        }
        assert_eq!(blocks, [RECORDS]);
        let mut times = Vec::new();
        buffers.add(&call(7), OLD + RECORDS as u64, |block| {
            times = block.calls[..block.count]
                .iter()
                .map(|call| call.time)
                .collect();
            assert_eq!(
                block.bytes().len(),
                size_of::<Header>() + 4 * size_of::<Call>()
            );
        });
        assert_eq!(times, [1024, 1025, 1026, 7]);
        buffers.flush(|_| panic!("nothing is left"));
    }

    #[test]
    fn who_interrupts_a_thread_finds_another_buffer() {
        let buffers = Buffers::new();
        let mut inner = 0;
        buffers.add(&call(1), OLD, |_| {
            for n in 0..BUFFERS as u64 {
                buffers.add(&call(n), 0, |_| {});
            }
        });
        buffers.flush(|block| inner += block.count());
        assert_eq!((inner, buffers.dropped.load(Relaxed)), (BUFFERS, 0));
    }

    #[test]
    fn what_finds_no_buffer_is_counted() {
        let buffers = Buffers::new();
        let _held: Vec<_> = buffers.buffers.iter().map(Held::of).collect();
        buffers.add(&call(1), 0, |_| panic!("all are held"));
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
                        let count = |block: &mut Block| {
                            total.fetch_add(block.count() as u64, Relaxed);
                        };
                        buffers.add(&call(n), n, count);
                    }
                });
            }
        });
        buffers.flush(|block| {
            total.fetch_add(block.count() as u64, Relaxed);
        });
        assert_eq!(total.into_inner(), 80_000);
    }
}
