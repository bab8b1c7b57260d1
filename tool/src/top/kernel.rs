// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel says by RDMA netlink, as `rdma resource show` shows it: how many regions each
//! device has, and can have; the regions themselves, with their length and process; and the keys that
//! a driver keeps for registrations to come. A region of another PID namespace has process 0.

#[path = "../../../src/sys/netlink.rs"]
mod netlink;

use netlink::{
    ATTR_DEV_INDEX, ATTR_DEV_NAME, ATTR_RES_PID, List, REGIONS, entries, message, number, request,
    value, values,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink as protocol, recv, send,
    socket_with,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;

/// The regions of a process on a device, and the sum of their lengths.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Held {
    pub regions: u64,
    pub bytes: u64,
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    pub index: u32,
    pub name: String,
    /// The regions of all processes, and of the kernel's own.
    pub regions: u64,
    /// The most regions, from kernels of July 2026 on.
    pub most: Option<u64>,
}

/// The keys that a device's driver keeps for registrations to come (FRMR pools), of all pools of the
/// device together. The fields are those of the JSON of `rdma resource show frmr_pools`. The kernel
/// does not tell for how long it keeps an unused key.
#[derive(Serialize, Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Pools {
    pub pools: u64,
    /// The keys at hand.
    pub queue: u64,
    pub in_use: u64,
    pub max_in_use: u64,
    /// At least so many stay, used or not.
    pub pinned: u64,
}

/// The regions by device and process. Regions of the kernel's own have process 0.
pub type Table = BTreeMap<(String, u32), Held>;

// <rdma/rdma_netlink.h>
const SUMMARIES: List = (9, 15, 16);
const FRMR_POOLS: List = (29, 105, 106);
const ATTR_RES_SUMMARY_ENTRY_NAME: u16 = 17;
const ATTR_RES_SUMMARY_ENTRY_CURR: u16 = 18;
const ATTR_RES_MRLEN: u16 = 45;
const ATTR_FRMR_POOL_QUEUE_HANDLES: u16 = 112;
const ATTR_FRMR_POOL_MAX_IN_USE: u16 = 113;
const ATTR_FRMR_POOL_IN_USE: u16 = 114;
const ATTR_FRMR_POOL_PINNED_HANDLES: u16 = 116;
/// The last number of the header of July 2026 (the patch "RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_MAX" of
/// linux-rdma), by counting: 117 is a key of the pools. The kernel leaves the attribute out where the
/// device has no maximum.
const ATTR_RES_SUMMARY_ENTRY_MAX: u16 = 118;

/// The devices, and the regions on them. An error means that the kernel has no RDMA, or does not list
/// regions.
pub fn regions() -> io::Result<(Vec<Device>, Table)> {
    let devices = devices()?;
    let mut table = Table::new();
    for device in &devices {
        dump(REGIONS, device.index, |message| {
            entries(message, REGIONS).for_each(|entry| add(&mut table, &device.name, entry));
        })?;
    }
    Ok((devices, table))
}

fn devices() -> io::Result<Vec<Device>> {
    let mut devices = Vec::new();
    dump(SUMMARIES, 0, |message| {
        devices.extend(Device::read(message))
    })?;
    Ok(devices)
}

/// A device, if the kernel lists it.
pub fn device(name: &str) -> Option<Device> {
    let mut devices = devices().ok()?.into_iter();
    devices.find(|device| device.name == name)
}

impl Device {
    fn read(message: &[u8]) -> Option<Device> {
        let of_regions = entries(message, SUMMARIES).find(|entry| {
            values(entry, ATTR_RES_SUMMARY_ENTRY_NAME).any(|name| text(name) == "mr")
        });
        let of_regions = of_regions.unwrap_or_default();
        Some(Device {
            index: value(message, ATTR_DEV_INDEX)? as u32,
            name: values(message, ATTR_DEV_NAME).last().map(text)?,
            regions: value(of_regions, ATTR_RES_SUMMARY_ENTRY_CURR).unwrap_or(0),
            most: value(of_regions, ATTR_RES_SUMMARY_ENTRY_MAX),
        })
    }

    /// The pools of keys. There are none before Linux 7.1, and with most drivers.
    pub fn pools(&self) -> Option<Pools> {
        let mut pools = Pools::default();
        let listed = dump(FRMR_POOLS, self.index, |message| pools.add(message));
        (listed.is_ok() && pools.pools > 0).then_some(pools)
    }
}

impl Pools {
    fn add(&mut self, message: &[u8]) {
        for entry in entries(message, FRMR_POOLS) {
            let value = |kind| value(entry, kind).unwrap_or(0);
            self.pools += 1;
            self.queue += value(ATTR_FRMR_POOL_QUEUE_HANDLES);
            self.in_use += value(ATTR_FRMR_POOL_IN_USE);
            self.max_in_use += value(ATTR_FRMR_POOL_MAX_IN_USE);
            self.pinned += value(ATTR_FRMR_POOL_PINNED_HANDLES);
        }
    }

