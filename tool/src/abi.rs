// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's and rdma-core's structures, as the library declares them.

#[path = "../../src/abi/rdma_core.rs"]
#[allow(dead_code, reason = "the library needs more of it")]
pub mod rdma_core;
#[path = "../../src/abi/uapi.rs"]
#[allow(dead_code, reason = "the library needs more of it")]
pub mod uapi;

/// As in the library, without what its tests need.
macro_rules! mirror {
    (
        $c_name:literal =>
        $(#[$meta:meta])*
        pub struct $name:ident { $( $(#[$field_meta:meta])* pub $field:ident : $type:ty, )* }
    ) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types, reason = "C's names")]
        pub struct $name { $( $(#[$field_meta])* pub $field: $type, )* }
    };
}
use mirror;
