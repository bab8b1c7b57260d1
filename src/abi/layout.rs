// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the C file that proves our structures and constants against the installed headers.

use super::{Mirror, rdma_core::*, uapi::*};
use std::fmt::Write;

fn assertions<T: Mirror>(out: &mut String) {
    for (field, size, offset) in T::FIELDS {
        let c = T::C_NAME;
        writeln!(
            out,
            "_Static_assert(offsetof({c}, {field}) == {offset} && sizeof((({c} *)0)->{field}) == {size}, \
             \"{c}.{field}\");",
        )
        .unwrap();
    }
}

fn whole<T: Mirror>(out: &mut String) {
    assertions::<T>(out);
    writeln!(
        out,
        "_Static_assert(sizeof({0}) == {1}, \"{0}\");",
        T::C_NAME,
        size_of::<T>()
    )
    .unwrap();
}

/// The C file; with the structures of newer rdma-core under a macro that the Makefile sets where it can.
fn c_file() -> String {
    let mut out = String::from(
        "/* Made by `cargo test`: the layout of src/abi/ against the installed headers. */\n\
         #include <stddef.h>\n#include <infiniband/verbs.h>\n\
         #include <rdma/rdma_user_ioctl.h>\n#include <rdma/ib_user_ioctl_cmds.h>\n\
         #include <rdma/ib_user_ioctl_verbs.h>\n#include <rdma/ib_user_verbs.h>\n",
    );
    whole::<ibv_context>(&mut out);
    whole::<ibv_pd>(&mut out);
    whole::<ibv_mr>(&mut out);
    whole::<ib_uverbs_ioctl_hdr>(&mut out);
    whole::<ib_uverbs_attr>(&mut out);
    whole::<ib_uverbs_cmd_hdr>(&mut out);
    whole::<ib_uverbs_reg_mr>(&mut out);
    whole::<ib_uverbs_reg_mr_resp>(&mut out);
    whole::<ib_uverbs_dereg_mr>(&mut out);
    for (name, value) in CONSTANTS {
        writeln!(out, "_Static_assert({name} == {value}ull, \"{name}\");").unwrap();
    }
    for (name, value) in crate::mr::access::FLAGS {
        writeln!(out, "_Static_assert({name} == {value}u, \"{name}\");").unwrap();
    }
    out.push_str("#ifdef HAVE_IBV_REG_MR_EX\n");
    // The structure grows at its end, so only what we read is compared, not the size.
    assertions::<ibv_mr_init_attr>(&mut out);
    for (name, value) in [
        ("IBV_REG_MR_MASK_IOVA", IBV_REG_MR_MASK_IOVA),
        ("IBV_REG_MR_MASK_ADDR", IBV_REG_MR_MASK_ADDR),
    ] {
        writeln!(out, "_Static_assert({name} == {value}ull, \"{name}\");").unwrap();
    }
    out.push_str("#endif\n");
    out
}

/// Not a test of its own: `make check` compiles what it writes to the file named by `LAYOUT_C`.
#[test]
fn writes_the_layout_assertions() {
    let text = c_file();
    assert!(text.contains("offsetof(struct ibv_mr, lkey) == 36"));
    if let Some(path) = std::env::var_os("LAYOUT_C") {
        std::fs::write(path, text).unwrap();
    }
}
