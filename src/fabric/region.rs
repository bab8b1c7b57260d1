// SPDX-License-Identifier: MIT OR Apache-2.0
//! A memory region: `struct fid_mr`, and the library's private fields behind it.

use super::errors::{Failure, Result, ensure};
use super::object::{Head, Process, lock};
use super::piece::{Piece, Side, end_all};
use super::raw_key;
use super::refusals::*;
use super::segment::{Found, Segment};
use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr::{NonNull, null_mut, with_exposed_provenance_mut, without_provenance_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use rdmamr_abi::libfabric::*;
use rdmamr_abi::rdma_core::ibv_mr;
use rdmamr_cache::dispatch::Mr;
use rdmamr_mr::explain::Subject;
use rdmamr_mr::{Error, How};
use rdmamr_trace::format::{Call, how};
use std::sync::{Mutex, MutexGuard};

/// The state of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Phase {
    /// Closed.
    Closed,
    UnderWay,
    Registered,
    /// The registration failed after its call had returned, or a close failed halfway.
    Failed,
    /// Another region has taken this region's addresses.
    Replaced,
    /// A thread is closing or replacing the region at the moment.
    Closing,
}

/// A region.
#[repr(C)]
pub struct Region {
    // The fields of `struct fid_mr`. The application's threads read them while the library writes.
    fid: Head,
    desc: AtomicPtr<c_void>,
    key: AtomicU64,
    // The private fields.
    state: AtomicU32,
    /// The lkey of the region before it was replaced, for the trace.
    replaced_lkey: AtomicU32,
    process: Process,
    /// The domain, by address. The domain exists as long as it has regions.
    pub domain: usize,
    /// Whether remote peers need a raw key.
    raw: bool,
    pub plan: Plan,
    /// The address of the region's only `ibv_mr`; 0 if `many` holds the registrations. (Most
    /// regions have one registration, and take no lock for it.)
    single: AtomicUsize,
    remote: AtomicU64,
    /// Several pieces, or one piece that was registered twice.
    many: Mutex<Vec<Piece>>,
}
const _: () = assert!(offset_of!(Region, state) >= size_of::<fid_mr>());
const _: () = assert!(offset_of!(Region, desc) == offset_of!(fid_mr, mem_desc));
const _: () = assert!(offset_of!(Region, key) == offset_of!(fid_mr, key));

/// The properties of a region that its registration decides.
pub struct Plan {
    /// The region's key in [`Keys`](super::keys::Keys), if it has one there.
    pub table_key: Option<u64>,
    /// Whether the application chose the base address.
    pub is_placed: bool,
    /// The first address that remote peers use.
    pub base: u64,
    pub length: u64,
}

