// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raw keys, fi_mr_raw_attr(3): the facts that a remote peer must know about a region, in bytes
//! that can be sent.
//!
//! | bytes | content, little-endian |
//! | --- | --- |
//! | 4 | `RMK1` |
//! | 4 | the number of pieces, 1 to 16 |
//! | 8 | the first address by which remote peers name the region |
//! | 24 each | a piece: its device address, its length, its rkey, 0 |
//! | 8 | a check sum (FNV-1a, 64 bits) of all bytes before it |
//!
//! Raw keys come from untrusted peers: [`RawKey::read`] checks each byte before it uses any. (The
//! check sum finds damage, not malice. A remote peer that lies about its rkeys reaches nothing that
//! it could not reach anyway.)

use super::errors::{Result, ensure};
use super::refusals::*;
use super::segment::Segment;

const MAGIC: [u8; 4] = *b"RMK1";
const HEADER: usize = 16;
const PIECE: usize = 24;
const SUM: usize = 8;

/// The largest number of pieces of a region, and of buffers of a registration.
pub const IOV_LIMIT: usize = 16;

/// The size of a raw key of `pieces` pieces.
pub const fn size(pieces: usize) -> usize {
    HEADER + pieces * PIECE + SUM
}

/// A remote peer's region, as described by its raw key.
#[derive(Debug, PartialEq, Eq)]
pub struct RawKey {
    pub base: u64,
    pub pieces: Vec<Segment>,
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Writes a raw key to the beginning of `out`, and returns its size. If `out` is too small, nothing
/// is written.
pub fn write(base: u64, pieces: &[Segment], out: &mut [u8]) -> Result<usize> {
    let size = size(pieces.len());
    let out = out.get_mut(..size).ok_or(RAW_KEY_TOO_SMALL)?;
    let (body, check) = out.split_at_mut(size - SUM);
    let (header, rest) = body.split_at_mut(HEADER);
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&(pieces.len() as u32).to_le_bytes());
    header[8..].copy_from_slice(&base.to_le_bytes());
    for (bytes, piece) in rest.chunks_exact_mut(PIECE).zip(pieces) {
        bytes[..8].copy_from_slice(&piece.addr.to_le_bytes());
        bytes[8..16].copy_from_slice(&piece.length.to_le_bytes());
        bytes[16..20].copy_from_slice(&piece.rkey.to_le_bytes());
        bytes[20..].fill(0);
    }
    check.copy_from_slice(&sum(body).to_le_bytes());
    Ok(size)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl RawKey {
    /// Reads a raw key that a remote peer has sent, and compares its base address with the one
    /// that came with it.
    pub fn read(bytes: &[u8], sent_base: u64) -> Result<RawKey> {
        ensure(bytes.get(..4) == Some(&MAGIC), RAW_KEY_FOREIGN)?;
        let count = u32_at(bytes, 4).ok_or(RAW_KEY_SIZE)? as usize;
        let whole = (1..=IOV_LIMIT).contains(&count) && bytes.len() == size(count);
        ensure(whole, RAW_KEY_SIZE)?;
        let (body, check) = bytes.split_at(size(count) - SUM);
        ensure(u64_at(check, 0) == Some(sum(body)), RAW_KEY_DAMAGED)?;
        let base = u64_at(bytes, 8).ok_or(RAW_KEY_SIZE)?;
        let mut pieces = Vec::with_capacity(count);
        for piece in body[HEADER..].chunks_exact(PIECE) {
            ensure(u32_at(piece, 20) == Some(0), RAW_KEY_LATER)?;
            pieces.push(Segment {
                addr: u64_at(piece, 0).ok_or(RAW_KEY_SIZE)?,
                length: u64_at(piece, 8).ok_or(RAW_KEY_SIZE)?,
                lkey: 0,
                rkey: u32_at(piece, 16).ok_or(RAW_KEY_SIZE)?,
            });
        }
        let mut end = Some(base);
        for piece in &pieces {
            let has_end = piece.addr.checked_add(piece.length).is_some();
            ensure(piece.length != 0 && has_end, RAW_KEY_PIECE)?;
            end = end.and_then(|end| end.checked_add(piece.length));
        }
        ensure(end.is_some(), RAW_KEY_PAST_END)?;
        ensure(base == sent_base, RAW_KEY_BASE)?;
        Ok(RawKey { base, pieces })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces() -> Vec<Segment> {
        let piece = |addr, length, rkey| Segment {
            addr,
            length,
            lkey: 0,
            rkey,
        };
        vec![
            piece(0x1000, 10, 7),
            piece(0x9000, 5, 8),
            piece(0x5000, 4096, 9),
        ]
    }

    fn written() -> Vec<u8> {
        let mut bytes = vec![0; 200];
        let size = write(0x77, &pieces(), &mut bytes).unwrap();
        bytes.truncate(size);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let key = RawKey::read(&written(), 0x77).unwrap();
        assert_eq!(
            key,
            RawKey {
                base: 0x77,
                pieces: pieces()
            }
        );
        assert!(RawKey::read(&written(), 0x78).is_err());
    }

    #[test]
    fn no_byte_may_change() {
        let good = written();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(RawKey::read(&bad, 0x77).is_err(), "byte {at}");
            }
        }
        for size in 0..good.len() {
            assert!(RawKey::read(&good[..size], 0x77).is_err());
        }
    }

