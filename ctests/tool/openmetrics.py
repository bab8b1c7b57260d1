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
for name, wanted, labels in (
    ("registrations_total", 101, {"device": "stub0"}),
    ("regions", 100, {"device": "stub0", "state": "in_use"}),
    ("registered_bytes", 65536, {"state": "idle"}),
    ("hits_total", 999, {"library": "yes", "rank": "3"}),
):
    samples = families["rdmamr_" + name.removesuffix("_total")].samples
    of = [s for s in samples if s.name == "rdmamr_" + name and {"pid": sys.argv[-1], **labels}.items() <= s.labels.items()]
    assert [s.value for s in of] == [wanted], (name, of)
for family in families.values():
    assert family.documentation and family.type in ("counter", "gauge"), family.name
if not text:
    assert families["rdmamr_registered_bytes"].unit == "bytes"
    assert families["rdmamr_registration_seconds"].unit == "seconds"
