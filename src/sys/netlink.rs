// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attributes of a netlink message, netlink(7). The tool has this file too.

/// The values of the attributes of that kind.
pub fn values(mut bytes: &[u8], wanted: u16) -> impl Iterator<Item = &[u8]> {
    // Two bits are flags.
    const KIND: u16 = 0x3fff;
    let attributes = core::iter::from_fn(move || {
        let length = number(bytes.get(..2)?)? as usize;
        let kind = number(bytes.get(2..4)?)? as u16 & KIND;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    });
    attributes.filter_map(move |(kind, value)| (kind == wanted).then_some(value))
}

/// A number of 2, 4 or 8 bytes.
pub fn number(bytes: &[u8]) -> Option<u64> {
    Some(match bytes.len() {
        2 => u16::from_ne_bytes(bytes.try_into().ok()?).into(),
        4 => u32::from_ne_bytes(bytes.try_into().ok()?).into(),
        8 => u64::from_ne_bytes(bytes.try_into().ok()?),
        _ => return None,
    })
}
