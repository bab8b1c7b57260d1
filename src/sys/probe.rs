// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probes for bpftrace, perf and SystemTap (USDT), without a crate: a probe is a nop, and a note in
//! the section `.note.stapsdt` that says where the nop is and in which registers its arguments are.
//! The format is that of SystemTap's `<sys/sdt.h>`. A tool that watches a probe puts a breakpoint in
//! the nop's place.

/// The place of an argument of 8 bytes: in the register that the compiler chooses.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! place {
    ($argument:expr) => {
        "8@%{}"
    };
}
#[cfg(not(target_arch = "x86_64"))]
#[macro_export]
macro_rules! place {
    ($argument:expr) => {
        "8@{}"
    };
}

/// A probe `rdmamr:NAME` with arguments, each a `u64`: the nop and its note.
#[macro_export]
macro_rules! probe {
    ($name:literal, $first:expr $(, $other:expr)*) => {
        // SAFETY: a nop changes nothing, and the pushed sections are not code.
        #[cfg(not(miri))]
        unsafe {
            core::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt,\"\",%note",
                ".balign 4",
                ".4byte 992f-991f, 994f-993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                ".8byte _.stapsdt.base",
                // No semaphore: the arguments of a probe are at hand anyway.
                ".8byte 0",
                ".asciz \"rdmamr\"",
                concat!(".asciz \"", $name, "\""),
                concat!(".asciz \"", $crate::place!($first), $(" ", $crate::place!($other),)* "\""),
                "994: .balign 4",
                ".popsection",
                // The address of this section shows whether the file was moved after it was linked.
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aGR\",%progbits,.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                in(reg) $first,
                $(in(reg) $other,)*
                options(nomem, nostack, preserves_flags)
            );
        }
    };
}