    /// The check sums of these raw keys are correct, so only a malicious peer sends them.
    #[test]
    fn lies_are_found() {
        let lie = |piece: Segment, base| {
            let mut bytes = vec![0; size(1)];
            write(base, &[piece], &mut bytes).unwrap();
            RawKey::read(&bytes, base).is_err()
        };
        let piece = |addr, length| Segment {
            addr,
            length,
            lkey: 0,
            rkey: 1,
        };
        assert!(lie(piece(1, 0), 0));
        assert!(lie(piece(u64::MAX, 2), 0));
        assert!(lie(piece(0, 2), u64::MAX));
        assert!(!lie(piece(0, 2), 0));
    }

    #[test]
    fn a_small_buffer_is_left_alone() {
        let mut bytes = [0x55; 60];
        assert!(write(0, &pieces(), &mut bytes).is_err());
        assert_eq!(bytes, [0x55; 60]);
    }

    proptest! {
        #[test]
        fn strangers_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..500), base: u64) {
            prop_assert!(RawKey::read(&bytes, base).is_err());
        }
    }

    #[test]
    fn fuzz_raw_keys() {
        let piece = |addr| Segment {
            addr,
            length: 4096,
            lkey: 0,
            rkey: 7,
        };
        let mut two = [0; size(2)];
        write(0x1000, &[piece(0x1000), piece(0x9000)], &mut two).unwrap();
        crate::fuzz_inputs::each(
            "fuzz_raw_keys",
            2000,
            &[&two[..], &two[..size(1)]],
            |input, random| {
                let mut input = input.to_vec();
                // Most inputs get a correct sum, so that they reach the code behind its check.
                if random.below(4) != 0 && input.len() >= size(1) {
                    let at = input.len() - SUM;
                    let right = sum(&input[..at]).to_le_bytes();
                    input[at..].copy_from_slice(&right);
                }
                let base = u64_at(&input, 8).unwrap_or(0);
                let Ok(key) = RawKey::read(&input, base) else {
                    return;
                };
                assert!((1..=IOV_LIMIT).contains(&key.pieces.len()));
                let ends = |piece: &Segment| piece.addr.checked_add(piece.length).is_some();
                assert!(
                    key.pieces
                        .iter()
                        .all(|piece| piece.length > 0 && ends(piece))
                );
                let mut again = [0; size(IOV_LIMIT)];
                let length = write(key.base, &key.pieces, &mut again).unwrap();
                assert_eq!(&again[..length], &input[..]);
            },
        );
    }
}
