// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every counter. Threads count on cache lines of their own; who reads adds them up.

use crate::thread;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// What is counted. Counters only grow.
#[derive(Clone, Copy)]
pub enum Counter {
    /// Registrations that our own kernel call made.
    RegKernel,
    /// Registrations that libibverbs made for us.
    RegNext,
    /// Registrations that failed, by either way.
    RegFailed,
    /// Deregistrations that our own kernel call made.
    DeregKernel,
    /// Deregistrations that libibverbs made for us.
    DeregNext,
    /// Deregistrations that failed, by either way.
    DeregFailed,
    /// Regions of ours that ended without our `ibv_dereg_mr`.
    Vanished,
    /// Bytes of the regions that we made.
    BytesMade,
    /// Bytes of the regions of ours that ended.
    BytesEnded,
}

const COUNTERS: usize = Counter::BytesEnded as usize + 1;

/// More threads than these share lines.
const SHARDS: usize = 16;

/// Two lines, since processors fetch them in pairs.
#[repr(align(128))]
struct Shard([AtomicU64; COUNTERS]);

/// The counters of a process.
pub struct Counters([Shard; SHARDS]);

impl Counters {
    /// All 0.
    pub const fn new() -> Self {
        Counters([const { Shard([const { AtomicU64::new(0) }; COUNTERS]) }; SHARDS])
    }

    /// Adds to a counter.
    #[inline]
    pub fn add(&self, counter: Counter, amount: u64) {
        let shard = &self.0[thread::shard() as usize % SHARDS];
        shard.0[counter as usize].fetch_add(amount, Relaxed);
    }

    /// A counter's value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0.iter().fold(0, |sum, shard| {
            sum.wrapping_add(shard.0[counter as usize].load(Relaxed))
        })
    }

    /// Regions of ours that are registered now. While other threads register, an approximation.
    pub fn live(&self) -> u64 {
        let ended = self.get(Counter::DeregKernel) + self.get(Counter::Vanished);
        self.get(Counter::RegKernel).saturating_sub(ended)
    }

    /// Their bytes.
    pub fn live_bytes(&self) -> u64 {
        let ended = self.get(Counter::BytesEnded);
        // Sums of lengths may wrap: implicit on-demand paging registers 2^64 - 1 bytes.
        self.get(Counter::BytesMade).wrapping_sub(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up() {
        let counters = Counters::new();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        counters.add(Counter::RegKernel, 1);
                        counters.add(Counter::BytesMade, 7);
                    }
                    counters.add(Counter::DeregKernel, 30);
                    counters.add(Counter::BytesEnded, 210);
                });
            }
        });
        assert_eq!(
            (counters.live(), counters.live_bytes()),
            (20 * 70, 20 * 490)
        );
    }
}
