// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a pasted line is about: errnos, the statuses of completions, words of known programs. Libraries
//! print the same number in different ways, and many numbers that are neither.

use crate::report::errno;
use ::errno::Errno;
use anstream::adapter::strip_str;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::LazyLock;

/// A status of a completion: its name and number (enum ibv_wc_status), mlx5's syndrome for it (enum in
/// mlx5dv.h), mlx5's code of the vendor that was seen with it, and the words of ibv_wc_status_str, UCX
/// and the kernel.
struct Status(&'static str, u64, u64, u64, &'static [&'static str]);

/// mlx5 has no such number for the status, or none is known.
const NONE: u64 = u64::MAX;

#[rustfmt::skip]
const STATUSES: &[Status] = &[
    Status("IBV_WC_LOC_LEN_ERR", 1, 0x1, NONE, &["local length"]),
    Status("IBV_WC_LOC_QP_OP_ERR", 2, 0x2, NONE, &["local qp operation"]),
    Status("IBV_WC_LOC_EEC_OP_ERR", 3, NONE, NONE, &["local ee context"]),
    Status("IBV_WC_LOC_PROT_ERR", 4, 0x4, 0x51, &["local protection"]),
    Status("IBV_WC_WR_FLUSH_ERR", 5, 0x5, 0xf9, &["request flushed", "wr flushed"]),
    Status("IBV_WC_MW_BIND_ERR", 6, 0x6, NONE, &["memory management operation error", "memory window bind"]),
    Status("IBV_WC_BAD_RESP_ERR", 7, 0x10, NONE, &["bad response"]),
    Status("IBV_WC_LOC_ACCESS_ERR", 8, 0x11, NONE, &["local access error"]),
    Status("IBV_WC_REM_INV_REQ_ERR", 9, 0x12, 0x8a, &["remote invalid request", "invalid request error"]),
    Status("IBV_WC_REM_ACCESS_ERR", 10, 0x13, 0x88, &["remote access", "bad rkey"]),
    Status("IBV_WC_REM_OP_ERR", 11, 0x14, 0x89, &["remote operation", "remote qp on"]),
    Status("IBV_WC_RETRY_EXC_ERR", 12, 0x15, 0x81, &["transport retry", "status retry exceeded"]),
    Status("IBV_WC_RNR_RETRY_EXC_ERR", 13, 0x16, NONE, &["rnr retry count", "receive-no-ready", "receiver not ready"]),
    Status("IBV_WC_LOC_RDD_VIOL_ERR", 14, NONE, NONE, &["local rdd violation"]),
    Status("IBV_WC_REM_INV_RD_REQ_ERR", 15, NONE, NONE, &["remote invalid rd request"]),
    Status("IBV_WC_REM_ABORT_ERR", 16, 0x22, NONE, &["aborted error", "status operation aborted"]),
    Status("IBV_WC_INV_EECN_ERR", 17, NONE, NONE, &["invalid ee context number"]),
    Status("IBV_WC_INV_EEC_STATE_ERR", 18, NONE, NONE, &["invalid ee context state"]),
    // "fatal error" is in many lines that are about something else.
    Status("IBV_WC_FATAL_ERR", 19, NONE, NONE, &[]),
    Status("IBV_WC_RESP_TIMEOUT_ERR", 20, NONE, NONE, &["response timeout error"]),
    Status("IBV_WC_GENERAL_ERR", 21, NONE, NONE, &["general error"]),
    // "tm error" is a part of other words, too.
    Status("IBV_WC_TM_ERR", 22, NONE, NONE, &[]),
    Status("IBV_WC_TM_RNDV_INCOMPLETE", 23, NONE, NONE, &["tm software rendezvous"]),
];

/// A line with one of these is about a completion, so that its status is no errno.
#[rustfmt::skip]
const OF_COMPLETION: &[&str] = &[
    "vendor", "synd", "vend ", "wr_id", "wrid", "completion", "wc error", "wc_status", "ibv_state", "wqe",
    "failed status", "ib failure: ", "prov_err", "poll_cq", "wc status", "wc.status", "wc->status", "wc failed",
    "kiblnd_",
];

/// These words are about no completion: objects, and what SPDK says after the error of any.
#[rustfmt::skip]
const NO_COMPLETION: &[&str] = &[
    "completion queue", "completion channel", "protection domain", "abort requests after transport retry counter exceeded",
];

/// In a line with one of these, statuses and syndromes are of a command, or of the device's health.
#[rustfmt::skip]
const OF_COMMAND: &[&str] = &[
    "_cmd_", "op_mod", "cmd_work", "devx", " errno=", "print_health_info", "assert_var", "firmware internal error",
];

/// The number after these is a status in a line about a completion.
#[rustfmt::skip]
const STATUS: &[&str] = &[
    "status", "status number", "prov_errno", "prov_err", "with error", "poll_cq error", "completion error", "wc error",
    "failed",
];

/// The number after these is an errno.
#[rustfmt::skip]
const ERRNO: &[&str] = &[
    "errno", "errno is", "error", "code", "errcode", "err", "ret", "ret is", "failed, status", "mr status",
];

/// The number after these is of a provider of libfabric.
const PROVIDER: &[&str] = &["prov_errno", "prov_err"];

/// A line with one of these is of another driver than mlx5, whose vendor's numbers mean something else.
const NOT_MLX5: &[&str] = &["irdma", "bnxt_re", "hns_", "erdma", "ionic", "qedr"];

/// The number after these is the vendor's. perftest calls it "syndrom".
#[rustfmt::skip]
const VENDOR: &[&str] = &[
    "vendor", "vendor err", "vendor_err", "vendor error", "vendor syndrome", "vendor_err_synd", "vend", "vend_err",
    "syndrom",
];

/// A number that comes after one of these in its line is of another system, unless `errno` precedes it.
#[rustfmt::skip]
const FOREIGN: &[&str] = &[
    "exit code", "exitcode", "exit status", "exited with code", "errorcode", "signal:", "signal code",
    "nccl error", "ncclinvalid", "ncclunhandled", "cuda error", "cuda failure", "cuda driver", "cumem", "cudamalloc",
    "qp event", "async event", "fatal event", "event type", "rdma_cm_event_rejected", "rpc error",
    "hip error", "nvml", "psm2", "psm3",
    // aws-ofi-nccl: a completion's errno, and the provider's number. ibv_rc_pingpong: how many completions.
    "completed with error. rc", "parse wc failed",
    // A program's end, and a second number of irdma.
    "exiting with code", "*** [", "exit(", "returned an error code", "completion_err", "cuda_error_", "hiperror",
];

/// A negative number after one of these is UCX's.
const OF_UCX: &[&str] = &["ucs_", "ucp_", "uct_"];

/// A line with one of these is about a registration.
#[rustfmt::skip]
const OF_REGISTRATION: &[&str] = &[
    "reg_", "dereg", "memory region", "umem get", "umem_get", "mr_", "mkey", "pinn", "pin ", "memlock", "dmabuf", "dma-buf",
];

/// A line in which one of these is registered names a registration.
const REGISTERED: &[&str] = &["mem", "buf", "region", "gpu", "addr", "page", "pool", "kv"];

/// The number after these is an errno in a line that names a registration.
#[rustfmt::skip]
const OF_CALL: &[&str] = &[
    "failed", "rc", "error number", "reg_mr", "reg_mr_iova", "reg_mr_iova2", "fi_mr_reg", "fi_mr_regattr", "registering mr",
];

/// A line that has nothing but an errno and these is of nobody else.
#[rustfmt::skip]
const FILLING: &[&str] = &[
    "errno", "error", "err", "errcode", "code", "ret", "rc", "is", "status", "failed", "failure", "fatal", "unknown", "fi",
    "with", "system",
];

/// The number right after these is of Open MPI, of UCX, of a signal, or of a command.
#[rustfmt::skip]
const OTHERS: &[&str] = &[
    "not found", "no permission", "out of resource", "invalid parameter", "unsupported operation", "unreachable", "signal",
    "op_code",
];

/// The kernel's own ENOTSUPP, which no library has a word for.
const ENOTSUPP: u16 = 524;

/// The errnos that Linux has names for.
const MOST: u16 = 133;

/// Other words for an errno, and words that have those of another one in them.
const SAME: &[(&str, &str)] = &[
    ("no such device or address", "enxio"),
    ("too many open files in system", "enfile"),
    ("ewouldblock", "eagain"),
    ("enotsupp", "enotsup"),
    ("enotsup", "eopnotsupp"),
];

/// What a text is about.
pub struct Found {
    pub statuses: Vec<&'static str>,
    /// The rows whose words are in a line: those words, and what they mean.
    pub lines: Vec<(String, String)>,
    pub errnos: Vec<String>,
    /// The errnos are of lines that name something else than a registration, and no row knows them.
    pub of_another: bool,
}

/// A row with this in its second cell is for a line that has nothing else to explain.
const ALONE: &str = "none";

/// A row with this in its second cell is about the cause: its errnos mean nothing in other lines, either.
const EVERYWHERE: &str = "everywhere";

/// A row that says so is about something else: any errno in its lines is explained by it.
const FOREIGN_ROW: &[&str] = &["no error of a registration", "no registration"];

/// The row with this word has those that name a registration.
const REGISTRATION: &str = "reg_mr";

/// A row of the table, with the words of its first cell in small letters.
struct Row {
    words: Vec<String>,
    cells: Vec<String>,
}

impl Row {
    fn of(cells: Vec<String>) -> Row {
        let words = cells[0].split(", ").map(str::to_lowercase).collect();
        Row { words, cells }
    }

    /// Which of its words is in the text.
    fn find_in(&self, text: &str) -> Option<usize> {
        self.words.iter().position(|words| begins(text, words))
    }

    fn has_beside(&self, word: &str) -> bool {
        let mut beside = self.cells[1].split(", ");
        beside.any(|it| it.eq_ignore_ascii_case(word))
    }

    fn is_foreign(&self) -> bool {
        let mut words = FOREIGN_ROW.iter();
        words.any(|words| self.cells[2].contains(words))
    }

    /// Whether the row is about the line. In a line that names a registration, the words of a row that is about
    /// something else are a file's or an argument's.
    fn is_about(&self, line: &Line<'_>, calls: &[String]) -> bool {
        let mut calls = calls.iter().filter(|it| self.has_beside(it));
        self.find_in(line.text).is_some()
            && (!line.of_registration
                || !self.is_foreign()
                || calls.any(|it| begins(line.text, it)))
    }
}

/// A line of what is pasted.
struct Line<'a> {
    text: &'a str,
    numbers: Vec<Number<'a>>,
    has_call: bool,
    /// It has a registration's call, or says that memory is registered.
    of_registration: bool,
}

impl<'a> Line<'a> {
    fn of(text: &'a str, calls: &[String]) -> Line<'a> {
        let has = |words: &[&str]| words.iter().any(|it| begins(text, it));
        let has_call = calls.iter().any(|it| begins(text, it));
        let of_memory = has(&["register", "registration"]) && has(REGISTERED);
        Line {
            text,
            numbers: numbers(text),
            has_call,
            of_registration: has_call || of_memory,
        }
    }
}

/// A row that is about a line.
struct Mention<'a> {
    row: &'a Row,
    /// Which of its words.
    at: usize,
    /// It is about something else than a registration, and one of its lines has an errno.
    explains: bool,
}

/// `rows` have words in the first cell, separated by commas, and in the second the errnos and the words
/// that mean nothing beside them. `known` says which errnos count.
pub fn find(
    pasted: &str,
    rows: impl Iterator<Item = Vec<String>>,
    known: impl Fn(&String) -> bool,
) -> Found {
    let text = strip_str(pasted).to_string().trim().to_lowercase();
    let rows: Vec<_> = rows.map(Row::of).collect();
    let mut words = rows.iter().map(|row| &row.words[..]);
    let calls = words.find(|words| words.iter().any(|it| it == REGISTRATION));
    let calls = calls.unwrap_or_default();
    let lines: Vec<_> = text.lines().map(|line| Line::of(line, calls)).collect();
    let mentions = rows.iter().filter_map(|row| {
        let at = row.find_in(&text)?;
        let is_about = lines.iter().any(|line| row.is_about(line, calls));
        let explains = false;
        is_about.then_some(Mention { row, at, explains })
    });
    let mut mentions: Vec<_> = mentions.collect();

    let dumped = dumped_syndrome(&text);
    let mut statuses = statuses_that(|it| dumped == Some(it.2));
    // The errnos of lines that name a registration's call; of lines that are about one, come after such a line,
    // or name nothing else; and of others.
    let mut ranks = [Vec::new(), Vec::new(), Vec::new()];
    let mut is_named = false;
    for line in &lines {
        is_named |= line.has_call;
        let of_line = statuses_of(line);
        if !of_line.is_empty() {
            statuses.extend(of_line);
            continue;
        }
        let mut errnos: Vec<_> = errnos_of(line).filter(&known).collect();
        let mut is_known = is_named;
        for Mention { row, explains, .. } in &mut mentions {
            let is_here = row.is_about(line, calls);
            let is_all = is_here && row.is_foreign();
            let counts = is_here || !line.of_registration || row.has_beside(EVERYWHERE);
            *explains |= is_all && !errnos.is_empty();
            errnos.retain(|errno| !(is_all || counts && row.has_beside(errno)));
            is_known |= is_here;
        }
        let rank = match line.of_registration {
            true => 0,
            false if errnos.is_empty() || is_known || is_about_registration(line.text) => 1,
            false => 2,
        };
        ranks[rank].extend(errnos);
    }
    // Beside a completion, or a registration that failed, the errno of another line is a consequence.
    let rank = ranks.iter().position(|errnos| !errnos.is_empty());
    let rank = rank.filter(|&rank| rank == 0 || statuses.is_empty());
    let errnos = rank.map_or_else(Vec::new, |rank| core::mem::take(&mut ranks[rank]));
    // Beside the errno of a registration, or a status, a row without an errno explains nothing.
    if rank == Some(0) || !statuses.is_empty() {
        mentions.retain(|it| it.explains || !it.row.is_foreign());
    }
    let is_explained = !statuses.is_empty() || matches!(rank, Some(0 | 1));
    Found {
        lines: meant(&mentions, is_explained),
        statuses: unique(statuses),
        errnos: unique(errnos),
        of_another: rank == Some(2),
    }
}

/// The rows that explain something, with their words as the table has them. Longer words win over those
/// that they contain. `is_explained`: a status or an errno explains the text.
fn meant(mentions: &[Mention<'_>], is_explained: bool) -> Vec<(String, String)> {
    let is_meant = |it: &&Mention<'_>| {
        let words = &it.row.words[it.at];
        !mentions.iter().any(|other| {
            let longer = &other.row.words[other.at];
            other.row.has_beside(words) || longer != words && longer.contains(words)
        })
    };
    let is_alone = |it: &&Mention<'_>| it.row.has_beside(ALONE);
    let mut lines: Vec<_> = mentions.iter().filter(is_meant).collect();
    if is_explained || !lines.iter().all(is_alone) {
        lines.retain(|it| !is_alone(it));
    }
    let lines = lines.into_iter().filter_map(|it| {
        let words = it.row.cells[0].split(", ").nth(it.at)?;
        Some((words.to_owned(), it.row.cells[2].clone()))
    });
    lines.collect()
}

fn unique<T: Clone + Eq + Hash>(mut list: Vec<T>) -> Vec<T> {
    let mut seen = HashSet::new();
    list.retain(|it| seen.insert(it.clone()));
    list
}

/// Whether a line that has an errno is about a registration, or names nothing else.
fn is_about_registration(line: &str) -> bool {
    if OF_REGISTRATION.iter().any(|words| begins(line, words))
        || has_words(line, "mr")
        || has_words(line, "reg")
    {
        return true;
    }
    let without = |line: String, words: &String| line.replace(words, "");
    let rest = (1..=MOST)
        .filter_map(words_of)
        .fold(line.to_owned(), without);
    let is_name = |word: &str| {
        NAMES[1..].iter().any(|name| name == word) || SAME.iter().any(|(name, _)| *name == word)
    };
    let is_filling = |word: &str| {
        word.is_empty()
            || FILLING.contains(&word)
            || word.ends_with("error")
            || word.ends_with("exception")
    };
    let mut words = rest.split(|it: char| !it.is_alphabetic());
    words.all(|word| is_filling(word) || is_name(word))
}

fn statuses_that(is: impl Fn(&Status) -> bool) -> Vec<&'static str> {
    let found = STATUSES.iter().filter(|status| is(status));
    found.map(|status| status.0).collect()
}

