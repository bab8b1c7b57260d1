// SPDX-License-Identifier: MIT OR Apache-2.0
//! RDMA netlink, netlink(7): the request for a list, and the messages and attributes of its answer.
//! The tool has this file too.

// <rdma/rdma_netlink.h>
const NLDEV: u32 = 5;
pub const ATTR_DEV_INDEX: u16 = 1;
pub const ATTR_DEV_NAME: u16 = 2;
pub const ATTR_RES_PID: u16 = 28;

/// A command, and the attributes of its list and of an entry.
pub type List = (u32, u16, u16);
pub const REGIONS: List = (13, 40, 41);

const HEADER: usize = 16;
/// NLM_F_REQUEST and NLM_F_DUMP.
const DUMP: u32 = 0x301;

/// The request for a list of that device; a list of devices is always that of all.
pub fn request(command: u32, device: u32) -> [[u8; 4]; 6] {
    // The header, and one attribute. Half-words lie in their order on little-endian processors.
    let kind = DUMP << 16 | NLDEV << 10 | command;
    let words = [24, kind, 0, 0, u32::from(ATTR_DEV_INDEX) << 16 | 8, device];
    words.map(u32::to_ne_bytes)
}

/// The kind of the first message, its attributes, and the messages behind it.
pub fn message(bytes: &[u8]) -> Option<(i32, &[u8], &[u8])> {
    let length = number(bytes.get(..4)?)? as usize;
    let kind = number(bytes.get(4..6)?)? as i32;
    let attributes = bytes.get(HEADER..length)?;
    let rest = bytes.get(length.next_multiple_of(4)..);
    Some((kind, attributes, rest.unwrap_or_default()))
}

/// The entries of a list.
pub fn entries(message: &[u8], (_, list, entry): List) -> impl Iterator<Item = &[u8]> {
    values(message, list).flat_map(move |list| values(list, entry))
}

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

/// The number that is the value of an attribute.
pub fn value(bytes: &[u8], wanted: u16) -> Option<u64> {
    values(bytes, wanted).next().and_then(number)
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
