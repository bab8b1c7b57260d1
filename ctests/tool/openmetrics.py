# SPDX-License-Identifier: MIT OR Apache-2.0
"""openmetrics.py [--text] PID: reads the output of "rdmamr top" for Prometheus, by the parser of
Prometheus' own client: OpenMetrics, or with --text the older format. PID is a process that must be in
it."""
import sys

import prometheus_client.openmetrics.parser
import prometheus_client.parser

text = sys.argv[1] == "--text"
parser = prometheus_client.parser if text else prometheus_client.openmetrics.parser
families = {family.name: family for family in parser.text_string_to_metric_families(sys.stdin.read())}
pid = sys.argv[-1]


def value(family, name, **labels):
    found = [s.value for s in families[family].samples if s.name == name and dict(s.labels, pid=pid, **labels) == s.labels]
    assert len(found) == 1, (family, labels, found)
    return found[0]


assert value("rdmamr_registrations", "rdmamr_registrations_total", device="stub0") == 101
assert families["rdmamr_registrations"].type == "counter"
assert value("rdmamr_regions", "rdmamr_regions", device="stub0", state="in_use") == 100
assert value("rdmamr_registered_bytes", "rdmamr_registered_bytes", state="idle") == 65536
assert value("rdmamr_hits", "rdmamr_hits_total", library="yes", rank="3") == 999
assert value("rdmamr_registration_seconds", "rdmamr_registration_seconds_total") > 0
if not text:
    assert families["rdmamr_registered_bytes"].unit == "bytes"
    assert families["rdmamr_registration_seconds"].unit == "seconds"
for family in families.values():
    assert family.documentation and family.type in ("counter", "gauge"), family.name
