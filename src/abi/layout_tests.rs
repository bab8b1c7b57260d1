// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the C files that compare this crate's structures and constants with the installed
//! headers.

use crate::{
    Mirror, libfabric::*, libfabric_monitor::*, libfabric_provider::*, rdma_core, rdma_core::*,
    uapi, uapi::*,
};
use std::fmt::Write;

fn assertions<T: Mirror>(out: &mut String) {
    for (field, size, offset) in T::FIELDS {
        let c = T::C_NAME;
        let field = field.trim_start_matches("r#");
        let since = T::SINCE.iter().find(|(name, _)| *name == field);
        if let Some((_, version)) = since {
            writeln!(out, "#if HEADERS >= {version}").unwrap();
        }
        writeln!(
            out,
            "_Static_assert(offsetof({c}, {field}) == {offset} && sizeof((({c} *)0)->{field}) == {size}, \
             \"{c}.{field}\");",
        )
        .unwrap();
        if since.is_some() {
            writeln!(out, "#endif").unwrap();
        }
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

/// The C file for rdma-core's and the kernel's headers. The structures of newer rdma-core are under
/// a macro that the Makefile sets if the headers have them.
fn c_file() -> String {
    let mut out = String::from(
        "/* Made by `cargo test`: the layout of src/abi/ against the installed headers. */\n\
         #include <stddef.h>\n#include <infiniband/verbs.h>\n\
         #include <rdma/rdma_user_ioctl.h>\n#include <rdma/ib_user_ioctl_cmds.h>\n\
         #include <rdma/ib_user_ioctl_verbs.h>\n#include <rdma/ib_user_verbs.h>\n",
    );
    whole::<ibv_context>(&mut out);
    assertions::<ibv_device>(&mut out);
    writeln!(
        out,
        "_Static_assert(IBV_TRANSPORT_IWARP == {IBV_TRANSPORT_IWARP}, \"IBV_TRANSPORT_IWARP\");"
    )
    .unwrap();
    whole::<ibv_pd>(&mut out);
    whole::<ibv_mr>(&mut out);
    whole::<ib_uverbs_ioctl_hdr>(&mut out);
    whole::<ib_uverbs_query_device_resp>(&mut out);
    whole::<ib_uverbs_attr>(&mut out);
    whole::<ib_uverbs_reg_mr>(&mut out);
    whole::<ib_uverbs_reg_mr_resp>(&mut out);
    for (name, value) in uapi::CONSTANTS.iter().chain(rdma_core::CONSTANTS) {
        writeln!(out, "_Static_assert({name} == {value}ull, \"{name}\");").unwrap();
    }
    out.push_str("#ifdef HAVE_IBV_REG_MR_EX\n");
    // The structure grows at its end, so the declared fields are compared, and the size is not.
    assertions::<ibv_mr_init_attr>(&mut out);
    for (name, value) in [
        ("IBV_REG_MR_MASK_IOVA", IBV_REG_MR_MASK_IOVA),
        ("IBV_REG_MR_MASK_ADDR", IBV_REG_MR_MASK_ADDR),
    ] {
        writeln!(out, "_Static_assert({name} == {value}ull, \"{name}\");").unwrap();
    }
    out.push_str(
        "#endif\n#if __has_include(<infiniband/mlx5dv.h>)\n#include <infiniband/mlx5dv.h>\n",
    );
    assertions::<mlx5dv_devx_umem_in>(&mut out);
    writeln!(
        out,
        "_Static_assert(MLX5DV_UMEM_MASK_DMABUF == {MLX5DV_UMEM_MASK_DMABUF}ull, \"MLX5DV_UMEM_MASK_DMABUF\");"
    )
    .unwrap();
    out.push_str("#endif\n");
    out
}

/// The constants of `libfabric.rs` with their values in C's notation. That file has no macro around
/// them, which cbindgen would not expand.
fn constants_of_libfabric() -> impl Iterator<Item = (&'static str, String)> {
    let source = include_str!("libfabric.rs");
    let (_, waits) = source.split_once("pub enum fi_wait_obj {").unwrap();
    let (waits, _) = waits.split_once('}').unwrap();
    let waits = waits.lines().map(|line| line.trim().trim_end_matches(','));
    let waits = waits.filter(|line| line.starts_with("FI_WAIT_"));
    let lines = source.lines();
    let others = lines.filter_map(|line| line.strip_prefix("pub const ")?.split_once(": "));
    let others = others.filter_map(|(name, rest)| {
        let (r#type, value) = rest.split_once(" = ")?;
        let value = value.trim_end_matches(';').replace("u64", "ull");
        (!r#type.starts_with('&')).then(|| (name, format!("({})", value.replace('_', ""))))
    });
    let number = |(n, name): (usize, _)| (name, n.to_string());
    others.chain(waits.enumerate().map(number))
}

/// The C file for libfabric's headers. A structure that has grown is compared as far as the
/// installed header has its fields.
fn libfabric_c_file() -> String {
    let mut out = String::from(
        "/* Made by `cargo test`: the layout of src/abi/libfabric*.rs against libfabric's headers. */\n\
         #include <stddef.h>\n#include <rdma/fabric.h>\n#include <rdma/fi_domain.h>\n\
         #include <rdma/fi_endpoint.h>\n#include <rdma/fi_eq.h>\n#include <rdma/providers/fi_prov.h>\n\
         #define HEADERS FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION)\n",
    );
    whole::<fid>(&mut out);
    whole::<fi_ops>(&mut out);
    whole::<fid_domain>(&mut out);
    whole::<fi_ops_mr>(&mut out);
    whole::<fid_mr>(&mut out);
    whole::<fi_mr_raw_attr>(&mut out);
    whole::<fi_mr_map_raw>(&mut out);
    whole::<fid_eq>(&mut out);
    whole::<fi_ops_eq>(&mut out);
    whole::<fi_eq_attr>(&mut out);
    whole::<fi_eq_entry>(&mut out);
    whole::<fi_eq_err_entry>(&mut out);
    whole::<fid_fabric>(&mut out);
    whole::<fi_ops_fabric>(&mut out);
    let size = size_of::<domain_slots>();
    writeln!(
        out,
        "_Static_assert(sizeof(struct fi_ops_domain) == {size}, \"struct fi_ops_domain\");"
    )
    .unwrap();
    whole::<fi_fabric_attr>(&mut out);
    whole::<fi_provider>(&mut out);
    assertions::<fi_mr_attr>(&mut out);
    assertions::<fi_info>(&mut out);
    assertions::<fi_tx_attr>(&mut out);
    assertions::<fi_rx_attr>(&mut out);
    assertions::<fi_ep_attr>(&mut out);
    assertions::<fi_domain_attr>(&mut out);
    out.push_str("#if HEADERS >= FI_VERSION(1, 13)\n#include <rdma/fi_ext.h>\n");
    whole::<fid_mem_monitor>(&mut out);
    whole::<fi_ops_mem_monitor>(&mut out);
    whole::<fi_ops_mem_notify>(&mut out);
    out.push_str("#endif\n");
    for (from, until, size) in FI_MR_ATTR_SIZES {
        writeln!(
            out,
            "_Static_assert(HEADERS < {from} || HEADERS >= {until} || sizeof(struct fi_mr_attr) == {size}, \
             \"struct fi_mr_attr\");"
        )
        .unwrap();
    }
    let provider = PROVIDER_CONSTANTS.iter();
    let provider = provider.map(|(name, value)| (*name, format!("{value}ull")));
    for (name, value) in constants_of_libfabric().chain(provider) {
        writeln!(
            out,
            "_Static_assert((unsigned long long)({name}) == {value}, \"{name}\");"
        )
        .unwrap();
    }
    out
}

/// Writes the C files to the paths in `LAYOUT_C` and `LAYOUT_LIBFABRIC_C`; `make check` compiles
/// them.
#[test]
fn writes_the_layout_assertions() {
    let text = c_file();
    assert!(text.contains("offsetof(struct ibv_mr, lkey) == 36"));
    if let Some(path) = std::env::var_os("LAYOUT_C") {
        std::fs::write(path, text).unwrap();
    }
    let text = libfabric_c_file();
    assert!(text.contains("offsetof(struct fid_mr, key) == 32"));
    if let Some(path) = std::env::var_os("LAYOUT_LIBFABRIC_C") {
        std::fs::write(path, text).unwrap();
    }
}
