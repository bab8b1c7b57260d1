#!/usr/bin/python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""run.py HOURS LIBRARY BUILT DEVICE ADDRESS GID_INDEX: for "ctests/run soak", in the machine of vm/.

Programs run at once for HOURS under LIBRARY, with RDMAMR_CACHE=all. Each of LOADS starts its
program again when the program has ended. $VM_OUT/soak.tsv gets a line for each minute and program:
the resources of the program's processes that have LIBRARY mapped, summed: their median over that
minute, or their maximum if the program has many rounds. $VM_OUT/soak.json gets the programs'
results. verdict.py judges both.
"""

import glob
import gzip
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

HOURS, LIBRARY, BUILT, DEVICE, ADDRESS, GID = sys.argv[1:7]
FOLDER = os.environ["VM_OUT"]
HERE = os.path.dirname(os.path.realpath(__file__))
PROGRAMS = os.path.join(HERE, "../../plain/programs")
SECONDS = float(HOURS) * 3600
SAMPLE = 5
# A line a minute, and more in a run of less than twelve.
LINE = min(60, max(SECONDS / 12, 2 * SAMPLE))
# Against a program that hangs: a busy machine is a hundred times as slow.
LIMIT = 3600
COLUMNS = ["rss_kib", "mappings", "descriptors", "threads", "pinned_kib"]
# The line with the reason for a program's end. It need not be the last: two streams go into one
# file.
REASON = re.compile(r"^.*(?:fail|error|unable).*$", re.I | re.M)
COMPLAINT = re.compile(rb"invalid data|data mismatch|verification failed|differs|^not ok.*", re.I | re.M)

began = time.monotonic()
scratch = os.path.join("/tmp", "soak")
os.makedirs(scratch)
# Copies: a build meanwhile would change the files under the programs that have mapped them.
LIBRARY = shutil.copy(LIBRARY, f"{scratch}/library.so")
ENDURANCE, FABRIC = (shutil.copy(f"{BUILT}/{name}", scratch) for name in ("soak", "fabric_data"))


def read(path):
    return pathlib.Path(path).read_bytes()


def left():
    return SECONDS - (time.monotonic() - began)


class Load:
    """A program that runs again and again. `sessions` are those of its processes."""

    # Whether one round takes the whole time.
    whole = False
    # The percentage of its rounds that may fail, because the program itself loses messages.
    tolerated = 0
    counted = ""

    def __init__(self, name):
        self.name = name
        self.sessions = set()
        self.rounds = 0
        self.failures, self.wrong, self.samples, self.passed = [], [], [], []
        self.stats = os.path.join(scratch, f"stats.{name}")

    def start(self, command, out, environment=None, folder=None):
        settings = {"LD_PRELOAD": LIBRARY, "RDMAMR_CACHE": "all", "RDMAMR_STATS": self.stats, "CHECK_DEVICE": DEVICE,
                    "CHECK_ADDRESS": ADDRESS, "CHECK_GID_INDEX": GID, "PYTHONDONTWRITEBYTECODE": "1"}
        with open(out, "wb") as file:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, cwd=folder,
                                       env={**os.environ, **settings, **(environment or {})}, start_new_session=True)
        process.out = out
        self.sessions.add(process.pid)
        return process

    def judge(self, processes, limit, may_be_cut=False):
        """Waits for the end of the processes, and notes their failures."""
        until = time.monotonic() + limit
        for process in processes:
            try:
                process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if may_be_cut:
                    self.counted = f"round {self.rounds} was cut"
                    continue
            said = read(process.out)
            words = f"round {self.rounds}: {os.path.basename(process.args[0])}"
            wrong = COMPLAINT.search(said)
            if wrong:
                self.wrong.append(f"{words}: {wrong[0].decode(errors='replace')}")
            if process.returncode:
                text = said.decode(errors="replace").strip()
                why = [found.strip() for found in REASON.findall(text)] or text.splitlines()[-1:]
                self.failures.append(f"{words}: status {process.returncode}: {'; '.join(why)}")
                shutil.copy(process.out, f"{FOLDER}/{self.name}.{self.rounds}.{process.pid}")
            else:
                self.ended_well(said)

    def ended_well(self, said):
        """The program's output."""

    def run(self):
        while not self.rounds or left() > 0:
            self.rounds += 1
            self.round()


class Endurance(Load):
    """ctests/relaxed/soak.c, one round for the whole time."""

    whole = True
    checks = "every transfer's data, both ways; at the end nothing is left"

    def round(self):
        self.judge([self.start([ENDURANCE, str(max(int(left()), 30))], f"{scratch}/endurance")], SECONDS + LIMIT)

    def ended_well(self, said):
        self.counted = re.search(rb"# (\d+ steps.*)", said)[1].decode()


