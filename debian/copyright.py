#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""copyright.py CRATE: debian/copyright of a package with CRATE, and with the crates that are linked into it."""
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "packaging"))
import crates

# Lines that name a holder, not the licences' own words and blanks about copyright.
HOLDER = re.compile(r"^\W*(Copyright\b.*(?:\(c\)|©|\d{4}|contributors|developers|authors).*)$", re.I | re.M)
BLANK = re.compile(r"yyyy|copyright (?:notice|license|owner|statement)", re.I)
MIT = """\
Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE."""
APACHE = 'On Debian systems the text of this licence is in "/usr/share/common-licenses/Apache-2.0".'


def indented(text):
    """As a field's continuation lines."""
    return "".join(f"\n {line.rstrip() or '.'}" for line in text.strip("\n").split("\n"))


def holders(package):
    lines = [line.strip() for text in crates.texts(package).values() for line in HOLDER.findall(text) if not BLANK.search(line)]
    named = [re.sub(r"^Copyright\s*(\(c\)|©)?\s*", "", line, flags=re.I).strip(" .*/") for line in lines]
    return list(dict.fromkeys(named)) or package["authors"] or [f"the authors of {package['name']}"]


def paragraph(path, holders, licence, comment=None):
    print(f"Files: {path}\nCopyright: " + "\n           ".join(holders) + f"\nLicense: {licence}")
    print(f"Comment: {comment}\n" if comment else "")


packages = crates.packages()
own = next(p for p in packages.values() if p["name"] == sys.argv[1])
print("Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/")
print("Upstream-Name: librdmamr\nComment: what is under crates/ is linked in statically\n")
paragraph("*", [re.search(r"Copyright \(c\) (.*)", pathlib.Path("LICENSE-MIT").read_text()).group(1)], "MIT or Apache-2.0")
paragraph("crates/std/*", ["The Rust Project Developers"], "MIT", f"the standard library of {crates.run('rustc', '-V').strip()}")

others = {}
for name in sorted(crates.linked(own["name"])):
    package = packages[name]
    if package["source"] is None:
        continue
    licence, path = package["license"] or "its own", f"crates/{package['name']}-{package['version']}/*"
    offers = re.split(r"\s+OR\s+|\s*/\s*", licence)
    if "MIT" in offers:
        licence = "MIT"
    elif "Apache-2.0" in offers:
        licence = "Apache-2.0"
    else:
        licence = f"{package['name']}-licence"
        others[licence] = "\n\n".join(crates.texts(package).values()) or sys.exit(f"{package['name']} has no licence text")
    paragraph(path, holders(package), licence, package["repository"] or package["homepage"])

print("License: MIT" + indented(MIT) + "\n")
print("License: Apache-2.0" + indented(APACHE))
for licence, text in others.items():
    print(f"\nLicense: {licence}{indented(text)}")
