// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other people's structures: the kernel's uverbs interface, rdma-core's public headers and libfabric's.
//! No logic here.
//!
//! Each structure is declared with its name in C. `make check` compiles a C file of static assertions,
//! made from these declarations, against the headers that are installed (`layout.rs`).

pub mod libfabric;
pub mod libfabric_monitor;
pub mod libfabric_provider;
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
    /// Fields that are in headers from some version on only.
    const SINCE: &'static [(&'static str, u32)] = &[];
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

/// Remembers the layout of a structure that is declared without [`mirror`], since cbindgen, which makes a
/// header of it, sees no macros. A field that came with a later version is followed by `@` and the version.
macro_rules! fields {
    ($c_name:literal, $name:ident { $($field:ident $(@ $since:ident)?),* }) => {
        #[cfg(test)]
        impl crate::abi::Mirror for $name {
            const C_NAME: &'static str = $c_name;
            const FIELDS: &'static [crate::abi::Field] = {
                #[allow(dead_code, reason = "by macro: not each structure has grown")]
                const fn size<T, F>(_: fn(&T) -> &F) -> usize {
                    size_of::<F>()
                }
                &[$((
                    stringify!($field),
                    size::<$name, _>(|it| &it.$field),
                    core::mem::offset_of!($name, $field),
                ),)*]
            };
            const SINCE: &'static [(&'static str, u32)] = &[$($((stringify!($field), $since),)?)*];
        }
    };
}
use fields;
use mirror;