def listens(port):
    return re.search(rb":%04X [0-9A-F]+:0000 0A " % port, read("/proc/net/tcp") + read("/proc/net/tcp6"))


class Pair(Load):
    """A server and a client, which are one program. COMMANDS take turns."""

    def __init__(self, name, port, commands, checks, limit=LIMIT, tolerated=0):
        super().__init__(name)
        self.ports = iter(range(port, 65536))
        self.commands, self.checks, self.limit, self.tolerated = commands, checks, limit, tolerated

    def round(self):
        server_of, client_of = self.commands[self.rounds % len(self.commands)]
        words = {"port": next(self.ports), "device": DEVICE, "gid": GID, "address": ADDRESS}
        server = self.start(server_of.format(**words).split(), f"{scratch}/{self.name}.server")
        until = time.monotonic() + 120
        while server.poll() is None and not listens(words["port"]) and time.monotonic() < until:
            time.sleep(0.2)
        client = self.start(client_of.format(**words).split(), f"{scratch}/{self.name}.client")
        self.judge([client, server], self.limit)


# Not ib_send_bw: its server ends with 17 if no message has come for a while. "-u 20": a QP waits
# 4 s, not 67 ms, before it resends; a busy machine takes longer than that. A resend of rxe may end a
# write with status 9, invalid request: without the library, beside a build, 3 of 24 runs if a QP
# waits 1 or 4 ms (Linux 6.12).
PERFTEST = [f"{name} -d {{device}} -x {{gid}} -p {{port}} -s 65536 -n 400 -F -u 20" for name in ("ib_write_bw", "ib_read_bw")]
PERFTEST.append("ibv_rc_pingpong -d {device} -g {gid} -p {port} -n 200 -c")
PINGPONG = "fi_pingpong -p verbs -e msg -d {device} -I 100 -S 65536 -c"


class Fabric(Load):
    """ctests/fabric/data.c: the library's own libfabric calls."""

    checks = "every transfer's data, in every kind of domain"

    def round(self):
        relaxed = {"RDMAMR_FABRIC_CACHE": str(self.rounds % 2)}
        self.judge([self.start([FABRIC], f"{scratch}/fabric", relaxed)], LIMIT)


