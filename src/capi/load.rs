// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looks up the next functions when the library is loaded, and prepares for children.

#![cfg_attr(test, allow(dead_code, reason = "unit tests stand in for nothing"))]

use super::{descriptors, memory, migration, ret, tasks};
use rdmamr_cache::dispatch;

unsafe extern "C" fn load() {
    ret::always((), || {
        memory::find_all();
        descriptors::find_next();
        tasks::find_all();
        migration::find_next();
        dispatch::mind_forks();
    })
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: unsafe extern "C" fn() = load;
