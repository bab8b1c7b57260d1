// SPDX-License-Identifier: MIT OR Apache-2.0
//! The search for librdmamr.so.1.

use crate::elf::Elf;
use crate::report::units::shown;
use anyhow::{anyhow, bail};
use std::env;
use std::ffi::CStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const SONAME: &str = "librdmamr.so.1";
/// The module for LD_AUDIT, beside the library or in a folder there.
const MODULE: [&str; 2] = ["librdmamr-audit.so", "rdmamr/librdmamr-audit.so"];
/// The name that Cargo gives the library in target/release.
const BUILT: &str = "librdmamr.so";

#[cfg(target_arch = "x86_64")]
const TRIPLET: &str = "x86_64-linux-gnu";
#[cfg(target_arch = "aarch64")]
const TRIPLET: &str = "aarch64-linux-gnu";
#[cfg(target_arch = "riscv64")]
const TRIPLET: &str = "riscv64-linux-gnu";

/// The library, ready to be preloaded.
pub struct Library {
    pub path: PathBuf,
    pub elf: Elf,
}

/// Finds the library: at the path in `RDMAMR_LIBRARY`, else beside this program, else on the
/// linker's search path.
pub fn find() -> anyhow::Result<Library> {
    if let Some(path) = env::var_os("RDMAMR_LIBRARY").filter(|path| !path.is_empty()) {
        let path = std::path::absolute(path)?;
        return open(&path).map_err(|why| anyhow!("RDMAMR_LIBRARY={}: {why:#}", shown(&path)));
    }
    let mut looked = Vec::new();
    for path in candidates() {
        if path.exists() {
            return open(&path).map_err(|why| anyhow!("{}: {why:#}", shown(&path)));
        }
        if !looked.contains(&path) {
            looked.push(path);
        }
    }
    let looked: Vec<_> = looked
        .iter()
        .map(|path| format!("\n  {}", shown(path)))
        .collect();
    bail!(
        "{SONAME} is not found. Looked for\n  the path in RDMAMR_LIBRARY, which is not set{}\n  {SONAME} in the \
         linker's cache (ldconfig -p)\nInstall the library, or say RDMAMR_LIBRARY=/path/to/{SONAME}",
        looked.concat()
    )
}

impl Library {
    /// The module for LD_AUDIT that belongs to the library, or why it cannot be used.
    pub fn module(&self) -> Result<PathBuf, String> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        let fits = |path: &PathBuf| {
            let elf = Elf::read(path).ok().flatten();
            elf.is_some_and(|elf| elf.is_dynamic && elf.machine == self.elf.machine)
        };
        let path = MODULE.iter().map(|name| dir.join(name)).find(fits);
        let path = path.ok_or_else(|| format!("{} is not in {}", MODULE[0], shown(dir)))?;
        match glibc() {
            Some(version) if version < (2, 35) => Err(format!(
                "glibc {}.{} does not show all bindings to {}, glibc 2.35 does",
                version.0, version.1, MODULE[0]
            )),
            _ => Ok(path),
        }
    }
}

/// The version of the C library of this program, which is also that of the programs that it runs.
fn glibc() -> Option<(u32, u32)> {
    // SAFETY: the function has no preconditions.
    let version = unsafe { libc::gnu_get_libc_version() };
    // SAFETY: it returns a constant string.
    let version = unsafe { CStr::from_ptr(version) };
    let (major, minor) = version.to_str().ok()?.split_once('.')?;
    let minor = minor.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn open(path: &Path) -> anyhow::Result<Library> {
    let Some(elf) = Elf::read_library(path)? else {
        bail!("it is not a shared library");
    };
    if !elf.is_dynamic || elf.is_program || elf.interpreter.is_some() {
        bail!("it is a program, not a shared library");
    }
    if !elf.is_librdmamr {
        bail!("it is another library than {SONAME}: it does not export rdmamr_version");
    }
    // ld.so treats both characters as the end of a name, and they cannot be quoted.
    if path
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|byte| b": \t\n".contains(byte))
    {
        bail!(
            "LD_PRELOAD cannot hold a path with a space or a colon. Copy the library to another place"
        );
    }
    Ok(Library {
        path: path.to_owned(),
        elf,
    })
}

/// Later places are looked at only if the library is in none before: one of them takes a process.
fn candidates() -> impl Iterator<Item = PathBuf> {
    let places = [beside_this_program, in_library_path, in_cache, in_system];
    places.into_iter().flat_map(|place| place())
}

/// A library that is installed or built with this program precedes the others of the machine.
fn beside_this_program() -> Vec<PathBuf> {
    let program = env::current_exe().and_then(|path| path.canonicalize());
    let Some(dir) = program
        .ok()
        .and_then(|path| Some(path.parent()?.to_owned()))
    else {
        return Vec::new();
    };
    let mut paths = vec![dir.join(SONAME), dir.join(BUILT)];
    if let Some(prefix) = dir.parent() {
        paths.extend(["lib", "lib64"].map(|lib| prefix.join(lib).join(SONAME)));
        paths.push(prefix.join("lib").join(TRIPLET).join(SONAME));
    }
    paths
}

fn in_library_path() -> Vec<PathBuf> {
    let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let dirs = path
        .as_bytes()
        .split(|byte| b":;".contains(byte))
        .filter(|dir| !dir.is_empty());
    let paths =
        dirs.map(|dir| PathBuf::from(std::ffi::OsString::from_vec(dir.to_vec())).join(SONAME));
    paths
        .filter_map(|path| std::path::absolute(path).ok())
        .collect()
}

/// The paths in ldconfig's lines such as "librdmamr.so.1 (libc6,x86-64) =>
/// /usr/lib/librdmamr.so.1". The cache has one line for each machine whose code this machine can
/// run.
fn in_cache() -> Vec<PathBuf> {
    // Many users do not have /sbin in their PATH.
    let listed = ["/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"]
        .iter()
        .find_map(|ldconfig| Command::new(ldconfig).arg("-p").output().ok());
    let listed = listed.map(|output| output.stdout).unwrap_or_default();
    let lines = String::from_utf8_lossy(&listed).into_owned();
    let paths = lines.lines().filter_map(|line| {
        let (name, path) = line.trim().split_once(" => ")?;
        name.starts_with(&format!("{SONAME} ("))
            .then(|| PathBuf::from(path))
    });
    paths.filter(|path| runs_here(path)).collect()
}

fn in_system() -> Vec<PathBuf> {
    let dirs = [
        format!("/usr/local/lib/{TRIPLET}"),
        "/usr/local/lib".into(),
        format!("/lib/{TRIPLET}"),
        format!("/usr/lib/{TRIPLET}"),
        "/lib64".into(),
        "/usr/lib64".into(),
        "/lib".into(),
        "/usr/lib".into(),
    ];
    dirs.iter().map(|dir| Path::new(dir).join(SONAME)).collect()
}

/// Whether a file's code is for the machine of this program.
fn runs_here(path: &Path) -> bool {
    let machine = |path: &Path| Some(Elf::read(path).ok()??.machine);
    machine(path).is_some_and(|it| machine(Path::new("/proc/self/exe")) == Some(it))
}
