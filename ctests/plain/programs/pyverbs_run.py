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
            self.ran = {json.loads(line)[0] for line in earlier}
        # Each line is written at once: if a test kills the process, it is the one that only
        # started, and a forked child has nothing in a buffer to write a second time.
        self.file = open(path, 'ab', buffering=0)

    def write(self, test, outcome, why=''):
        self.has_outcome = True
        message = f'{why[0].__name__}: {why[1]}' if isinstance(why, tuple) else str(why)
        self.file.write(json.dumps([test.id(), outcome, ' '.join(message.split())]).encode() + b'\n')

    def startTest(self, test):
        super().startTest(test)
        self.write(test, 'died')
        self.has_outcome = False

    def stopTest(self, test):
        super().stopTest(test)
        # A test that skipped in a subtest is neither a success nor skipped.
        if not self.has_outcome:
            self.write(test, 'ended')

    def addSubTest(self, test, subtest, err):
        # A test with such a subtest is not reported as a success later, so this result remains.
        if err is not None:
            self.addFailure(test, err)


for name, outcome in {
    'Success': 'ok', 'Skip': 'skipped', 'Failure': 'failed', 'Error': 'error',
    'ExpectedFailure': 'failed as expected', 'UnexpectedSuccess': 'succeeded unexpectedly',
}.items():
    setattr(Results, 'add' + name, lambda self, test, why='', outcome=outcome: self.write(test, outcome, why))


def each(suite):
    for test in suite:
        yield from each(test) if isinstance(test, unittest.TestSuite) else [test]


results = Results(sys.argv.pop(1))
# From here on as run_tests.py: the tests import each other from their own folder, as "tests".
sys.path.insert(0, os.getcwd())
from args_parser import parser
tests = SourceFileLoader('tests', os.path.join(os.getcwd(), '__init__.py')).load_module()
parser.parse_args()
left = [test for test in each(unittest.defaultTestLoader.loadTestsFromModule(tests)) if test.id() not in results.ran]
unittest.TestSuite(left).run(results)
