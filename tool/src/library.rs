// SPDX-License-Identifier: MIT OR Apache-2.0
//! The search for librdmamr.so.1.

use crate::elf::Elf;
use crate::files::version;
use crate::report::units::shown;
use anyhow::{Context, bail, ensure};
use std::env;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SONAME: &str = "librdmamr.so.1";
/// The module for LD_AUDIT, beside the library or in a folder there.
const MODULE: [&str; 2] = ["librdmamr-audit.so", "rdmamr/librdmamr-audit.so"];
/// The name that Cargo gives the library in target/release.
const BUILT: &str = "librdmamr.so";

/// The library, ready to be preloaded.
pub struct Library {
    pub path: PathBuf,
    pub elf: Elf,
}

/// Finds the library: at the path in `RDMAMR_LIBRARY`, else beside this program, else where the dynamic
/// linker does.
pub fn find() -> anyhow::Result<Library> {
    if let Some(path) = env::var_os("RDMAMR_LIBRARY").filter(|path| !path.is_empty()) {
        let path = std::path::absolute(path)?;
        return open(&path).with_context(|| format!("RDMAMR_LIBRARY={}", shown(&path)));
    }
    let beside = beside_this_program();
    let found = beside.iter().find(|path| path.exists()).cloned();
    if let Some(path) = found.or_else(by_linker) {
        return open(&path).with_context(|| shown(&path));
    }
    let looked = beside.iter().map(|path| format!("\n  {}", shown(path)));
    bail!(
        "{SONAME} is not found. Looked for\n  the path in RDMAMR_LIBRARY, which is not set{}\n  {SONAME} where the \
         dynamic linker looks (LD_LIBRARY_PATH, ldconfig -p)\nInstall the library, or say RDMAMR_LIBRARY=/path/to/{SONAME}",
        looked.collect::<String>()
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
            (major, minor) if (major, minor) < (2, 35) => Err(format!(
                "glibc {major}.{minor} does not show all bindings to {}, glibc 2.35 does",
                MODULE[0]
            )),
            _ => Ok(path),
        }
    }
}

/// The version of the C library of this program, which is also that of the programs that it runs.
fn glibc() -> (u32, u32) {
    // SAFETY: the function has no preconditions.
    let release = unsafe { libc::gnu_get_libc_version() };
    // SAFETY: it returns a constant string.
    version(&unsafe { CStr::from_ptr(release) }.to_string_lossy())
}

fn open(path: &Path) -> anyhow::Result<Library> {
    let elf = Elf::read(path)?.context("it is not a shared library")?;
    ensure!(
        elf.is_dynamic && !elf.is_program && elf.interpreter.is_none(),
        "it is a program, not a shared library"
    );
    ensure!(
        elf.soname == SONAME.as_bytes(),
        "it is another library than {SONAME}: its DT_SONAME is \"{}\"",
        elf.soname.escape_ascii()
    );
    // ld.so treats both characters as the end of a name, and they cannot be quoted.
    let ends_a_name = |byte: &u8| b": \t\n".contains(byte);
    ensure!(
        !path.as_os_str().as_bytes().iter().any(ends_a_name),
        "LD_PRELOAD cannot hold a path with a space or a colon. Copy the library to another place"
    );
    Ok(Library {
        path: path.to_owned(),
        elf,
    })
}

/// The path of this program: without /proc, that by which it was executed.
fn this_program() -> PathBuf {
    env::current_exe().unwrap_or_else(|_| {
        // SAFETY: getauxval has no preconditions.
        let path = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const c_char;
        // SAFETY: the kernel has put the path there, for as long as the process runs.
        let path = unsafe { CStr::from_ptr(path) };
        OsStr::from_bytes(path.to_bytes()).into()
    })
}

/// A library that is installed or built with this program precedes the others of the machine.
fn beside_this_program() -> Vec<PathBuf> {
    let program = this_program().canonicalize();
    let Some(dir) = program.as_ref().ok().and_then(|path| path.parent()) else {
        return Vec::new();
    };
    let mut paths = vec![dir.join(SONAME), dir.join(BUILT)];
    if let Some(prefix) = dir.parent() {
        let multiarch = format!("lib/{}-linux-gnu", env::consts::ARCH);
        paths.extend(["lib", "lib64", &multiarch].map(|lib| prefix.join(lib).join(SONAME)));
    }
    paths
}

/// The path that the dynamic linker finds, which it prints instead of running a program: "librdmamr.so.1
/// => /usr/lib/librdmamr.so.1 (0x00007f...)".
fn by_linker() -> Option<PathBuf> {
    let listed = Command::new(this_program())
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .env("LD_PRELOAD", SONAME)
        .env_remove("LD_AUDIT")
        .output();
    let listed = String::from_utf8_lossy(&listed.ok()?.stdout).into_owned();
    listed.lines().find_map(|line| {
        let path = line.trim().strip_prefix(SONAME)?.strip_prefix(" => ")?;
        std::path::absolute(path.rsplit_once(" (")?.0).ok()
    })
}
