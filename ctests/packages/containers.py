#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""containers.py: what ctests/packages/containers.sh needs of Python.

containers.py seccomp PROFILE [--without CALL]... [--also CALL]... -- COMMAND...
    runs the command under a seccomp profile in the format of OCI runtimes, by libseccomp, as they do
containers.py profile PROFILE
    prints the calls that the profile allows or forbids wrongly
containers.py yaml TOOLS FILE...
    validates the files by Kubernetes' own schemas, strictly, with the packages in the folder TOOLS
containers.py capabilities TOOLS FILE
    prints the capabilities that the file's first container adds, as setpriv takes them
containers.py script TOOLS FILE
    prints the shell script of the file's first container
"""
import ctypes
import json
import os
import sys
from pathlib import Path

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
OPERATORS = {f"SCMP_CMP_{name}": number for number, name in enumerate(("NE", "LT", "LE", "EQ", "GE", "GT", "MASKED_EQ"), 1)}
KUBERNETES = "1.32"


class Comparison(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def action(rule, profile):
    """The kernel's action for a rule or, of the profile, for all other calls."""
    name, error = (rule["action"], rule.get("errnoRet", 1)) if rule else (profile["defaultAction"], profile.get("defaultErrnoRet", 1))
    return ALLOW if name == "SCMP_ACT_ALLOW" else ERRNO | error


def seccomp(file, *arguments):
    split = arguments.index("--")
    options, command = arguments[:split], arguments[split + 1:]
    profile = json.loads(Path(file).read_text())
    without = {options[at + 1] for at, word in enumerate(options) if word == "--without"}
    also = [options[at + 1] for at, word in enumerate(options) if word == "--also"]
    rules = profile["syscalls"] + [{"action": "SCMP_ACT_ALLOW", "names": also}]
    seccomp_library = ctypes.CDLL("libseccomp.so.2")
    seccomp_library.seccomp_init.restype = ctypes.c_void_p
    seccomp_library.seccomp_arch_resolve_name.restype = ctypes.c_uint32
    context = ctypes.c_void_p(seccomp_library.seccomp_init(ctypes.c_uint32(action(None, profile))))
    for name in profile["architectures"]:
        token = seccomp_library.seccomp_arch_resolve_name(name.removeprefix("SCMP_ARCH_").lower().encode())
        seccomp_library.seccomp_arch_add(context, ctypes.c_uint32(token))
    for rule in rules:
        comparisons = [Comparison(one["index"], OPERATORS[one["op"]], one["value"], one.get("valueTwo", 0)) for one in rule.get("args", ())]
        if action(rule, profile) == action(None, profile):
            continue
        for name in set(rule["names"]) - without:
            number = seccomp_library.seccomp_syscall_resolve_name(name.encode())
            # As runtimes do: an older libseccomp does not know newer calls.
            if number == -1:
                continue
            array = (Comparison * len(comparisons))(*comparisons)
            status = seccomp_library.seccomp_rule_add_array(context, ctypes.c_uint32(action(rule, profile)), number, len(comparisons), array)
            if status:
                sys.exit(f"containers.py: {name}: libseccomp: {os.strerror(-status)}")
    status = seccomp_library.seccomp_load(context)
    if status:
        sys.exit(f"containers.py: seccomp_load: {os.strerror(-status)}")
    os.execvp(command[0], command)


def profile(file):
    allowed = {name for rule in json.loads(Path(file).read_text())["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("args") for name in rule["names"]}
    if "userfaultfd" not in allowed:
        yield "userfaultfd is not allowed"
    # A container without capabilities gets none of these from any runtime.
    for name in ("mount", "unshare", "setns", "bpf", "perf_event_open", "keyctl", "open_by_handle_at", "io_uring_setup", "clone", "clone3", "init_module", "kexec_load"):
        if name in allowed:
            yield f"{name} is allowed"


def document(tools, file):
    sys.path.insert(0, tools)
    import yaml

    return list(yaml.safe_load_all(Path(file).read_text()))


def validate(tools, *files):
    found = {file: document(tools, file) for file in files}
    import kubernetes_validate

    for file, parts in found.items():
        for part in parts:
            try:
                kubernetes_validate.validate(part, KUBERNETES, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{file}: {'.'.join(map(str, error.path))}: {error.message}"


def container(tools, file):
    spec = document(tools, file)[0]["spec"]
    return spec.get("template", {}).get("spec", spec)["containers"][0]


def capabilities(tools, file):
    print(",".join("+" + name.lower() for name in container(tools, file)["securityContext"]["capabilities"]["add"]))


def script(tools, file):
    print(container(tools, file)["args"][0], end="")


command, *arguments = sys.argv[1:]
complaints = list({"seccomp": seccomp, "profile": profile, "yaml": validate, "capabilities": capabilities, "script": script}[command](*arguments) or ())
print(*complaints, sep="\n", end="\n" if complaints else "")
sys.exit(bool(complaints))
