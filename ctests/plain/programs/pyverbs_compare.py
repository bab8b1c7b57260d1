#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""pyverbs_compare.py WITHOUT WITH [WITHOUT_AGAIN WITH_AGAIN]

Compares the results of pyverbs_run.py. Prints the judgement of every test as a line of fields with
tabs in between: a function of tap.sh and its arguments. If a test differs in the first two files
and there are four, its last result with the library and both results without it decide.
"""

import json
import sys

NEVER_RAN = ('did not run', '')


def read(path):
    """The results by test, in the order of the tests. The last line of a test is its result."""
    with open(path) as file:
        return {test: tuple(result) for test, *result in map(json.loads, file)}


def describe(result):
    outcome, message = result
    return f'{outcome}: {message}' if message else outcome


def judge(test, without, with_library):
    """The judgement of a result with the library, by all results without it.

    >>> ok, skipped, failed, other = ('ok', ''), ('skipped', 'no device'), ('failed', '1 != 2'), ('error', 'EIO')
    >>> judge('t', [ok], ok)
    ('pass', 't')
    >>> judge('t', [skipped], skipped)
    ('skip', 't', 'no device')
    >>> judge('t', [failed], failed)
    ('skip', 't', 'fails without the library as well: failed: 1 != 2')

    A test whose results without the library differ may have any of these:

    >>> judge('t', [failed, ok], ok)
    ('pass', 't')
    >>> judge('t', [ok, failed], failed)
    ('skip', 't', 'fails without the library as well: failed: 1 != 2')

    It may also succeed if it only ever failed, but not if it is skipped, nor may it fail in another way:

    >>> judge('t', [failed, other], ok)
    ('pass', 't')
    >>> judge('t', [skipped], ok)[0], judge('t', [ok], skipped)[0], judge('t', [failed], skipped)[0]
    ('fail', 'fail', 'fail')
    >>> judge('t', [ok, ok], failed)
    ('fail', 't', 'without: ok', 'without: ok', 'with: failed: 1 != 2')
    >>> judge('t', [ok], NEVER_RAN)[0]
    'fail'
    """
    outcome, message = with_library
    failed_before = any(before in ('failed', 'error', 'died') for before, _ in without)
    if outcome == 'ok' and (with_library in without or failed_before):
        return 'pass', test
    if with_library not in without:
        return 'fail', test, *(f'without: {describe(result)}' for result in without), f'with: {describe(with_library)}'
    if outcome == 'skipped':
        return 'skip', test, message.replace('#', '')
    return 'skip', test, f'fails without the library as well: {describe(with_library)}'.replace('#', '')


def main():
    first, again = ([read(path) for path in pair] for pair in (sys.argv[1:3], sys.argv[3:5]))
    for test in {**first[0], **first[1]}:
        without, with_library = (results.get(test, NEVER_RAN) for results in first)
        judgement = judge(test, [without], with_library)
        if judgement[0] == 'fail' and again:
            without_again, with_again = (results.get(test, NEVER_RAN) for results in again)
            judgement = judge(test, [without, without_again], with_again)
        print(*judgement, sep='\t')


if __name__ == '__main__':
    main()
