// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects that keep a protection domain from being deallocated, by the kernel's lists (RDMA
//! netlink), as `rdma resource show` prints them. The kernel's numbers of domains are not those of
//! the program: if several domains of the process have objects on the device, they count together.
//!
//! This file allocates nothing and waits for no other process.

use core::fmt::{self, Write};
use libc::syscall;
use rdmamr_sys::descriptor::{self, Descriptor};
use rdmamr_sys::netlink::{
    ATTR_DEV_INDEX, ATTR_DEV_NAME, ATTR_RES_PID, List, REGIONS, entries, message, request, value,
    values,
};
use rdmamr_sys::{clock, thread};

// <rdma/rdma_netlink.h>
const NETLINK_RDMA: i32 = 20;
const CMD_GET: u32 = 1;
const ATTR_RES_KERN_NAME: u16 = 29;
const ATTR_RES_USECNT: u16 = 38;

const DOMAINS: List = (14, 46, 47);
/// The kinds of objects that the kernel lists, in words. Queue pairs come last: some drivers ask the
/// device about each.
const KINDS: [(List, &str); 3] = [
    (REGIONS, "region"),
    ((23, 88, 89), "shared receive queue"),
    ((10, 19, 20), "queue pair"),
];

/// The kernel's messages are shorter (NLMSG_GOODSIZE): than a page of 4 KiB, or than 8 KiB if the
/// pages are larger.
const MESSAGE: usize = 4096 << cfg!(target_arch = "aarch64") as usize;
/// The time for all questions, in ns: a machine may have very many objects.
const TIME: u64 = 200_000_000;

/// The domains of this process on a device that have objects, and these.
#[derive(Default)]
struct Held {
    domains: usize,
    uses: u64,
    /// How many of each kind.
    objects: [u64; KINDS.len()],
    /// The thread that made the first object. The kernel does not name a thread that has ended.
    maker: Option<u64>,
}

/// Writes which objects a domain on the device of this name still has.
pub fn write(device: Option<[u8; 64]>, out: &mut dyn Write) -> fmt::Result {
    match device.and_then(|device| Held::ask(&device)) {
        Some(held) if held.uses != 0 => held.write(out),
        _ => out.write_str(
            "the domain still has regions, queue pairs or other objects; not known: which (the kernel's list, RDMA \
             netlink, does not say)",
        ),
    }
}

impl Held {
    #[inline(never)]
    fn ask(device: &[u8; 64]) -> Option<Held> {
        let until = clock::monotonic_by_kernel() + TIME;
        let mut index = None;
        let is_it = |name: &[u8]| name.strip_suffix(&[0]) == device.split(|&byte| byte == 0).next();
        dump(CMD_GET, 0, until, &mut |message| {
            if values(message, ATTR_DEV_NAME).any(is_it) {
                index = value(message, ATTR_DEV_INDEX);
            }
        })?;
        let index = index? as u32;
        let mut held = Held::default();
        dump(DOMAINS.0, index, until, &mut |message| {
            for domain in own(message, DOMAINS) {
                let uses = value(domain, ATTR_RES_USECNT).unwrap_or(0);
                held.domains += usize::from(uses != 0);
                held.uses += uses;
            }
        })?;
        for (kind, (list, _)) in KINDS.into_iter().enumerate() {
            if held.others() != 0 {
                let mut add = |message: &[u8]| {
                    own(message, list).for_each(|object| held.add(kind, object));
                };
                // If a kernel lacks a list, or time is up, the objects count as unlisted.
                let _ = dump(list.0, index, until, &mut add);
            }
        }
        Some(held)
    }

    fn add(&mut self, kind: usize, object: &[u8]) {
        if self.objects.iter().all(|&count| count == 0) {
            self.maker = value(object, ATTR_RES_PID);
        }
        self.objects[kind] += 1;
    }

    fn others(&self) -> u64 {
        self.uses.saturating_sub(self.objects.iter().sum())
    }

    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        match self.domains {
            1 => out.write_str("the domain still has")?,
            count => write!(out, "{count} domains of this process have")?,
        }
        let mut comma = "";
        // The kernel lists no address handles and no windows.
        let others = (self.others(), "unlisted object");
        let kinds = self.objects.into_iter().zip(KINDS.map(|kind| kind.1));
        for (count, name) in kinds.chain([others]).filter(|kind| kind.0 != 0) {
            let plural = if count == 1 { "" } else { "s" };
            write!(out, "{comma} {count} {name}{plural}")?;
            comma = ",";
        }
        match self.maker {
            Some(id) if id != thread::id_by_kernel().into() => {
                write!(out, "; thread {id} made the first")
            }
            _ => Ok(()),
        }
    }
}

