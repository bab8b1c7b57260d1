#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""pyverbs_compare.py WITHOUT WITH [WITHOUT_AGAIN WITH_AGAIN]

Compares the results of pyverbs_run.py. Prints the judgement of every test as a line of fields with
tabs in between: a function of tap.sh and its arguments, or "note" and a comment. If a test differs
in the first two files and there are four, its last result with the library and both results without
it decide.
"""

import json
import sys


def read(path):
    """The results by test, in the order of the tests. The last line of a test is its result."""
    results = {}
    with open(path) as file:
        for line in map(json.loads, file):
            results[line['test']] = (line['outcome'], ' '.join(line['message'].split()))
    return results


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
    ('skip', 't', 'fails without the library as well, now and then: failed: 1 != 2')

    It may also succeed if it only ever failed, but not if it is skipped, nor may it fail in another way:

    >>> judge('t', [failed, other], ok)
    ('pass', 't')
    >>> judge('t', [skipped], ok)[0], judge('t', [ok], skipped)[0], judge('t', [failed], skipped)[0]
    ('fail', 'fail', 'fail')
    >>> judge('t', [ok, ok], failed)
    ('fail', 't', 'without: ok', 'with: failed: 1 != 2')
    >>> judge('t', [ok, failed], other)
    ('fail', 't', 'without: ok', 'without, again: failed: 1 != 2', 'with: error: EIO')
    >>> judge('t', [ok], NEVER_RAN)[0]
    'fail'
    """
    outcome, message = with_library
    if with_library in without:
        if outcome == 'ok':
            return 'pass', test
        if outcome == 'skipped':
            return 'skip', test, message.replace('#', '')
        now_and_then = ', now and then' if len(set(without)) > 1 else ''
        return 'skip', test, f'fails without the library as well{now_and_then}: {describe(with_library)}'.replace('#', '')
    if outcome == 'ok' and any(reference in ('failed', 'error', 'died') for reference, _ in without):
        return 'pass', test
    differs = [f'without: {describe(without[0])}', f'with: {describe(with_library)}']
    if len(set(without)) > 1:
        differs.insert(1, f'without, again: {describe(without[1])}')
    return 'fail', test, *differs


NEVER_RAN = ('did not run', '')


def pairs(without, with_library):
    """Test, result without the library, result with it."""
    for test in list(without) + [test for test in with_library if test not in without]:
        yield test, without.get(test, NEVER_RAN), with_library.get(test, NEVER_RAN)


def main():
    again = {}
    if len(sys.argv) > 3:
        again = {test: results for test, *results in pairs(*map(read, sys.argv[3:5]))}
    for test, without, with_library in pairs(*map(read, sys.argv[1:3])):
        rounds = [f'without: {describe(without)}; with: {describe(with_library)}']
        judgement = judge(test, [without], with_library)
        if judgement[0] == 'fail' and test in again:
            without_again, with_again = again[test]
            rounds.append(f'in a second round without: {describe(without_again)}; with: {describe(with_again)}')
            judgement = judge(test, [without, without_again], with_again)
        if judgement[0] != 'fail' and (len(rounds) > 1 or without != with_library):
            print('note', f'NOTE: {test} is not the same every time. {"; ".join(rounds)}', sep='\t')
        print(*judgement, sep='\t')


if __name__ == '__main__':
    main()
