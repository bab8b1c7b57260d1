// SPDX-License-Identifier: MIT OR Apache-2.0
//! The records that are not in the file yet. A thread writes to a buffer that no other thread is
//! using: usually the same buffer each time, and another if a second thread or a signal handler
//! finds that one in use. No thread waits. If all buffers are in use, the call is not recorded,
//! only counted.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use rdmamr_sys::allocator::zeroed;
use rdmamr_sys::thread;
use rdmamr_trace_format::{Call, Header, Numbers};

/// The number of buffers. More threads than that share them.
const BUFFERS: usize = 64;
/// The most records in a block. With 256 a call costs 100 ns, of which 10 are for opening and
/// closing the file.
const RECORDS: usize = 1024;
/// The age in ns at which a block is written: a call that finds the buffer's last block this old
/// writes the next. At that rate a write of 2 us costs next to nothing, and a killed program loses
/// little.
const OLD: u64 = 10_000_000;

/// A block of the file while records are added to it.
#[repr(C)]
pub struct Block {
    /// Room for what precedes the records in the file: the header, and the numbers of their stacks.
    front: [u8; FRONT],
    calls: [Call; RECORDS],
    /// The number of records. This field and those below are not part of the file.
    pub count: usize,
    /// The stack of each record, and whether one has any.
    stacks: [u32; RECORDS],
    has_stacks: bool,
    /// When the buffer's last block was written.
    written: u64,
    /// The number of calls so far for which no buffer had room.
    pub dropped: u64,
}
const FRONT: usize = size_of::<Header>() + RECORDS * size_of::<u32>();
const _: () = assert!(FRONT % align_of::<Call>() == 0);

impl Block {
    fn is_old(&self, now: u64) -> bool {
        now.saturating_sub(self.written) >= OLD
    }

    /// The header, whose lengths this function sets, and the records, as the file has them. The
    /// numbers of stacks lengthen the header, so that a reader of an earlier release skips them.
    pub fn bytes(&mut self, header: &mut Header) -> &[u8] {
        let stacks = if self.has_stacks { self.count } else { 0 };
        let before = size_of::<Header>() + stacks * size_of::<u32>();
        header.header = before as u32;
        header.length = (self.count * size_of::<Call>()) as u32;
        let front = &mut self.front[FRONT - before..];
        let (of_header, of_stacks) = front.split_at_mut(size_of::<Header>());
        of_header.copy_from_slice(header.as_bytes());
        for (bytes, stack) in of_stacks.chunks_exact_mut(4).zip(&self.stacks) {
            bytes.copy_from_slice(&stack.to_le_bytes());
        }
        let length = FRONT + self.count * size_of::<Call>();
        // SAFETY: the room and the records are adjacent without a gap, and consist of numbers.
        let whole = unsafe { core::slice::from_raw_parts((&raw const *self).cast(), length) };
        &whole[FRONT - before..]
    }
}

struct TraceBuffer {
    busy: AtomicBool,
    block: UnsafeCell<Block>,
    /// Keeps buffers on separate cache lines. Alignment is not used: the allocator would write
    /// zeros over aligned memory once more.
    _apart: [u8; 128],
}

/// The buffers of a process, or none if there was no memory.
pub struct TraceBuffers {
    buffers: Option<Box<[TraceBuffer; BUFFERS]>>,
    dropped: AtomicU64,
}

// SAFETY: only the thread that has set `busy` touches a block.
unsafe impl Sync for TraceBuffers {}

impl TraceBuffers {
    /// Empty buffers, in memory that the system provides as zeros. A program touches only the
    /// buffers that its threads use.
    pub fn new() -> TraceBuffers {
        TraceBuffers {
            // SAFETY: zeros are free buffers with blocks of no records; the header is made when the
            // block is written.
            buffers: unsafe { zeroed() },
            dropped: AtomicU64::new(0),
        }
    }

    fn all(&self) -> &[TraceBuffer] {
        self.buffers.as_deref().map_or(&[], |buffers| buffers)
    }

    /// Adds a record, and the number of its stack. If `ready`, calls `write` with each block that is
    /// due.
    pub fn add(
        &self,
        record: &Call,
        stack: u32,
        now: u64,
        ready: bool,
        mut write: impl FnMut(&mut Block),
    ) {
        let first = (thread::pointer() >> 12) % BUFFERS;
        let (before, from) = self.all().split_at(first.min(self.all().len()));
        for buffer in from.iter().chain(before) {
            let Some(mut held) = HeldBuffer::of(buffer) else {
                continue;
            };
            let block = held.block();
            if block.count == RECORDS {
                // The block could not be written when it became full.
                continue;
            }
            block.calls[block.count] = *record;
            block.stacks[block.count] = stack;
            block.has_stacks |= stack != 0;
            block.count += 1;
            let is_old = block.is_old(now);
            if ready && (is_old || block.count == RECORDS) {
                self.write(block, now, &mut write);
                drop(held);
                if is_old {
                    // Buffers of threads that have ended or have stopped registering.
                    self.flush(now, |block| block.is_old(now), write);
                }
            }
            return;
        }
        self.dropped.fetch_add(1, Relaxed);
    }

    fn write(&self, block: &mut Block, now: u64, write: &mut impl FnMut(&mut Block)) {
        block.written = now;
        block.dropped = self.dropped.load(Relaxed);
        write(block);
        block.count = 0;
        block.has_stacks = false;
    }

