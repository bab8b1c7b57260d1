// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's list of all regions, by RDMA netlink, as `rdma resource show mr` shows it: their
//! number and their length for each device and process. The kernel lists the regions that are
//! visible in this PID namespace.

#[path = "../../../src/sys/netlink.rs"]
mod netlink;

use crate::files::owned;
use netlink::{number, values};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;

/// The regions of a process on a device, and the sum of their lengths.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Held {
    pub regions: u64,
    pub bytes: u64,
}

/// The regions by device and process. Regions of the kernel's own have process 0.
pub type Table = BTreeMap<(String, u32), Held>;

// <rdma/rdma_netlink.h>
const NETLINK_RDMA: i32 = 20;
const NLDEV: u16 = 5;
const CMD_GET: u16 = 1;
const CMD_RES_MR_GET: u16 = 13;
const ATTR_DEV_INDEX: u16 = 1;
const ATTR_DEV_NAME: u16 = 2;
const ATTR_RES_PID: u16 = 28;
const ATTR_RES_MR: u16 = 40;
const ATTR_RES_MR_ENTRY: u16 = 41;
const ATTR_RES_MRLEN: u16 = 45;

const HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// NLM_F_REQUEST and NLM_F_DUMP.
const DUMP: u16 = 0x301;

/// The names of the devices, and the regions on them. An error means that the kernel has no RDMA,
/// or does not list regions.
pub fn regions() -> io::Result<(Vec<String>, Table)> {
    let mut devices = Vec::new();
    dump(CMD_GET, &[], |message| {
        let index = values(message, ATTR_DEV_INDEX).last().and_then(number);
        devices.extend(index.zip(values(message, ATTR_DEV_NAME).last().map(text)));
    })?;
    let mut table = Table::new();
    for (index, name) in &devices {
        let head = [8u16, ATTR_DEV_INDEX].map(u16::to_ne_bytes).concat();
        let request = [&head[..], &(*index as u32).to_ne_bytes()].concat();
        dump(CMD_RES_MR_GET, &request, |message| {
            let lists = values(message, ATTR_RES_MR);
            lists
                .flat_map(|list| values(list, ATTR_RES_MR_ENTRY))
                .for_each(|entry| add(&mut table, name, entry));
        })?;
    }
    Ok((devices.into_iter().map(|device| device.1).collect(), table))
}

fn add(table: &mut Table, device: &str, entry: &[u8]) {
    let value = |kind| values(entry, kind).last().and_then(number).unwrap_or(0);
    let pid = value(ATTR_RES_PID) as u32;
    let held = table.entry((device.to_owned(), pid)).or_default();
    held.regions += 1;
    held.bytes = held.bytes.saturating_add(value(ATTR_RES_MRLEN));
}

/// Asks for a list, and calls `each` with the attributes of each message of the answer.
fn dump(command: u16, attributes: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no pointers.
    let socket = owned(unsafe { libc::socket(libc::AF_NETLINK, kind, NETLINK_RDMA) })?;
    let mut request = Vec::new();
    request.extend(((HEADER + attributes.len()) as u32).to_ne_bytes());
    request.extend((NLDEV << 10 | command).to_ne_bytes());
    request.extend(DUMP.to_ne_bytes());
    request.extend([0; 8]);
    request.extend(attributes);
    // SAFETY: the bytes are readable.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            request.as_ptr().cast(),
            request.len(),
            0,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut buffer = vec![0u8; 1 << 16];
    loop {
        // SAFETY: the buffer is writable.
        let got = unsafe {
            libc::recv(
                socket.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                0,
            )
        };
        if got <= 0 {
            return Err(io::Error::last_os_error());
        }
        let mut rest = &buffer[..got as usize];
        while let Some((length, kind)) = head(rest) {
            if kind == NLMSG_DONE {
                return Ok(());
            }
            if kind == NLMSG_ERROR {
                let errno = rest.get(HEADER..HEADER + 4).and_then(number).unwrap_or(0);
                return Err(io::Error::from_raw_os_error(-(errno as i32)));
            }
            each(&rest[HEADER..length]);
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// The length and the kind of the first message.
fn head(bytes: &[u8]) -> Option<(usize, u16)> {
    let length = number(bytes.get(..4)?)? as usize;
    let kind = number(bytes.get(4..6)?)? as u16;
    (HEADER..=bytes.len())
        .contains(&length)
        .then_some((length, kind))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .trim_end_matches('\0')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn regions_of_a_process_add_up() {
        let entry = |pid: u32, length: u64| {
            [
                attribute(ATTR_RES_PID, &pid.to_ne_bytes()),
                attribute(ATTR_RES_MRLEN, &length.to_ne_bytes()),
            ]
            .concat()
        };
        let mut table = Table::new();
        for (pid, length) in [(7, 10), (7, 20), (8, u64::MAX), (8, 1)] {
            add(&mut table, "d", &entry(pid, length));
        }
        let held = |pid| table[&("d".to_owned(), pid)];
        assert_eq!(
            held(7),
            Held {
                regions: 2,
                bytes: 30
            }
        );
        assert_eq!(held(8).bytes, u64::MAX);
    }

    #[test]
    fn a_message_cut_anywhere_is_no_trouble() {
        let whole = attribute(ATTR_DEV_NAME, b"rxe0\0");
        for length in 0..whole.len() {
            assert!(values(&whole[..length], ATTR_DEV_NAME).all(|value| text(value) == "rxe0"));
        }
        // Shorter than itself.
        assert_eq!(values(&[0, 0, 1, 0], 1).next(), None);
        assert_eq!(head(&[0; 15]), None);
        assert_eq!(head(&[1; 64]), None);
    }
}