    pub fn words(&self) -> String {
        format!(
            "{} keys at hand in {} pools, {} pinned; {} in use, at most {} so far",
            self.queue, self.pools, self.pinned, self.in_use, self.max_in_use
        )
    }
}

fn add(table: &mut Table, device: &str, entry: &[u8]) {
    let pid = value(entry, ATTR_RES_PID).unwrap_or(0) as u32;
    let held = table.entry((device.to_owned(), pid)).or_default();
    held.regions += 1;
    let length = value(entry, ATTR_RES_MRLEN).unwrap_or(0);
    held.bytes = held.bytes.saturating_add(length);
}

/// Asks for a list, and calls `each` with the attributes of each message of the answer.
fn dump(list: List, device: u32, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let (flags, protocol) = (SocketFlags::CLOEXEC, Some(protocol::RDMA));
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    let request = request(list.0, device);
    send(&socket, request.as_flattened(), SendFlags::empty())?;
    let mut buffer = vec![0u8; 1 << 16];
    loop {
        let (got, _) = recv(&socket, &mut buffer, RecvFlags::empty())?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = &buffer[..got];
        while let Some((kind, attributes, more)) = message(rest) {
            match kind {
                libc::NLMSG_DONE => return Ok(()),
                libc::NLMSG_ERROR => {
                    let errno = attributes.get(..4).and_then(number).unwrap_or(0);
                    return Err(io::Error::from_raw_os_error(-(errno as i32)));
                }
                _ => each(attributes),
            }
            rest = more;
        }
    }
}

fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches('\0').to_owned()
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
    fn keys_of_all_pools_add_up() {
        let pool = |kept: u32, in_use: u64, pinned: u32| {
            let attributes = [
                attribute(ATTR_FRMR_POOL_QUEUE_HANDLES, &kept.to_ne_bytes()),
                attribute(ATTR_FRMR_POOL_MAX_IN_USE, &(in_use * 2).to_ne_bytes()),
                attribute(ATTR_FRMR_POOL_IN_USE, &in_use.to_ne_bytes()),
                attribute(ATTR_FRMR_POOL_PINNED_HANDLES, &pinned.to_ne_bytes()),
            ];
            // With the flag of nested attributes.
            attribute(FRMR_POOLS.2 | 0x8000, &attributes.concat())
        };
        let list = [pool(3, 40, 0), pool(5, 600, 7)].concat();
        let mut pools = Pools::default();
        pools.add(&attribute(FRMR_POOLS.1 | 0x8000, &list));
        assert_eq!(
            pools,
            Pools {
                pools: 2,
                queue: 8,
                in_use: 640,
                max_in_use: 1280,
                pinned: 7
            }
        );
    }

    #[test]
    fn a_device_has_some_of_its_regions() {
        let entry = |name: &[u8], used: u64, most: Option<u64>| {
            let mut entry = attribute(ATTR_RES_SUMMARY_ENTRY_NAME, name);
            entry.extend(attribute(ATTR_RES_SUMMARY_ENTRY_CURR, &used.to_ne_bytes()));
            let most = most.map(|most| attribute(ATTR_RES_SUMMARY_ENTRY_MAX, &most.to_ne_bytes()));
            entry.extend(most.unwrap_or_default());
            attribute(SUMMARIES.2, &entry)
        };
        let message = |most| {
            let list = [
                entry(b"pd\0", 3, Some(9)),
                entry(b"mr\0", 12, most),
                entry(b"srq\0", 1, Some(8)),
            ];
            [
                attribute(ATTR_DEV_INDEX, &5u32.to_ne_bytes()),
                attribute(ATTR_DEV_NAME, b"mlx5_0\0"),
                attribute(SUMMARIES.1, &list.concat()),
            ]
            .concat()
        };
        for most in [None, Some(1 << 24)] {
            let device = Device {
                index: 5,
                name: "mlx5_0".into(),
                regions: 12,
                most,
            };
            assert_eq!(Device::read(&message(most)), Some(device));
        }
        let whole = message(Some(1 << 24));
        for length in 0..whole.len() {
            let regions = Device::read(&whole[..length]).map_or(0, |device| device.regions);
            assert!([0, 12].contains(&regions));
        }
    }

    #[test]
    fn a_message_cut_anywhere_is_no_trouble() {
        let whole = attribute(ATTR_DEV_NAME, b"rxe0\0");
        for length in 0..whole.len() {
            assert!(values(&whole[..length], ATTR_DEV_NAME).all(|value| text(value) == "rxe0"));
        }
        // Shorter than itself.
        assert_eq!(values(&[0, 0, 1, 0], 1).next(), None);
        assert_eq!(message(&[0; 15]), None);
        assert_eq!(message(&[1; 64]), None);
    }
}
