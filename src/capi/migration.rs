// SPDX-License-Identifier: MIT OR Apache-2.0
//! libnuma's calls that move pages to another node of the machine. The kernel does not move a page
//! that a device has pinned, and the call reports that. An idle region pins memory that the program
//! has deregistered, so these calls end the idle regions that they touch.
//!
//! As in `memory.rs`, the symbols have no version node, and the next functions are looked up when
//! the library is loaded. Without libnuma a function makes the system call, as libnuma does.
//!
//! # Safety
//! **Same contract**: each function has the contract of its manual page (section 2), and forwards
//! its arguments unchanged to a function or a system call with that same contract.

#![cfg_attr(test, allow(dead_code, reason = "unit tests stand in for nothing"))]

use super::forward::{around, call_next, next};
use core::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use rdmamr_cache::dispatch::changes::{self, Frame};
use rdmamr_sys::memory;
use rdmamr_sys::pages::page_size;

type Nodes = *const c_ulong;
type Mbind = unsafe extern "C" fn(*mut c_void, c_ulong, c_int, Nodes, c_ulong, c_uint) -> c_long;
type MovePages = unsafe extern "C" fn(
    c_int,
    c_ulong,
    *const *mut c_void,
    *const c_int,
    *mut c_int,
    c_int,
) -> c_long;
type MigratePages = unsafe extern "C" fn(c_int, c_ulong, Nodes, Nodes) -> c_long;
next! {
    MBIND = c"mbind": Mbind;
    MOVE_PAGES = c"move_pages": MovePages;
    MIGRATE_PAGES = c"migrate_pages": MigratePages;
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mbind(
    addr: *mut c_void,
    length: c_ulong,
    mode: c_int,
    nodes: Nodes,
    most: c_ulong,
    flags: c_uint,
) -> c_long {
    /// MPOL_MF_MOVE and MPOL_MF_MOVE_ALL of <linux/mempolicy.h>.
    const MOVES: c_uint = 2 | 4;
    let frame = Frame::new();
    around(
        || {
            let moves = flags & MOVES != 0;
            moves.then(|| changes::changing(&frame, addr.addr(), length as usize))
        },
        || -> c_long { call_next!(MBIND(addr, length, mode, nodes, most, flags), SYS_mbind) },
        |moving, _| drop(moving),
    )
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn move_pages(
    process: c_int,
    count: c_ulong,
    pages: *const *mut c_void,
    nodes: *const c_int,
    status: *mut c_int,
    flags: c_int,
) -> c_long {
    around(
        || {
            // Without nodes the call only asks where the pages are. If `process` is another
            // process, the addresses are not this one's, and more regions end than necessary.
            if !nodes.is_null() && changes::are_wanted() {
                let_go_of(pages.addr(), count as usize);
            }
        },
        || -> c_long {
            call_next!(
                MOVE_PAGES(process, count, pages, nodes, status, flags),
                SYS_move_pages
            )
        },
        |(), _| {},
    )
}

/// Ends the idle regions in these pages. If the list is unreadable, the kernel's call reports that.
fn let_go_of(list: usize, count: usize) {
    const AT_ONCE: usize = 32;
    let page = page_size() as usize;
    let (mut start, mut length) = (0, 0);
    let mut at = 0;
    while at < count {
        let place = (list + at * size_of::<usize>()) as u64;
        let left = count - at;
        let some: Result<[u64; AT_ONCE], _> = memory::read(place);
        let one = || memory::read(place).map(|[address]| [address; AT_ONCE]);
        let (addresses, read) = match some {
            Ok(addresses) if left >= AT_ONCE => (addresses, AT_ONCE),
            // The last ones, or those before an unreadable page.
            _ => match one() {
                Ok(address) => (address, 1),
                Err(_) => break,
            },
        };
        for &address in &addresses[..read] {
            let address = address as usize & !(page - 1);
            if length > 0 && address == start + length {
                length += page;
            } else {
                changes::let_go(start, length);
                (start, length) = (address, page);
            }
        }
        at += read;
    }
    changes::let_go(start, length);
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn migrate_pages(
    process: c_int,
    most: c_ulong,
    from: Nodes,
    to: Nodes,
) -> c_long {
    around(
        || changes::let_go(0, usize::MAX / 2),
        || -> c_long { call_next!(MIGRATE_PAGES(process, most, from, to), SYS_migrate_pages) },
        |(), _| {},
    )
}