fn statuses_of(of: &Line<'_>) -> Vec<&'static str> {
    let line = of.text;
    let text = line.replace("wc_", " ");
    let is_named = |Status(name, ..): &Status| {
        let name = name.trim_start_matches("IBV_WC_").to_lowercase();
        // RETRY_EXC_ERR is a part of RNR_RETRY_EXC_ERR.
        has_words(&text, &name) && !text.contains(&format!("_{name}"))
    };
    // In such a line the words which a status may have are about something else.
    if of.of_registration {
        return statuses_that(is_named);
    }
    let without = |line: String, words: &&str| line.replace(words, "");
    let about = NO_COMPLETION.iter().fold(line.to_owned(), without);
    let of_completion = OF_COMPLETION.iter().any(|words| about.contains(words));
    let may_be_status = of_completion
        || line.split_whitespace().count() == 2
        || line.starts_with("status=")
        || line.contains("status: (");
    // EFA has codes of its own.
    let of_efa = line.contains("efa");
    let is_status = |number: &Number<'_>| {
        let follows = number.follows(match of_completion {
            true => STATUS,
            false => &["status"],
        });
        let of_provider = number.follows(PROVIDER);
        let is_another = number.negative || number.is_foreign() || of_efa && of_provider;
        follows && may_be_status && !is_another
    };
    let is_syndrome = |number: &Number<'_>| {
        number.hex
            && number.follows(&["synd", "syndrome"])
            && !number.follows(&["vendor syndrome", "vendor_err_synd", "hw_synd"])
    };
    let of_command = OF_COMMAND.iter().any(|it| line.contains(it));
    let numbers = if of_command { &[][..] } else { &of.numbers };
    let is_said =
        |words: &&str| about.contains(words) || about.contains(&(words.replace(' ', "_") + "_err"));
    let is_there = |it: &Status| {
        let Status(_, status, syndrome, _, words) = it;
        is_named(it)
            || words.iter().any(is_said)
            || numbers.iter().any(|number| match is_status(number) {
                true => number.value == *status,
                false => is_syndrome(number) && number.value == *syndrome,
            })
    };
    // The vendor's number decides where nothing else does.
    let is_vendors = |Status(_, _, _, code, _): &Status| {
        let mut numbers = numbers.iter();
        numbers.any(|number| number.follows(VENDOR) && number.value == *code)
    };
    let found = statuses_that(is_there);
    match found[..] {
        [] if !NOT_MLX5.iter().any(|it| line.contains(it)) => statuses_that(is_vendors),
        _ => found,
    }
}

