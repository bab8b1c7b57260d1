# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pages of docs/results: people write their words, and a test their tables."""
import re


def with_tables(page, tables):
    """A page with its tables replaced, in their order. None keeps one, and so do further tables of the page."""
    left = iter(tables)
    return re.sub(r"(?:^\|.*\n)+", lambda found: next(left, None) or found[0], page, flags=re.M)
