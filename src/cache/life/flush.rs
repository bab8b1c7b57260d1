// SPDX-License-Identifier: MIT OR Apache-2.0
//! ibv_flush_relaxed_mr(3): the cache deregisters idle regions at once.

use crate::account::Amount;
use crate::instance::{Cache, existing};
use crate::life::ending::{self, in_call};
use crate::locked::By;
use crate::region::slot::{Cause, Id, Slot};
use errno::Errno;
use rdmamr_mr::Error;
use rdmamr_next::Pd;
use rdmamr_sys::thread;

/// Deregisters the released regions of a domain. When it returns, every region that was released
/// before the call is deregistered. Regions in use are untouched.
pub fn flush(pd: Pd) -> Result<(), Error> {
    let Some(cache) = existing() else {
        return Ok(());
    };
    flush_those(cache, ending::of_pd(pd.address() as u64))
}

/// Deregisters the released regions for which `of` is true.
pub fn flush_those(cache: &Cache, of: impl Fn(&Slot) -> bool) -> Result<(), Error> {
    if thread::is_inside() {
        return Err(Error::Shortage(
            "a signal handler interrupted this thread in the cache",
        ));
    }
    let _inside = thread::enter();
    let (refused, finished) = thread::keep_errno(|| {
        let (_, refused, looked) = deregister_unused(cache, Cause::Flush, &of, By::Program);
        // Other threads may have claimed regions before, or left them on the list of evicted regions.
        ending::deregister_evicted(cache, By::Program);
        let ended = cache.regions.wait_for_claimed(of);
        (refused, looked && ended)
    });
    match refused {
        Some(errno) => Err(Error::Kernel(errno)),
        None if finished => Ok(()),
        None => Err(Error::Shortage(
            "a thread that works on the regions is stopped",
        )),
    }
}

/// Deregisters the unused regions for which `of` is true. Returns how many it deregistered, the errno
/// of a refusal by the kernel, and whether it could look at all of them. If regions stay, because
/// another task holds the lock or the kernel refuses, the cleaner tries again at a later tick.
pub fn deregister_unused(
    cache: &Cache,
    cause: Cause,
    of: impl FnMut(&Slot) -> bool,
    by: By,
) -> (usize, Option<Errno>, bool) {
    let (mut ended, mut refused) = (0, None);
    let end = |id| match ending::deregister(cache, id, by) {
        Ok(()) => ended += 1,
        Err(errno) => refused = Some(errno),
    };
    let looked = claim_each_unused(cache, cause, of, by, end);
    (ended, refused, looked)
}

/// Claims the unused regions for which `of` is true, and calls `each` for them. `of` is asked again
/// under the lock. False if this thread did not get the lock because another task holds it.
pub fn claim_each_unused(
    cache: &Cache,
    cause: Cause,
    mut of: impl FnMut(&Slot) -> bool,
    by: By,
    mut each: impl FnMut(Id),
) -> bool {
    for (id, region) in cache.regions.each() {
        if !(region.state.load().is_unused() && of(region)) {
            continue;
        }
        let Some(locked) = cache.regions.lock_patiently(by) else {
            return false;
        };
        cache.apply(&locked, by);
        let is_claimed = locked.claim_unused(id, cause, &mut of);
        drop(locked);
        if is_claimed {
            each(id);
        }
    }
    true
}

/// Called when this thread is about to fork. Has the kernel deregister the idle regions, unless
/// they are small together. Otherwise the kernel would copy their pages for the child, which takes
/// memory, and more time than to register them again.
///
/// This function runs like an interposed memory call (`change.rs`): fork handlers of the program
/// may hold locks of its malloc. To stop watching the memory takes four times as long as to
/// deregister it, so the cleaner does that.
pub fn before_fork(cache: &Cache) {
    /// The kernel copies this many bytes in less time than the smallest fork takes.
    const SMALL: i64 = 128 << 10;
    if cache.cleaner.nothing_is_idle() || thread::is_inside() {
        return;
    }
    let all = cache.regions.account.registered().bytes;
    let are_small = all <= SMALL || Amount::sum(cache.regions.each_without_users()).bytes <= SMALL;
    if are_small {
        return;
    }
    in_call(|| {
        claim_each_unused(
            cache,
            Cause::Pressure,
            |_| true,
            By::Restricted,
            |id| {
                ending::unpin(cache, id);
            },
        )
    });
}

/// Ends all idle regions, and the evicted ones. Runs like an interposed memory call.
pub fn deregister_all(cache: &Cache) {
    in_call(|| {
        deregister_unused(cache, Cause::Pressure, |_| true, By::Restricted);
        ending::deregister_evicted(cache, By::Restricted);
    });
}

/// The kernel is short of a resource that regions hold. Deregisters every idle region, and waits
/// for those that other threads are deregistering. Returns false if there was none. The caller is
/// inside the library (`thread::enter`).
pub fn relieve(cache: &Cache) -> bool {
    let were_ending = cache.regions.is_ending();
    ending::deregister_evicted(cache, By::Program);
    let (ended, ..) = deregister_unused(cache, Cause::Pressure, |_| true, By::Program);
    cache.regions.wait_for_claimed(|_| true);
    ended > 0 || were_ending
}

/// Memory is short for a plain registration of the program. Deregisters every idle region. Returns
/// false if there was none.
#[cold]
pub fn relieve_program() -> bool {
    let Some(cache) = existing().filter(|_| !thread::is_inside()) else {
        return false;
    };
    let _inside = thread::enter();
    relieve(cache)
}
