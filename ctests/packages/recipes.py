#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""recipes.py commands|files|checks|facts KIND FILE PREFIX: reads a recipe of packaging/recipes as its program
would (KIND: spack, conda or easybuild), for ctests/packages/recipes.sh.

commands: the shell commands that build the package and install it in PREFIX
files: the paths below PREFIX that the recipe says are there afterwards
checks: the shell commands by which it tests the installation
facts: the address of the source, its checksum, and the least version of Rust, or "-"
"""
import re
import subprocess
import sys
import types
from pathlib import Path


class Spack:
    def __init__(self, file, prefix):
        calls = []

        class Makefile:
            stage = types.SimpleNamespace(path="$SRC_DIR")

        modules = {"spack_repo.builtin.build_systems.makefile": {"MakefilePackage": Makefile}}
        directives = ("license", "version", "depends_on", "conflicts", "maintainers")
        modules["spack.package"] = {name: lambda *words, _name=name, **named: calls.append((_name, words, named)) for name in directives}
        modules["spack.package"]["Executable"] = lambda path: lambda *words, **_: subprocess.run([path, *words], check=True, stdout=subprocess.PIPE, text=True).stdout
        for name, values in modules.items():
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(parts[end - 1]))
            vars(sys.modules[name]).update(values, __all__=list(values))
        scope = {"__name__": "package"}
        exec(compile(file.read_text(), str(file), "exec"), scope)
        package = scope["Rdmamr"]()
        package.version = next(words[0] for name, words, _ in calls if name == "version")
        programs = types.SimpleNamespace(rdmamr=f"{prefix}/bin/rdmamr")
        package.prefix = type("Prefix", (str,), {"lib": f"{prefix}/lib", "bin": programs})(prefix)
        environment = []
        recorder = types.SimpleNamespace(set=lambda name, value: environment.append(f'export {name}="{value}"'))
        package.setup_build_environment(recorder)
        self.commands = [*environment, "make " + " ".join(package.build_targets), "make " + " ".join(package.install_targets)]
        environment.clear()
        package.setup_run_environment(recorder)
        self.files, self.checks = ["bin/rdmamr"], environment
        tests = [name for name in dir(package) if name.startswith("test")]
        if not (tests and package.homepage and any(name == "maintainers" for name, *_ in calls)):
            sys.exit("it lacks a test, a homepage or maintainers")
        for name in tests if what == "checks" else ():
            getattr(package, name)()
            self.checks.append(f"true {name}")
        rust = next(words[0] for name, words, _ in calls if name == "depends_on" and words[0].startswith("rust"))
        checksum = next(named["sha256"] for name, _, named in calls if name == "version")
        self.facts = [package.url, checksum, re.fullmatch(r"rust@([\d.]+):", rust)[1]]


class Conda:
    def __init__(self, file, prefix):
        import yaml

        text = file.read_text().replace("${{ version }}", re.search(r'version: "(.*)"', file.read_text())[1])
        recipe = yaml.safe_load(text)
        if "#" in file.read_text() or not {"homepage", "repository", "license_file"} <= set(recipe["about"]):
            sys.exit("it has a comment, or lacks a repository")
        known = {"context", "package", "source", "build", "requirements", "tests", "about", "extra", "schema_version"}
        if set(recipe) - known:
            sys.exit(f"unknown: {set(recipe) - known}")
        self.commands = recipe["build"]["script"]
        self.files = recipe["tests"][1]["package_contents"]["files"] + []
        self.checks = recipe["tests"][0]["script"]
        for name in recipe["about"]["license_file"]:
            if not Path(name).exists():
                sys.exit(f"no such licence: {name}")
        self.facts = [recipe["source"]["url"], recipe["source"]["sha256"], "-"]


class Easybuild:
    def __init__(self, file, prefix):
        easyconfig = {"SYSTEM": {}}
        exec(compile(file.read_text(), str(file), "exec"), easyconfig)
        filled = lambda text: text % {"version": easyconfig["version"], "installdir": prefix, "start_dir": "."}
        self.commands = [filled(easyconfig["prebuildopts"] + ":"), *map(filled, easyconfig["postinstallcmds"])]
        # The easyblock Cargo needs all crates of Cargo.lock, and a checksum for each source.
        sources = [filled(easyconfig["sources"][0])] + [f"{name}-{version}.tar.gz" for name, version in easyconfig["crates"]]
        if easyconfig["easyblock"] != "Cargo" or [name for entry in easyconfig["checksums"] for name in entry] != sources:
            sys.exit("a source lacks its checksum")
        locked = re.findall(r'\nname = "(.*)"\nversion = "(.*)"\nsource = .*\nchecksum = "(.*)"', Path("Cargo.lock").read_text())
        if sorted((f"{name}-{version}.tar.gz", checksum) for name, version, checksum in locked) != sorted(
            one for entry in easyconfig["checksums"][1:] for one in entry.items()
        ):
            sys.exit("its crates are not those of Cargo.lock")
        paths = easyconfig["sanity_check_paths"]
        self.files = paths["files"] + paths["dirs"]
        self.checks = [f'export {name}="{filled(value)}"' for name, value in easyconfig["modextravars"].items()] + easyconfig["sanity_check_commands"]
        rust = next(version for name, version in easyconfig["builddependencies"] if name == "Rust")
        self.facts = [easyconfig["source_urls"][0] + "/" + sources[0], easyconfig["checksums"][0][sources[0]], rust]


what, kind, file, prefix = sys.argv[1:]
print(*getattr({"spack": Spack, "conda": Conda, "easybuild": Easybuild}[kind](Path(file), prefix), what), sep="\n")
