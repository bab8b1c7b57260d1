// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other people's structures: the kernel's uverbs interface and rdma-core's public headers.
//! No logic here.
//!
//! Each structure is declared with its name in C. `make check` compiles a C file of static assertions,
//! made from these declarations, against the headers that are installed (`layout.rs`).

pub mod rdma_core;
pub mod uapi;

#[cfg(test)]
mod layout;

/// A field of a mirrored structure: its name, size and offset.
#[cfg(test)]
pub type Field = (&'static str, usize, usize);

/// What a mirrored structure looks like here, for the comparison with the C header.
#[cfg(test)]
pub trait Mirror: Sized {
    /// The type's name in C, such as `struct ibv_mr`.
    const C_NAME: &'static str;
    /// Its fields, in order.
    const FIELDS: &'static [Field];
}

/// Declares a structure that C declares too, and remembers its layout for the comparison.
macro_rules! mirror {
    (
        $c_name:literal =>
        $(#[$meta:meta])*
        pub struct $name:ident { $( $(#[$field_meta:meta])* pub $field:ident : $type:ty, )* }
    ) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(non_camel_case_types)]
        pub struct $name { $( $(#[$field_meta])* pub $field: $type, )* }

        #[cfg(test)]
        impl crate::abi::Mirror for $name {
            const C_NAME: &'static str = $c_name;
            const FIELDS: &'static [crate::abi::Field] =
                &[$((stringify!($field), size_of::<$type>(), core::mem::offset_of!($name, $field)),)*];
        }
    };
}
use mirror;
