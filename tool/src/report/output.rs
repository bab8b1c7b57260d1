// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of a report: to standard output, or to a file.
use super::units::shown;
use crate::files::named::{buffered, find, me, replace};
use anyhow::{Context, Result, ensure};
use rustix::fs::{Access, access};
use std::fs::Metadata;
use std::io::{self, Write};
use std::path::Path;

/// Writes with permissions that are at most `mode`.
pub fn write(
    path: &Path,
    mode: u32,
    content: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    if path == Path::new("-") {
        return buffered(io::stdout().lock(), content);
    }
    // Root may have read what others may not.
    let mode = if me() == 0 { mode & 0o600 } else { mode };
    replace(path, mode, content).with_context(|| format!("{} cannot be written", shown(path)))
}

/// Refuses a path that [`write`] cannot write, before a program runs whose results go there.
pub fn ensure_writable(path: &Path) -> Result<()> {
    if path == Path::new("-") {
        return Ok(());
    }
    let about = find(path).map(|found| found.about);
    let is = |is: fn(&Metadata) -> bool| about.as_ref().is_ok_and(is);
    ensure!(!is(Metadata::is_dir), "it is a directory");
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    // A device or a pipe is written to; a file is replaced.
    let place = match about.is_ok() && !is(Metadata::is_file) {
        true => path,
        false => folder.unwrap_or(Path::new(".")),
    };
    Ok(access(place, Access::WRITE_OK)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_cannot_be_written_is_refused_before() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for good in [at("page"), "-".into(), "/dev/null".into(), "page".into()] {
            ensure_writable(&good).unwrap();
        }
        for bad in [at("none/page"), folder.path().to_path_buf()] {
            assert!(ensure_writable(&bad).is_err(), "{}", shown(&bad));
        }
    }
}
