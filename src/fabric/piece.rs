// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel registrations of a buffer.
//!
//! # Safety
//!
//! Owner: a `Piece` holds the addresses of its `ibv_mr`s from the registration to its end, so they
//! name live registrations.

use super::segment::Segment;
use core::ptr::with_exposed_provenance_mut;
use rdmamr_cache::dispatch::{self, Mr};
use rdmamr_mr::memlock;
use rdmamr_mr::{Error, How, Registered};

/// A buffer and its kernel registrations, usually one. A device names a byte of a registration by
/// one address for all users. A buffer therefore takes two registrations if its process uses it and
/// remote peers reach it at an address other than its virtual address.
#[derive(Clone, Copy)]
pub struct Piece {
    /// The `ibv_mr`, by address. If there are two, the one for local use.
    pub mr: usize,
    /// The `ibv_mr` for remote use, by address, if there are two; else 0.
    pub for_remote: usize,
    /// The device's address, for remote use, of the first byte.
    pub remote: u64,
    /// The way in which the buffer was registered.
    pub how: How,
}

/// The user of the addresses: this process, or its remote peers.
#[derive(Clone, Copy)]
pub enum Side {
    Local,
    Remote,
}

/// # Safety
/// `address` is that of an `ibv_mr` that is still registered.
unsafe fn mr(address: usize) -> Option<Mr> {
    // SAFETY: the caller promised that `address` names a live registration.
    unsafe { Mr::from_c(with_exposed_provenance_mut(address)) }
}

impl Piece {
    /// A buffer with one registration, which remote peers reach at the device's address `remote`.
    pub fn new(registered: Registered, remote: u64) -> Piece {
        Piece {
            mr: registered.mr.expose_provenance(),
            for_remote: 0,
            remote,
            how: registered.how,
        }
    }

    /// The registration for local use.
    pub fn local(&self) -> Option<Mr> {
        // SAFETY: Owner, for `self.mr`.
        unsafe { mr(self.mr) }
    }

    fn for_remote(&self) -> Option<Mr> {
        match self.for_remote {
            0 => self.local(),
            // SAFETY: Owner, for `self.for_remote`.
            other => unsafe { mr(other) },
        }
    }

    pub fn lkey(&self) -> Option<u32> {
        self.local().map(|mr| mr.read().lkey)
    }

    pub fn rkey(&self) -> Option<u32> {
        self.for_remote().map(|mr| mr.read().rkey)
    }

    /// The number of bytes that the registrations have pinned.
    pub fn pinned(&self) -> u64 {
        let times = if self.for_remote == 0 { 1 } else { 2 };
        self.local().map_or(0, |mr| {
            let mr = mr.read();
            times * memlock::pinned(mr.addr.addr() as u64, mr.length as u64)
        })
    }

    /// Ends the registrations. After an error the rest of them is still registered.
    pub fn end(&mut self) -> Result<How, Error> {
        if self.for_remote != 0 {
            self.for_remote()
                .map_or(Ok(How::Kernel), dispatch::deregister)?;
            self.for_remote = 0;
        }
        self.local().map_or(Ok(How::Kernel), dispatch::deregister)
    }

    pub fn segment(&self, side: Side) -> Option<Segment> {
        let mr = self.local()?.read();
        let (addr, lkey) = match side {
            Side::Local => (mr.addr.addr() as u64, mr.lkey),
            Side::Remote => (self.remote, 0),
        };
        Some(Segment {
            addr,
            length: mr.length as u64,
            lkey,
            rkey: self.rkey()?,
        })
    }
}

/// Ends all registrations.
pub fn end_all(pieces: &mut [Piece]) {
    for piece in pieces.iter_mut().rev() {
        // If the kernel refuses to end a registration, the domain keeps it and cannot be
        // deallocated.
        let _ = piece.end();
    }
}
