// SPDX-License-Identifier: MIT OR Apache-2.0
//! The traces of a program: the file that its processes share, or a file for each, whose name has
//! `%p`, `%h` or `%r` (rdmamr(7), `RDMAMR_TRACE`).

use crate::files::named::{Missing, Place, find};
use crate::files::{names, owned, read};
use crate::report::units::shown;
use crate::trace::{header, to_append};
use anyhow::{Context, Result, bail};
use rdmamr_trace_format::Header;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long another program may hold the lock of a trace.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Makes way for new traces of that name.
pub fn prepare(name: &Path) -> Result<()> {
    if !is_pattern(name) {
        return empty(&to_append(name)?.1);
    }
    Place::of(name, Missing::Made).context("its folder cannot be made")?;
    // Processes get new numbers: an existing trace belongs to another run, which may still write
    // it.
    let mut pairs = name.as_os_str().as_bytes().windows(2);
    if pairs.any(|pair| pair == b"%p") {
        return Ok(());
    }
    for old in matching(name).into_iter().filter(|old| is_leftover(old)) {
        let removed = Place::of(&old, Missing::Refused)?.remove();
        removed.with_context(|| format!("{} is in the way", shown(&old)))?;
    }
    Ok(())
}

/// The traces of that name that exist, with their lengths.
pub fn existing(name: &Path) -> Vec<(PathBuf, Option<u64>)> {
    let files = match is_pattern(name) {
        true => matching(name),
        false => vec![name.to_path_buf()],
    };
    let with_length = |file: PathBuf| {
        let length = find(&file).ok().map(|found| found.about.len());
        (file, length)
    };
    files.into_iter().map(with_length).collect()
}

/// Whether the name is that of several files.
pub fn is_pattern(name: &Path) -> bool {
    name.as_os_str().as_bytes().contains(&b'%')
}

/// The traces of this host in the folder of a name.
fn matching(name: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(pattern)) = (name.parent(), name.file_name()) else {
        return Vec::new();
    };
    let host = read("/proc/sys/kernel/hostname").unwrap_or_default();
    let (pattern, host) = (pattern.as_bytes(), host.replace('/', "_"));
    let named = names(folder).into_iter();
    let named = named.filter(|name| fits(pattern, name.as_bytes(), host.as_bytes()));
    let paths = named.map(|name| folder.join(name));
    paths.filter(|path| header_of(path).is_some()).collect()
}

/// Whether a file's name may come from a pattern: of any process and any rank, on that host.
fn fits(pattern: &[u8], name: &[u8], host: &[u8]) -> bool {
    match pattern {
        [] => name.is_empty(),
        [b'%', letter @ (b'p' | b'r'), rest @ ..] => {
            let digits = name.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let none = *letter == b'r' && name.starts_with(b"none");
            (1..=digits).any(|length| fits(rest, &name[length..], host))
                || (none && fits(rest, &name[4..], host))
        }
        [b'%', b'h', rest @ ..] => {
            let name = name.strip_prefix(host);
            name.is_some_and(|name| fits(rest, name, host))
        }
        [byte @ b'%', b'%', rest @ ..] | [byte, rest @ ..] => {
            name.first() == Some(byte) && fits(rest, &name[1..], host)
        }
    }
}

/// The first header of a trace.
fn header_of(path: &Path) -> Option<Header> {
    let mut bytes = [0; size_of::<Header>()];
    let mut file = find(path).ok()?.read().ok()?;
    file.read_exact(&mut bytes).ok()?;
    header(&bytes)
}

/// Whether the process that began a trace has ended.
fn is_leftover(path: &Path) -> bool {
    let is_alive = |it: Header| Path::new(&format!("/proc/{}", it.pid)).exists();
    !header_of(path).is_some_and(is_alive)
}

/// Empties the file of an earlier trace, since the library appends. It
/// does not empty the file while another program that was run with it is alive, as with mpirun(1):
/// they share the file. A lock that the program inherits tells whether one is alive.
pub fn empty(file: &File) -> Result<()> {
    // The descriptor has no close-on-exec. If the limit allows, its number is out of the way of
    // programs that rely on the lowest numbers.
    let kept = [900, 200, 3].into_iter().find_map(|number| {
        // SAFETY: F_DUPFD takes no pointers.
        owned(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, number) }).ok()
    });
    let kept = kept.ok_or_else(io::Error::last_os_error)?;
    if flock(&kept, FlockOperation::NonBlockingLockExclusive).is_ok() {
        file.set_len(0)?;
    }
    // Another launcher that empties the file at this point finds it empty: this program has not
    // begun to write.
    let until = Instant::now() + TIMEOUT;
    while flock(&kept, FlockOperation::NonBlockingLockShared).is_err() {
        if Instant::now() > until {
            bail!("another program has locked it (flock)");
        }
        sleep(Duration::from_millis(10));
    }
    std::mem::forget(kept);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Sample, Writer};

    #[test]
    fn names_of_a_pattern() {
        let fits = |pattern: &str, name: &str| fits(pattern.as_bytes(), name.as_bytes(), b"node");
        for (pattern, name) in [
            ("%h-%r.trace", "node-12.trace"),
            ("%h-%r.trace", "node-none.trace"),
            ("%p%p", "77"),
            ("a%%%x", "a%%x"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("%h-%r.trace", "other-12.trace"),
            ("%h-%r.trace", "node-.trace"),
            ("%h-%r.trace", "node-1.trace.html"),
            ("%p", "none"),
            ("%p%p", "7"),
            ("a%%", "a%%"),
        ] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn an_old_trace_goes_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, pid) in [("a-1", u32::MAX), ("a-2", std::process::id())] {
            let mut sample = Sample::default();
            Writer::new(pid).block(&mut sample, 0, &[]);
            std::fs::write(path(name), sample.0).unwrap();
        }
        std::fs::write(path("a-3"), "a letter").unwrap();
        prepare(&path("a-%r")).unwrap();
        assert_eq!(existing(&path("a-%r")), [(path("a-2"), Some(48))]);
        assert!(path("a-3").exists());
        prepare(&path("new/%p")).unwrap();
        assert!(path("new").is_dir());
    }
}
