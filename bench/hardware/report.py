#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""report.py DEVICE WORK [ROOT TREE]: prints the report of "make hardware" on a device: the facts about it
and its machine (from the files under ROOT, /), and the results in the folder WORK: summary and *.tap of
the suites, bench.plain, bench.cache and doctor. The whole text is masked (mask.py), also the path of
the source tree (TREE; the working directory).
"""
import platform
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

from mask import mask, rules

# The lines of a failed suite, from its end.
SHOWN = 60


def read(path):
    try:
        return path.read_text(errors="replace").rstrip()
    except OSError:
        return ""


def said(*command):
    """The output of a command; empty if there is no such command."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def field(text, name):
    """The first value of "NAME: VALUE" or "NAME=VALUE" in a file of such lines."""
    found = re.search(rf'^{name}\s*[:=]\s*"?(.*?)"?\s*$', text, re.M)
    return found[1] if found else ""


def modules(root, pci, driver):
    """The kernel's modules of a device that are loaded, each with its version: the kernel's own have none."""
    link = pci / "driver"
    names = (link.resolve().name if link.exists() else "", driver, f"{driver}_ib", f"rdma_{driver}")
    for name in dict.fromkeys(names):
        if name and (root / "sys/module" / name).exists():
            yield f"{name} {read(root / 'sys/module' / name / 'version')}".strip()


def listed(*parts):
    return ", ".join(filter(None, parts))


def packages():
    """The packages of rdma-core that are installed, by the package manager that the machine has."""
    names = ("rdma-core", "libibverbs1", "libibverbs", "ibverbs-providers")
    for command in (("dpkg-query", "-W", "-f", "${Package} ${Version}, "), ("rpm", "-q", "--qf", "%{NAME} %{VERSION}-%{RELEASE}, ")):
        found = [part for part in said(*command, *names).split(", ") if re.fullmatch(r"[\w-]+ [\w.:~+-]+", part)]
        if found:
            return ", ".join(found)
    return ""


def doctor_says(doctor, subject):
    """What doctor found about a subject, its lines joined."""
    found = re.search(rf"^\w+ +{subject}(?: \S+)?: (.*(?:\n {{9}}(?!->).*)*)", doctor, re.M)
    return re.sub(r"\s+", " ", found[1]) if found else ""


def facts(root, device, doctor):
    sysfs = root / "sys/class/infiniband" / device
    pci = sysfs / "device"
    driver = doctor_says(doctor, "driver").partition(":")[0]
    ids = (f"{name} {read(pci / name)}" for name in ("vendor", "device", "subsystem_vendor", "subsystem_device") if read(pci / name))
    ports = []
    for port in sorted(sysfs.glob("ports/*")):
        state = read(port / "state").rpartition(" ")[2].lower()
        ports.append(listed(f"{port.name} {state}", read(port / "link_layer"), read(port / "rate")))
    cpuinfo = read(root / "proc/cpuinfo")
    processors = len(re.findall(r"^processor\b", cpuinfo, re.M))
    return {
        "library": listed(field(read(Path("Cargo.toml")), "version"), said("git", "describe", "--always", "--dirty", "--abbrev=10")),
        "date": date.today().isoformat(),
        "device": device,
        "driver": listed(driver, *modules(root, pci, driver)),
        "driver's package": said("ofed_info", "-s").rstrip(":"),
        "hardware": listed(read(sysfs / "hca_type"), read(sysfs / "board_id"), *ids),
        "firmware": read(sysfs / "fw_ver"),
        "ports": "; ".join(ports),
        "rdma-core": listed(doctor_says(doctor, "rdma-core"), packages()),
        "kernel": platform.release(),
        "system": field(read(root / "etc/os-release"), "PRETTY_NAME"),
        "processors": f"{processors} of {field(cpuinfo, 'model name') or platform.machine()}",
        "NUMA nodes": str(len(list((root / "sys/devices/system/node").glob("node[0-9]*")))),
        "memory": field(read(root / "proc/meminfo"), "MemTotal"),
        "IOMMU": "on" if any((root / "sys/class/iommu").glob("*")) else "off",
        "virtual machine": "yes" if re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.M) else "no",
    }


def failed(path):
    """Whether a suite failed, or did not run to its end."""
    text = read(path)
    return bool(re.search(r"^(not ok|Bail out!)", text, re.M)) or not re.search(r"^1\.\.\d+", text, re.M)


def section(title, text):
    return f"\n== {title} ==\n\n{text.rstrip() or 'It did not run.'}\n"


def report(found, work):
    yield "A report of librdmamr's `make hardware`, format 1. Names and addresses are masked.\n\n"
    yield "".join(f"{name:18}{value}\n" for name, value in found.items() if value)
    yield section("Suites", read(work / "summary"))
    for path in filter(failed, sorted(work.glob("*.tap"))):
        yield section(f"The end of {path.stem}", "\n".join(line[:300] for line in read(path).splitlines()[-SHOWN:]))
    for name, title in (("plain", "Plain registration (bench/run plain)"), ("cache", "The cache (bench/run cache)")):
        lines = read(work / f"bench.{name}").splitlines()
        yield section(title, "\n".join(line for line in lines if "`bench/figures take`" not in line))
    yield section("rdmamr doctor", read(work / "doctor"))


def main(device, work, root="/", tree=None):
    root, work = Path(root), Path(work)
    found = facts(root, device, read(work / "doctor"))
    # These are versions, even if they look like addresses.
    versions = re.findall(r"\d+(?:\.\d+){3}", " ".join(found[name] for name in ("driver", "driver's package", "firmware", "rdma-core")))
    sys.stdout.write(mask("".join(report(found, work)), rules(root, tree or Path.cwd(), versions)))


if __name__ == "__main__":
    main(*sys.argv[1:])
