// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's clocks, clock_gettime(2), in nanoseconds.

/// The time since some moment in the past. It never goes back.
pub fn monotonic() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// The time since 1970, UTC.
pub fn real() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// The processor time of this thread.
pub fn of_thread() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The clock of [`monotonic`], for helper threads and for what is compared with their times: another
/// library may replace the C library's function, and a helper thread must not run code of that
/// library. The system call costs 100 ns more (measured).
pub fn monotonic_by_kernel() -> u64 {
    nanoseconds(|time| {
        // SAFETY: `time` is writable.
        unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, time) };
    })
}

fn read(clock: libc::clockid_t) -> u64 {
    nanoseconds(|time| {
        // SAFETY: `time` is writable.
        unsafe { libc::clock_gettime(clock, time) };
    })
}

fn nanoseconds(ask: impl FnOnce(&mut libc::timespec)) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    ask(&mut time);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_read_one_clock() {
        let times = [monotonic(), monotonic_by_kernel(), monotonic()];
        assert!(times.is_sorted(), "{times:?}");
        assert!(real() > times[0]);
    }
}
