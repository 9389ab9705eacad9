# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""How ``mutation_test.py`` runs pytest: in forks of a process that has torch imported already."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, NoReturn, TextIO

from mutants import Mutant, functions_by_line
from mutation_warm import COLD, Line, Warm, leave, limit_work

Json = dict[str, Any]

NO_TEST = 5  # pytest's exit status: nothing was collected
_HUNG = 124  # ours
_COLLECTION = 120  # seconds of work before the first test
_PATIENCE = 5  # times as long as without a mutant: a test hangs
_DEADLOCK = 120  # seconds by the clock, for a test that waits and does not work
_IMPORT = re.compile(r"^(?:from|import) .*", re.MULTILINE)
_stamps = count(1_000_000_000)


class Selection:
    """Which tests call which functions, and how long they take."""

    def __init__(
        self,
        root: Path,
        folders: Sequence[str],
        baseline: Json,
        *,
        slowest: float,
        seconds: float,
    ) -> None:
        """Takes the result of a run without a mutant.

        Args:
            root: Of the tree.
            folders: Test folders, from there; those of the first come first.
            baseline: By test: ``seconds``, and by file the names of the functions that it calls,
                ``calls``.
            slowest: Seconds of work that a test may take.
            seconds: For the tests that are one of some, see ``of``.
        """
        self._folders = folders
        self._baseline = {t: e for t, e in baseline.items() if e["seconds"] <= slowest}
        self._seconds = seconds
        self._modules: Counter[str] = Counter()
        for test, entry in self._baseline.items():
            self._modules[_module(test)] += entry["seconds"]
        self._imports = {
            name: "\n".join(_IMPORT.findall((root / name).read_text("utf-8")))
            for name in self._modules
        }
        self._called = {
            (file, function)
            for entry in self._baseline.values()
            for file, functions in entry["calls"].items()
            for function in functions
        }

    def of(self, mutant: Mutant, killer: str) -> list[dict[str, float]]:
        """Tests to run against a mutant, with their seconds, in order.

        Args:
            mutant: The mutant.
            killer: The test that killed it in an earlier run; or empty.

        Returns:
            Two rounds, empty ones left out: the tests of the file's own and some of test files that
            import it, which are likely to notice; then some of the others.
        """
        # What no test calls by name may be new, or behind something that is not noticed.
        somewhere = mutant.at_import or (mutant.file, mutant.function) not in self._called
        own = {m for m in self._modules if Path(m).name == f"test_{mutant.file}"}
        hit = [
            test
            for test, entry in self._baseline.items()
            if mutant.function in entry["calls"].get(mutant.file, ())
            or (somewhere and (mutant.file in entry["calls"] or _module(test) in own))
        ]
        hit.sort(key=lambda test: self._baseline[test]["seconds"])
        turns: Counter[str] = Counter()
        order = {}
        about = re.compile(rf"\b{Path(mutant.file).stem}\b")
        for test in hit:
            module = _module(test)
            turns[module] += 1
            first = test == killer or module in own
            tier = 0 if first else 1 if about.search(self._imports[module]) else 2
            order[test] = (tier, test != killer, *self._order(test, turns[module]))
        tiers: list[dict[str, float]] = [{}, {}, {}]
        for test in sorted(hit, key=order.__getitem__):
            seconds, chosen = self._baseline[test]["seconds"], tiers[order[test][0]]
            if not order[test][0] or sum(chosen.values()) + seconds <= self._seconds:
                chosen[test] = seconds
        return [tests for tests in (tiers[0] | tiers[1], tiers[2]) if tests]

    def _order(self, test: str, turn: int) -> tuple[int, int, float, str]:
        """In turns, a test of each file, as each asks other questions.

        Not so behind the first folder: fixtures are dear there and belong to a file.
        """
        folder = next(i for i, name in enumerate(self._folders) if test.startswith(name))
        module = _module(test)
        return (folder, 0, self._modules[module], module) if folder else (folder, turn, 0, "")


class Chosen:
    """pytest plugin: keeps the chosen tests, in their order, and writes down which is running."""

    def __init__(self, limits: Mapping[str, float], out: Path) -> None:
        """Makes a plugin.

        Args:
            limits: Seconds of work that a test may take, by its name, in the order to run them.
            out: File for the name of the test that is running.
        """
        self.limits = limits
        self._rank = {test: i for i, test in enumerate(limits)}
        self._out = out

    def pytest_sessionstart(self) -> None:
        """A module may hang, too."""
        limit_work(_COLLECTION)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keeps what was chosen."""
        kept = [item for item in items if item.nodeid in self._rank]
        items[:] = sorted(kept, key=lambda item: self._rank[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Notes the test; nothing runs after one that fails, hangs or crashes."""
        self._out.write_text(nodeid, "utf-8")
        limit_work(self.limits[nodeid])


