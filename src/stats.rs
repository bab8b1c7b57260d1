// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every counter. Threads count on cache lines of their own, without a locked instruction; who reads adds
//! them up.

use crate::thread;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// What is counted. Counters only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    /// Relaxed registrations that an existing region served.
    Hits,
    /// Relaxed registrations that the pool made a region for.
    Misses,
    /// Hits on a region that was in use.
    Shared,
    /// Regions of the pool that were deregistered, by cause.
    FlushedFlush,
    FlushedWatermark,
    FlushedLinger,
    FlushedPressure,
    FlushedHook,
    FlushedEvent,
    FlushedFence,
    FlushedStamp,
    /// Regions of the pool that must not be used again, by the layer that found out.
    StaleAvoidedHook,
    StaleAvoidedEvent,
    StaleAvoidedFence,
    StaleAvoidedStamp,
    /// Relaxed registrations that are not kept after their release, by reason.
    BypassedAccess,
    BypassedDevice,
    BypassedMemory,
    BypassedWatch,
    BypassedFork,
    BypassedLimit,
    BypassedBusy,
}

const COUNTERS: usize = Counter::BypassedBusy as usize + 1;

/// The first threads have a shard each; those that come later share the last.
const SHARDS: usize = 32;

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
    pub fn add(&self, thread: thread::Number, counter: Counter, amount: u64) {
        if let Some(shard) = self.0[..SHARDS - 1].get(thread.index()) {
            // One thread writes here. That the two become one instruction, which a signal cannot divide,
            // is what LLVM does on x86; elsewhere a handler's count may be lost.
            let counter = &shard.0[counter as usize];
            counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
        } else {
            self.0[SHARDS - 1].0[counter as usize].fetch_add(amount, Relaxed);
        }
    }

    /// A counter's value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0.iter().fold(0, |sum, shard| {
            sum.wrapping_add(shard.0[counter as usize].load(Relaxed))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up() {
        let counters = Counters::new();
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| {
                    for _ in 0..100 {
                        counters.add(thread::number(), Counter::RegKernel, 1);
                    }
                    counters.add(thread::number(), Counter::DeregKernel, 30);
                });
            }
        });
        assert_eq!(counters.get(Counter::RegKernel), 200 * SHARDS as u64);
        assert_eq!(counters.get(Counter::DeregKernel), 60 * SHARDS as u64);
    }
}