/// The syndrome of mlx5's dump: its byte 55. libmlx5 prints four words in a line, and the kernel bytes.
fn dumped_syndrome(text: &str) -> Option<u64> {
    let of_bytes = text.split_once("00000030: ").map(|parts| parts.1);
    let byte = of_bytes.and_then(|bytes| bytes.split_whitespace().nth(7));
    let words: Vec<_> = text.split_whitespace().collect();
    let is_hex = |word: &&str| word.len() == 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut lines = words.windows(4).rev();
    let last = lines.find(|line| line.iter().all(is_hex));
    let byte = byte.or(last.map(|last| &last[1][6..]))?;
    u64::from_str_radix(byte, 16).ok()
}

fn errnos_of(of: &Line<'_>) -> impl Iterator<Item = String> {
    let line = of.text;
    let same = |text: String, (words, other): &(&str, &str)| text.replace(words, other);
    let text = SAME.iter().fold(line.to_owned(), same);
    let is_named = |number: &u16| {
        has_words(&text, &NAMES[usize::from(*number)])
            || words_of(*number).is_some_and(|words| has_words(&text, words))
    };
    let (of_ucx, ucx) = (end_of_first(line, OF_UCX), end_of_first(line, &["ucx"]));
    let digits = text.trim_start_matches('-');
    let is_all = digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_errno = |number: &&Number<'_>| {
        let named = (number.follows(ERRNO) || of.of_registration && number.follows(OF_CALL))
            && !number.follows(VENDOR)
            && !number.follows(PROVIDER);
        let of_ucx = number.is_behind(of_ucx) && number.negative
            || number.follows(&["status"]) && number.is_behind(ucx);
        let foreign = number.hex || of_ucx || number.is_foreign();
        // What -1 says is that another number has the reason.
        let signed = number.negative && number.value != 1;
        is_all
            || named && number.follows(&["errno", "errno is"])
            || !foreign && (signed || named && !number.negative || number.ends)
    };
    let values = of.numbers.iter().filter(is_errno);
    let values = values.filter_map(|number| u16::try_from(number.value).ok());
    let values = values.filter(|value| (1..=MOST).contains(value) || *value == ENOTSUPP);
    let found = (1..=MOST).filter(is_named).chain(values);
    unique(found.collect())
        .into_iter()
        .map(|number| match number {
            ENOTSUPP => errno::name(libc::EOPNOTSUPP as u16),
            _ => errno::name(number),
        })
}

