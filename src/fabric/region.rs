// SPDX-License-Identifier: MIT OR Apache-2.0
//! A memory region: `struct fid_mr`, and what is behind it.

use super::Process;
use super::errors::{Failure, invalid, refused};
use super::raw_key;
use super::segment::{Room, Segment};
use crate::abi::libfabric::*;
use crate::abi::rdma_core::ibv_mr;
use crate::explain::{self, Subject};
use crate::mr::{Error, Mr};
use crate::relaxed;
use crate::trace::format::{Call, how};
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Mutex, PoisonError};

/// A buffer as the kernel has registered it: once as a rule. A device names a byte of a registration by the
/// same address whoever asks, so a buffer that peers reach elsewhere than at its virtual address, and that
/// its own process uses too, takes two.
#[derive(Clone, Copy)]
pub struct Piece {
    /// Its `ibv_mr`, by address; of two that for local use.
    mr: usize,
    /// That for peers, if it is another; else 0.
    for_peers: usize,
    /// Where the device has its first byte for peers.
    remote: u64,
}

/// # Safety
/// The address of a region that is registered.
unsafe fn mr(address: usize) -> Option<Mr> {
    // SAFETY: the caller's word.
    unsafe { Mr::from_c(with_exposed_provenance_mut(address)) }
}

impl Piece {
    /// A registration, at the device's address `remote` for peers.
    pub fn new(mr: *mut ibv_mr, remote: u64) -> Piece {
        Piece {
            mr: mr.expose_provenance(),
            for_peers: 0,
            remote,
        }
    }

    /// Two: the first at the buffer's own address, the other for peers.
    pub fn pair(mr: *mut ibv_mr, for_peers: *mut ibv_mr, remote: u64) -> Piece {
        Piece {
            for_peers: for_peers.expose_provenance(),
            ..Piece::new(mr, remote)
        }
    }

    fn local(&self) -> Option<Mr> {
        // SAFETY: it got it from a registration, and is dropped with that.
        unsafe { mr(self.mr) }
    }

    fn peers(&self) -> Option<Mr> {
        match self.for_peers {
            0 => self.local(),
            // SAFETY: as above.
            other => unsafe { mr(other) },
        }
    }

    /// How many bytes it has pinned.
    pub fn pinned(&self) -> u64 {
        let times = if self.for_peers == 0 { 1 } else { 2 };
        self.local().map_or(0, |mr| {
            let mr = mr.read();
            times * explain::pinned(mr.addr.addr() as u64, mr.length as u64)
        })
    }

    /// Ends it. After an error what is left is still registered.
    pub fn end(&mut self) -> Result<(), Error> {
        if self.for_peers != 0 {
            self.peers().map_or(Ok(()), relaxed::deregister)?;
            self.for_peers = 0;
        }
        self.local().map_or(Ok(()), relaxed::deregister)
    }

    fn segment(&self, side: Side) -> Option<Segment> {
        let mr = self.local()?.read();
        let rkey = self.peers()?.read().rkey;
        let (addr, lkey) = match side {
            Side::Local => (mr.addr.addr() as u64, mr.lkey),
            Side::Remote => (self.remote, 0),
        };
        Some(Segment {
            addr,
            length: mr.length as u64,
            lkey,
            rkey,
        })
    }
}

/// Whose addresses.
#[derive(Clone, Copy)]
pub enum Side {
    Local,
    Remote,
}

/// What has become of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
enum State {
    /// Closed; its memory waits to be used again.
    Closed,
    UnderWay,
    Registered,
    /// Registering it failed after its call had returned, or closing it did halfway.
    Failed,
    /// Another region took its addresses.
    Replaced,
    /// A thread is just closing or replacing it.
    Closing,
}

impl State {
    const ALL: [State; 6] = [
        State::Closed,
        State::UnderWay,
        State::Registered,
        State::Failed,
        State::Replaced,
        State::Closing,
    ];
}

/// A region.
#[repr(C)]
pub struct Region {
    // As `struct fid_mr` has it. The application's threads read it while ours write.
    fclass: AtomicUsize,
    context: AtomicPtr<c_void>,
    ops: &'static fi_ops,
    desc: AtomicPtr<c_void>,
    key: AtomicU64,
    // From here on ours.
    state: AtomicU32,
    /// The lkey that it had before it was replaced, for the trace.
    replaced_lkey: AtomicU32,
    process: Process,
    /// Its domain, by address, which is there as long as it has regions.
    pub domain: usize,
    /// Whether its peers need a raw key.
    raw: bool,
    /// What [`Keys`](super::keys::Keys) has it by, if it has it.
    pub table_key: Option<u64>,
    /// Whether its base address is the application's choice.
    pub is_placed: bool,
    /// Where its peers' addresses begin.
    pub base: u64,
    pub length: u64,
    /// The only registration, as long as it is one. (Most regions have one, and no lock for it.)
    single: AtomicUsize,
    remote: AtomicU64,
    /// Several pieces, or one that was registered twice.
    many: Mutex<Vec<Piece>>,
}
const _: () = assert!(core::mem::offset_of!(Region, state) >= size_of::<fid_mr>());
const _: () =
    assert!(core::mem::offset_of!(Region, context) == core::mem::offset_of!(fid, context));
