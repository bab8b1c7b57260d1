#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""pyverbs_run.py RESULTS [OPTION...]

Runs the pyverbs tests in the working directory, loaded and with the options as their own
run_tests.py does it, and writes a line of JSON to RESULTS when a test starts and when it has ended:
its id, its outcome, and the message of a skip or a failure. A test that RESULTS has already does not
run again: it may have killed the process before.
"""

import json
import os
import sys
import unittest
from importlib.machinery import SourceFileLoader


class Results(unittest.TestResult):
    def __init__(self, path):
        super().__init__()
        with open(path) as earlier:
            self.ran = {json.loads(line)['test'] for line in earlier}
        # Each line is written at once: if a test kills the process, it is the one that only
        # started, and a forked child has nothing in a buffer to write a second time.
        self.file = open(path, 'ab', buffering=0)
        self.pending = None

    def write(self, test, outcome, message=''):
        if test.id() == self.pending:
            self.pending = None
        line = {'test': test.id(), 'outcome': outcome, 'message': str(message)}
        self.file.write(json.dumps(line).encode() + b'\n')

    def startTest(self, test):
        super().startTest(test)
        self.write(test, 'died')
        self.pending = test.id()

    def stopTest(self, test):
        super().stopTest(test)
        # A test that skipped in a subtest is neither a success nor skipped.
        if self.pending:
            self.write(test, 'ended')

    def addSubTest(self, test, subtest, err):
        # A test with such a subtest is not reported as a success later, so this result remains.
        if err is not None:
            self.addFailure(test, err)


def add(outcome):
    """A method that is called with the test, and the reason of a skip or the exception."""
    def method(self, test, why=''):
        self.write(test, outcome, f'{why[0].__name__}: {why[1]}' if isinstance(why, tuple) else why)
    return method


Results.addSuccess, Results.addSkip = add('ok'), add('skipped')
Results.addFailure, Results.addError = add('failed'), add('error')
Results.addExpectedFailure, Results.addUnexpectedSuccess = add('failed as expected'), add('succeeded unexpectedly')


def each(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


def main():
    results = Results(sys.argv.pop(1))
    # From here on as run_tests.py: the tests import each other from their own folder, as "tests".
    sys.path.insert(0, os.getcwd())
    from args_parser import parser
    tests = SourceFileLoader('tests', os.path.join(os.getcwd(), '__init__.py')).load_module()
    parser.parse_args()
    left = [test for test in each(unittest.defaultTestLoader.loadTestsFromModule(tests)) if test.id() not in results.ran]
    unittest.TestSuite(left).run(results)


main()