/// Asks for a list of that device, and calls `each` with the attributes of each message of the
/// answer. `None` if the answer is not whole.
#[inline(never)]
fn dump(command: u32, device: u32, until: u64, each: &mut dyn FnMut(&[u8])) -> Option<()> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: socket takes no pointers.
    let socket = unsafe { syscall(libc::SYS_socket, libc::AF_NETLINK, kind, NETLINK_RDMA) };
    let socket = Descriptor::made(socket).ok()?;
    let request = request(command, device);
    descriptor::send_at_once(socket.number(), request.as_flattened()).ok()?;
    let mut buffer = [0u8; MESSAGE];
    while clock::monotonic_by_kernel() < until {
        let received = socket.read(&mut buffer)?;
        let mut rest = buffer.get(..received)?;
        while !rest.is_empty() {
            let (kind, attributes, more) = message(rest)?;
            match kind {
                libc::NLMSG_DONE => return Some(()),
                libc::NLMSG_ERROR => return None,
                _ => each(attributes),
            }
            rest = more;
        }
    }
    None
}

/// The entries of a list that are this process's. If the thread that made an object has ended, the
/// kernel does not say whose it is, and it counts as this process's.
fn own(message: &[u8], list: List) -> impl Iterator<Item = &[u8]> {
    entries(message, list).filter(|entry| match value(entry, ATTR_RES_PID) {
        // SAFETY: the call takes no pointers, and signal 0 is none.
        Some(id) => unsafe { syscall(libc::SYS_tgkill, thread::process_id(), id, 0) == 0 },
        None => value(entry, ATTR_RES_KERN_NAME).is_none(),
    })
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
    fn objects_are_those_of_this_process() {
        let of = |kind, value: &[u8]| attribute(DOMAINS.2, &attribute(kind, value));
        let entries = [
            of(ATTR_RES_PID, &thread::process_id().to_ne_bytes()),
            of(ATTR_RES_KERN_NAME, b"ib_core\0"),
            // Its thread has ended.
            of(ATTR_RES_USECNT, &[0; 8]),
            // Another process: the first one of all.
            of(ATTR_RES_PID, &1u32.to_ne_bytes()),
        ];
        let message = attribute(DOMAINS.1, &entries.concat());
        assert_eq!(own(&message, DOMAINS).count(), 2);
    }

    #[test]
    fn objects_are_counted_in_words() {
        let words = |maker| {
            let mut text = String::new();
            let (domains, uses, objects) = (1, 4, [2, 0, 1]);
            let held = Held {
                domains,
                uses,
                objects,
                maker,
            };
            held.write(&mut text).unwrap();
            text
        };
        let counts = "the domain still has 2 regions, 1 queue pair, 1 unlisted object";
        assert_eq!(words(None), counts);
        assert_eq!(words(Some(thread::id_by_kernel().into())), counts);
        assert_eq!(words(Some(1)), format!("{counts}; thread 1 made the first"));
    }

    #[test]
    fn the_maker_is_that_of_the_first_object() {
        let (ended, lives) = (
            attribute(ATTR_RES_USECNT, &[0; 8]),
            attribute(ATTR_RES_PID, &[7, 0, 0, 0]),
        );
        let mut held = Held::default();
        held.add(2, &lives);
        held.add(0, &ended);
        assert_eq!((held.maker, held.objects), (Some(7), [1, 0, 1]));
        let mut held = Held::default();
        held.add(0, &ended);
        held.add(0, &lives);
        assert_eq!((held.maker, held.objects), (None, [2, 0, 0]));
    }

    #[test]
    fn a_message_cut_anywhere_is_no_trouble() {
        let whole = attribute(ATTR_DEV_NAME, b"rxe0\0");
        for length in 0..whole.len() {
            assert!(values(&whole[..length], ATTR_DEV_NAME).all(|name| name == b"rxe0\0"));
        }
        // Shorter than itself.
        assert_eq!(values(&[0, 0, 1, 0], 1).next(), None);
    }
}
