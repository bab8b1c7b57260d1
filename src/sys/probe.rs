// SPDX-License-Identifier: MIT OR Apache-2.0
//! Probes for bpftrace, perf and SystemTap (USDT), without a crate: a probe is a nop, and a note in
//! the section `.note.stapsdt` that says where the nop is and in which registers its arguments are.
//! The format is that of SystemTap's `<sys/sdt.h>`. A tool that watches a probe puts a breakpoint in
//! the nop's place.

/// A probe `rdmamr:NAME` with up to three arguments, each a `u64`.
#[macro_export]
macro_rules! probe {
    ($name:literal, $a:expr, $b:expr $(, $c:expr)?) => {
        $crate::place!($name, a = $a, b = $b $(, c = $c)?)
    };
}

/// The prefix of the name of a register that holds an argument of 8 bytes.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! at {
    () => {
        "8@%"
    };
}
#[cfg(not(target_arch = "x86_64"))]
#[macro_export]
macro_rules! at {
    () => {
        "8@"
    };
}

/// The nop and its note.
#[macro_export]
macro_rules! place {
    ($name:literal, $first:ident = $value:expr $(, $other:ident = $others:expr)*) => {
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
                concat!(
                    ".asciz \"", $crate::at!(), "{", stringify!($first), "}",
                    $(" ", $crate::at!(), "{", stringify!($other), "}",)* "\""
                ),
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
                $first = in(reg) $value,
                $($other = in(reg) $others,)*
                options(nomem, nostack, preserves_flags)
            );
        }
    };
}