/// The names of the errnos, and strerror's words, in small letters. They are asked for at each number of a
/// log.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    (0..=MOST)
        .map(|it| errno::name(it).to_lowercase())
        .collect()
});
static WORDS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let words = |number| Errno(number).to_string().to_lowercase();
    (0..=MOST.into()).map(words).collect()
});

fn words_of(number: u16) -> Option<&'static String> {
    Some(&WORDS[usize::from(number)]).filter(|words| !words.starts_with("unknown error"))
}

fn is_letter(character: char) -> bool {
    character.is_ascii_alphanumeric()
}

/// Whether the words are there, and no letter precedes them.
fn begins(text: &str, words: &str) -> bool {
    let mut found = text.match_indices(words);
    found.any(|(at, _)| !text[..at].ends_with(is_letter))
}

/// Whether the words are there, and no letter adjoins them.
fn has_words(text: &str, words: &str) -> bool {
    let mut found = text.match_indices(words);
    found.any(|(at, _)| {
        !text[..at].ends_with(is_letter) && !text[at + words.len()..].starts_with(is_letter)
    })
}

/// A number of a line.
struct Number<'a> {
    value: u64,
    negative: bool,
    hex: bool,
    /// It ends the line in brackets, as after strerror's words, which are in the user's language.
    ends: bool,
    /// What precedes it in its line, without the marks between the two.
    before: &'a str,
    /// Where the first words of another system end in the line.
    foreign: usize,
}

