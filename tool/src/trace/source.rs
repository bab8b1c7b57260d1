// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of a trace: of files, of the files of a folder, and of a pipe. Holes are not content:
//! no writer leaves one, so a block that claims a hole costs no memory.
use crate::files::named::{Missing, Place as Named, find, me};
use crate::report::units::{reason, shown};
use anyhow::{Context, Result, ensure};
use rdmamr_trace_format::MAGIC;
use rustix::fs::{OFlags, SeekFrom, seek};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A file of a trace.
pub struct Source {
    pub path: PathBuf,
    file: File,
    pub size: u64,
    /// The permissions; of a pipe those of a new trace.
    pub mode: u32,
    /// Bytes without a hole, from the first number up to the second.
    data: Cell<(u64, u64)>,
    /// The bytes that were searched last, and their place.
    searched: RefCell<(u64, Vec<u8>)>,
}

/// The content of a block, in a file.
pub struct Place {
    pub source: u32,
    pub at: u64,
    pub length: u64,
}

/// The files that the paths name: each file once, and of a folder the traces that lie in it. Files of
/// a folder that cannot be opened are damage.
pub fn open(paths: &[PathBuf], damage: &mut Vec<String>) -> Result<Vec<Source>> {
    let mut sources: Vec<Source> = Vec::new();
    let mut known = HashSet::new();
    for path in paths {
        for source in of_path(path, damage).with_context(|| shown(path))? {
            let metadata = source.file.metadata()?;
            let identity = (metadata.dev(), metadata.ino());
            if known.insert(identity) {
                sources.push(source);
            }
        }
    }
    Ok(sources)
}

fn of_path(path: &Path, damage: &mut Vec<String>) -> Result<Vec<Source>> {
    if path == Path::new("-") {
        return Ok(vec![of_pipe(path, io::stdin().lock())?]);
    }
    let found = find(path).context("it cannot be opened")?;
    let kind = found.about.file_type();
    if kind.is_dir() {
        return of_folder(path, found.names().context("it cannot be opened")?, damage);
    }
    if kind.is_fifo() {
        // Its owner could keep a reader waiting.
        let user = found.about.uid();
        ensure!(user == me(), "it is a pipe of user {user}");
        return Ok(vec![of_pipe(path, found.open(OFlags::RDONLY)?)?]);
    }
    ensure!(
        kind.is_file(),
        "it is neither a regular file, nor a folder, nor a pipe"
    );
    let file = found.read().context("it cannot be opened")?;
    Ok(vec![Source::new(path.to_path_buf(), file)?])
}

/// The traces in a folder, by name. Other files, such as a report, may lie beside them.
fn of_folder(path: &Path, names: Vec<OsString>, damage: &mut Vec<String>) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for name in names.into_iter().map(|name| path.join(name)) {
        let file = match find(&name) {
            Ok(found) if !found.about.is_file() => continue,
            found => found.and_then(|found| found.read()),
        };
        let mut magic = [0; MAGIC.len()];
        match file {
            Ok(file) if file.read_exact_at(&mut magic, 0).is_err() || magic != MAGIC => {}
            Ok(file) => sources.push(Source::new(name, file)?),
            Err(error) => {
                let why = reason(&error);
                damage.push(format!("{} cannot be opened: {why}.", shown(&name)));
            }
        }
    }
    ensure!(!sources.is_empty(), "there is no trace in this folder");
    Ok(sources)
}

/// A trace is read twice, so the content of a pipe goes to a file without a name first.
fn of_pipe(path: &Path, mut pipe: impl Read) -> Result<Source> {
    let mut file = tempfile::tempfile().context("a temporary file for the pipe")?;
    io::copy(&mut pipe, &mut file).context("reading the pipe")?;
    file.rewind()?;
    let source = Source::new(path.to_path_buf(), file)?;
    Ok(Source {
        mode: 0o600,
        ..source
    })
}

/// Opens a file that a library is to append a trace to, which exists as a trace or not at all, and
/// returns its place too. The library follows no link either.
pub fn to_append(path: &Path) -> Result<(Named, File)> {
    let place = Named::of(path, Missing::Refused)?;
    // The trace contains addresses of the program, and keys.
    let file = match place.make(0o600) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let found = place.look()?;
            found.ensure_file()?;
            found.ensure_mine()?;
            found.open(OFlags::RDWR | OFlags::APPEND)?
        }
        made => made?,
    };
    let mut magic = Vec::new();
    (&file).take(MAGIC.len() as u64).read_to_end(&mut magic)?;
    ensure!(
        magic.is_empty() || magic == MAGIC,
        "it exists and is not a trace, so it is left alone"
    );
    Ok((place, file))
}

impl Source {
    fn new(path: PathBuf, file: File) -> Result<Source> {
        let about = file.metadata()?;
        let size = about.len();
        ensure!(
            size > 0,
            "it is empty: the program has not registered memory yet, or the library was not loaded"
        );
        Ok(Source {
            path,
            file,
            size,
            mode: about.mode(),
            data: Cell::new((0, 0)),
            searched: RefCell::default(),
        })
    }

    /// Whether the file is the one at that path, through the links that this user follows.
    pub fn is_at(&self, path: &Path) -> bool {
        let (one, other) = (self.file.metadata(), find(path).map(|found| found.about));
        matches!((one, other), (Ok(one), Ok(other)) if (one.dev(), one.ino()) == (other.dev(), other.ino()))
    }

    /// Reads `length` bytes from `at` on, or as many as exist.
    pub fn read(&self, at: u64, length: usize, into: &mut Vec<u8>) -> Result<()> {
        into.resize(length.min(self.size.saturating_sub(at) as usize), 0);
        self.file.read_exact_at(into, at).context("reading it")
    }

    /// The place of the next hole, from `at` on: `at` itself in a hole, else at most the file's
    /// end.
    pub fn data_until(&self, at: u64) -> u64 {
        let (from, to) = self.data.get();
        if (from..to).contains(&at) {
            return to;
        }
        // A file system without SEEK_HOLE counts as one without holes. Each read states its own place,
        // so the file's is free.
        let to = seek(&self.file, SeekFrom::Hole(at)).unwrap_or(self.size);
        self.data.set((at, to));
        to
    }

    /// The first place from `at` on at which a block may begin, or `end`. The next search goes on in the
    /// bytes that this one has read: damage in each block costs no read of its own.
    pub fn next_magic(&self, mut at: u64, end: u64) -> Result<u64> {
        const LENGTH: u64 = MAGIC.len() as u64;
        let (from, bytes) = &mut *self.searched.borrow_mut();
        while at + LENGTH <= end {
            if self.data_until(at) == at {
                // ENXIO: no data follows.
                at = seek(&self.file, SeekFrom::Data(at)).unwrap_or(end);
                continue;
            }
            if at < *from || at + LENGTH > *from + bytes.len() as u64 {
                self.read(at, 1 << 20, bytes)?;
                *from = at;
            }
            let bytes = &bytes[(at - *from) as usize..];
            let bytes = &bytes[..bytes.len().min((end - at) as usize)];
            if let Some(found) = bytes.windows(MAGIC.len()).position(|bytes| *bytes == MAGIC) {
                return Ok(at + found as u64);
            }
            at += bytes.len() as u64 - (LENGTH - 1);
        }
        Ok(end)
    }
}
