// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides, before the program runs, whether a library can be preloaded into it. ld.so(8) says
//! nothing, or only warns, and then runs the program without the library.

use super::search;
use crate::elf::Elf;
use crate::files::named::read_any;
use crate::library::Library;
use crate::report::units::shown;
use anyhow::{Result, anyhow, bail, ensure};
use rustix::fs::{StatVfsMountFlags, getxattr_query, statvfs};
use rustix::process::{getgid, getuid};
use rustix::thread::no_new_privs;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The kernel follows at most this many scripts that interpret scripts.
pub const MOST_SCRIPTS: usize = 5;

/// An error says why the library cannot be preloaded. `scripts` is how many may follow.
pub fn judge(
    program: &Path,
    arguments: &[OsString],
    library: &Library,
    scripts: usize,
) -> Result<()> {
    let elf = match Elf::read(program) {
        Ok(Some(elf)) => elf,
        Ok(None) => return judge_script(program, library, scripts),
        // A program may be executable but not readable: then only its privileges are judged.
        Err(error) => match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::PermissionDenied) => return privileged(program),
            _ => bail!("it is a broken ELF file ({error:#})"),
        },
    };
    ensure!(
        elf.machine == library.elf.machine,
        "it is built for {}, and the library for {}. Build the library for the former, and set \
         RDMAMR_LIBRARY",
        elf.machine,
        library.elf.machine
    );
    match &elf.interpreter {
        Some(interpreter) => loader(interpreter)?,
        // The program is glibc's loader, run to load another program.
        None if elf.is_dynamic && !elf.is_program && is_loader_of_glibc(program) => {}
        None => bail!(
            "it is statically linked, so no library is loaded into it. Link it dynamically to \
             libibverbs, or link librdmamr.a before libibverbs"
        ),
    }
    privileged(program)?;
    // env(1) only sets the environment for another program, as in "#!/usr/bin/env python3".
    match by_env(program, arguments) {
        Some(started) if scripts > 0 => {
            let Ok(path) = search::find(&started) else {
                return Ok(());
            };
            judge(&path, &[], library, scripts - 1)
                .map_err(|why| anyhow!("it starts {}, and {why:#}", shown(&path)))
        }
        _ => Ok(()),
    }
}

fn is_loader_of_glibc(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    // ld64.so: POWER and s390.
    let mut known = [&b"ld-linux"[..], b"ld64.so", b"ld.so"].into_iter();
    known.any(|known| name.starts_with(known))
}

fn loader(interpreter: &Path) -> Result<()> {
    let path = shown(interpreter);
    let name = interpreter.file_name().unwrap_or_default().as_bytes();
    ensure!(
        !name.starts_with(b"ld-musl"),
        "it is built for the C library musl (its loader is {path}), and the library for glibc. \
         Build the program on a system with glibc"
    );
    ensure!(
        is_loader_of_glibc(interpreter),
        "its loader is {path}, which is not glibc's, and the library is built for glibc"
    );
    ensure!(
        interpreter.exists(),
        "its loader {path} does not exist here, so it cannot run at all"
    );
    Ok(())
}

/// Whether the kernel will give the program rights that its caller lacks: ld.so(8) then preloads no
/// library from outside (secure-execution mode).
fn privileged(program: &Path) -> Result<()> {
    // Asked only of a program that is marked: a filter may kill at prctl(2).
    let gains_nothing = || {
        let is_without =
            statvfs(program).is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::NOSUID));
        is_without || no_new_privs().unwrap_or(false)
    };
    let advice = "ld.so preloads nothing into a program that gains rights. Run it as that user, or run a copy \
                  without those rights";
    let Ok(metadata) = program.metadata() else {
        return Ok(());
    };
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    let (owner, owners) = (metadata.uid(), metadata.gid());
    let has = |bits| metadata.mode() & bits == bits;
    ensure!(
        !has(libc::S_ISUID) || owner == user || gains_nothing(),
        "it is set-uid (to user {owner}), and {advice}"
    );
    ensure!(
        !has(libc::S_ISGID | libc::S_IXGRP) || owners == group || gains_nothing(),
        "it is set-gid (to group {owners}), and {advice}"
    );
    // Root has all capabilities already.
    let has_capabilities = getxattr_query(program, "security.capability").is_ok_and(|it| it > 0);
    ensure!(
        !has_capabilities || user == 0 || gains_nothing(),
        "it has file capabilities (getcap {}), and {advice}",
        shown(program)
    );
    Ok(())
}

/// The program that env(1) starts, if the program is env.
fn by_env(program: &Path, arguments: &[OsString]) -> Option<OsString> {
    if program.file_name()? != "env" {
        return None;
    }
    let is_other = |word: &&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
    // "-S" comes in one argument with the words after it.
    let words = arguments.iter().map(|argument| argument.as_bytes());
    let words = words.flat_map(|words| words.split(|&byte| byte == b' '));
    let mut words = words.filter(|word| !word.is_empty());
    Some(OsStr::from_bytes(words.find(is_other)?).to_owned())
}

fn judge_script(script: &Path, library: &Library, scripts: usize) -> Result<()> {
    let mut start = Vec::new();
    read_any(script)?.take(256).read_to_end(&mut start)?;
    let Some((interpreter, argument)) = interpreter_of(&start) else {
        // A file without a `#!` line is run by the shell, as in execvp(3), unless the file is
        // binary.
        ensure!(
            !start.contains(&0),
            "it is neither an ELF program nor a script"
        );
        return Ok(());
    };
    ensure!(
        scripts > 0,
        "it is a script, and too many of its interpreters are scripts in turn"
    );
    ensure!(
        interpreter.exists(),
        "it is a script, and its interpreter {} does not exist",
        shown(&interpreter)
    );
    let arguments: Vec<OsString> = argument.into_iter().collect();
    judge(&interpreter, &arguments, library, scripts - 1)
        .map_err(|why| anyhow!("it is a script, run by {}: {why:#}", shown(&interpreter)))
}

/// The interpreter that a first line `#!INTERPRETER [ARGUMENT]` names.
fn interpreter_of(start: &[u8]) -> Option<(PathBuf, Option<OsString>)> {
    let mut lines = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n');
    let line = lines.next()?.trim_ascii();
    let end = line.iter().position(u8::is_ascii_whitespace);
    let (path, argument) = line.split_at(end.unwrap_or(line.len()));
    let owned = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let argument = Some(argument.trim_ascii()).filter(|argument| !argument.is_empty());
    (!path.is_empty()).then(|| (owned(path).into(), argument.map(owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(arguments: &[&str]) -> Option<OsString> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        by_env(Path::new("/usr/bin/env"), &arguments)
    }

    #[test]
    fn first_lines() {
        assert_eq!(
            interpreter_of(b"#!/bin/sh\nx"),
            Some(("/bin/sh".into(), None))
        );
        assert_eq!(
            interpreter_of(b"#! /usr/bin/env  -S python3 -u \n"),
            Some(("/usr/bin/env".into(), Some("-S python3 -u".into())))
        );
        assert_eq!(interpreter_of(b"#!\n"), None);
        assert_eq!(interpreter_of(b"echo"), None);
    }

    #[test]
    fn what_env_starts() {
        assert_eq!(env(&["python3"]), Some("python3".into()));
        assert_eq!(env(&["-S python3 -u"]), Some("python3".into()));
        assert_eq!(env(&["-i", "A=b", "prog", "x"]), Some("prog".into()));
        assert_eq!(env(&["A=b"]), None);
        assert_eq!(by_env(Path::new("/bin/sh"), &["x".into()]), None);
    }
}
