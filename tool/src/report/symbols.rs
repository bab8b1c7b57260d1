// SPDX-License-Identifier: MIT OR Apache-2.0
//! The symbols and the debug information of a file, also of the files in which a compiler has put the
//! latter apart (-gsplit-dwarf). The trace names all of them, so each may be anything: none is opened
//! before it is known as a regular file, and none is mapped, because its owner can cut it short. A child
//! does all this (`names.rs`).
use crate::child::allow;
use crate::files::mounts::Mounts;
use crate::files::named::{find, find_local};
use addr2line::gimli::{self, DwarfPackage, EndianSlice, RunTimeEndian};
use addr2line::{Context, FrameIter, LookupContinuation, LookupResult, SplitDwarfLoad};
use anyhow::{Context as _, Result, ensure};
use object::{CompressionFormat, Object, ObjectSection, ReadCache, SymbolMap, SymbolMapName};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

type Bytes = EndianSlice<'static, RunTimeEndian>;
type Dwarf = gimli::Dwarf<Bytes>;
type Elf = object::File<'static, &'static ReadCache<File>>;
/// The mounts, if only local files are read.
type Local = Option<&'static Mounts>;

pub struct Symbols {
    lines: Context<Bytes>,
    names: SymbolMap<SymbolMapName<'static>>,
    package: Option<DwarfPackage<Bytes>>,
    local: Local,
}

impl Symbols {
    /// Reads a file, or the one in `folder` with its debug information, and tells when the former was
    /// changed.
    pub fn read(path: &Path, folder: &Path, local: Local) -> Result<(Symbols, SystemTime)> {
        let (file, changed) = parse(path, local)?;
        let apart = debug_file(&file, folder).and_then(|apart| {
            let (file, _) = parse(&apart, local).ok()?;
            Symbols::of(file, &apart, local).ok()
        });
        let here = || Symbols::of(file, path, local);
        Ok((apart.map_or_else(here, Ok)?, changed))
    }

    fn of(file: Elf, path: &Path, local: Local) -> Result<Symbols> {
        let mut dwarf = Dwarf::load(|id| section(&file, Some(id.name())))?;
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        let mut beside = path.as_os_str().to_owned();
        beside.push(".dwp");
        Ok(Symbols {
            lines: Context::from_dwarf(dwarf)?,
            names: file.symbol_map(),
            package: parse(Path::new(&beside), local).ok().and_then(|(file, _)| {
                let nothing = EndianSlice::new(&[], order(&file));
                DwarfPackage::load(|id| section(&file, id.dwo_name()), nothing).ok()
            }),
            local,
        })
    }

    /// The functions at an address, the innermost inlined one first.
    pub fn frames(&self, address: u64) -> Option<FrameIter<'_, Bytes>> {
        let mut found = self.lines.find_frames(address);
        loop {
            found = match found {
                LookupResult::Output(frames) => return frames.ok(),
                LookupResult::Load { load, continuation } => continuation.resume(self.split(&load)),
            }
        }
    }

    /// The symbol around an address: its name and its address.
    pub fn symbol(&self, address: u64) -> Option<(&str, u64)> {
        let symbol = self.names.containing(address)?;
        Some((symbol.name(), symbol.address()))
    }

    /// Debug information that lies apart.
    fn split(&self, load: &SplitDwarfLoad<Bytes>) -> Option<Arc<Dwarf>> {
        if let Some(package) = &self.package {
            if let Ok(Some(unit)) = package.find_cu(load.dwo_id, &load.parent) {
                return Some(Arc::new(unit));
            }
        }
        let path = |bytes: Bytes| PathBuf::from(OsStr::from_bytes(bytes.slice()));
        let folder = load.comp_dir.map(path).unwrap_or_default();
        let (file, _) = parse(&folder.join(path(load.path?)), self.local).ok()?;
        let mut dwarf = Dwarf::load(|id| section(&file, id.dwo_name())).ok()?;
        let header = dwarf.units().next().ok()??;
        let is_it = dwarf.unit(header).ok()?.dwo_id == Some(load.dwo_id);
        dwarf.make_dwo(&load.parent);
        is_it.then(|| Arc::new(dwarf))
    }
}

/// The file with the separated debug information of another file, found by the build's number where
/// distributions put it.
fn debug_file(file: &Elf, folder: &Path) -> Option<PathBuf> {
    if file.has_debug_symbols() {
        return None;
    }
    let number = file.build_id().ok()??.iter();
    let number: String = number.map(|byte| format!("{byte:02x}")).collect();
    let (first, rest) = number.split_at_checked(2)?;
    Some(folder.join(format!(".build-id/{first}/{rest}.debug")))
}

/// The memory that reading may take for each byte that a file has on the disk: sections may be
/// compressed, and what is found in them is kept too.
const MEMORY: u64 = 4;

/// A file, and when it was changed. What is read of it stays in memory: a report reads each once, and
/// ends. A file is not read that is mostly holes.
fn parse(path: &Path, local: Local) -> Result<(Elf, SystemTime)> {
    let found = match local {
        Some(mounts) => find_local(path, mounts),
        None => find(path),
    }?;
    let changed = found.about.modified()?;
    let on_disk = found.about.blocks().saturating_mul(512);
    let most = on_disk.saturating_mul(16).max(1 << 20);
    ensure!(found.about.len() <= most, "it is mostly holes");
    let content = found.read()?;
    allow(on_disk.saturating_mul(MEMORY))?;
    let content = Box::leak(Box::new(ReadCache::new(content)));
    let file = object::File::parse(&*content).context("it is no program")?;
    Ok((file, changed))
}

fn order(file: &Elf) -> RunTimeEndian {
    match file.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    }
}

/// A compressed section has at most so many bytes, or so many for each byte in the file: a small file
/// can claim much more.
const MOST: u64 = 256 << 20;
const RATIO: u64 = 16;

/// The content of a section; nothing if the file lacks it, or if it would be too much.
fn section(file: &Elf, name: Option<&'static str>) -> Result<Bytes, gimli::Error> {
    let found = name.and_then(|name| file.section_by_name(name));
    let found = found.filter(|section| {
        let range = section.compressed_file_range();
        range.is_ok_and(|range| {
            let most = range.compressed_size.saturating_mul(RATIO).max(MOST);
            range.format == CompressionFormat::None || range.uncompressed_size <= most
        })
    });
    let content = found.and_then(|section| section.uncompressed_data().ok());
    let content: &'static [u8] = match content.unwrap_or_default() {
        Cow::Borrowed(content) => content,
        Cow::Owned(content) => content.leak(),
    };
    Ok(EndianSlice::new(content, order(file)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_be_cut_short_while_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
        let main = 1 + a_file_may_be_cut_short_while_it_is_read as *const () as u64;
        let (symbols, _) = Symbols::read(&path, folder.path(), None).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(0)
            .unwrap();
        // The address is not that of the file, and any answer will do.
        for address in (0..1 << 24).step_by(4096).chain([main]) {
            let frames = symbols.frames(address);
            let _ = frames.and_then(|mut frames| frames.next().ok());
            symbols.symbol(address);
        }
        assert!(Symbols::read(&path, folder.path(), None).is_err());
    }
}