class Mooncake(Load):
    """Mooncake's transfer engine, one round for the whole time."""

    whole = True
    checks = "each buffer, when it has come back"

    def round(self):
        wheel = os.path.join(HERE, "../../../target/mooncake")
        environment = {"PYTHONPATH": wheel, "MC_GID_INDEX": GID, "MC_WORKERS_PER_CTX": "1", "MC_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "2", "HOME": scratch}
        folder = f"{scratch}/mooncake.{self.rounds}"
        command = ["/usr/bin/python3", f"{PROGRAMS}/moves.py", "engine", DEVICE, ADDRESS, folder]
        target = self.start([*command, "target"], folder + ".target", environment)
        initiator = self.start([*command, "initiator", f"{max(int(left()), 30)}s"], folder + ".initiator", environment)
        self.judge([initiator, target], SECONDS + LIMIT)

    def ended_well(self, said):
        counted = re.search(rb"(\d+ of \d+ buffers came back as they went)", said)
        if counted:
            self.counted = counted[1].decode()


class Pyverbs(Load):
    """The tests of rdma-core's pyverbs, all of them in one process each round."""

    checks = "by its own tests of traffic"

    def __init__(self):
        super().__init__("pyverbs")
        shipped = "/usr/share/doc/rdma-core/tests"
        if not os.path.exists(shipped + "/run_tests.py"):
            shipped = os.path.join(HERE, "../../../target/pyverbs") + shipped
        self.folder = os.path.join(scratch, "tests")
        shutil.copytree(shipped, self.folder)
        for packed in glob.glob(self.folder + "/*.gz"):
            pathlib.Path(packed[:-3]).write_bytes(gzip.decompress(read(packed)))

    def round(self):
        results = pathlib.Path(f"{scratch}/pyverbs.results")
        results.write_text("")
        command = ["/usr/bin/python3", f"{PROGRAMS}/pyverbs_run.py", results, "--dev", DEVICE, "--gid", GID, "-v"]
        # The last round may be far from its end when the time is over.
        suite = self.start(command, f"{scratch}/pyverbs", folder=self.folder)
        self.judge([suite], max(left(), 0) + SAMPLE, may_be_cut=True)
        outcomes = {test: outcome for test, outcome, _ in map(json.loads, results.read_text().splitlines())}
        self.passed.append(sorted(test for test, outcome in outcomes.items() if outcome == "ok"))
        died = [test for test, outcome in outcomes.items() if outcome == "died" and suite.returncode != -signal.SIGKILL]
        self.failures.extend(f"round {self.rounds}: {test} died" for test in died)


LOADS = [
    Endurance("endurance"),
    Pair("perftest", 20000, [(command, command + " {address}") for command in PERFTEST],
         "by ibv_rc_pingpong -c in turn with perftest, which checks none"),
    Pyverbs(),
    Mooncake("Mooncake"),
    # On a busy machine it may hang once it has printed its results, without the library too.
    Pair("fi_pingpong", 30000, [(PINGPONG + " -B {port}", PINGPONG + " -P {port} {address}")],
         "fi_pingpong -c, over libfabric's verbs provider", limit=600, tolerated=20),
    Fabric("fabric"),
]


def process(pid):
    """The resources of a process, or None if the library is not in it."""
    maps = read(f"/proc/{pid}/maps")
    if LIBRARY.encode() not in maps:
        return None
    status = read(f"/proc/{pid}/status")
    number = lambda name: int((re.search(rb"^%s:\s+(\d+)" % name, status, re.M) or [0, 0])[1])
    return [number(b"VmRSS"), maps.count(b"\n"), len(os.listdir(f"/proc/{pid}/fd")), number(b"Threads"), number(b"VmPin")]


def sample():
    """Adds the resources of its processes, summed, to each load's samples."""
    owners = {session: load for load in LOADS for session in list(load.sessions)}
    sums = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            load = owners.get(os.getsid(int(pid)))
            has = load and process(pid)
        except OSError:
            continue
        if has:
            sums.setdefault(load, []).append(has)
    for load, processes in sums.items():
        load.samples.append([len(processes), *map(sum, zip(*processes))])


def regions():
    """The kernel's regions of the device, of all processes."""
    said = subprocess.run(["rdma", "resource", "show", "mr"], stdout=subprocess.PIPE, check=False).stdout
    return said.count(b"\ndev ") + said.startswith(b"dev ")


def main():
    running = [threading.Thread(target=load.run) for load in LOADS]
    for thread in running:
        thread.start()
    # This thread alone: the observer must not wait for the observed programs.
    os.setpriority(os.PRIO_PROCESS, 0, -15)
    line_at, kernel = began + LINE, []
    with open(f"{FOLDER}/soak.tsv", "w", encoding="ascii", buffering=1) as file:
        write = lambda *cells: file.write("\t".join(map(str, cells)) + "\n")
        write("minute", "program", "rounds", "processes", *COLUMNS, "regions")
        while any(thread.is_alive() for thread in running):
            time.sleep(SAMPLE)
            # After the last minute, some programs take longer to end than others.
            if left() < 0:
                continue
            sample()
            kernel.append(regions())
            if time.monotonic() < line_at:
                continue
            minute = round((time.monotonic() - began) / 60, 1)
            line_at = time.monotonic() + LINE
            for load in LOADS:
                if load.samples:
                    # A busy machine makes rounds longer, and a minute then covers another part of a
                    # round. The maximum depends on that less than the median does.
                    of_minute = statistics.median if load.whole else max
                    write(minute, load.name, load.rounds, *(round(of_minute(values)) for values in zip(*load.samples)), "")
                    load.samples = []
            write(minute, "kernel", "", "", *[""] * len(COLUMNS), round(statistics.median(kernel)))
            kernel = []
    said = {"hours": float(HOURS), "kernel": os.uname().release, "regions_left": regions(), "loads": {}}
    for load in LOADS:
        sums = {}
        if os.path.exists(load.stats):
            for line in read(load.stats).decode().splitlines():
                for field, value in re.findall(r'"(hits|reg_kernel|reg_next|reg_failed|live|ended_elsewhere)":(\d+)', line):
                    sums[field] = sums.get(field, 0) + int(value)
        fields = ("rounds", "failures", "tolerated", "wrong", "whole", "checks", "counted", "passed")
        said["loads"][load.name] = {"stats": sums, **{field: getattr(load, field) for field in fields}}
    pathlib.Path(FOLDER, "soak.json").write_text(json.dumps(said, indent=1))
    pathlib.Path(FOLDER, "dmesg").write_bytes(subprocess.run(["dmesg"], stdout=subprocess.PIPE, check=False).stdout)


main()