    /// Calls `write` with each block that has records and is `chosen`.
    pub fn flush(
        &self,
        now: u64,
        chosen: impl Fn(&Block) -> bool,
        mut write: impl FnMut(&mut Block),
    ) {
        for buffer in self.all() {
            if let Some(mut held) = HeldBuffer::of(buffer) {
                if held.block().count > 0 && chosen(held.block()) {
                    self.write(held.block(), now, &mut write);
                }
            }
        }
    }
}

/// A buffer that the caller alone holds.
struct HeldBuffer<'a>(&'a TraceBuffer);

impl HeldBuffer<'_> {
    fn of(buffer: &TraceBuffer) -> Option<HeldBuffer<'_>> {
        let free = !buffer.busy.load(Relaxed) && !buffer.busy.swap(true, Acquire);
        free.then(|| HeldBuffer(buffer))
    }

    fn block(&mut self) -> &mut Block {
        // SAFETY: `of` found the buffer free and set `busy`, so the buffer is this holder's alone
        // until the drop.
        unsafe { &mut *self.0.block.get() }
    }
}

impl Drop for HeldBuffer<'_> {
    fn drop(&mut self) {
        self.0.busy.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NOTHING;

    fn call(time: u64) -> Call {
        Call { time, ..NOTHING }
    }

    /// The number of records in all buffers.
    fn rest(buffers: &TraceBuffers) -> usize {
        let mut count = 0;
        buffers.flush(0, |_| true, |block| count += block.count);
        count
    }

    #[test]
    fn a_full_block_and_an_old_one_are_written() {
        let buffers = TraceBuffers::new();
        let mut blocks = Vec::new();
        for n in 0..RECORDS as u64 + 3 {
            buffers.add(&call(n), 0, n, true, |block| blocks.push(block.count));
        }
        assert_eq!(blocks, [RECORDS]);
        let mut times = Vec::new();
        buffers.add(&call(7), 0, OLD + RECORDS as u64, true, |block| {
            times = block.calls[..block.count]
                .iter()
                .map(|call| call.time)
                .collect();
            let length = size_of::<Header>() + 4 * size_of::<Call>();
            assert_eq!(block.bytes(&mut { Header::NONE }).len(), length);
        });
        assert_eq!(times, [1024, 1025, 1026, 7]);
        assert_eq!(rest(&buffers), 0);
    }

    #[test]
    fn the_numbers_of_stacks_lengthen_the_header() {
        let buffers = TraceBuffers::new();
        buffers.add(&call(7), 0, 0, true, |_| panic!("it is new"));
        buffers.add(&call(8), 5, OLD, true, |block| {
            let mut header = Header::NONE;
            let bytes = block.bytes(&mut header).to_vec();
            let before = size_of::<Header>() + 8;
            assert_eq!((header.header, header.length), (before as u32, 128));
            assert_eq!(bytes.len(), before + 128);
            assert_eq!(bytes[..48], *header.as_bytes());
            assert_eq!(bytes[48..56], [0, 0, 0, 0, 5, 0, 0, 0]);
            assert_eq!((bytes[56], bytes[56 + 64]), (7, 8));
        });
        // The next block of the buffer has no stack.
        buffers.add(&call(9), 0, 2 * OLD, true, |block| {
            let mut header = Header::NONE;
            assert_eq!(block.bytes(&mut header).len(), 48 + 64);
            assert_eq!(header.header, 48);
        });
    }

    #[test]
    fn who_writes_an_old_block_writes_those_of_others() {
        let buffers = TraceBuffers::new();
        let others = || buffers.add(&call(1), 0, 1, true, |_| panic!("it is new"));
        std::thread::scope(|scope| scope.spawn(others).join().unwrap());
        let mut blocks = Vec::new();
        buffers.add(&call(2), 0, OLD, true, |block| blocks.push(block.count));
        buffers.add(&call(3), 0, 2 * OLD, true, |block| blocks.push(block.count));
        assert_eq!(blocks.iter().sum::<usize>(), 3);
        assert_eq!(rest(&buffers), 0);
    }

    #[test]
    fn who_is_not_ready_writes_nothing_and_a_full_buffer_is_left() {
        let buffers = TraceBuffers::new();
        for n in 0..RECORDS as u64 + 1 {
            buffers.add(&call(n), 0, OLD, false, |_| panic!("not ready"));
        }
        assert_eq!(rest(&buffers), RECORDS + 1);
    }

    #[test]
    fn who_interrupts_a_thread_finds_another_buffer() {
        let buffers = TraceBuffers::new();
        buffers.add(&call(1), 0, OLD, true, |_| {
            for n in 0..BUFFERS as u64 {
                buffers.add(&call(n), 0, 0, true, |_| {});
            }
        });
        assert_eq!(
            (rest(&buffers), buffers.dropped.load(Relaxed)),
            (BUFFERS, 0)
        );
    }

    #[test]
    fn what_finds_no_buffer_is_counted() {
        let buffers = TraceBuffers::new();
        let _held: Vec<_> = buffers.all().iter().map(HeldBuffer::of).collect();
        buffers.add(&call(1), 0, 0, true, |_| panic!("all are held"));
        assert_eq!(buffers.dropped.load(Relaxed), 1);
    }

    #[test]
    fn records_of_many_threads_arrive_once() {
        let buffers = TraceBuffers::new();
        let total = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for n in 0..10_000 {
                        buffers.add(&call(n), 0, n, true, |block| {
                            total.fetch_add(block.count as u64, Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner() + rest(&buffers) as u64, 80_000);
    }
}
