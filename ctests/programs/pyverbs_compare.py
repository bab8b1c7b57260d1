#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""pyverbs_compare.py WITHOUT WITH [WITHOUT_AGAIN WITH_AGAIN]

Compares what pyverbs_run.py wrote. Prints the judgement of every test, a line of fields with tabs in
between, which are a function of tap.sh and its arguments, or "note" and a comment. A test that differs in
the first two files is judged by the second two, if given.
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
    outcome, message = without
    if without != with_library:
        return 'fail', test, f'without: {describe(without)}', f'with: {describe(with_library)}'
    if outcome == 'ok':
        return 'pass', test
    if outcome == 'skipped':
        return 'skip', test, message.replace('#', '')
    return 'skip', test, f'fails without the library as well: {describe(without)}'.replace('#', '')


NEVER_RAN = ('did not run', '')


def pairs(without, with_library):
    """Test, result without the library, result with it."""
    for test in list(without) + [test for test in with_library if test not in without]:
        yield test, without.get(test, NEVER_RAN), with_library.get(test, NEVER_RAN)


def main():
    again = {}
    if len(sys.argv) > 3:
        again = {test: results for test, *results in pairs(*map(read, sys.argv[3:5]))}
    for test, *results in pairs(*map(read, sys.argv[1:3])):
        judgement = judge(test, *results)
        if judgement[0] == 'fail' and test in again:
            second = judge(test, *again[test])
            if second[0] != 'fail':
                print('note', f'NOTE: {test} differed, but not in a second round. {"; ".join(judgement[2:])}', sep='\t')
            judgement = second
        print(*judgement, sep='\t')


main()