class Traced:
    """pytest plugin: notes which functions of a folder every test calls, and its time."""

    def __init__(self, folder: Path, out: Path) -> None:
        """The result goes to the file ``out``; functions as the lines where they begin."""
        self._folder, self._out = str(folder), out
        self._baseline: Json = {}
        self._clock = 0.0
        self._called: set[CodeType] = set()
        self._shared: dict[str, set[CodeType]] = {}  # by test file

    def pytest_collection_finish(self) -> None:
        """Starts; what was called meanwhile made the modules."""
        self._clock = _cpu_seconds()
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Takes the calls of a phase."""
        entry = self._baseline.setdefault(report.nodeid, {"seconds": 0.0, "calls": set()})
        before, self._clock = self._clock, _cpu_seconds()
        entry["seconds"] += self._clock - before
        # What a fixture made, other tests of the file may use without making it.
        shared = self._shared.setdefault(_module(report.nodeid), set())
        (entry["calls"] if report.when == "call" else shared).update(self._called)
        self._called.clear()

    def pytest_sessionfinish(self) -> None:
        """Writes the result."""
        sys.settrace(None)
        for test, entry in self._baseline.items():
            calls: dict[str, list[int]] = {}
            for code in entry["calls"] | self._shared[_module(test)]:
                calls.setdefault(Path(code.co_filename).name, []).append(code.co_firstlineno)
            entry["calls"] = calls
        self._out.write_text(json.dumps(self._baseline), "utf-8")

    def _trace(self, frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_filename.startswith(self._folder):
            self._called.add(frame.f_code)


class Child(NamedTuple):
    """A mutant at work."""

    mutant: Mutant
    tree: Path
    started: float

    def outcome(self, status: int) -> Json:
        """What an exit status means: ``status``, the test ``by`` which, ``seconds``."""
        if status == NO_TEST:
            raise SystemExit(f"{(self.tree / 'output.txt').read_text()}\nno test ran")
        killer = self.tree / "killer.txt"
        return {
            "status": {0: "survived", _HUNG: "timeout"}.get(status, "killed"),
            "by": killer.read_text("utf-8") if status and killer.exists() else "",
            "seconds": round(time.monotonic() - self.started, 2),
        }


class Workshop:
    """Copies of the tree in which mutants run, one for each that runs at a time."""

    def __init__(self, root: Path, source: str, scratch: Path, workers: int, grace: float) -> None:
        """Makes the copies.

        Args:
            root: The tree.
            source: Folder of the files that are mutated, from the root.
            scratch: Where the copies go.
            workers: Mutants that run at a time.
            grace: Seconds of work that a test may take on top of several times what it takes
                without a mutant.
        """
        self._grace = grace
        dull = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
        self._source = source
        self._package = source.partition("/")[0]
        self._trees = [
            Path(shutil.copytree(root, scratch / str(i), ignore=dull)) for i in range(workers)
        ]
        files = (self._trees[0] / source).glob("*.py")  # somebody may edit the root meanwhile
        self._originals = {path.name: path.read_text("utf-8") for path in files}
        self._lines: dict[Path, Line] = {}

    def baseline(self, paths: Sequence[str]) -> Json:
        """Runs tests without a mutant, for ``Selection``; exits when one fails."""
        tree = self._trees[0]
        out = tree / "baseline.json"
        pid = self._fork(tree, [(paths, Traced(tree / self._source, out))])
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) not in (0, NO_TEST):
            raise SystemExit(f"{(tree / 'output.txt').read_text()}\nfailed without a mutant")
        traced: Json = json.loads(out.read_text("utf-8"))
        names = {file: functions_by_line(text) for file, text in self._originals.items()}
        for entry in traced.values():
            for file, lines in entry["calls"].items():
                entry["calls"][file] = sorted({names[file][line] for line in lines})
        return traced

    def warm_up(self, paths: Sequence[str]) -> None:
        """Starts sessions that have collected these tests; see ``Warm``."""
        for tree in self._trees:

            def start(requests: TextIO, answers: TextIO, tree: Path = tree) -> None:
                warm = Warm(tree / self._source, requests, answers)
                self._in_child(tree, paths, warm, "warm.txt")

            self._lines[tree] = Line(start)
        for line in self._lines.values():
            line.answer()  # until then it reads the files

    def close(self) -> None:
        """Ends the sessions."""
        for line in self._lines.values():
            line.close()

    def run(
        self,
        mutants: Iterable[Mutant],
        tests_of: Callable[[Mutant], Sequence[Mapping[str, float]]],
    ) -> Iterator[tuple[Mutant, Json]]:
        """Runs mutants, as many at a time as there are copies.

        Args:
            mutants: What to run.
            tests_of: Tests of a mutant, see ``Selection.of``.

        Yields:
            Each mutant with its outcome (see ``Child``), as it is done.
        """
        running: dict[int, Child] = {}
        waiting = iter(mutants)
        while True:
            while self._trees and (mutant := next(waiting, None)):
                if not (rounds := tests_of(mutant)):
                    yield mutant, {"status": "survived", "by": "", "seconds": 0.0}
                    continue
                tree = self._trees.pop()
                self._write(tree, mutant.file, mutant.source)
                (tree / "killer.txt").unlink(missing_ok=True)
                pid = self._supervise(tree, mutant, rounds)
                running[pid] = Child(mutant, tree, time.monotonic())
            if not running:
                return
            pid, status = os.wait()
            child = running.pop(pid)
            self._write(child.tree, child.mutant.file, self._originals[child.mutant.file])
            self._trees.append(child.tree)
            yield child.mutant, child.outcome(os.waitstatus_to_exitcode(status))

    def _write(self, tree: Path, file: str, text: str) -> None:
        path = tree / self._source / file
        path.write_text(text, "utf-8")
        stamp = next(_stamps)  # or Python might take the bytecode of another mutant for it
        os.utime(path, (stamp, stamp))

    def _round(self, tree: Path, tests: Mapping[str, float]) -> tuple[list[str], Chosen]:
        limits = {test: self._grace + _PATIENCE * seconds for test, seconds in tests.items()}
        return sorted(set(map(_module, tests))), Chosen(limits, tree / "killer.txt")

    def _supervise(self, tree: Path, mutant: Mutant, rounds: Sequence[Mapping[str, float]]) -> int:
        """A process that ends as the tests of a mutant do, whoever runs them."""
        prepared = [self._round(tree, tests) for tests in rounds]
        if pid := os.fork():
            return pid
        status = COLD
        try:
            if not mutant.at_import:
                limits = {name: s for _, chosen in prepared for name, s in chosen.limits.items()}
                status = self._lines[tree].ask(mutant.file, limits)
            if status == COLD:
                status = os.waitstatus_to_exitcode(os.waitpid(self._fork(tree, prepared), 0)[1])
            status = _HUNG if status == -signal.SIGXCPU else abs(status)
        finally:
            if sys.exc_info()[0]:
                traceback.print_exc()
                status = NO_TEST
            os._exit(status)

    def _fork(self, tree: Path, rounds: Sequence[tuple[Sequence[str], object]]) -> int:
        """Runs pytest on paths with a plugin, each in a process of its own, until one fails."""
        if pid := os.fork():
            return pid
        for paths, plugin in rounds:
            if not (pid := os.fork()):
                self._in_child(tree, paths, plugin)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if status:
                os._exit(_HUNG if status == -signal.SIGXCPU else abs(status))
        os._exit(0)

    def _in_child(
        self, tree: Path, paths: Sequence[str], plugin: object, log: str = "output.txt"
    ) -> NoReturn:
        status = 3
        try:
            os.chdir(tree)
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.path.insert(0, str(tree))
            status = _pytest(tree, paths, plugin)
            home = getattr(sys.modules.get(self._package), "__file__", None) or str(tree)
            if not home.startswith(str(tree)):
                print(f"the tests imported {home}", flush=True)
                status = NO_TEST
        finally:
            leave(status)


def _pytest(tree: Path, paths: Sequence[str], plugin: object) -> int:
    import pytest
    from hypothesis import Phase, settings

    settings.register_profile(
        "mutation",
        phases=[Phase.explicit, Phase.generate],  # that something fails is all we ask
        derandomize=True,
        database=None,
        deadline=None,
    )
    settings.load_profile("mutation")
    flags = ["-x", "-q", "--tb=short", "-m", "not gpu", "-p", "no:cacheprovider"]
    flags += ["--timeout", str(_DEADLOCK), "--assert=plain", "-p", "no:anyio", "-p", "no:xdist"]
    flags += ["-p", "no:unraisableexception"]  # collects garbage, again and again
    places = ["--rootdir", str(tree), "--basetemp", str(tree / "basetemp")]
    return int(pytest.main([*flags, *places, *paths], plugins=[plugin]))


def _cpu_seconds() -> float:
    """Of this process and those it has started: the clock says more about who else is here."""
    return sum(os.times()[:4])


def _module(test: str) -> str:
    return test.partition("::")[0]