impl Region {
    /// Makes a region in the state `UnderWay`. `None` if no memory is left.
    #[inline(always)]
    pub fn make(
        ops: &'static fi_ops,
        domain: usize,
        process: Process,
        raw: bool,
        (context, plan): (*mut c_void, Plan),
    ) -> Option<&'static Region> {
        // SAFETY: the size is not 0.
        let memory: *mut Region = unsafe { libc::malloc(size_of::<Region>()) }.cast();
        let memory = NonNull::new(memory)?;
        let region = Region {
            fid: Head::new(FI_CLASS_MR, context, ops),
            desc: AtomicPtr::new(null_mut()),
            key: AtomicU64::new(FI_KEY_NOTAVAIL),
            state: AtomicU32::new(Phase::UnderWay as u32),
            replaced_lkey: AtomicU32::new(0),
            process,
            domain,
            raw,
            plan,
            single: AtomicUsize::new(0),
            remote: AtomicU64::new(0),
            many: Mutex::new(Vec::new()),
        };
        // SAFETY: malloc returned this memory, of the right size, to this thread only.
        unsafe { memory.write(region) };
        // SAFETY: the region is valid until `die`.
        Some(unsafe { memory.as_ref() })
    }

    /// Fills a new region with a registration that the cache has just served.
    #[inline(always)]
    pub fn serve(&self, mr: Mr, public: &ibv_mr) {
        let desc = without_provenance_mut(public.lkey as usize);
        self.desc.store(desc, Relaxed);
        self.key.store(public.rkey.into(), Relaxed);
        self.remote.store(public.addr.addr() as u64, Relaxed);
        self.single.store(mr.address(), Relaxed);
        self.state.store(Phase::Registered as u32, Relaxed);
    }

    /// The region that C names.
    ///
    /// # Safety
    /// `fid` is a region of this library: open, or closed not long ago.
    #[inline(always)]
    pub unsafe fn from_c<'a>(fid: *mut fid) -> &'a Region {
        // SAFETY: the caller promised a region: only regions have the table that led to this
        // function.
        unsafe { &*fid.cast() }
    }

    /// The pointer that C uses.
    pub fn as_ptr(&self) -> *mut fid_mr {
        (&raw const *self).cast_mut().cast()
    }

    /// The address by which tables and queues remember the region.
    pub fn address(&self) -> usize {
        (&raw const *self).expose_provenance()
    }

    pub fn context(&self) -> *mut c_void {
        self.fid.context.load(Relaxed)
    }

    fn state(&self) -> Phase {
        use Phase::*;
        let stored = self.state.load(Acquire);
        let mut all = [UnderWay, Registered, Failed, Replaced, Closing].into_iter();
        all.find(|&phase| phase as u32 == stored).unwrap_or(Closed)
    }

    fn change(&self, from: Phase, to: Phase) -> bool {
        let (from, to) = (from as u32, to as u32);
        let changed = self.state.compare_exchange(from, to, AcqRel, Acquire);
        changed.is_ok()
    }

    pub fn is_registered(&self) -> bool {
        self.state() == Phase::Registered
    }

    /// Refuses a region that is closed, and a region that the parent process made before fork.
    pub fn check(&self) -> Result<()> {
        ensure(self.state() != Phase::Closed, CLOSED)?;
        self.process.check()
    }

    /// Refuses the same regions as `check`, and a region that is not registered.
    pub fn check_registered(&self) -> Result<()> {
        self.check()?;
        let refusal = match self.state() {
            Phase::Registered => return Ok(()),
            Phase::UnderWay => UNDER_WAY,
            Phase::Failed => HAS_FAILED,
            Phase::Replaced => REPLACED,
            Phase::Closed | Phase::Closing => CLOSING,
        };
        Err(refusal.into())
    }

    /// Hands the region its pieces.
    #[inline(always)]
    pub fn fill(&self, pieces: Vec<Piece>) {
        if let [piece] = pieces[..] {
            let desc = without_provenance_mut(piece.lkey() as usize);
            self.desc.store(desc, Relaxed);
            if piece.for_remote.is_none() {
                self.remote.store(piece.remote, Relaxed);
                return self.single.store(piece.mr.address(), Release);
            }
        }
        *lock(&self.many) = pieces;
    }

    /// Makes the region usable. A thread that sees the state `Registered` also sees all earlier
    /// stores.
    #[inline(always)]
    pub fn is_now_registered(&self) {
        let key = match self.plan.table_key {
            _ if self.raw => FI_KEY_NOTAVAIL,
            Some(key) => key,
            None => {
                let only = self.single().or_else(|| match lock(&self.many)[..] {
                    [only] => Some(only),
                    _ => None,
                });
                only.map_or(FI_KEY_NOTAVAIL, |piece| piece.rkey().into())
            }
        };
        self.key.store(key, Release);
        self.state.store(Phase::Registered as u32, Release);
    }

    /// Marks a region whose registration failed after the call had returned.
    pub fn has_failed(&self) {
        self.state.store(Phase::Failed as u32, Release);
    }

    fn single(&self) -> Option<Piece> {
        let address = self.single.load(Acquire);
        // SAFETY: 0, or a live registration: whoever ends it stores 0.
        let mr = unsafe { Mr::from_c(with_exposed_provenance_mut(address)) };
        let remote = self.remote.load(Relaxed);
        mr.map(|mr| Piece {
            mr,
            for_remote: None,
            remote,
            how: How::Kernel,
        })
    }

    /// Keeps the registrations of a region that another region may replace (`replace`) from ending
    /// while they are read.
    fn keep_pieces(&self) -> Option<MutexGuard<'_, Vec<Piece>>> {
        self.plan.is_placed.then(|| lock(&self.many))
    }

    /// Calls `with` with the region's pieces, in order. There is none if another region has
    /// replaced this one since the caller looked at its state.
    pub fn with_segments<R>(&self, side: Side, with: impl FnOnce(&[Segment]) -> R) -> R {
        let kept = self.keep_pieces();
        if let Some(piece) = self.single() {
            let segment = piece.segment(side);
            drop(kept);
            return with(&[segment]);
        }
        let pieces = kept.unwrap_or_else(|| lock(&self.many));
        let segments: Vec<_> = pieces.iter().map(|piece| piece.segment(side)).collect();
        drop(pieces);
        with(&segments)
    }

    /// Writes the pieces to `found`, at the addresses that this process uses.
    pub fn segments(&self, found: &mut Found) -> Result<()> {
        self.with_segments(Side::Local, |segments| {
            segments.iter().for_each(|&segment| found.push(segment));
            ensure(!segments.is_empty(), REPLACED)
        })?;
        found.check()
    }

    /// Writes into a trace record which region the call concerns and how the call was done. The
    /// record names a composite region by its first piece, and a replaced one by its former lkey.
    #[cold]
    pub fn describe_record(&self, record: &mut Call, how: How) {
        if record.length == 0 {
            record.length = self.plan.length;
        }
        let kept = self.keep_pieces();
        let many = || match &kept {
            Some(pieces) => pieces.first().copied(),
            None => lock(&self.many).first().copied(),
        };
        let Some(first) = self.single().or_else(many) else {
            record.lkey = self.replaced_lkey.load(Relaxed);
            if record.lkey != 0 {
                record.how = how::KERNEL;
            }
            return;
        };
        let public = first.mr.read();
        record.lkey = public.lkey;
        if record.addr == 0 {
            record.addr = public.addr.addr() as u64;
        }
        record.how = how as u8;
    }

    /// Writes the region's raw key, fi_mr_raw_attr(3). Returns the size of a raw key in any case.
    pub fn write_raw_key(&self, out: &mut [u8]) -> (usize, Result<usize>) {
        self.with_segments(Side::Remote, |segments| {
            let written = ensure(!segments.is_empty(), REPLACED)
                .and_then(|()| raw_key::write(self.plan.base, segments, out));
            (raw_key::size(segments.len()), written)
        })
    }

    /// Sets `some_gone` once one of the registrations has ended.
    #[inline(always)]
    fn end_pieces(&self, some_gone: &mut bool) -> Result<How, Error> {
        if let Some(mut piece) = self.single() {
            let how = piece.end()?;
            self.single.store(0, Relaxed);
            return Ok(how);
        }
        let mut how = How::Kernel;
        let mut pieces = lock(&self.many);
        while let Some(piece) = pieces.last_mut() {
            let had_two = piece.for_remote.is_some();
            let ended = piece.end();
            *some_gone |= ended.is_ok() || piece.for_remote.is_some() != had_two;
            how = ended?;
            pieces.pop();
        }
        *pieces = Vec::new();
        Ok(how)
    }

    /// Ends the registrations of a region that is still in the state `UnderWay`.
    pub fn empty(&self) {
        end_all(&mut self.take());
    }

    fn take(&self) -> Vec<Piece> {
        let mut many = lock(&self.many);
        let mut pieces = core::mem::take(&mut *many);
        pieces.extend(self.single());
        self.single.store(0, Relaxed);
        self.desc.store(null_mut(), Relaxed);
        // Unlocked once a reader can no longer find a registration (`keep_pieces`).
        drop(many);
        pieces
    }

    /// Takes the registrations from a region that another region replaces. The caller has locked
    /// the table of keys, and must end the registrations. `None` if a thread is closing the region.
    pub fn replace(&self) -> Option<Vec<Piece>> {
        if !self.change(Phase::Registered, Phase::Closing) {
            return None;
        }
        let pieces = self.take();
        let lkey = pieces.first().map_or(0, Piece::lkey);
        self.replaced_lkey.store(lkey, Relaxed);
        self.key.store(FI_KEY_NOTAVAIL, Relaxed);
        self.state.store(Phase::Replaced as u32, Release);
        Some(pieces)
    }

    /// Claims the region for its close, fi_close(3): from now on no other thread can replace or
    /// close it. (For a placed region the caller has locked the table of keys.) Returns the state
    /// for [`Region::end`].
    #[inline(always)]
    pub fn begin_to_close(&self) -> Result<Phase> {
        let from = [Phase::Registered, Phase::Failed, Phase::Replaced];
        let mut from = from.into_iter();
        let claimed = from.find(|&from| self.change(from, Phase::Closing));
        claimed.ok_or(CLOSED_OR_CLOSING.into())
    }

    /// Ends the registrations of a claimed region. After an error the region is as it was before.
    /// If some registrations are gone, the region can only be closed again.
    #[inline(always)]
    pub fn end(&self, before: Phase) -> Result<How> {
        let mut some_gone = false;
        self.end_pieces(&mut some_gone).map_err(|error| {
            let now = if some_gone { Phase::Failed } else { before };
            self.state.store(now as u32, Release);
            let subject = Subject::Region;
            Failure { error, subject }
        })
    }

    /// Ends the region's life, and gives its memory back. Until the memory is allocated again, its
    /// state tells a second fi_close() of the region from the first.
    ///
    /// # Safety
    /// The region has no registration, and only the caller uses it.
    #[inline(always)]
    pub unsafe fn die(&self) {
        self.key.store(FI_KEY_NOTAVAIL, Relaxed);
        self.desc.store(null_mut(), Relaxed);
        self.fid.class.store(FI_CLASS_UNSPEC, Relaxed);
        self.state.store(Phase::Closed as u32, Release);
        // SAFETY: `make` got this memory from malloc, and a region without registrations holds no
        // value to drop.
        unsafe { libc::free(self.as_ptr().cast()) };
    }

    /// The registration of a region that may go back to the cache unchanged: the region has one
    /// registration, and no table holds the region.
    #[inline(always)]
    pub fn served(&self) -> Option<Mr> {
        let simple = self.plan.table_key.is_none() && !self.plan.is_placed;
        if !simple
            || self.state.load(Relaxed) != Phase::Registered as u32
            || self.process.check().is_err()
        {
            return None;
        }
        self.single().map(|piece| piece.mr)
    }
}
