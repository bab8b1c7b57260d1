#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""mask.py < TEXT: prints the text without the names of this machine, its users, their folders and all
addresses, for a report that people can send (report.py).

The machine's own names and serial numbers come from its files, and are replaced wherever they stand,
even if a name is also a word of the report. Addresses are known by their form, so those of other
machines are replaced too: IPv4, IPv6, MAC, GID, GUID, and hexadecimal numbers of twelve digits or more.
"""
import ipaddress
import os
import re
import sys
from pathlib import Path


def lines(root, pattern):
    """The lines of the files that a pattern names, without comments. A file that cannot be read has none."""
    for path in sorted(root.glob(pattern)):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        yield from (line.partition("#")[0] for line in text.splitlines())


def words(root, *patterns):
    return [word for pattern in patterns for line in lines(root, pattern) for word in line.split()]


def hosts(root):
    """The names of this machine and of those that it knows, and their domains."""
    names = set(words(root, "etc/hostname", "proc/sys/kernel/hostname"))
    names |= {name for line in lines(root, "etc/hosts") for name in line.split()[1:]}
    names = {name for name in names if not re.match(r"localhost|localdomain|ip6-|\(none\)", name)}
    domains = set(words(root, "proc/sys/kernel/domainname")) - {"(none)"}
    domains |= {name for line in lines(root, "etc/resolv.conf") if re.match("search|domain", line) for name in line.split()[1:]}
    domains |= {name.partition(".")[2] for name in names}
    return names | {name.partition(".")[0] for name in names}, {domain.strip(".") for domain in domains} - {""}


def users(root):
    """The names of people: this process's user, and the users whose numbers begin at 1000; and their folders."""
    names = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")} - {"root"}
    homes = {os.environ.get("HOME", "")}
    for line in lines(root, "etc/passwd"):
        fields = line.split(":")
        if len(fields) > 5 and fields[2].isdigit() and 1000 <= int(fields[2]) < 65534:
            names.add(fields[0])
            homes.add(fields[5])
    return names, homes - {"/"}


def any_of(values):
    """A pattern for names that stand alone. The longest goes first, since it may contain another."""
    alternatives = "|".join(map(re.escape, sorted(values, key=len, reverse=True))) or r"(?!)"
    return re.compile(rf"(?<![0-9A-Za-z])(?:{alternatives})(?![0-9A-Za-z])", re.IGNORECASE)


def address(match):
    """Four groups or more, of an address or a GUID; or an IPv6 address with "::"."""
    text = match[0]
    groups = text.strip(":").split(":")
    if len(groups) > 3 and all(groups):
        return "<address>"
    token = re.sub(r"^:(?!:)|(?<!:):$", "", text)
    try:
        ipaddress.IPv6Address(token)
    except ValueError:
        return text
    return text if token == "::" else text.replace(token, "<address>")


def rules(root=Path("/"), tree="", versions=()):
    """The rules by name, in their order: a pattern or a set of names, and the replacement. A version of
    four numbers looks like an IPv4 address, and stays.
    """
    names, domains = hosts(root)
    people, homes = users(root)
    serials = words(root, "etc/machine-id", "sys/class/dmi/id/*_serial", "sys/class/dmi/id/product_uuid", "sys/class/dmi/id/*_asset_tag")
    own = words(root, "sys/class/net/*/address", "sys/class/infiniband/*/node_guid", "sys/class/infiniband/*/sys_image_guid")
    suffixes = "|".join(map(re.escape, sorted(domains, key=len, reverse=True))) or r"(?!)"
    kept = lambda match: match[0] if match[0] in versions else "<address>"
    start, end = r"(?<![0-9A-Za-z])", r"(?![0-9A-Za-z])"
    return {
        "tree": ({str(tree)}, "<tree>"),
        "home": (homes, "<home>"),
        "another home": (re.compile(r"/home/[^/\s:]+"), "<home>"),
        "mail": (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<mail>"),
        "domain": (re.compile(rf"{start}[\w.-]*[\w-]\.(?:{suffixes}){end}", re.IGNORECASE), "<host>"),
        "host": (names | {domain for domain in domains if "." in domain}, "<host>"),
        "user": (people, "<user>"),
        "serial number": ({word for word in serials if len(word) > 3}, "<serial>"),
        "own hardware address": ({word.replace(":", "") for word in own}, "<address>"),
        "groups": (re.compile(r"(?<![0-9A-Fa-f])[0-9A-Fa-f]*:[0-9A-Fa-f:]*(?:\d{1,3}(?:\.\d{1,3}){3})?(?![0-9A-Za-z:])"), address),
        # Not the version in the name of a library's file.
        "IPv4": (re.compile(r"(?<!\d)(?<!\d\.)(?<!\.so\.)\d{1,3}(?:\.\d{1,3}){3}(?!\d|\.\d)"), kept),
        "IPv4 in a name": (re.compile(rf"{start}(?:(ip)-)?\d{{1,3}}(?:-\d{{1,3}}){{3}}{end}"), "<address>"),
        "UUID": (re.compile(rf"{start}[0-9A-Fa-f]{{8}}(?:-[0-9A-Fa-f]{{4}}){{3}}-[0-9A-Fa-f]{{12}}{end}"), "<serial>"),
        "MAC with dashes": (re.compile(rf"{start}[0-9A-Fa-f]{{2}}(?:-[0-9A-Fa-f]{{2}}){{5,}}{end}"), "<address>"),
        "MAC with dots": (re.compile(rf"{start}[0-9A-Fa-f]{{4}}(?:\.[0-9A-Fa-f]{{4}}){{2,}}{end}"), "<address>"),
        # A decimal number is a time, or a number of bytes.
        "hexadecimal": (
            re.compile(r"(?<![0-9A-Fa-f])(?:0x[0-9A-Fa-f]{12,}|(?=\d*[A-Fa-f])(?=[A-Fa-f]*\d)[0-9A-Fa-f]{12,})(?![0-9A-Fa-f])"),
            "<hex>",
        ),
    }


def mask(text, rules):
    for pattern, replacement in rules.values():
        if isinstance(pattern, set):
            # A cluster has thousands of names; the text has few of them.
            lower = text.lower()
            pattern = any_of(name for name in pattern if len(name) > 1 and name.lower() in lower)
        text = pattern.sub(replacement, text)
    return text


if __name__ == "__main__":
    sys.stdout.write(mask(sys.stdin.read(), rules(tree=Path.cwd())))
