// SPDX-License-Identifier: MIT OR Apache-2.0
//! Symbols with a version node.
//!
//! `rustc` cannot give an exported function an ELF symbol version, and under lld a function that it
//! exports by itself silently gets none. So each function that stands in for one of libibverbs is
//! published by a stub of one jump that carries name and node. `ctests/abi` compares what comes out with
//! a list, both ways.

/// Publishes `$f` as `f@@NODE`, by a stub; or as `name@NODE`, for those only who were linked to a library
/// that has that node: whoever is linked to this one does not find it. With `caller in` the function has one argument
/// more than C knows, a `Caller`: the register is that of such an argument on each architecture, and the stub writes
/// there where the call returns to. No argument list in Rust tells that.
macro_rules! interpose {
    ($f:ident, $node:literal $(, caller in $x86:literal $arm:literal $riscv:literal)?) => {
        $crate::capi::export::interpose!($f, stringify!($f), "@@", $node $(, $x86 $arm $riscv)?);
    };
    ($f:ident as $name:literal, $node:literal) => {
        $crate::capi::export::interpose!($f, $name, "@", $node);
    };
    ($f:ident, $name:expr, $at:literal, $node:literal $(, $x86:literal $arm:literal $riscv:literal)?) => {
        #[cfg(not(test))]
        core::arch::global_asm!(
            concat!(".pushsection .text.rdmamr_stub_", stringify!($f), ",\"ax\",@progbits"),
            ".p2align 4",
            concat!(".globl rdmamr_stub_", stringify!($f)),
            concat!(".type rdmamr_stub_", stringify!($f), ",@function"),
            concat!("rdmamr_stub_", stringify!($f), ":"),
            ".cfi_startproc",
            $(
                #[cfg(target_arch = "x86_64")]
                concat!("mov ", $x86, ", [rsp]"),
                #[cfg(target_arch = "aarch64")]
                concat!("mov ", $arm, ", x30"),
                #[cfg(target_arch = "riscv64")]
                concat!("mv ", $riscv, ", ra"),
            )?
            #[cfg(target_arch = "x86_64")]
            "jmp {f}",
            #[cfg(target_arch = "aarch64")]
            "b {f}",
            #[cfg(target_arch = "riscv64")]
            "tail {f}",
            ".cfi_endproc",
            concat!(".size rdmamr_stub_", stringify!($f), ", . - rdmamr_stub_", stringify!($f)),
            ".popsection",
            concat!(".symver rdmamr_stub_", stringify!($f), ", ", $name, $at, $node, ", remove"),
            f = sym $f,
        );
        // Unit tests must not stand in for anything; this keeps the function in use there.
        #[cfg(test)]
        const _: () = {
            let _ = $f;
        };
    };
}

/// Gives a `#[unsafe(no_mangle)]` function of the library's own API its node. The name without a node goes
/// (`remove`): GNU ld would find two definitions of it in the static library.
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
/// The body of a naked function that is `$f` with one argument more, a `Caller`, as `interpose` has it.
macro_rules! with_caller {
    ($f:ident, $x86:literal $arm:literal $riscv:literal) => {
        core::arch::naked_asm!(
            #[cfg(target_arch = "x86_64")]
            concat!("mov ", $x86, ", [rsp]"),
            #[cfg(target_arch = "x86_64")]
            "jmp {f}",
            #[cfg(target_arch = "aarch64")]
            concat!("mov ", $arm, ", x30"),
            #[cfg(target_arch = "aarch64")]
            "b {f}",
            #[cfg(target_arch = "riscv64")]
            concat!("mv ", $riscv, ", ra"),
            #[cfg(target_arch = "riscv64")]
            "tail {f}",
            f = sym $f,
        )
    };
}
pub(crate) use {interpose, versioned, with_caller};