impl Number<'_> {
    fn follows(&self, words: &[&str]) -> bool {
        let mut words = words.iter().filter_map(|it| self.before.strip_suffix(it));
        words.any(|before| !before.ends_with(is_letter))
    }

    /// Whether these bytes of the line precede it.
    fn is_behind(&self, bytes: usize) -> bool {
        self.before.len() >= bytes
    }

    /// Whether it is a number of another system, or of another list than strerror's words before it.
    fn is_foreign(&self) -> bool {
        let is_another = |number: u16| {
            let words = words_of(number).filter(|_| self.value != u64::from(number));
            words.is_some_and(|words| self.before.ends_with(words))
        };
        self.is_behind(self.foreign) || self.follows(OTHERS) || (1..=MOST).any(is_another)
    }
}

/// Where the first of these words ends. A line may have thousands of numbers: it is read once.
fn end_of_first(line: &str, words: &[&str]) -> usize {
    let ends = words
        .iter()
        .filter_map(|words| Some(line.find(words)? + words.len()));
    ends.min().unwrap_or(usize::MAX)
}

/// The numbers of a line.
fn numbers(text: &str) -> Vec<Number<'_>> {
    let bytes = text.as_bytes();
    let foreign = end_of_first(text, FOREIGN);
    let mut numbers = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let is_in_word = at > 0
            && (bytes[at - 1].is_ascii_alphanumeric() || matches!(bytes[at - 1], b'_' | b'.'));
        if !bytes[at].is_ascii_digit() || is_in_word {
            at += 1;
            continue;
        }
        let hex = text[at..].starts_with("0x");
        let digits = at + if hex { 2 } else { 0 };
        let rest = bytes[digits..].iter();
        let length = rest.take_while(|it| it.is_ascii_alphanumeric()).count();
        let value = u64::from_str_radix(&text[digits..digits + length], if hex { 16 } else { 10 });
        let sign = at.checked_sub(1).filter(|&sign| bytes[sign] == b'-');
        // A hyphen between two words is no sign.
        let negative =
            sign.is_some_and(|sign| sign == 0 || !bytes[sign - 1].is_ascii_alphanumeric());
        // A date or a time goes on.
        let after = &bytes[digits + length..];
        let goes_on = matches!(after, [b'-' | b':', next, ..] if next.is_ascii_digit());
        if let Some(value) = value.ok().filter(|_| !goes_on) {
            let marked = &text[..sign.unwrap_or(at)];
            let before = marked.trim_end_matches([' ', '=', ':', '：', '(', '[', '"', '\t']);
            let ends = marked.ends_with(['(', '['])
                && matches!(&text[digits + length..], "]" | ")")
                && !before.ends_with(|it: char| it.is_ascii_digit());
            // Some programs print a negative errno as an unsigned number.
            let below = [1 << 32, 1 << 64].map(|end: u128| end.checked_sub(value.into()));
            let mut below = below.into_iter().flatten();
            let errno = below.find(|errno| (1..=ENOTSUPP.into()).contains(errno));
            numbers.push(Number {
                value: errno.map_or(value, |errno| errno as u64),
                negative: negative || errno.is_some(),
                hex: hex && errno.is_none(),
                ends,
                before,
                foreign,
            });
        }
        at = digits + length;
    }
    numbers
}

