// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel registrations of a buffer.

use super::segment::Segment;
use rdmamr_cache::dispatch::{self, Mr};
use rdmamr_mr::memlock;
use rdmamr_mr::{Error, How};

/// A buffer and its kernel registrations, usually one. A device names a byte of a registration by
/// one address for all users. A buffer therefore takes two registrations if its process uses it and
/// remote peers reach it at an address other than its virtual address.
#[derive(Clone, Copy)]
pub struct Piece {
    /// The registration. If there are two, the one for local use.
    pub mr: Mr,
    /// The registration for remote use, if there are two.
    pub for_remote: Option<Mr>,
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

impl Piece {
    pub fn lkey(&self) -> u32 {
        self.mr.read().lkey
    }

    pub fn rkey(&self) -> u32 {
        self.for_remote.unwrap_or(self.mr).read().rkey
    }

    /// The number of bytes that the registrations have pinned.
    pub fn pinned(&self) -> u64 {
        let mr = self.mr.read();
        let times = 1 + u64::from(self.for_remote.is_some());
        times * memlock::pinned(mr.addr.addr() as u64, mr.length as u64)
    }

    /// Ends the registrations. After an error the rest of them is still registered.
    pub fn end(&mut self) -> Result<How, Error> {
        if let Some(for_remote) = self.for_remote {
            dispatch::deregister(for_remote)?;
            self.for_remote = None;
        }
        dispatch::deregister(self.mr)
    }

    pub fn segment(&self, side: Side) -> Segment {
        let mr = self.mr.read();
        let (addr, lkey) = match side {
            Side::Local => (mr.addr.addr() as u64, mr.lkey),
            Side::Remote => (self.remote, 0),
        };
        Segment {
            addr,
            length: mr.length as u64,
            lkey,
            rkey: self.rkey(),
        }
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
