// SPDX-License-Identifier: MIT OR Apache-2.0
//! `rdmamr explain`: the causes of an errno in the order in which to look at them, and the doctor's
//! finding about each; what a completion error means, and lines of other programs. The words are those
//! of docs/troubleshooting.md, so that each rule stands in one place. `pasted.rs` finds in a line what
//! it is about; `key.rs` looks a key up in a trace.

mod key;
mod pasted;

use crate::doctor::check::Check;
use crate::doctor::{self, cgroup, container, hugepages, mappings, memlock, userfaultfd};
use crate::report::units::printable;
use crate::style::{self, wrap};
use anyhow::{bail, ensure};
use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Read;

const DOCUMENT: &str = include_str!("../../docs/troubleshooting.md");
const INDENT: usize = 4;

/// The sections with one row for each error.
const OTHERS: &str = "Other errors";
const COMPLETIONS: &str = "Completion errors";
const LINES: &str = "Lines of other programs";
const MESSAGES: &str = "Messages of the library";

/// The end of standard input that is read, in bytes.
const MOST: usize = 64 << 10;

/// What precedes the sections of errnos that may be of anything.
const OF_ANOTHER: &str =
    "Not known whether a registration failed by this: its line names none. What it says of one:\n";

/// So much of a text without an explanation is printed, in characters.
const ECHOED: usize = 160;

/// Explain an error of a registration or of a completion, with this machine's limits
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rdmamr explain ENOMEM
  rdmamr explain -14
  rdmamr explain ibv_reg_mr failed: Bad address
  rdmamr explain 'Got completion with error 4, opcode 1, len 8, vendor err 81'
  dmesg | tail -1 | rdmamr explain -
  docker exec CONTAINER rdmamr explain EPERM     limits are the caller's
  rdmamr explain --trace app.trace --key 0x1234 --addr 0x7f2ae4172000 --length 4096

Exit status: 0; 2: wrong usage, or nothing to explain.")]
pub struct Args {
    /// An errno by name, number or words, a completion's status, or lines of a log; - for standard input,
    /// of which the last 64 KiB count
    #[arg(value_name = "ERROR", required_unless_present = "trace")]
    #[arg(allow_hyphen_values = true)]
    words: Vec<OsString>,
    #[command(flatten)]
    key: key::Args,
}

type Checks = &'static [fn() -> Check];

/// The errnos that have a section, with the doctor's checks for each.
#[rustfmt::skip]
const SECTIONS: &[(&str, Checks)] = &[
    ("ENOMEM", &[container::check, memlock::check, cgroup::check, mappings::check]),
    ("EFAULT", &[cgroup::check, hugepages::check]),
    ("EPERM", &[container::check, memlock::check, userfaultfd::check]),
    ("EINVAL", &[]),
    ("EAGAIN", &[container::check, cgroup::check]),
];

/// Prints what is known of the error, and what the doctor finds.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(trace) = &args.key.trace {
        return style::print(&key::explain(trace, &args.key)?);
    }
    // A program may have printed any bytes.
    let words = args.words.iter().map(|word| word.to_string_lossy());
    let words: Vec<_> = words.collect();
    let is_option = |word: &&Cow<'_, str>| {
        let name = word.strip_prefix("--").unwrap_or_default();
        name.starts_with(char::is_alphabetic) && !name.contains(' ')
    };
    if let Some(option) = words.iter().find(is_option) {
        let option = printable(option);
        bail!("{option} has no meaning beside an error: rdmamr explain --help");
    }
    let mut pasted = words.join(" ");
    if pasted == "-" {
        pasted = end_of(std::io::stdin())?;
    }
    let (own, others) = own_lines(&pasted);
    let known = names();
    let found = pasted::find(&others, rows(LINES), |errno| known.contains(errno));
    // The row of a completion's status: what is known, and what to look at.
    let statuses = found.statuses.iter();
    let statuses = statuses.filter_map(|status| rows_of(COMPLETIONS, status).next());
    let statuses = statuses.map(|cells| meaning(&cells));
    let lines = found.lines.iter();
    let lines = lines.map(|(words, means)| entry(words, std::slice::from_ref(means), None));
    let errnos = found.errnos.iter().filter_map(|errno| of_errno(errno));
    let caveat = found.of_another.then(|| OF_ANOTHER.to_owned());
    let others = statuses.chain(lines).chain(caveat).chain(errnos);
    let texts: Vec<_> = own.into_iter().chain(others).collect();
    ensure!(
        !texts.is_empty(),
        "there is no explanation of {:.ECHOED$}. There are: {}. Or paste the whole line, of which in \
         other languages the number (errno) decides, or let the library say the reason: \
         rdmamr run --log=warn -- PROGRAM",
        pasted.lines().last().unwrap_or_default().trim(),
        known.join(", ")
    );
    style::print(&texts.join("\n"))
}

