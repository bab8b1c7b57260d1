// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structures that others define: the kernel's uverbs interface, rdma-core's public headers and
//! libfabric's, and the names of their numbers. This crate has no logic.
//!
//! Each structure has its C name. `layout_tests.rs` makes a C file of static assertions from these
//! declarations, and `make check` compiles that file against the installed headers.

#![allow(non_camel_case_types, reason = "the names are C's")]

pub mod libfabric;
pub mod libfabric_monitor;
pub mod libfabric_provider;
pub mod names;
pub mod rdma_core;
mod target;
pub mod uapi;

/// Declares constants of C headers, and records their names for the comparison.
macro_rules! constants {
    ($( $(#[$meta:meta])* $name:ident: $type:ty = $value:expr; )*) => {
        $( $(#[$meta])* pub const $name: $type = $value; )*
        /// Each constant, for the comparison with the C headers.
        #[cfg(test)]
        pub const CONSTANTS: &[(&str, u64)] = &[$((stringify!($name), $name as u64),)*];
    };
}

#[cfg(test)]
mod layout_tests;

/// A field of a mirrored structure: its name, size and offset.
#[cfg(test)]
pub type Field = (&'static str, usize, usize);

/// The layout of a mirrored structure, for the comparison with the C header.
#[cfg(test)]
pub trait Mirror: Sized {
    /// The type's name in C, such as `struct ibv_mr`.
    const C_NAME: &'static str;
    /// Its fields, in order.
    const FIELDS: &'static [Field];
    /// The fields that headers have only since some version.
    const SINCE: &'static [(&'static str, u32)] = &[];
}

/// Declares a structure that C declares too, and records its layout for the comparison.
macro_rules! mirror {
    (
        $c_name:literal =>
        $(#[$meta:meta])*
        pub struct $name:ident { $( $(#[$field_meta:meta])* pub $field:ident : $type:ty, )* }
    ) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name { $( $(#[$field_meta])* pub $field: $type, )* }

        #[cfg(test)]
        impl crate::Mirror for $name {
            const C_NAME: &'static str = $c_name;
            const FIELDS: &'static [crate::Field] =
                &[$((stringify!($field), size_of::<$type>(), core::mem::offset_of!($name, $field)),)*];
        }
    };
}

/// Records the layout of a structure that is declared without [`mirror`]: cbindgen makes a header
/// from such a structure, and cbindgen does not expand macros. If a later version added a field,
/// `@` and that version follow the field.
macro_rules! fields {
    ($c_name:literal, $name:ident { $($field:ident $(@ $since:ident)?),* }) => {
        #[cfg(test)]
        impl crate::Mirror for $name {
            const C_NAME: &'static str = $c_name;
            const FIELDS: &'static [crate::Field] = {
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
use constants;
use fields;
use mirror;
