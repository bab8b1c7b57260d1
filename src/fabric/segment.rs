// SPDX-License-Identifier: MIT OR Apache-2.0
//! A piece of a region, and the search for a range of a region's addresses.

use super::errors::{Result, ensure};
use super::refusals::*;

/// A piece of memory as a work request names it: `struct rdmamr_segment`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The address of the first byte: the virtual address for local use, the device's address
    /// for remote use.
    pub addr: u64,
    pub length: u64,
    /// 0 in a segment of a remote peer.
    pub lkey: u32,
    pub rkey: u32,
}

/// Cuts a range out of a region whose pieces lie, one after the other, at addresses from `base` on.
pub fn locate(
    base: u64,
    pieces: &[Segment],
    start: u64,
    length: u64,
    mut found: impl FnMut(Segment),
) -> Result<()> {
    ensure(length != 0, NO_LENGTH)?;
    let start = start.checked_sub(base).ok_or(OUTSIDE_REGION)?;
    let end = start.checked_add(length).ok_or(OUTSIDE_REGION)?;
    let mut lengths = pieces.iter().map(|piece| piece.length);
    let whole = lengths.try_fold(0, u64::checked_add);
    ensure(whole.is_some_and(|whole| end <= whole), OUTSIDE_REGION)?;
    let mut offset = 0;
    for piece in pieces {
        let (from, to) = (start.max(offset), end.min(offset + piece.length));
        if from < to {
            found(Segment {
                addr: piece.addr + (from - offset),
                length: to - from,
                ..*piece
            });
        }
        offset += piece.length;
    }
    Ok(())
}

/// The caller's array for segments, and the number of segments that it needs.
pub struct Found<'a> {
    pub segments: &'a mut [Segment],
    /// The number of segments, even if the array is too small for all of them.
    pub count: usize,
}

impl Found<'_> {
    /// Adds a segment.
    pub fn push(&mut self, segment: Segment) {
        if let Some(place) = self.segments.get_mut(self.count) {
            *place = segment;
        }
        self.count += 1;
    }

    /// Fails if the array is too small for all segments.
    pub fn check(&self) -> Result<()> {
        ensure(self.count <= self.segments.len(), SEGMENTS_TOO_SMALL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(addr: u64, length: u64) -> Segment {
        let (lkey, rkey) = (addr as u32, addr as u32 + 1);
        Segment {
            addr,
            length,
            lkey,
            rkey,
        }
    }

    proptest! {
        /// Checks byte by byte: address `base + n` is byte n of the pieces, laid end to end.
        #[test]
        fn each_byte_is_where_it_belongs(
            lengths in proptest::collection::vec(1u64..9, 1..6), base in 0u64..100, start in 0u64..160, length in 0u64..50
        ) {
            let pieces: Vec<_> = (1..).zip(&lengths).map(|(n, &length)| piece(n * 1000, length)).collect();
            let bytes = |pieces: &[Segment]| -> Vec<(u64, u32)> {
                pieces.iter().flat_map(|piece| (0..piece.length).map(|n| (piece.addr + n, piece.rkey))).collect()
            };
            let all = bytes(&pieces);
            let mut cut = Vec::new();
            let found = locate(base, &pieces, start, length, |segment| cut.push(segment));
            let inside = length > 0 && start >= base && start + length <= base + all.len() as u64;
            prop_assert_eq!(found.is_ok(), inside);
            if inside {
                let from = (start - base) as usize;
                prop_assert_eq!(bytes(&cut), all[from..from + length as usize].to_vec());
            } else {
                prop_assert!(cut.is_empty());
            }
        }
    }

    #[test]
    fn nothing_overflows() {
        let whole = [piece(0, u64::MAX)];
        let locate = |base, pieces, start, length| locate(base, pieces, start, length, |_| {});
        assert!(locate(0, &whole, u64::MAX - 1, 1).is_ok());
        assert!(locate(0, &whole, u64::MAX, 1).is_err());
        assert!(locate(0, &whole, 1, u64::MAX).is_err());
        assert!(locate(5, &whole, 4, 1).is_err());
    }
}
