// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exported symbols with a version node.
//!
//! `rustc` cannot give an exported function an ELF symbol version, and under lld a function that
//! `rustc` itself exports silently gets none. So each function that replaces a function of
//! libibverbs is published by a stub: one jump, under a symbol with the name and the node.
//! `ctests/packages/abi` compares the symbols of the library with a list, in both directions.

use rdmamr_sys::caller::Caller;

/// Assembly that continues at `{f}`, as if the caller had called `{f}`.
///
/// In the form with arguments, `{f}` has one argument more than C knows: a `Caller`, the address
/// that the call returns to. `in` names the register of that argument on each architecture, because
/// a Rust signature cannot. A function whose arguments fill the registers calls [`caller`] instead.
#[cfg(target_arch = "x86_64")]
macro_rules! go_on {
    ($(in $x86:literal $arm:literal $riscv:literal)?) => {
        concat!($("mov ", $x86, ", [rsp]\n",)? "jmp {f}")
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! go_on {
    ($(in $x86:literal $arm:literal $riscv:literal)?) => {
        concat!($("mov ", $arm, ", x30\n",)? "b {f}")
    };
}
#[cfg(target_arch = "riscv64")]
macro_rules! go_on {
    ($(in $x86:literal $arm:literal $riscv:literal)?) => {
        concat!($("mv ", $riscv, ", ra\n",)? "tail {f}")
    };
}

/// The caller of the exported function that calls this, while the trace is on.
#[inline(always)]
pub fn caller() -> Caller {
    if rdmamr_trace::is_on() {
        Caller::of_caller()
    } else {
        Caller::UNKNOWN
    }
}

/// Defines the symbol `$label`: it continues at `$f`, as [`go_on`] describes. `$declared` is how the
/// assembler declares the symbol, `$more` is further assembly.
macro_rules! stub {
    ($label:expr, $section:expr, $declared:expr, $f:ident, ($($where:tt)*) $(, $more:expr)?) => {
        core::arch::global_asm!(
            concat!(".pushsection ", $section, ",\"ax\",@progbits"),
            ".p2align 4",
            concat!($declared, $label),
            concat!(".type ", $label, ",@function"),
            concat!($label, ":"),
            ".cfi_startproc",
            $crate::capi::export::go_on!($($where)*),
            ".cfi_endproc",
            concat!(".size ", $label, ", . - ", $label),
            ".popsection",
            $($more,)?
            f = sym $f,
        );
    };
}

/// Publishes `$f` by a stub: as `f@@NODE`, or as `name@NODE`. The second form is a hidden version:
/// only programs that were linked to a library with that node find it, and programs that are linked
/// to this library do not. With `caller`, the function gets its caller's address, as [`go_on`]
/// describes.
macro_rules! interpose {
    ($f:ident, $node:literal $(, caller $($where:tt)+)?) => {
        $crate::capi::export::interpose!($f, stringify!($f), "@@", $node, ($($($where)+)?));
    };
    ($f:ident as $name:literal, $node:literal) => {
        $crate::capi::export::interpose!($f, $name, "@", $node, ());
    };
    ($f:ident, $name:expr, $at:literal, $node:literal, $where:tt) => {
        #[cfg(not(test))]
        $crate::capi::export::stub!(
            concat!("rdmamr_stub_", stringify!($f)),
            concat!(".text.rdmamr_stub_", stringify!($f)),
            ".globl ",
            $f,
            $where,
            concat!(".symver rdmamr_stub_", stringify!($f), ", ", $name, $at, $node, ", remove")
        );
    };
}

/// Gives a `#[unsafe(no_mangle)]` function of the library's own API its node. `remove` removes the
/// unversioned name: otherwise GNU ld finds two definitions of that name in the static library.
macro_rules! versioned {
    ($name:ident, $node:literal) => {
        #[cfg(not(test))]
        core::arch::global_asm!(concat!(
            ".symver ",
            stringify!($name),
            ", ",
            stringify!($name),
            "@@",
            $node,
            ", remove"
        ));
    };
}

pub(crate) use {go_on, interpose, stub, versioned};
