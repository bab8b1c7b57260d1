#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""sweep.py LIBRARY BUILT [--all] [--rows FILE]: each system call of the library fails.

A first run of each of RUNS lists the system calls that the library makes, with their sites. Then
each run makes one of them fail (inject.c): each site once. With --all a site fails each time that it
is reached, in each of RUNS, once for each errno of ERRNOS. Prints TAP: one line for each site, with
the effect on the program; with --rows also as a table for page.py. The device is CHECK_DEVICE, or
the stand-in.
"""
import argparse
import collections
import concurrent.futures
import errno
import os
import pathlib
import re
import subprocess
import sys
import tempfile

# The settings of a run, and the argument of the scenario.
RUNS = {
    "relaxed": ("calls", {}),
    "cache": ("calls", {"RDMAMR_CACHE": "all", "RDMAMR_PREFAULT": "2", "RDMAMR_STATS": "stats", "RDMAMR_LOG": "info"}),
    "trace": ("calls", {"RDMAMR_CACHE": "all", "RDMAMR_TRACE": "trace", "RDMAMR_LIVE": "1", "RDMAMR_STATS": "stderr"}),
    "fabric": ("fabric", {"RDMAMR_FABRIC_CACHE": "1"}),
}

# The errnos that the kernel may return; other calls get ANY. A quick sweep uses the first of each.
ANY = ["EPERM"]
ERRNOS = {call: errnos.split() for calls, errnos in {
    "openat": "EMFILE EACCES ENOENT EINTR",
    "open": "EMFILE EACCES ENOENT",
    "read pread64": "EIO EINTR",
    "write": "ENOSPC EINTR EPIPE",
    "mmap mremap brk": "ENOMEM",
    "munmap madvise": "ENOMEM EINVAL",
    "mprotect": "ENOMEM EACCES",
    "shmat": "ENOMEM EMFILE",
    "ioctl": "EINVAL ENOMEM EINTR EBUSY EIO ENODEV",
    "futex": "EINTR EAGAIN",
    "clone clone3": "EAGAIN EPERM",
    "userfaultfd": "EMFILE EPERM ENOSYS",
    "pselect6": "EINTR EBADF",
    "poll ppoll": "EINTR",
    "close": "EIO EINTR",
    "eventfd2": "EMFILE",
    "dup3": "EBADF",
    "fcntl": "EMFILE EINVAL",
    "process_vm_readv": "EFAULT EPERM",
    "fallocate": "ENOSPC EOPNOTSUPP",
}.items() for call in calls.split()}

# Calls that a program makes and the library forwards: the answer is the program's.
PASSED_ON = {"mmap", "munmap", "mremap", "madvise", "mprotect", "shmat", "shmdt"}
# The calls of the scenario that may fail with a system call, with its errno.
SERVED = {"ioctl": {"register", "deregister", "flush", "rereg", "domain", "refused", "event"}, "eventfd2": {"queue"}}
NO_MEMORY = {"mmap", "brk", "mremap", "munmap", "madvise", "mprotect"}

# The resources that a program may have more of at its end, if a call fails: a mapping that the
# kernel did not unmap; the descriptor of /dev/urandom, which std holds if getrandom(2) fails; heap
# that replaces memory of the kernel: the counters' page, a buffer.
SLACK = {"descriptors": {"getrandom": 1}, "own": {"munmap": 1}, "pinned": {}, "heap": {"": 48 << 10, "mmap": 8 << 20}}

Site = collections.namedtuple("Site", "run thread number address")


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def compiled(program):
    """Compiles inject.c unless a program of this source exists."""
    source = pathlib.Path(__file__).with_name("inject.c")
    if os.path.exists(program) and os.path.getmtime(program) > source.stat().st_mtime:
        return True
    command = f"cc -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 {source} -o {program} -ldw".split()
    return subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


class Sweep:
    def __init__(self, options):
        self.options = options
        header = said("cpp", "-dM", "-include", "sys/syscall.h", "/dev/null")
        self.names = {int(n): name for name, n in re.findall(r"#define __NR_(\w+) (\d+)\n", header)}
        self.base, self.sites = {}, collections.Counter()

    def run(self, run, fault=()):
        """The output of the scenario, that of inject, and the exit status."""
        argument, settings = RUNS[run]
        with tempfile.TemporaryDirectory() as folder:
            environment = {k: v for k, v in os.environ.items() if not k.startswith("RDMAMR_")}
            environment |= settings | {"RDMAMR_CACHE_LINGER": "1000000"}
            out = pathlib.Path(folder, "out")
            command = [self.options.inject, os.path.basename(self.options.library), out, *map(str, fault), "--", "env",
                       f"LD_PRELOAD={self.options.library}", self.options.scenario, argument]
            try:
                done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace",
                                      timeout=120)
            except subprocess.TimeoutExpired:
                return [], "injected", "hangs"
            return done.stdout.splitlines(), out.read_text(), done.returncode

    def list(self):
        """The sites, with the number of times that each is reached. Returns why there are none."""
        for run in RUNS:
            lines, calls, status = self.run(run)
            if lines[:1] and lines[0].startswith("skip "):
                return f"1..0 # SKIP {lines[0][5:]}"
            if status or len(lines) != 1 or not lines[0].startswith("end "):
                return f"Bail out! the run {run} does not work without a fault: {status}, {lines[-3:]}"
            self.base[run] = self.end(lines)
            for call in calls.splitlines():
                thread, number, address, _ = map(int, call.split())
                self.sites[Site(run, thread, number, address)] += 1
        return None

    @staticmethod
    def end(lines):
        return {k: int(v) for k, v in re.findall(r"(\w+)=(-?\d+)", lines[-1])}

    def fails(self, site, time, name):
        """One run with one fault. Returns the failures, and the effect of the fault."""
        lines, injected, status = self.run(site.run, (site.thread, site.number, site.address, time, getattr(errno, name)))
        call = self.names[site.number]
        if "injected" not in injected:
            return [], "not reached"
        if status == "hangs":
            return ["it hangs"], ""
        # The program, or libibverbs, could not open the device.
        if call in PASSED_ON and lines and re.match(r"skip |Bail out! ctests/lib/(device|pair)\.c:", lines[0]):
            return [], f"`{call}` fails with {name}"
        bad = [line for line in lines if line.startswith("wrong ")]
        if status:
            bad.append(f"exit status {status}")
        failed = [line.split()[1:] for line in lines if line.startswith("fails ")]
        for what, got in failed:
            passed_on = call in PASSED_ON and what == call and got == name
            served = what in SERVED.get(call, ()) and got == name
            # Before Linux 6.16, if the kernel does not release watched memory that moves
            # (docs/limits.md).
            moves = call == "ioctl" and (what, got) == ("mremap", "EFAULT")
            memory = got == name == "ENOMEM" and call in NO_MEMORY
            if not (passed_on or served or memory or moves):
                bad.append(f"{what} fails with {got}")
        if len(failed) > 1:
            bad.append(f"{len(failed)} calls fail")
        if not status and lines[-1:] and lines[-1].startswith("end "):
            end, base = self.end(lines), self.base[site.run]
            for key, more in SLACK.items():
                if end[key] > base[key] + more.get(call, more.get("", 0)):
                    bad.append(f"{key}: {end[key]}, {base[key]} without the fault")
            kept = "fewer regions are kept" if end["hits"] < base["hits"] else "nothing"
        else:
            bad.append("it does not come to its end")
            kept = ""
        effect = f"`{failed[0][0]}` fails with {failed[0][1]}" if failed else kept
        return bad, effect

    def functions(self, addresses):
        """The innermost function of the library at each address, by the debug information."""
        result = {}
        listed = said("addr2line", "-Cfiae", self.options.library, *(hex(a - 1) for a in addresses))
        for one in re.split("^0x", listed, flags=re.M)[1:]:
            address, *lines = one.splitlines()
            address = int(address, 16) + 1
            pairs = list(zip(lines[::2], lines[1::2]))
            inside = [p for p in pairs if re.search(r"(^|[^y]/)src/", p[1]) and "/rustc/" not in p[1]] or pairs
            file = re.sub(r"^.*?((library/\w+/)?src/)", r"\1", inside[0][1]).split(":")[0]
            # The innermost function with a name; a closure has the name of the function around it.
            words = [re.sub(r"(::)?(\{.*|<.*)$", "", function).split("::")[-1] for function, _ in inside]
            result[address] = (next((word for word in words if word), "?"), file)
        return result


def check(sweep, cache):
    """Makes each call fail. Prints the results, and returns the rows of the table."""
    where = sweep.functions({s.address for s in sweep.sites})
    groups = collections.defaultdict(list)
    for site, times in sweep.sites.items():
        groups[(sweep.names[site.number], *where[site.address])].append((site, times))
    every = sweep.options.all
    jobs = {}
    for group, members in groups.items():
        errnos = ERRNOS.get(group[0], ANY)
        # A quick sweep makes each place in the code fail once, in the first run that reaches it.
        quick = {site.address: (site, times) for site, times in reversed(members)}.values()
        jobs[group] = [
            (site, time, error, cache.submit(sweep.fails, site, time, error))
            for site, times in (members if every else quick)
            for time in (range(times) if every else [0])
            for error in (errnos if every else errnos[:1])
        ]
    rows = []
    for (name, function, file), faults in sorted(jobs.items()):
        effects, problems, reached = set(), [], 0
        for site, time, error, job in faults:
            bad, effect = job.result()
            reached += effect != "not reached"
            effects.add(effect)
            if bad:
                problems.append(f"# {site.run}, thread {site.thread}, time {time}, {error}: {'; '.join(bad)}")
        effects -= {"not reached", ""}
        outcome = ", ".join(sorted(effects)) or "not reached"
        rows.append((name, function, file, reached, "FAILED" if problems else outcome))
        passed = "not ok" if problems else "ok"
        skipped = "" if reached else " # SKIP not reached"
        print(f"{passed} {len(rows)} - {name} of {function} ({file}) fails {reached} times: {outcome}{skipped}")
        print("\n".join(problems[:20]), end="\n" if problems else "", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("library")
    parser.add_argument("built")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--rows")
    options = parser.parse_args()
    options.library, options.built = os.path.abspath(options.library), os.path.abspath(options.built)
    options.inject, options.scenario = options.built + "/faults_inject", options.built + "/faults_scenario"
    if not compiled(options.inject):
        must = os.environ.get("CHECK_INSTALLED")
        print("Bail out!" if must else "1..0 # SKIP", "inject.c does not compile without libdw-dev (vm/packages faults)")
        return bool(must)
    sweep = Sweep(options)
    if broken := sweep.list():
        print(broken)
        return broken.startswith("Bail")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as cache:
        rows = check(sweep, cache)
    faults = sum(row[3] for row in rows)
    print(f"# {faults} faults at {len(rows)} sites\n1..{len(rows)}")
    if not faults:
        print("Bail out! no call failed")
    if options.rows:
        pathlib.Path(options.rows).write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
