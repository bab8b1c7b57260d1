// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of a report: to standard output, or to a file that is whole or absent. A file is
//! written beside its place and renamed, so no link is followed, and no reader sees half a page.
use anyhow::{Context, Result, bail};
use std::ffi::CString;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

pub fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    if path == Path::new("-") {
        return buffered(io::stdout().lock(), content);
    }
    to_file(path, content).with_context(|| format!("{} cannot be written", path.display()))
}

/// Refuses a path that [`write`] cannot write, before a program runs whose results go there.
pub fn ensure_writable(path: &Path) -> Result<()> {
    let there = path.metadata().ok().filter(|there| !there.is_file());
    if path == Path::new("-") {
        return Ok(());
    }
    if there.as_ref().is_some_and(|there| there.is_dir()) {
        bail!("it is a directory");
    }
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let place = match there {
        Some(_) => path,
        None => folder.unwrap_or(Path::new(".")),
    };
    let place = CString::new(place.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a NUL.
    match unsafe { libc::access(place.as_ptr(), libc::W_OK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().into()),
    }
}

fn buffered(file: impl Write, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let mut file = BufWriter::new(file);
    content(&mut file)?;
    Ok(file.flush()?)
}

fn to_file(path: &Path, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    if let Ok(there) = path.symlink_metadata() {
        let kind = there.file_type();
        let leads_to_a_file = || path.metadata().is_ok_and(|there| there.is_file());
        if kind.is_symlink() && path.exists() && !leads_to_a_file() {
            bail!("it is a link to something that is no file (for standard output: -o -)");
        }
        // A rename would put a file in the place of a device.
        if kind.is_char_device() || kind.is_fifo() {
            let device = OpenOptions::new()
                .write(true)
                .custom_flags(libc::O_NOFOLLOW)
                .open(path)?;
            return buffered(device, content);
        }
    }
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let file = tempfile::Builder::new()
        .prefix(".rdmamr-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    // The file of the same name may be readable by its owner only.
    if let Ok(there) = File::open(path).and_then(|there| there.metadata())
        && there.is_file()
        && !path.is_symlink()
    {
        file.as_file().set_permissions(there.permissions())?;
    }
    buffered(file.as_file(), content)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn put(path: &Path, words: &str) -> Result<()> {
        write(path, |out| Ok(out.write_all(words.as_bytes())?))
    }

    #[test]
    fn a_link_is_replaced_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("victim"), "as before").unwrap();
        std::os::unix::fs::symlink(at("victim"), at("page")).unwrap();
        put(&at("page"), "new").unwrap();
        assert_eq!(fs::read_to_string(at("victim")).unwrap(), "as before");
        assert_eq!(fs::read_to_string(at("page")).unwrap(), "new");
        assert!(!at("page").is_symlink());
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 2, "no temporary file is left");
    }

    #[test]
    fn a_page_that_is_replaced_keeps_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page");
        fs::write(&page, "old").unwrap();
        fs::set_permissions(&page, Permissions::from_mode(0o600)).unwrap();
        put(&page, "new").unwrap();
        assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_path_that_cannot_be_written_is_refused_before() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for good in [at("page"), "-".into(), "/dev/null".into(), "page".into()] {
            ensure_writable(&good).unwrap();
        }
        for bad in [at("none/page"), folder.path().to_path_buf()] {
            assert!(ensure_writable(&bad).is_err(), "{}", bad.display());
        }
    }

    #[test]
    fn a_device_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert!(put(&link, "x").is_err());
        put(Path::new("/dev/null"), "x").unwrap();
        assert!(
            Path::new("/dev/null")
                .metadata()
                .unwrap()
                .file_type()
                .is_char_device()
        );
    }
}
