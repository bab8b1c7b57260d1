# SPDX-License-Identifier: MIT OR Apache-2.0
"""The crates that are linked into what this tree builds, for scripts that name them: their versions,
checksums and licences."""
import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Debian's architectures of the packages.
TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "riscv64gc-unknown-linux-gnu"]


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def metadata(*targets):
    """Cargo's words on the packages, of these targets alone."""
    platforms = [word for target in targets for word in ("--filter-platform", target)]
    return json.loads(run("cargo", "metadata", "--locked", "--format-version", "1", *platforms))


def packages():
    return {(p["name"], p["version"]): p for p in metadata(*TARGETS)["packages"]}


def linked(*crates):
    """The name and the version of each crate that is linked into these, without those that run while
    they are compiled."""
    words = [word for target in TARGETS for word in ("--target", target)]
    words += [word for crate in crates for word in ("-p", crate)]
    tree = run("cargo", "tree", "--locked", *words, "-e", "normal,no-proc-macro", "--prefix", "none", "-f", "{p}")
    return {(line.split()[0], line.split()[1].removeprefix("v")) for line in tree.splitlines() if line.strip()}


def lock():
    """The registry's checksum of each crate of Cargo.lock."""
    found, crate = {}, {}
    for line in (ROOT / "Cargo.lock").read_text().splitlines():
        key, _, value = line.partition(" = ")
        crate = {} if line == "[[package]]" else crate | {key: value.strip('"')}
        if key == "checksum":
            found[crate["name"], crate["version"]] = crate["checksum"]
    return found


def texts(package):
    """The files of a crate's licences, and their texts."""
    folder = pathlib.Path(package["manifest_path"]).parent
    found = [path for path in sorted(folder.iterdir()) if re.match(r"(un)?licen[cs]e|copying|copyright|notice", path.name, re.I)]
    return {path.name: path.read_text(errors="replace") for path in found if path.is_file()}
