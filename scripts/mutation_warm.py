# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A pytest session that has collected its tests: forks of it try mutants at once.

A mutant of a function needs no import: the function that is there gets the code of the mutant. What
ran while the modules were imported cannot be tried so, and is left to a new process.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NoReturn, TextIO

COLD = 125
"""Exit status: the mutant needs a new process."""


class Warm:
    """pytest plugin: instead of running the tests it waits for mutants and forks for each."""

    def __init__(self, folder: Path, requests: TextIO, answers: TextIO) -> None:
        """Watches what is called before the tests.

        Args:
            folder: Of the files that are mutated.
            requests: A line each: the file that was mutated, and its tests with their limits, in
                seconds of work. Its end ends the session.
            answers: A line when the tests are collected; then one each, the exit status, negative
                for a signal.
        """
        self._folder, self._requests, self._answers = str(folder), requests, answers
        self._originals = {path.name: path.read_text("utf-8") for path in folder.glob("*.py")}
        self._called: set[CodeType] = set()
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_filename.startswith(self._folder):
            self._called.add(frame.f_code)

    def pytest_runtestloop(self, session: Any) -> bool:
        """Serves requests; the parent of all that run tests."""
        sys.settrace(None)
        functions: dict[CodeType, list[FunctionType]] = {}
        for found in gc.get_objects():
            if type(found) is FunctionType and found.__code__.co_filename.startswith(self._folder):
                functions.setdefault(found.__code__, []).append(found)
        items = {item.nodeid: item for item in session.items}
        gc.freeze()
        self._answer("ready")
        for line in self._requests:
            file, limits = json.loads(line)
            if not (pid := os.fork()):
                status = COLD
                try:
                    if self._swap(file, functions):
                        status = _try(session, items, limits)
                finally:
                    leave(status)
            self._answer(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return True

    def _answer(self, answer: object) -> None:
        self._answers.write(f"{answer}\n")
        self._answers.flush()

    def _swap(self, file: str, functions: Mapping[CodeType, list[FunctionType]]) -> bool:
        """Gives functions the code of the mutated file; False where that is not all there is."""
        path = Path(self._folder, file)
        old = compile(self._originals[file], str(path), "exec")
        new = compile(path.read_text("utf-8"), str(path), "exec")
        pairs = list(_functions(old, new))
        changed = [(a, b) for a, b in pairs if a != b]
        for a, b in changed:
            if a.co_freevars != b.co_freevars or a in self._called or a not in functions:
                return False
            for function in functions[a]:
                function.__code__ = b
        return bool(changed)


def _functions(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Functions and methods of a module, in the order of the text, before and after a change."""
    for a, b in zip(_codes(old), _codes(new), strict=True):
        if a.co_flags & 1:  # CO_OPTIMIZED: a function, no class
            yield a, b
        else:
            yield from _functions(a, b)


def _codes(code: CodeType) -> list[CodeType]:
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def _try(session: Any, items: Mapping[str, Any], limits: Mapping[str, float]) -> int:
    """Runs tests in their order until one fails; its name is in the file ``killer.txt`` then."""
    chosen = [items[name] for name in limits]
    for item, following in zip(chosen, [*chosen[1:], None], strict=True):
        Path("killer.txt").write_text(item.nodeid, "utf-8")
        limit_work(limits[item.nodeid])
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


def leave(status: int) -> NoReturn:
    """Ends a fork at once, after what it wrote; says what failed, if something did."""
    if sys.exc_info()[0]:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def limit_work(seconds: float) -> None:
    """Lets this process end when it has worked so much longer: what goes on is a mutant's loop."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


class Line:
    """The other end: hands mutants to a session in a process of its own."""

    def __init__(self, start: Callable[[TextIO, TextIO], None]) -> None:
        """Forks.

        Args:
            start: Runs in the fork and never returns: makes a ``Warm`` of the two files.
        """
        requests, answers = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(requests[1])
            os.close(answers[0])
            start(os.fdopen(requests[0]), os.fdopen(answers[1], "w"))
        os.close(requests[0])
        os.close(answers[1])
        self._requests = os.fdopen(requests[1], "w")
        self._answers = os.fdopen(answers[0])

    def ask(self, file: str, limits: Mapping[str, float]) -> int:
        """Exit status of a mutant's tests; see ``Warm``."""
        self._requests.write(json.dumps([file, limits]) + "\n")
        self._requests.flush()
        return int(self.answer())

    def answer(self) -> str:
        """The next line from the session."""
        answer = self._answers.readline()
        if not answer:
            raise EOFError("the session with the tests has ended")
        return answer

    def close(self) -> None:
        """Ends the session."""
        self._requests.close()
        os.waitpid(self.pid, 0)
