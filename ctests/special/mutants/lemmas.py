#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""lemmas.py [LEMMA...]: breaks the code of each lemma of docs/proof.md, one mutant at a time, and
checks that the test that the lemma names fails: that it checks something, and finds it wrong. A test
that stops, by a crash or at its limit, has not failed. Each test must pass first, while nothing is
broken. "drivers" breaks rows of the table of drivers, which the suite of hardware providers checks.
A path that begins with "../tool" is the service's, which runs on the kernel of vm/. "--gone" tests
nothing, and fails if the code of a mutant is no longer in its file.
Prints TAP.

A mutant is built in target/mutants from a copy of the tree, so the tree itself stays as it is.
"""
import filecmp
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
WORK = ROOT / "target" / "mutants"
TREE = WORK / "tree"

# Lemma, file, the code, its replacement, the kind of test, the test.
MUTANTS = [
    ("P1", "cache/region/state.rs",
     "(state & (PHASE | STALE) == UNKEPT).then_some(state & !PHASE | KEPT)",
     "(state & PHASE == UNKEPT).then_some(state & !(PHASE | STALE) | KEPT)",
     "loom", "loom_kept_while_its_memory_changes"),
    ("P1", "cache/locked.rs", "        regions.tree.add(&regions.slots.0, id);\n", "",
     "unit", "model"),
    ("P1", "cache/life/miss.rs", "let own = reason.is_some()\n", "let own = false\n",
     "suite", "unwatched"),
    ("P2", "cache/region/state.rs", "        self.change(seen.0, taken).ok()?;\n", "        self.0.store(taken, SeqCst);\n",
     "loom", "loom_hit_release_flush"),
    ("P2", "cache/region/state.rs", "        fence(Acquire);\n", "",
     "loom", "loom_a_slot_becomes_another_monitored"),
    ("P2", "cache/region/state.rs", "        fence(Release);\n", "",
     "loom", "loom_a_slot_becomes_another_monitored"),
    ("P3", "cache/region/state.rs", "self.0 & (MONITORED | PHASE | STALE) == KEPT && ", "self.0 & (MONITORED | PHASE) == KEPT && ",
     "loom", "loom_a_call_that_changes_memory"),
    ("P3", "cache/region/state.rs", "Seen(state).is_unused().then_some(state & !PHASE | ENDING)", "Seen(state).is_live().then_some(state & !PHASE | ENDING)",
     "loom", "loom_hit_release_flush"),
    ("P4", "cache/watch/ring.rs", "(written == self.applied.load(Acquire)).then_some(Position(written))", "Some(Position(written))",
     "loom", "loom_a_call_without_the_lock"),
    ("P4", "cache/life/hit.rs", "let passed = !fenced || steps.fence();\n    let taken = steps.take().ok_or(Miss::None)?;\n    if passed && ring.still(position) {", "let passed = ring.still(position) && (!fenced || steps.fence());\n    let taken = steps.take().ok_or(Miss::None)?;\n    if passed {",
     "loom", "loom_a_change_that_only_the_kernel_sees"),
    ("P4", "cache/life/hit.rs", "let passed = !fenced || steps.fence();", "let passed = true;",
     "loom", "loom_a_change_that_only_the_kernel_sees"),
    ("P4", "cache/watch/ring.rs", " && self.written.load(Acquire) == position.0", "",
     "loom", "loom_a_change_that_only_the_kernel_sees"),
    ("P4", "cache/watch/ring.rs", "self.reading.load(Acquire) == 0 && ", "",
     "loom", "loom_a_change_that_only_the_kernel_sees"),
    ("P5", "cache/watch/userfaultfd.rs", "_ => return Memory::Shared,", "_ => return Memory::Private,",
     "unit", "the_kernel_tells_kinds_of_memory"),
    ("P5", "cache/watch/userfaultfd.rs", "libc::EINVAL if part.end == range.end => return Memory::Private,", "libc::EINVAL => return Memory::Private,",
     "unit", "the_kernel_tells_kinds_of_memory"),
    ("P6", "cache/region/state.rs", "seen.0 & (MONITORED | PHASE | STALE) == MONITORED | KEPT", "seen.0 & (MONITORED | PHASE) == MONITORED | KEPT",
     "unit", "no_entry_is_answered_for_that_is_stale"),
    ("P6", "cache/region/state.rs", "matches!(self.0 & (MONITORED | PHASE), UNKEPT | KEPT)", "matches!(self.0 & PHASE, UNKEPT | KEPT)",
     "unit", "no_thread_takes_or_claims_a_monitored"),
    ("P6", "monitor/set.rs", "            range.state.is_monitored_that(is_it)", "            is_it(())",
     "unit", "no_entry_is_answered_for_that_is_stale"),
    ("L1", "cache/watch/ring.rs", "            return self.lose();\n", "            return;\n",
     "loom", "loom_a_full_ring"),
    ("L1", "cache/watch/ring.rs", "if from / LOSS != to / LOSS {", "if false {",
     "loom", "loom_a_call_without_the_lock"),
    ("W1", "cache/watch/event_reader.rs", "        ring.announce();\n        let drained = drain(file, ring, &mut messages);\n",
     "        let drained = drain(file, ring, &mut messages);\n        ring.announce();\n",
     "suite", "race"),
    ("W1", "capi/tasks.rs", "        ret::always((), || dispatch::end_for_good(End::Task));\n", "        ret::always((), || drop((dispatch::end_for_good as fn(End), End::Task)));\n",
     "suite", "tasks"),
    ("W2", "cache/life/hit.rs", "let fenced = steps.must_fence();", "let fenced = false;",
     "suite", "race"),
    ("W3", "cache/watch/watcher.rs", "self.single_threaded.load(Relaxed) != 0 && self.version.load(Relaxed) == 1", "self.single_threaded.load(Relaxed) != 0",
     "suite", "race"),
    ("W4", "cache/watch/watch_fd.rs", "        self.prove()?;\n", "",
     "unit", "memory_of_another_userfaultfd_is_not_ours"),
    ("W4", "capi/descriptors.rs", "has_way = ret::always(true, || WATCH_FD.make_way(kept));", "has_way = kept >= 0;",
     "suite", "descriptors"),
    ("W4", "cache/watch/watch_fd.rs", "if !TABLE.is_here_of_program() {", "if false {",
     "suite", "descriptors"),
    ("W5", "cache/noted.rs", "range.overlaps(PageRange::new(start.load(Relaxed), end))", "false",
     "loom", "loom_kept_while_its_memory_changes"),
    ("W5", "cache/life/change.rs", "under_way.inside(cache, || before_change(cache, range, kind))", "None",
     "suite", "regions_ended"),
    ("W5", "cache/life/change.rs", "            self.inside(cache, || after_change(cache, range, kind));\n", "            let _ = kind;\n",
     "suite", "regions_ended"),
    ("W5", "cache/life/change.rs", "                cache.regions.ring.lose();\n", "",
     "suite", "regions_ended"),
    ("W5", "cache/life/change.rs", "if self.kind != CallKind::Reported || self.noted.is_some() {", "if self.kind != CallKind::Reported {",
     "unit", "a_call_that_gets_no_lock_afterwards_is_a_loss"),
    ("W5", "cache/counted.rs", "    !CALLS.is_none()\n", "    false\n",
     "suite", "regions_ended"),
    ("W7", "cache/locked.rs", "            part.start = part.start.max(needed.end);\n", "",
     "unit", "memory_is_watched_for_regions"),
    ("W7", "cache/locked.rs", "if self.is_unwatching_near(region.page_range()) {", "if false {",
     "unit", "nothing_is_kept_beside_the_end_of_a_watch"),
    ("W7", "cache/locked.rs", "            if !region.state.load().is_kept() {\n", "            if false {\n",
     "unit", "nothing_is_kept_beside_the_end_of_a_watch"),
    ("W8", "cache/watch/watch_fd.rs", "            Userfaultfd::of_fd(fd).close();\n        }\n        set_errno(before);\n", "        }\n        set_errno(before);\n",
     "suite", "descriptors"),
    ("W9", "cache/life/change.rs", "    Some(unreported(start as usize, length as usize))\n", "    None\n",
     "unit", "an_unregistration_is_a_change"),
    ("the exception", "cache/life/miss.rs", "            && !ring.may_be_dropping(page_range, clock::monotonic_by_kernel)\n", "",
     "suite", "regions_ended"),
    ("P3", "cache/locked.rs", "is_same && self.claim(id)", "self.claim(id)",
     "unit", "a_spent_region_is_told_from_a_later_one"),
    ("W6", "cache/watch/calls.rs", "    KNOWN.load(Relaxed) == IN_PLACE\n", "    true\n",
     "suite", "loaded_by_dlopen"),
    ("W10", "cache/start.rs", "    if let Some(why) = ended_by() {\n        give_up(cache, why);\n    }\n", "",
     "suite", "filters"),
    ("W10", "cache/ended.rs", "    wait_for_start(if is_first { LONG } else { MOMENT });\n", "",
     "suite", "filters"),
    ("drivers", "uverbs/driver.rs", 'Driver { private_in: 8, ..direct(RDMA_DRIVER_IRDMA, ', 'Driver { ..direct(RDMA_DRIVER_IRDMA, ',
     "provider", "irdma0"),
    ("drivers", "uverbs/driver.rs", "Driver { says: BNXT_RE_SAYS, ", "Driver { private_in: 8, says: BNXT_RE_SAYS, ",
     "provider", "bnxt_re0"),
    ("drivers", "uverbs/driver.rs", "Driver { way: Way::DirectUnlessEmpty, says: UMEM_IS_ENOMEM, ", "Driver { says: UMEM_IS_ENOMEM, ",
     "provider", "hns_0"),
    ("drivers", "mr/object.rs", "            provider_access: access,\n", "            provider_access: 0,\n",
     "provider", "mlx5_0"),
]


def copy():
    """Makes the copy equal to the sources. Cargo compiles again what has a new time: files that are equal keep theirs."""
    names = subprocess.run(["bash", "-c", ". packaging/tree.sh; tree_files | grep -E '^(src|tool|include|docs|Cargo|build.rs|cbindgen|ctests/fuzz/inputs)'"],
                           cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    for path in TREE.rglob("*"):
        if path.is_file() and str(path.relative_to(TREE)) not in names:
            path.unlink()
    for name in names:
        to = TREE / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists() or not filecmp.cmp(ROOT / name, to, shallow=False):
            shutil.copy(ROOT / name, to)


def cargo(loom, *arguments):
    """Runs cargo on the copy. Returns whether it succeeded, and its output."""
    env = dict(os.environ, CARGO_TARGET_DIR=str(WORK / ("loom" if loom else "cargo")), CARGO_PROFILE_RELEASE_LTO="false",
               CARGO_PROFILE_RELEASE_CODEGEN_UNITS="16", CARGO_PROFILE_RELEASE_DEBUG="false", CARGO_INCREMENTAL="1")
    if loom:
        env["RUSTFLAGS"] = "--cfg loom"
    done = subprocess.run(["cargo", *arguments], cwd=TREE, env=env, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


def outcome(kind, test):
    """Whether the test "passes", "fails", "stops" before it fails, or is "skipped"; and the line that shows it."""
    if kind in ("loom", "unit"):
        passed, text = cargo(kind == "loom", "test", "--release", "--lib", "-p", "rdmamr-cache", "-p", "rdmamr-monitor", test)
        # One of the two crates has the test.
        if not re.search(r"^test result: .* [1-9]\d* (passed|failed);", text, re.M):
            return "stops", "it did not run: " + " ".join(text[-500:].split())
        panic = re.search(r"panicked at [^\n]*\n([^\n]*)", text)
        failed = re.search(r"^test result: .* [1-9]\d* failed;", text, re.M)
        return "passes" if passed else "fails" if failed else "stops", panic.group(1) if panic else ""
    built, text = cargo(False, "build", "--release", "-p", "rdmamr")
    if not built:
        return "stops", "it does not build: " + " ".join(text[-500:].split())
    release = WORK / "cargo" / "release"
    if kind == "suite":
        results = WORK / "results"
        results.mkdir(exist_ok=True)
        env = dict(os.environ, CHECK_LIBRARY=str(release / "librdmamr.so"), RESULTS=str(results))
        subprocess.run(["ctests/suite", "host", test], cwd=ROOT, env=env, check=True, capture_output=True)
        tap = (results / f"host.{test}.tap").read_text()
        if skipped := re.search(r"^1\.\.0 # SKIP (.*)", tap, re.M):
            return "skipped", skipped.group(1)
    else:
        subprocess.run(["vm/module", "6.12", "vm/hca"], cwd=ROOT, check=True)
        command = ["ctests/plain/providers.sh", release / "librdmamr.so", "target/ctests", test]
        command = ["vm/retry", "vm/run", "-k", "6.12", "--", *command]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        tap = done.stdout
        if not re.search(r"^1\.\.[1-9]", tap, re.M) or "# SKIP" in tap:
            raise SystemExit(f"mutants: {test} did not run in the machine:\n{tap[-3000:]}{done.stderr[-3000:]}")
    for result, line in ("fails", "not ok"), ("stops", "Bail out!"):
        if bad := re.search(rf"^{line}.*", tap, re.M):
            return result, bad.group()
    return "passes", ""


def gone():
    """The mutants whose code is no longer in its file."""
    return [f"{file} no longer has {code!r}" for _, file, code, *_ in MUTANTS if code not in (ROOT / "src" / file).read_text()]


def main():
    if sys.argv[1:] == ["--gone"]:
        return "\n".join(gone()) or 0
    if gone():
        raise SystemExit("mutants: " + "\n".join(gone()))
    wanted = set(sys.argv[1:])
    mutants = [mutant for mutant in MUTANTS if not wanted or mutant[0] in wanted]
    print(f"1..{len(mutants)}")
    survived = 0
    copy()
    skipped = {}
    for kind, test in dict.fromkeys(mutant[-2:] for mutant in mutants):
        result, how = outcome(kind, test)
        if result == "skipped":
            skipped[test] = how
        elif result != "passes":
            raise SystemExit(f"mutants: {test} {result} while nothing is broken: {how}")
    for n, (lemma, file, code, other, kind, test) in enumerate(mutants, 1):
        name = f"{n} - {lemma}: {test} fails without {code.strip()!r} in {file}"
        if test in skipped:
            print(f"ok {name} # SKIP {skipped[test]}", flush=True)
            continue
        copy()
        path = TREE / "src" / file
        path.write_text(path.read_text().replace(code, other))
        # "race" fails if its threads meet, and in one run they need not.
        for _ in range(5 if test == "race" else 1):
            result, how = outcome(kind, test)
            if result != "passes":
                break
        survived += result != "fails"
        print(f"{'ok' if result == 'fails' else 'not ok'} {name}")
        print(f"# it {result}: {how}", flush=True)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
