// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flushing, ibv_flush_relaxed_mr(3): what nobody uses is deregistered now.

use super::ending::{self, By};
use super::pool::{Batch, Cause};
use super::region::{Id, Region};
use super::{Instance, existing};
use crate::mr::{Error, Pd};
use crate::thread;
use errno::Errno;

/// Deregisters the regions of a domain that are released. When it returns, all that were released before
/// the call are; regions in use are untouched.
pub fn flush(pd: Pd) -> Result<(), Error> {
    let Some(relaxed) = existing() else {
        return Ok(());
    };
    flush_those(relaxed, ending::of_pd(pd.address() as u64))
}

/// Deregisters the released regions of some domains.
pub fn flush_those(relaxed: &Instance, of: impl Fn(&Region) -> bool) -> Result<(), Error> {
    if thread::is_inside() {
        return Err(Error::Shortage(
            "a signal handler interrupted this thread in the pool",
        ));
    }
    let _inside = thread::enter();
    let (_, refused) = end_idle(relaxed, Cause::Flush, &of);
    // Those that others have claimed before, or that wait for whoever comes.
    let claims = relaxed.pool.lock().claims();
    ending::doomed(relaxed, By::Program);
    relaxed.pool.wait_for_claims(claims, of);
    relaxed.watch.count_anew();
    refused.map_or(Ok(()), |errno| Err(Error::Kernel(errno)))
}

/// Deregisters idle regions. Returns how many there were, and an errno if the kernel refused one.
fn end_idle(
    relaxed: &Instance,
    cause: Cause,
    of: &impl Fn(&Region) -> bool,
) -> (usize, Option<Errno>) {
    let (mut ended, mut refused) = (0, None);
    let mut from = Some(Id(0));
    while let Some(start) = from {
        let mut batch = Batch::new();
        let locked = relaxed.pool.lock();
        relaxed.apply(&locked, By::Program);
        from = locked.claim_idle(start, &mut batch, cause, of);
        drop(locked);
        for &id in batch.ids() {
            match ending::end(relaxed, id, By::Program) {
                Ok(()) => ended += 1,
                Err(errno) => refused = Some(errno),
            }
        }
    }
    (ended, refused)
}

/// Ends what its last user could not, in place of a cleaner that may not.
#[cold]
pub fn end_spent(relaxed: &Instance) {
    let _ = end_idle(relaxed, Cause::Flush, &|region| {
        region.word.load().is_spent()
    });
    ending::doomed(relaxed, By::Program);
}

/// Memory is short: deregisters everything that is idle. False if that was nothing. The caller is inside.
pub fn relieve(relaxed: &Instance) -> bool {
    let doomed = relaxed.pool.is_ending();
    ending::doomed(relaxed, By::Program);
    let (ended, _) = end_idle(relaxed, Cause::Pressure, &|_| true);
    ended > 0 || (doomed && !relaxed.pool.is_ending())
}