#[cfg(test)]
pub fn names() -> impl Iterator<Item = &'static str> {
    STATUSES.iter().map(|status| status.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pasted: &str) -> String {
        let rows = [
            "failed to register address | EIO | x",
            "limits exceeded | everywhere, ENOMEM | x",
            "ibv_fork_init | ENOENT, EFAULT | x",
            "prov_err | EIO | x",
            "reg_mr, regMr | none | x",
            "ibv_post_send | ENOMEM | x",
        ];
        let cells = |row: &str| row.split(" | ").map(str::to_owned).collect();
        let found = find(pasted, rows.into_iter().map(cells), |_| true);
        let lines = found.lines.iter().map(|(words, _)| words.as_str());
        let errnos = found.errnos.iter().map(String::as_str);
        found
            .statuses
            .iter()
            .copied()
            .chain(lines)
            .chain(errnos)
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn pasted_lines_are_read_as_their_writers_meant_them() {
        let lines = [
            ("ENOMEM", "ENOMEM"),
            ("enomem:", "ENOMEM"),
            ("14", "EFAULT"),
            ("-14", "EFAULT"),
            ("Errno: 14", "EFAULT"),
            ("errno=12", "ENOMEM"),
            ("Bad address", "EFAULT"),
            (
                "Failed to register memory 0x7fd3e6e00000: Bad address [14]",
                "EFAULT",
            ),
            (
                "ibv_reg_mr(address=0x15213b956010, length=65536, access=0xf) failed: Cannot allocate memory : Please",
                "ENOMEM",
            ),
            ("fi_mr_reg failed, ret is:-12", "ENOMEM"),
            (
                "Fatal : Libfabric get failure on command fi_mr_reg with status -14",
                "EFAULT",
            ),
            ("ibv_reg_mr failed [error code: 14]", "EFAULT"),
            (
                "mlx5_warn:mlx5_0:mlx5_ib_reg_user_mr:1418:(pid 23265): umem get failed (-14)",
                "EFAULT",
            ),
            ("registering memory: Unknown error -95", "EOPNOTSUPP"),
            (
                "ibv_reg_dmabuf_mr(length=16384, ...) failed: Unknown error 524",
                "EOPNOTSUPP",
            ),
            (
                "size:943718400, accessFlag:15, errno:22 (Invalid argument)",
                "EINVAL",
            ),
            (
                "rdma.c:1075: rdma_create_qp failed: errno 12: Cannot allocate memory",
                "ENOMEM",
            ),
            ("\x1b[1;31mBad address\x1b[0m", "EFAULT"),
            ("ibv_reg_mr errno\x1b[0m\x1b[2m=\x1b[0m12", "ENOMEM"),
            ("IBV_WC_REM_ACCESS_ERR", "IBV_WC_REM_ACCESS_ERR"),
            ("status 10", "IBV_WC_REM_ACCESS_ERR"),
            (
                "NET/IB : Got completion with error 4, opcode 1, len 21938, vendor err 81",
                "IBV_WC_LOC_PROT_ERR",
            ),
            (
                "Got completion from peer 10.0.0.1<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv)",
                "IBV_WC_RETRY_EXC_ERR",
            ),
            (
                "Local protection on mlx5_0:1/IB (synd 0x4 vend 0x51 hw_synd 0/2)",
                "IBV_WC_LOC_PROT_ERR",
            ),
            (
                "mlx5_0: mlx5_poll_one:530:(pid 0): syndrome 0x13, vendor syndrome 0x88",
                "IBV_WC_REM_ACCESS_ERR",
            ),
            ("syndrome 0x4, vendor syndrome 0x12", "IBV_WC_LOC_PROT_ERR"),
            (
                "Failed status 4: wr_id 0 syndrom 0x51",
                "IBV_WC_LOC_PROT_ERR",
            ),
            (
                "Error on CQ 0x1fec4e0, (qp state 3 ibv_state 6) type DATA, status: (10): remote access error",
                "IBV_WC_REM_ACCESS_ERR",
            ),
            (
                "error reading cq (-259) (err 5 prov_errno 10)",
                "IBV_WC_REM_ACCESS_ERR prov_err",
            ),
            (
                "fi_cq_readerr: prov_err: 4 vendor_err 81",
                "IBV_WC_LOC_PROT_ERR prov_err",
            ),
            (
                "efa: err: Input/output error (5) prov_errno: 9 (Unexpected status)",
                "prov_err",
            ),
            ("00000000 93005204 0a0019a1 c0921cd2", "IBV_WC_LOC_PROT_ERR"),
            // The whole dump, with the line before it and another one after it.
            (
                "mlx5: ogden: got completion with error:\n00000000 00000000 00000000 00000000\n\
                 000000b3 00000000 00000000 00000000\n00000000 93005204 0a0019a1 c0921cd2\nnvme_rdma.c: CQ error",
                "IBV_WC_LOC_PROT_ERR",
            ),
            ("status 21", "IBV_WC_GENERAL_ERR"),
            (
                "NCCL WARN Call to ibv_poll_cq failed with error 12",
                "IBV_WC_RETRY_EXC_ERR",
            ),
            ("ibv_poll_cq: status 12", "IBV_WC_RETRY_EXC_ERR"),
            (
                "NET/IB : Got completion from peer 10.1.32.3<54891> with error 5, opcode 0, len 0, vendor err 249",
                "IBV_WC_WR_FLUSH_ERR",
            ),
            ("wc status 9", "IBV_WC_REM_INV_REQ_ERR"),
            ("WC error 10 vendor 136", "IBV_WC_REM_ACCESS_ERR"),
            ("status 22", "IBV_WC_TM_ERR"),
            ("IBV_WC_RESP_TIMEOUT_ERR", "IBV_WC_RESP_TIMEOUT_ERR"),
            ("local EE context operation error", "IBV_WC_LOC_EEC_OP_ERR"),
            // The vendor's number alone, in hexadecimal and in decimal.
            ("vendor_err 0x51", "IBV_WC_LOC_PROT_ERR"),
            ("completion failed, vendor err 136", "IBV_WC_REM_ACCESS_ERR"),
            // An unsigned number, and strerror's words in another language.
            ("ret=4294967282", "EFAULT"),
            ("rc 18446744073709551604", "ENOMEM"),
            (
                "Failed to register memory 0x7fd3e6e00000: 错误的地址 [14]",
                "EFAULT",
            ),
            (
                "failed to create completion channel with error 12",
                "ENOMEM",
            ),
            // No memory was to be registered.
            (
                "Fail to ibv_post_send: Cannot allocate memory, window=1, sq_current=16",
                "ibv_post_send",
            ),
            // These words count where no number does.
            ("java.io.IOException: regMr failed", "regMr"),
            ("Fatal error in PMPI_Init: Other MPI error", ""),
            // The number is the completion's, and its words are strerror's by mistake.
            (
                "a work item failed: status 12 (Ib failure: Cannot allocate memory)",
                "IBV_WC_RETRY_EXC_ERR",
            ),
            (
                "ibv_reg_mr failed (errno 14) (Ib failure: Bad address)",
                "EFAULT",
            ),
            // The errno beside these words is another's.
            (
                "UCX ERROR failed to register address 0x7f724fa00000 mem_type bit 0x2: Input/output error",
                "failed to register address",
            ),
            (
                "CREATE_MKEY(0x200) failed, status limits exceeded(0x8), syndrome (0x18af6), err(-12)",
                "limits exceeded",
            ),
            (
                "rdma_helper.cpp:426] Fail to ibv_fork_init: No such file or directory [2]",
                "ibv_fork_init",
            ),
            (
                "from a to: b error polling LP CQ with status RECEIVER NOT READY RETRY EXCEEDED ERROR \
                 status number 13 for wr_id 3b2 opcode 1 vendor error 135 qp_idx 0",
                "IBV_WC_RNR_RETRY_EXC_ERR",
            ),
            (
                "error polling LP CQ with status RETRY EXCEEDED ERROR status number 12 for wr_id 3b2",
                "IBV_WC_RETRY_EXC_ERR",
            ),
            ("with status RETRY EXCEEDED ERROR", "IBV_WC_RETRY_EXC_ERR"),
            ("status=4", "IBV_WC_LOC_PROT_ERR"),
            (
                "completion failed with status: REMOTE_ACCESS_ERROR",
                "IBV_WC_REM_ACCESS_ERR",
            ),
            ("vendor_err_synd 0x51", "IBV_WC_LOC_PROT_ERR"),
            ("syndrome=0x4 vendor_err_synd=0x13", "IBV_WC_LOC_PROT_ERR"),
            // A line of a command beside one of a completion.
            (
                "op_mod(0x0) failed, syndrome (0x13)\nmlx5_poll_one: syndrome 0x4",
                "IBV_WC_LOC_PROT_ERR",
            ),
            ("errno is 12", "ENOMEM"),
            ("errno 0xc", "ENOMEM"),
            // -1 says that another number, or word, has the reason.
            ("-1", "EPERM"),
            ("errno -1", "EPERM"),
            ("ret -1: Operation not permitted", "EPERM"),
            ("ret=-1 errno=12", "ENOMEM"),
            ("rc=-1 errno 14", "EFAULT"),
            ("numa_node -1: ibv_reg_mr failed: Bad address", "EFAULT"),
            ("gid_index=-1, fd=-1, error -1", ""),
            ("returned 4294967295", ""),
            // A mark is a word, and longer words of strerror win.
            ("errno 14 (Bad address), opcode 12", "EFAULT"),
            ("errcode 14", "EFAULT"),
            ("stderr 12", ""),
            ("http_status=10", ""),
            ("open: No such device or address", "ENXIO"),
            (
                "No such device\nToo many open files in system",
                "ENODEV ENFILE",
            ),
            // The numbers of other systems.
            ("NCCL Error 2: unhandled system error", ""),
            (
                "ncclUnhandledCudaError: Call to CUDA function failed. error 1",
                "",
            ),
            ("CUDA error 2: out of memory", ""),
            ("NCCL Error 2\nibv_reg_mr failed: errno 12", "ENOMEM"),
            ("UCX: status -2 Unsupported operation", ""),
            ("ncclInvalidUsage: invalid usage error 5", ""),
            ("Signal: Segmentation fault (11)", ""),
            ("received IB QP event: last WQE reached (16)", ""),
            ("process exited with code 14", ""),
            ("exitcode: -9 (pid: 123)", ""),
            ("MPI_ABORT was invoked on rank 0 with errorcode 14", ""),
            // Nothing of these is an errno or a status.
            ("umem get failed (-131668346275144)", ""),
            (
                "nvshmem ibrc.cpp:1433: non-zero status: 7 ep_connect failed",
                "",
            ),
            ("2026-11-27 12:14:22 worker-14 rank 12 started", ""),
            (
                "mlx5dv_devx_obj_create(QP) failed on mlx5_0, syndrome 0x2c4154",
                "",
            ),
            ("Registerable memory:     4096 MiB", ""),
            // A registration failed, and then a completion; the errno of a further line is a consequence.
            (
                "NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n\
                 NCCL WARN NET/IB : Got completion with error 5, opcode 0, len 0, vendor err 249\n\
                 reconnecting: Connection timed out",
                "IBV_WC_WR_FLUSH_ERR ENOMEM",
            ),
            // A date, a time.
            ("ERROR 12-03 10:11:12 [executor.py:747] failed", ""),
            ("ERROR 12:30:22 failed", ""),
            // The kernel's words for statuses.
            (
                "nvme nvme0: SEND for CQE 0x1 failed with status invalid request error (9)",
                "IBV_WC_REM_INV_REQ_ERR",
            ),
            (
                "nvme nvme0: SEND for CQE 0x1 failed with status operation aborted (16)",
                "IBV_WC_REM_ABORT_ERR",
            ),
            (
                "LNetError: kiblnd_tx_complete() Tx -> 10.0.0.1@o2ib: failed 12",
                "IBV_WC_RETRY_EXC_ERR",
            ),
            ("wc failed: 10", "IBV_WC_REM_ACCESS_ERR"),
            (
                "mlx5_0: dump_cqe:272:\n00000020: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 04\n\
                 00000030: 00 00 00 00 00 00 88 13 08 00 01 51 e5 4b 18 d2",
                "IBV_WC_REM_ACCESS_ERR",
            ),
            // Words of statuses in lines that are about something else.
            (
                "failed to allocate local protection domain: Cannot allocate memory",
                "ENOMEM",
            ),
            ("General error: ibv_reg_mr failed: Bad address", "EFAULT"),
            (
                "connected with remote qp 34: registering buffer: Bad address",
                "EFAULT",
            ),
            (
                "vendor Mellanox: ibv_reg_mr failed with error 12 (Cannot allocate memory)",
                "ENOMEM",
            ),
            ("retry_cnt 7, rnr retry 7: Invalid argument", "EINVAL"),
            (
                "send completion OK; ibv_reg_mr failed, status: 14",
                "EFAULT",
            ),
            ("vendor/k8s.io/kubectl: exit status 1", ""),
            // Vendors' numbers of another driver.
            ("irdma0: completion error: vendor_err 0x51", ""),
            // Open MPI's, UCX's, CUDA's and RDMA-CM's numbers.
            (
                "--> Returned \"Not found\" (-13) instead of \"Success\" (0)",
                "",
            ),
            (
                "Failed to register memory with UCX: Invalid parameter (-5)",
                "",
            ),
            ("failed to map: Input/output error (-3)", "EIO"),
            ("cudaMalloc failed: error 2", ""),
            ("cma event RDMA_CM_EVENT_REJECTED, error 28", ""),
            (
                "NET/OFI Request 0x1 completed with error. RC: 113. Error: 14 (Unresponsive receiver)",
                "",
            ),
            ("[gpu-266] started", ""),
            // A part of another status, and words that are none.
            ("IBV_WC_RNR_RETRY_EXC_ERR", "IBV_WC_RNR_RETRY_EXC_ERR"),
            ("REM_ACCESS_ERR", "IBV_WC_REM_ACCESS_ERR"),
            ("SSL_GENERAL_ERR", ""),
            (
                "parse WC failed 1\nFailed status transport retry counter exceeded (12) for wr_id 2",
                "IBV_WC_RETRY_EXC_ERR",
            ),
            (
                "CQ error on Queue Pair 0x1, Response Index 9 (4): local protection error\n\
                 CQ error, abort requests after transport retry counter exceeded",
                "IBV_WC_LOC_PROT_ERR",
            ),
            (
                "smbdirect: wc->status=10 wc->opcode=0",
                "IBV_WC_REM_ACCESS_ERR",
            ),
            // Other names.
            ("ENOTSUP", "EOPNOTSUPP"),
            ("-ENOTSUPP", "EOPNOTSUPP"),
            ("FI_EOPNOTSUPP", "EOPNOTSUPP"),
            ("EWOULDBLOCK", "EAGAIN"),
            ("ucp_ep_create failed: -14", ""),
            ("PSM3 can't open nic unit: -1 (err=23)", ""),
            // Two lines: the errno of the registration counts, whatever the other is about.
            (
                "Fail to ibv_fork_init: Bad address\nibv_reg_mr failed: Bad address",
                "ibv_fork_init EFAULT",
            ),
            (
                "Fail to ibv_fork_init: No such file or directory [2]\nanother line",
                "ibv_fork_init",
            ),
            (
                "CREATE_MKEY failed, status limits exceeded(0x8)\nibv_reg_mr: Cannot allocate memory",
                "limits exceeded",
            ),
            (
                "Epoll ADD(1) failed: Operation not permitted\nibv_reg_mr failed: Bad address",
                "EFAULT",
            ),
        ];
        for (pasted, means) in lines {
            assert_eq!(found(pasted), means, "{pasted}");
        }
    }
}