/// The last lines of an input, of `MOST` bytes at most.
fn end_of(mut input: impl Read) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    while input.by_ref().take(MOST as u64).read_to_end(&mut bytes)? > 0 {
        if let Some(more) = bytes.len().checked_sub(MOST + 1) {
            let last = bytes.len() - 1;
            let line = bytes[more..last].iter().position(|&byte| byte == b'\n');
            bytes.drain(..more + line.map_or(1, |at| at + 1));
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What the library's own messages mean, and the text without their lines.
fn own_lines(pasted: &str) -> (Vec<String>, String) {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    let messages: Vec<_> = rows(MESSAGES).collect();
    for line in pasted.lines() {
        match messages.iter().find(|cells| line.contains(&cells[0])) {
            Some(cells) => own.push(meaning(cells)),
            None => others.push(line),
        }
    }
    own.dedup();
    (own, others.join("\n"))
}

/// The section of an errno with what the doctor finds, or its rows.
fn of_errno(errno: &str) -> Option<String> {
    let Some(row) = SECTIONS.iter().find(|row| row.0 == errno) else {
        return other(errno);
    };
    let mut text = explain(errno)?;
    let checks = row.1.iter().map(|check| check());
    let checks: Vec<_> = checks.chain(doctor::of_devices(errno)).collect();
    if !checks.is_empty() {
        let strong = style::STRONG;
        let _ = write!(text, "\n{strong}This process, here{strong:#}\n\n");
        text += &doctor::paragraphs(&checks);
    }
    Some(text)
}

/// A row of three cells: what is said, what it means, and what to do.
fn meaning(cells: &[String]) -> String {
    entry(&cells[0], &cells[1..2], Some(&cells[2]))
}

/// A heading, text below it, and what to do.
fn entry(heading: &str, below: &[String], to_do: Option<&String>) -> String {
    let strong = style::STRONG;
    let heading = wrap(heading, INDENT);
    let mut text = format!("{strong}{heading}{strong:#}\n");
    for part in below {
        let _ = writeln!(text, "{:INDENT$}{}", "", wrap(part, INDENT));
    }
    if let Some(to_do) = to_do {
        let _ = writeln!(text, "{:INDENT$}-> {}", "", wrap(to_do, INDENT + 3));
    }
    text
}

/// The section whose heading ends in the errno's name: "Bad address (EFAULT)".
fn explain(errno: &str) -> Option<String> {
    let mut sections = DOCUMENT.split("\n## ").skip(1);
    let (heading, body) = sections.find_map(|section| {
        let (heading, body) = section.split_once('\n')?;
        Some((heading.strip_suffix(&format!(" ({errno})"))?, body))
    })?;
    let strong = style::STRONG;
    let mut text = format!("{strong}{errno}: {heading}{strong:#}\n");
    text += "The causes, by what the library's line says (rdmamr run --log=warn -- ./app):\n";
    let mut number = 0;
    for block in body.split("\n\n") {
        let block = block.trim_matches('\n');
        if block.starts_with('|') {
            for row in block.lines().skip(2).map(cells) {
                // What the library's line says, the cause if the row has one, and what to do.
                let [says, causes @ .., to_do] = &row[..] else {
                    continue;
                };
                number += 1;
                text += &format!("\n{number:2}. {}", entry(says, causes, Some(to_do)));
            }
        } else if block.starts_with("- ") {
            for point in format!("\n{block}").split("\n- ").skip(1) {
                let _ = write!(text, "\n  - {}\n", wrap(&plain(point), INDENT));
            }
        } else if !block.is_empty() && !block.starts_with("    ") {
            let _ = write!(text, "\n{:INDENT$}{}\n", "", wrap(&plain(block), INDENT));
        }
    }
    Some(text)
}

/// The row of an errno that has no section.
fn other(errno: &str) -> Option<String> {
    let row = |cells: Vec<String>| format!("{}: {}\n", cells[0], wrap(&cells[1], INDENT));
    let text: String = rows_of(OTHERS, errno).map(row).collect();
    (!text.is_empty()).then_some(text)
}

/// The errnos that have an explanation.
pub fn names() -> Vec<String> {
    let sections = SECTIONS.iter().map(|row| row.0.to_owned());
    let name = |cells: Vec<String>| cells[0].split(' ').next().map(str::to_owned);
    let mut names: Vec<_> = sections.chain(rows(OTHERS).filter_map(name)).collect();
    names.dedup();
    names
}

/// The rows of the table in a section.
fn rows(section: &str) -> impl Iterator<Item = Vec<String>> {
    let heading = format!("\n## {section}\n");
    let section = DOCUMENT.split_once(&heading).map(|parts| parts.1);
    let section = section.and_then(|rest| rest.split("\n## ").next());
    let lines = section.unwrap_or_default().lines();
    lines.filter(|line| line.starts_with("| `")).map(cells)
}

/// Those that are about this name.
fn rows_of(section: &str, name: &str) -> impl Iterator<Item = Vec<String>> {
    let is_it = move |word: &str| word.split(' ').next() == Some(name);
    rows(section).filter(move |cells| cells[0].split(", ").any(is_it))
}

fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_matches('|');
    row.split(" | ").map(|cell| plain(cell.trim())).collect()
}

/// The text without the marks of Markdown: backquotes, the targets of links, and the ends of its
/// lines.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let (before, link) = before.rsplit_once('[').unwrap_or((before, ""));
        plain += before;
        plain += link;
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain += rest;
    let plain = plain.replace('`', "").replace("**", "");
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::errno;
    use crate::report::units::controls;

    /// Any text may be pasted.
    #[test]
    fn fuzz_explain() {
        let samples: [&[u8]; 4] = [
            b"ibv_reg_mr failed: Cannot allocate memory\nib_register(): errno 12",
            b"librdmamr: ibv_reg_mr of 4096 bytes at 0x7f00: ENOMEM from the kernel: RLIMIT_MEMLOCK",
            b"mlx5: dump error cqe\n00000000 00000000 00000000 00000000\n00000000 93005204 0a00014e 00a9dfd3",
            "\u{1b}[31mfi_mr_reg: Nicht gen\u{fc}gend Hauptspeicher (-12)\u{202e}\r\nNCCL WARN Call to ibv_create_cq failed".as_bytes(),
        ];
        let known = names();
        crate::fuzz_inputs::each("fuzz_explain", 200, &samples, |input, _| {
            let (own, others) = own_lines(&String::from_utf8_lossy(input));
            let found = pasted::find(&others, rows(LINES), |errno| known.contains(errno));
            assert!(found.errnos.iter().all(|errno| known.contains(errno)));
            let statuses = found.statuses.iter();
            assert!(
                statuses
                    .clone()
                    .all(|it| rows_of(COMPLETIONS, it).next().is_some())
            );
            let lines = found.lines.iter().flat_map(|(words, means)| [words, means]);
            let controls = |it: &String| it.chars().any(|c| c != '\n' && controls(c));
            assert!(!own.iter().chain(lines).any(controls));
        });
    }

    #[test]
    fn each_errno_has_its_causes() {
        for (errno, ..) in SECTIONS {
            let text = explain(errno).unwrap_or_else(|| panic!("no section for {errno}"));
            assert!(text.contains(" 1. ") && text.contains("-> "), "{text}");
            assert!(!text.contains('`') && !text.contains("]("), "{text}");
        }
        assert!(explain("ENOMEM").unwrap().contains("Slurm"));
        assert!(explain("EXDEV").is_none() && other("EXDEV").is_none());
        for section in [COMPLETIONS, LINES] {
            assert!(rows(section).all(|cells| cells.len() == 3), "{section}");
        }
        assert!(pasted::names().all(|name| rows_of(COMPLETIONS, name).next().is_some()));
        assert!(other("EIO").unwrap().contains("the device is gone"));
        let named = |name: &String| (0..300).any(|number| errno::name(number) == *name);
        assert!(names().iter().all(named), "{:?} have numbers", names());
    }

    #[test]
    fn markdown_becomes_plain() {
        assert_eq!(
            plain("see [the\nsection](#x) of `it`, **now**: `hugetlb.*.max`"),
            "see the section of it, now: hugetlb.*.max"
        );
        assert!(explain("EFAULT").unwrap().contains("hugetlb.*.max"));
    }

    #[test]
    fn the_end_of_an_input_is_read() {
        let end = |input: &[u8]| end_of(input).unwrap();
        assert_eq!(end(b"one\xff\ntwo"), "one\u{fffd}\ntwo");
        let long = format!("{}errno 14\n", "a line\n".repeat(MOST));
        let read = end(long.as_bytes());
        assert!(read.starts_with("a line\n") && read.ends_with("\nerrno 14\n"));
        assert!(read.len() <= MOST && read.len() > MOST - 8);
        let one = format!("{}\n", "a".repeat(3 * MOST));
        assert_eq!(end(one.as_bytes()).len(), MOST);
    }

    #[test]
    fn the_librarys_own_lines_are_explained() {
        let (own, others) = own_lines(
            "rdmamr: valgrind does not support the library's threads: all is plain\n\
             ibv_reg_mr: Bad address",
        );
        assert!(own[0].contains("every registration is plain") && own.len() == 1);
        assert_eq!(others, "ibv_reg_mr: Bad address");
    }

    #[test]
    fn lines_get_the_rows_of_their_call() {
        let meant = |pasted: &str| {
            let found = pasted::find(pasted, rows(LINES), |_| true);
            let lines = found.lines.iter().map(|(words, _)| format!("<{words}>"));
            let statuses = found.statuses.iter().map(|status| (*status).to_owned());
            let all = statuses.chain(lines).chain(found.errnos);
            all.collect::<Vec<_>>().join(" ")
        };
        for (pasted, means) in ROWS {
            assert_eq!(meant(pasted), *means, "{pasted}");
        }
    }

    #[rustfmt::skip]
    const ROWS: &[(&str, &str)] = &[
        ("mlx5_core 0000:05:00.0: print_health_info:424:(pid 0): synd 0x1: firmware internal error", "<print_health_info>"),
        ("CREATE_MKEY(0x200) op_mod(0x0) failed, status no resources(0xf), syndrome (0x7a6f3), err(-11)", "<status no resources>"),
        ("DESTROY_MKEY(0x202) op_mod(0x0) failed, status resource busy(0x6), syndrome (0x0), err(-16)", "<status resource busy>"),
        ("CREATE_MKEY(0x200) op_mod(0x0) failed, status bad operation(0x2), syndrome (0x13), err(-22)", "<status bad op>"),
        ("mlx5_common: DevX create MKEY failed errno=121 status=0x5 syndrome=0x389cdb", "<devx>"),
        ("mlx5_common: Failed to create mkey: errno=22 status=0x4 syndrome=0x6f0cd5", "<create mkey>"),
        ("mlx5dv_devx_umem_reg: Bad address", "<devx> EFAULT"),
        ("UCX ERROR ibv_create_ah(dlid=49152 sl=0 port=1) failed: Connection timed out", "<ibv_create_ah>"),
        ("RDMA_CM_EVENT_ROUTE_ERROR, error: -110", "<RDMA_CM_EVENT_ROUTE_ERROR>"),
        ("RDMA_CM_EVENT_ADDR_ERROR, error -19", "<RDMA_CM_EVENT_ADDR_ERROR>"),
        ("RDMA_CM_EVENT_REJECTED, error 28", "<RDMA_CM_EVENT_REJECTED>"),
        ("cuMemGetAddressRange(0x7ffc60000000) error: named symbol not found", "<cuMemGetAddressRange>"),
        ("vllm cumem allocator", ""),
        ("nvme nvme0: failed to initialize MR pool sized 128 for QID 8\nrdma connection failed (-22)", "<initialize MR pool>"),
        ("mr_umem_get:766:(pid 63518): umem get failed (-95)", "<umem get failed (-95)>"),
        ("NCCL WARN Call to ibv_modify_qp failed with error No data available errno 61", "<ibv_modify_qp>"),
        ("ibv_create_ah(...) for RC DEVX QP connect on mlx5_3 failed: Connection timed out", "<DEVX QP connect>"),
        ("modprobe: ERROR: could not insert 'mlx5_core': Key was rejected by service", "<could not insert>"),
        ("pcieport 0000:00:01.0: PCIe Bus Error: severity=Uncorrected", "<PCIe Bus Error>"),
        ("[node-266:82049] UCX ERROR ibv_reg_mr: Bad address", "EFAULT"),
        ("ImportError: libibverbs.so.1: cannot open shared object file: No such file or directory", "<cannot open shared object file>"),
        ("thread: pthread_create failed: Resource temporarily unavailable", "<pthread_create>"),
        ("NET/OFI Request 0x1 completed with error. RC: 5. Error: 5 (Invalid lkey)", "<completed with error. RC>"),
        ("raw packet qp: ibv_create_qp: Operation not permitted", "<ibv_create_qp>"),
        ("failed to create queue pair: Cannot allocate memory", "<create queue pair> ENOMEM"),
        ("NCCL WARN Call to ibv_create_qp failed with error Invalid argument errno 22", "<ibv_create_qp>"),
        ("ibv_create_flow: Operation not permitted", "<ibv_create_flow>"),
        ("fi_domain: Invalid argument", "<fi_domain>"),
        ("modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument", "<nvidia_peermem> <could not insert>"),
        ("cuMemGetHandleForAddressRange failed: invalid argument", "<cuMemGetHandleForAddressRange>"),
        ("nvidia_p2p_get_pages -> error -14", "<nvidia_p2p_get_pages>"),
        ("efa: Failed to process command REG_MR (opcode 7) comp_status 6 err -22", "<REG_MR (opcode 7)>"),
        ("ibv_alloc_mw failed: Operation not supported", "<ibv_alloc_mw>"),
        ("ibv_destroy_cq: Device or resource busy", "<ibv_destroy_cq>"),
        ("ibv_dereg_mr: Device or resource busy", "EBUSY"),
        ("OCI runtime create failed: error setting rlimit type 8: operation not permitted", "<rlimit type 8>"),
        ("mlock: Cannot allocate memory", "<mlock: Cannot allocate>"),
        ("UCX ERROR ibv_reg_dmabuf_mr(fd=73 length=2097152) failed: Bad address", "<ibv_reg_dmabuf_mr>"),
        ("vfio_pin_pages_remote: RLIMIT_MEMLOCK (65536) exceeded", "<memlock>"),
        ("ibv_reg_mr: Cannot allocate memory, ulimit -l 64", "ENOMEM"),
        ("mca_btl_ofi_reg_mem: fi_mr_reg failed with error", "<fi_mr_reg>"),
        ("NCCL WARN NET/IB : No device found.", "<no device found>"),
        ("/dev/infiniband/uverbs0: Operation not permitted", "</dev/infiniband>"),
        ("EAL: No free hugepages reported in hugepages-2048kB", "<no free hugepages>"),
        ("Signal: Bus error (7)", "<Bus error>"),
        ("RuntimeError: NCCL Error 2: unhandled system error", "<NCCL error>"),
        ("Cuda failure 1 'invalid argument'", "<Cuda failure>"),
        ("ucp_mem_map failed: -1", "<ucp_mem_map>"),
        ("NA_NOMEM", "<NA_NOMEM>"),
        ("-FI_EAVAIL", "<FI_EAVAIL>"),
        ("IBV_EVENT_QP_FATAL", "<IBV_EVENT_QP_FATAL>"),
        ("local access violation", "<local access violation>"),
        ("ibv_reg_mr: No such device or address", "ENXIO"),
        ("ibv_reg_mr: No such device", "ENODEV"),
        ("ibv_create_comp_channel: Too many open files in system", "ENFILE"),
        ("ibv_reg_dmabuf_mr (retain) failed: Invalid argument\nibv_reg_mr(gpu) failed: Bad address", "<ibv_reg_dmabuf_mr> EFAULT"),
        ("ibv_reg_mr(0x7f) failed: Input/output error\nfailed to register address 0x7f: Input/output error", "<failed to register address> EIO"),
        ("ibv_post_send failed: Bad address\nibv_reg_mr failed: Bad address", "<ibv_post_send> EFAULT"),
        ("Cuda failure 'invalid argument'\nCall to ibv_reg_mr_iova2 failed with error Invalid argument", "<Cuda failure> EINVAL"),
        ("CREATE_MKEY(0x200) failed, status limits exceeded(0x8), err(-12)\nibv_reg_mr: Cannot allocate memory", "<status limits exceeded>"),
        ("CQ transport error -6 (No such device or address) on qpair id 1", "<CQ transport error>"),
        ("pml_ucx.c:860 Error: ucx send failed: Input/output error", "<ucx send failed>"),
        ("Failed to post a send for the qpair 0x1 with errno -22", "<post a send>"),
        ("kiblnd_post_tx_locked() Error -22 posting transmit to 10.0.0.1@o2ib", "<posting transmit>"),
        ("Unable to create SRQ, errno 22", "<create SRQ>"),
        ("nvmet_rdma: failed to create_qp ret= -12", "<nvmet_rdma>"),
        ("ksmbd: smb_direct: Can't init RDMA pool: -12", "<smb_direct>"),
        ("ko2iblnd: Unknown symbol ib_fmr_pool_unmap (err -22)", "<Unknown symbol>"),
        ("nv_peer_mem: Unknown symbol nvidia_p2p_get_pages (err 0)", "<Unknown symbol>"),
        ("nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context", "<nv_get_p2p_free_callback>"),
        ("ibv_open_device(mlx5_0) failed: Cannot allocate memory", "<ibv_open_device>"),
        ("mlx5dv_devx_alloc_uar(device=mlx5_0) failed: Cannot allocate memory", "<alloc_uar>"),
        ("gdr_pin_buffer failed! error: Invalid argument", "<gdr_pin_buffer>"),
        ("hipIpcGetMemHandle failed : invalid argument", "<hipIpcGetMemHandle>"),
        ("RDMA_CM_EVENT_REJECTED; error: -111.\nERRNO: No such file or directory.", "<RDMA_CM_EVENT_REJECTED>"),
        ("ibv_reg_mr() failed: Invalid argument\nrdma_rxe: err -12 from rxe_umem_get", "<from rxe_umem_get> ENOMEM"),
        ("fi_tsend() unexpected failed, rc: -12 (Cannot allocate memory)", "<fi_tsend>"),
        ("OFI poll failed (ofi_events.h:760): Cannot allocate memory", "<OFI poll failed>"),
        ("poll CQ failed -2", "<poll CQ failed>"),
        ("Creating new endpoint for domain 0x7f9b failed: Invalid argument", "<new endpoint>"),
        ("fi_enable: Cannot allocate memory (-12)", "<fi_enable> ENOMEM"),
        ("ibv_modify_qp(UMR QP 0x9b5e) failed to modify to RTR: No such device", "<UMR QP>"),
        ("_posixsubprocess.fork_exec(\nOSError: [Errno 12] Cannot allocate memory", "<fork_exec>"),
        // The errno of another call.
        ("rdma_accept: Invalid argument", "<rdma_accept>"),
        ("rdma_bind_addr: No such device", "<rdma_bind_addr>"),
        ("UCX ERROR ibv_query_gid(dev=mlx5_an0 port=1 index=0) failed: Invalid argument", "<ibv_query_>"),
        ("UCX DEBUG ibv_alloc_dm(dev=mlx5_2 length=2048) failed: Invalid argument", "<ibv_alloc_dm>"),
        ("mlx5dv_create_qp(mlx5_0:1, DCI): failed: Invalid argument", "<mlx5dv_create_qp>"),
        ("OFI tagged inject failed (ofi_impl.h:993:MPIDI_OFI_send_handler:Invalid argument)", "<tagged inject>"),
        ("OFI poll failed (ofi_events.h:201:MPIDI_OFI_handle_cq_error:Input/output error)", "<OFI poll failed>"),
        ("rdma link add rxe0 type rxe netdev eth0\nerror: Invalid argument", "<rdma link add>"),
        ("process_vm_readv(pid=62 length=524288) returned -1: Operation not permitted", "<process_vm_readv>"),
        ("Read -1, expected 16400, errno = 14", "<Read -1>"),
        ("get_mempolicy: Operation not permitted", "<get_mempolicy>"),
        ("shm_open(file_name=/ucx_shm_posix_6cf4c8d flags=0xc2) failed: No space left on device", "<shm_open>"),
        ("mm_posix.c:194 UCX ERROR shm_open(file_name=/ucx) failed: No space left on device", "<mm_posix>"),
        ("UCX ERROR cuIpcGetMemHandle(&key->ph)() failed: invalid argument", "<cuIpcGetMemHandle>"),
        ("cudaHostRegister(address, length, 0x01) failed: invalid argument", "<cudaHostRegister>"),
        ("CUDA_ERROR_OUT_OF_MEMORY (2)", "<CUDA_ERROR>"),
        ("EAL: Error - exiting with code: 1\n  Cause: Cannot create mbuf pool", "<mbuf pool>"),
        ("Cannot create cluster_mem_pool. Errno: 12 [ENOMEM: 12, ENOSPC: 28, EINVAL: 22, EEXIST: 17]", "<cluster_mem_pool>"),
        ("Couldn't allocate MR\nmake: *** [run] Error 1", "<allocate MR>"),
        ("LNetError: 4921:0:(o2iblnd.c:769:kiblnd_create_conn()) Can't create QP: -12, send_wr: 16640", "<LNetError>"),
        ("LustreError: 11-0: operation ost_connect to node 10.0.0.1@o2ib failed: rc = -16", "<LustreError>"),
        ("Connect command failed, rc -5, trtype:RDMA adrfam:IPv4", "<Connect command failed>"),
        ("irdma0: [Register Non-Shared MR Cmd Error][op_code=15] status=-28 waiting=1 completion_err=1 maj=0x2", "ENOSPC"),
        ("irdma0: [Create MR Cmd Error][op_code=13] status=-28 waiting=1 completion_err=1 maj=0x2", "ENOSPC"),
        ("fi_eq_readerr: err: Connection refused (111), prov_err: Unknown error -28 (-28)", "<fi_eq_readerr>"),
        ("uct_md_mem_reg failed: Input/output error", "<uct_md_mem_reg>"),
        ("ksmbd: smb_direct: Can't register MR -12", "<smb_direct>"),
        ("modprobe: ERROR: could not insert 'ib_uverbs': Operation not permitted", "<could not insert>"),
        ("ibv_modify_qp to RTR failed: Cannot allocate memory", "<ibv_modify_qp>"),
        // A registration, beside words of something else.
        ("rdma_connection.cpp:88] Failed to register memory: Cannot allocate memory", "ENOMEM"),
        ("fi_mr_reg(buf=0x7f00, len=4096, access=FI_READ|FI_WRITE|FI_REMOTE_READ) failed: Bad address", "EFAULT"),
        ("ibv_reg_mr on /dev/infiniband/uverbs0 failed: Operation not permitted", "EPERM"),
        ("RuntimeError: CUDA error: ibv_reg_mr failed: Bad address", "EFAULT"),
        ("mlx5_common: Unable to register mbuf pool mb0 with device mlx5_0: Cannot allocate memory", "ENOMEM"),
        ("ibv_reg_mr: Cannot allocate memory -- check ulimit -l / mlock()", "ENOMEM"),
        ("ibv_reg_mr failed: Cannot allocate memory\nhint: resource limits exceeded, raise RLIMIT_MEMLOCK", "ENOMEM"),
        ("INFO CUDA driver API version: 12.4\nERROR ibv_reg_mr(buf) failed: Cannot allocate memory (errno=12)", "ENOMEM"),
        ("ACCESS_REG(0x805) failed, status bad parameter(0x3), err(-22)\nibv_reg_mr failed: Invalid argument", "<status bad param> EINVAL"),
        ("ibv_reg_mr failed: 12", "ENOMEM"),
        ("ibv_reg_mr: 14", "EFAULT"),
        ("ibv_reg_mr failed rc=14", "EFAULT"),
        ("Unable to register required memory for RDMA queue.", "<Unable to register required memory>"),
    ];

    #[test]
    fn an_errno_of_something_else_is_told_apart() {
        let of = |pasted: &str| {
            let found = pasted::find(pasted, rows(LINES), |errno| names().contains(errno));
            let lines = found.lines.iter().map(|(words, _)| words.clone());
            let all = lines.chain(found.errnos).collect::<Vec<_>>().join(" ");
            (found.of_another, all)
        };
        for (pasted, of_another, means) in OF_ANOTHER_OR_NOT {
            assert_eq!(of(pasted), (*of_another, (*means).to_owned()), "{pasted}");
        }
    }

    #[rustfmt::skip]
    const OF_ANOTHER_OR_NOT: &[(&str, bool, &str)] = &[
        ("Bad address", false, "EFAULT"),
        ("Errno: 14", false, "EFAULT"),
        ("error: Unknown error -95", false, "EOPNOTSUPP"),
        ("-FI_ENOMEM", false, "ENOMEM"),
        ("PermissionError: [Errno 1] Operation not permitted", false, "EPERM"),
        ("reg: -ENOMEM", false, "ENOMEM"),
        ("hns3: failed to create MR, ret = -12", false, "ENOMEM"),
        ("ibv_create_cq: Cannot allocate memory", false, "ibv_create_cq ENOMEM"),
        ("ping: bad address 'node2'", true, "EFAULT"),
        ("bash: ./app: Permission denied", true, "EACCES"),
        ("Failed to register with etcd: Connection timed out", true, "ETIMEDOUT"),
        ("max_mtu: 4096 (5)", false, ""),
        ("open /etc/x: No such file or directory\nBad address", false, "EFAULT"),
        ("open /etc/x: No such file or directory\nibv_reg_mr failed", true, "reg_mr ENOENT"),
        ("connect: Invalid argument\nfi_mr_reg: Bad address", false, "EFAULT"),
        // The line behind that of a registration is about it.
        ("Error: failed to register memory region\n\nCaused by:\n    Cannot allocate memory (os error 12)", false, "ENOMEM"),
        ("    mr = pd.register_memory(buf)\nOSError: [Errno 1] x: Operation not permitted", false, "EPERM"),
        ("rdma: ibv_reg_mr failed\nrdma: Cannot allocate memory", false, "ENOMEM"),
        // No errno that has an explanation.
        ("Connection refused (111)\nibv_reg_mr failed", false, "reg_mr"),
    ];
}