const _: () = assert!(core::mem::offset_of!(Region, ops) == core::mem::offset_of!(fid, ops));
const _: () =
    assert!(core::mem::offset_of!(Region, desc) == core::mem::offset_of!(fid_mr, mem_desc));
const _: () = assert!(core::mem::offset_of!(Region, key) == core::mem::offset_of!(fid_mr, key));

/// How a region is to be.
pub struct Plan {
    pub ops: &'static fi_ops,
    pub domain: usize,
    pub process: Process,
    pub raw: bool,
    pub context: *mut c_void,
    pub table_key: Option<u64>,
    pub is_placed: bool,
    pub base: u64,
    pub length: u64,
}

impl Region {
    /// A region, under way, in memory of another region of the domain, which rested.
    #[inline(always)]
    pub fn make(plan: &Plan, rested: usize) -> &'static Region {
        let memory: *mut Region = with_exposed_provenance_mut(rested);
        // SAFETY: memory of a closed region that is nobody else's.
        let region = unsafe { &mut *memory };
        *region.fclass.get_mut() = FI_CLASS_MR;
        *region.context.get_mut() = plan.context;
        *region.state.get_mut() = State::UnderWay as u32;
        // One that the pool had served still names what it had, and so does one that was replaced.
        *region.single.get_mut() = 0;
        *region.replaced_lkey.get_mut() = 0;
        region.table_key = plan.table_key;
        region.is_placed = plan.is_placed;
        region.base = plan.base;
        region.length = plan.length;
        // What else there is, is the same for all of a domain, or was emptied when the region was closed.
        region
    }

    /// A region, under way, in new memory.
    #[cold]
    pub fn make_new(plan: &Plan) -> Result<&'static Region, Failure> {
        // SAFETY: not of size 0.
        let memory: *mut Region = unsafe { libc::malloc(size_of::<Region>()) }.cast();
        let memory = NonNull::new(memory).ok_or(Error::Memory)?;
        let region = Region {
            fclass: AtomicUsize::new(FI_CLASS_MR),
            context: AtomicPtr::new(plan.context),
            ops: plan.ops,
            desc: AtomicPtr::new(null_mut()),
            key: AtomicU64::new(FI_KEY_NOTAVAIL),
            state: AtomicU32::new(State::UnderWay as u32),
            replaced_lkey: AtomicU32::new(0),
            process: plan.process,
            domain: plan.domain,
            raw: plan.raw,
            table_key: plan.table_key,
            is_placed: plan.is_placed,
            base: plan.base,
            length: plan.length,
            single: AtomicUsize::new(0),
            remote: AtomicU64::new(0),
            many: Mutex::new(Vec::new()),
        };
        // SAFETY: memory of its size that is nobody else's.
        unsafe { memory.write(region) };
        // SAFETY: just written; it is freed only when it is closed.
        Ok(unsafe { memory.as_ref() })
    }

    /// The region that C names.
    ///
    /// # Safety
    /// It is a region of this library, open or not long closed.
    #[inline(always)]
    pub unsafe fn from_c<'a>(fid: *mut fid) -> &'a Region {
        // SAFETY: the caller's word: the table of functions that led here is that of our regions.
        unsafe { &*fid.cast() }
    }

    /// As C sees it.
    pub fn as_ptr(&self) -> *mut fid_mr {
        (&raw const *self).cast_mut().cast()
    }

    /// By which it is remembered.
    pub fn address(&self) -> usize {
        (&raw const *self).expose_provenance()
    }

    pub fn context(&self) -> *mut c_void {
        self.context.load(Relaxed)
    }

    fn state(&self) -> State {
        State::ALL[self.state.load(Acquire) as usize % State::ALL.len()]
    }

    fn change(&self, from: State, to: State) -> bool {
        self.state
            .compare_exchange(from as u32, to as u32, AcqRel, Acquire)
            .is_ok()
    }

    pub fn is_registered(&self) -> bool {
        self.state() == State::Registered
    }

    /// Refuses a region that is closed, and one of the process that this one was forked from.
    pub fn check(&self) -> Result<(), Failure> {
        if self.state() == State::Closed {
            return Err(invalid("the region is closed already"));
        }
        self.process.check()
    }

    /// Refuses one that is not registered as well.
    pub fn check_registered(&self) -> Result<(), Failure> {
        self.check()?;
        match self.state() {
            State::Registered => Ok(()),
            State::UnderWay => Err(refused(
                FI_EOPBADSTATE,
                "the registration has not completed yet",
            )),
            State::Failed => Err(refused(FI_EOPBADSTATE, "the registration has failed")),
            State::Replaced => Err(refused(FI_EOPBADSTATE, "another region has replaced it")),
            _ => Err(invalid("the region is being closed")),
        }
    }

    /// Gives it what was registered for it.
    #[inline(always)]
    pub fn fill(&self, pieces: Pieces) {
        if let Some(piece) = pieces.only() {
            let lkey = piece.local().map_or(0, |mr| mr.read().lkey);
            let desc = core::ptr::without_provenance_mut(lkey as usize);
            self.desc.store(desc, Relaxed);
        }
        match pieces {
            Pieces::One(piece) if piece.for_peers == 0 => {
                self.remote.store(piece.remote, Relaxed);
                self.single.store(piece.mr, Release);
            }
            Pieces::One(piece) => *self.lock() = vec![piece],
            Pieces::Many(pieces) => *self.lock() = pieces,
        }
    }

    /// Opens it to use: what was stored before is there for whoever sees this.
    #[inline(always)]
    pub fn is_now_registered(&self) {
        let key = if self.raw {
            FI_KEY_NOTAVAIL
        } else if let Some(key) = self.table_key {
            key
        } else {
            let only = self.single().or_else(|| match self.lock()[..] {
                [only] => Some(only),
                _ => None,
            });
            let rkey = only
                .and_then(|piece| piece.peers())
                .map(|mr| mr.read().rkey);
            rkey.map_or(FI_KEY_NOTAVAIL, u64::from)
        };
        self.key.store(key, Release);
        self.state.store(State::Registered as u32, Release);
    }

    /// What its call could not say any more: it has failed.
    pub fn has_failed(&self) {
        self.state.store(State::Failed as u32, Release);
    }

    fn single(&self) -> Option<Piece> {
        let mr = self.single.load(Acquire);
        let remote = self.remote.load(Relaxed);
        (mr != 0).then_some(Piece {
            mr,
            for_peers: 0,
            remote,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Piece>> {
        self.many.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its pieces, in order.
    pub fn with_segments<R>(&self, side: Side, with: impl FnOnce(&[Segment]) -> R) -> R {
        if let Some(segment) = self.single().and_then(|piece| piece.segment(side)) {
            return with(&[segment]);
        }
        let pieces = self.lock();
        let segments: Vec<_> = pieces.iter().filter_map(|p| p.segment(side)).collect();
        drop(pieces);
        with(&segments)
    }

    /// Its pieces, for its own process.
    pub fn segments(&self, room: &mut Room) {
        self.with_segments(Side::Local, |segments| {
            segments.iter().for_each(|&segment| room.push(segment));
        });
    }

    /// Says in a record of the trace which region it is about, and whether the pool has it. A composite is known
    /// by its first piece, one that was replaced by what it had.
    pub fn describe(&self, record: &mut Call, by_pool: u8) {
        if record.length == 0 {
            record.length = self.length;
        }
        let first = self.single().or_else(|| self.lock().first().copied());
        let Some(mr) = first.and_then(|piece| piece.local()) else {
            record.lkey = self.replaced_lkey.load(Relaxed);
            if record.lkey != 0 {
                record.how = how::KERNEL;
            }
            return;
        };
        let public = mr.read();
        record.lkey = public.lkey;
        if record.addr == 0 {
            record.addr = public.addr.addr() as u64;
        }
        record.how = if relaxed::serves(mr) {
            by_pool
        } else {
            how::KERNEL
        };
    }

    /// Writes its raw key, fi_mr_raw_attr(3). Returns the size that it needs in any case.
    pub fn write_raw_key(&self, out: &mut [u8]) -> (usize, Result<usize, Failure>) {
        self.with_segments(Side::Remote, |segments| {
            let written = raw_key::write(self.base, segments, out);
            (raw_key::size(segments.len()), written)
        })
    }

    #[inline(always)]
    fn end_pieces(&self) -> Result<(), Error> {
        if let Some(mut piece) = self.single() {
            piece.end()?;
            self.single.store(0, Relaxed);
            return Ok(());
        }
        let mut pieces = self.lock();
        while let Some(piece) = pieces.last_mut() {
            piece.end()?;
            pieces.pop();
        }
        *pieces = Vec::new();
        Ok(())
    }

    /// Undoes what was registered for a region that is still under way.
    pub fn empty(&self) {
        Pieces::Many(self.take()).end();
    }

    fn take(&self) -> Vec<Piece> {
        let mut pieces = core::mem::take(&mut *self.lock());
        pieces.extend(self.single());
        self.single.store(0, Relaxed);
        self.desc.store(null_mut(), Relaxed);
        pieces
    }

    /// Takes its registrations from a region that another replaces, with the table of keys locked. They are
    /// the caller's to end. `None` if it is just being closed.
    pub fn replace(&self) -> Option<Vec<Piece>> {
        if !self.change(State::Registered, State::Closing) {
            return None;
        }
        let pieces = self.take();
        let first = pieces.first().and_then(Piece::local);
        let lkey = first.map_or(0, |mr| mr.read().lkey);
        self.replaced_lkey.store(lkey, Relaxed);
        self.key.store(FI_KEY_NOTAVAIL, Relaxed);
        self.state.store(State::Replaced as u32, Release);
        Some(pieces)
    }

    /// Claims it for its end, fi_close(3): nobody else can replace or close it from now on. (If it is placed,
    /// the table of keys is locked.)
    #[inline(always)]
    pub fn begin_to_close(&self) -> Result<(), Failure> {
        for from in [State::Registered, State::Failed, State::Replaced] {
            if self.change(from, State::Closing) {
                return Ok(());
            }
        }
        Err(invalid("the region is closed already, or just being"))
    }

    /// Ends the registrations of a region that is claimed. After an error the region is as it was before, or,
    /// if some are gone, good for nothing but to be closed again.
    #[inline(always)]
    pub fn end(&self) -> Result<(), Failure> {
        let Err(error) = self.end_pieces() else {
            return Ok(());
        };
        let whole = self.single.load(Relaxed) != 0;
        let now = if whole {
            State::Registered
        } else {
            State::Failed
        };
        self.state.store(now as u32, Release);
        let subject = Subject::Region;
        Err(Failure { error, subject })
    }

    /// Ends its life: from here on it can be told to be closed, as long as its memory rests.
    #[inline(always)]
    pub fn die(&self) {
        self.key.store(FI_KEY_NOTAVAIL, Relaxed);
        self.desc.store(null_mut(), Relaxed);
        self.fclass.store(FI_CLASS_UNSPEC, Relaxed);
        self.state.store(State::Closed as u32, Release);
    }

    /// Gives its memory back.
    ///
    /// # Safety
    /// It is dead, and nobody uses it again.
    pub unsafe fn free(region: usize) {
        let memory: *mut c_void = with_exposed_provenance_mut(region);
        // SAFETY: memory of `make`; a dead region holds nothing that is to be dropped.
        unsafe { libc::free(memory) };
    }

    /// Makes a region of what the pool has just served, for `fast.rs`.
    ///
    /// # Safety
    /// `rested` is memory of a region that nobody else has.
    #[inline(always)]
    pub unsafe fn serve(
        rested: usize,
        mr: *mut ibv_mr,
        public: &ibv_mr,
        context: *mut c_void,
    ) -> &'static Region {
        let memory: *mut Region = with_exposed_provenance_mut(rested);
        // SAFETY: the caller's word.
        let region = unsafe { &mut *memory };
        let addr = public.addr.addr() as u64;
        *region.fclass.get_mut() = FI_CLASS_MR;
        *region.context.get_mut() = context;
        *region.desc.get_mut() = core::ptr::without_provenance_mut(public.lkey as usize);
        *region.key.get_mut() = public.rkey.into();
        region.table_key = None;
        region.is_placed = false;
        region.base = addr;
        region.length = public.length as u64;
        *region.remote.get_mut() = addr;
        *region.single.get_mut() = mr.expose_provenance();
        *region.state.get_mut() = State::Registered as u32;
        region
    }

    /// The registration of a region that may go back to the pool as it came: it is one, and in nobody's table.
    #[inline(always)]
    pub fn served(&self) -> Option<Mr> {
        let simple = self.table_key.is_none() && !self.is_placed;
        if !simple
            || self.state.load(Relaxed) != State::Registered as u32
            || self.process.check().is_err()
        {
            return None;
        }
        self.single().and_then(|piece| piece.local())
    }
}

/// What was registered for a region.
pub enum Pieces {
    One(Piece),
    Many(Vec<Piece>),
}

impl Pieces {
    /// The one that is all.
    fn only(&self) -> Option<Piece> {
        match self {
            Pieces::One(piece) => Some(*piece),
            Pieces::Many(_) => None,
        }
    }

    /// Undoes them.
    pub fn end(self) {
        let end = |piece: &mut Piece| {
            // What the kernel refuses to end stays with the domain, which then cannot be deallocated.
            let _ = piece.end();
        };
        match self {
            Pieces::One(mut piece) => end(&mut piece),
            Pieces::Many(mut pieces) => pieces.iter_mut().rev().for_each(end),
        }
    }
}
