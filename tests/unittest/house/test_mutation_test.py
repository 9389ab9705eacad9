# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The mutation test finds every mutant, tells killed from survived, and asks for reasons."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mutants import mutants_of

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


def changed(source: str) -> set[str]:
    """Mutated lines of a text."""
    return {mutant.mutated for mutant in mutants_of("m.py", source)}


def test_every_survivor_in_the_record_has_a_reason() -> None:
    command = [sys.executable, SCRIPTS / "mutation_test.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("source", "mutated"),
    [
        ("x = a < b", {"x = a <= b", "x = a >= b"}),
        ("x = a >= b", {"x = a > b", "x = a < b"}),
        ("x = a == b", {"x = a != b"}),
        ("x = a is not b", {"x = a is b"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = (a) > (b)", {"x = (a) >= (b)", "x = (a) <= (b)"}),
        ("x = a < b < c", {"x = a <= b < c", "x = a >= b < c", "x = a < b <= c", "x = a < b >= c"}),
        ("x = a and b", {"x = True and b", "x = a and True", "x = a or b"}),
        ("x = a or b", {"x = False or b", "x = a or False", "x = a and b"}),
        ("x = not a", {"x = a"}),
        ("x = -a", {"x = a"}),
        ("x = a if b else c", {"x = a if True else c", "x = a if False else c"}),
        ("x = [i for i in a if i]", {"x = [i for i in a if True]", "x = [i for i in a if False]"}),
        ("x = a + 1", {"x = a - 1", "x = a + 2", "x = a + 0"}),
        ("x = a // b", {"x = (-(-(a) // (b)))"}),
        ("x = a * b % c", {"x = a // b % c", "x = a * b // c"}),
        ("x += a", {"x -= a"}),
        ("x //= a | b ** c", set()),
        ("x = a[b:]", {"x = a[:]", "x = a[(b) + 1:]"}),
        ("x = a[:1]", {"x = a[:]", "x = a[:2]", "x = a[:0]"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("x = any(a)", {"x = all(a)"}),
        ("x = sorted(a, reverse=True)", {"x = sorted(a, reverse=False)"}),
        ("def f(n=3): ...", {"def f(n=4): ...", "def f(n=2): ..."}),
        ("x: tuple[int, int] = a[0]", {"x: tuple[int, int] = a[1]", "x: tuple[int, int] = a[-1]"}),
        ("a.clear()", {"pass"}),
        ("x = True", set()),
        ("x = f'{a + 1} items'", set()),
        ("if TYPE_CHECKING:\n    a = 1 + 1", set()),
        ("def f():\n    return a", set()),  # leaves at its end, not early
    ],
)
def test_mutants_of_a_line(source: str, mutated: set[str]) -> None:
    assert changed(source) == mutated


def test_branches_and_guards() -> None:
    source = """
def f(a):
    if a:
        return 1.5
    for b in a:
        if b:
            c()
            continue
        d()
    while a:
        pass
"""
    changes = [(m.line, m.original, m.mutated) for m in mutants_of("m.py", source)]
    assert changes == [
        (3, "if a:", "if False:"),  # the same as without `return 1.5`
        (3, "if a:", "if True:"),
        (6, "if b:", "if False:"),
        (6, "if b:", "if True:"),
        (7, "c()", "pass"),
        (8, "continue", "pass"),
        (9, "d()", "pass"),
        (10, "while a:", "while False:"),
    ]


def test_a_mutant_knows_where_it_is() -> None:
    source = "class A:\n    n = 1\n\n    def f(self):\n        return g(\n            self.n + h)\n"
    constant, _, plus = mutants_of("m.py", source)
    assert (constant.function, constant.line, constant.at_import) == ("A", 2, True)
    assert (plus.function, plus.line, plus.at_import) == ("A.f", 6, False)
    assert plus.key == "m.py::A.f: self.n + h) -> self.n - h)"
    assert plus.source == source.replace("+", "-")


def test_equal_lines_of_a_function_are_told_apart() -> None:
    source = "def f(a):\n    a.x()\n    a.x()\n"
    assert [m.mutated for m in mutants_of("m.py", source)] == ["pass", "pass  # 2"]


def test_what_is_excluded_has_no_mutants() -> None:
    source = "class A:\n    def f(self):\n        g(1)\n\n    def h(self):\n        g(2)\n"
    skipped = mutants_of("m.py", source, {"A.f"}.__contains__)
    assert {m.function for m in skipped} == {"A.h"}
    assert mutants_of("m.py", source, {"A"}.__contains__) == []


# ---- the whole run, on a toy ---------------------------------------------------------------------

TOY = """
LIMIT = 3


def clamp(n):
    if n > LIMIT:
        return LIMIT
    return n


def countdown(n, step):
    while n > 0:
        n = n - step
    return n


def never_called(n):
    return n + 1
"""
TOY_TESTS = """
from toy.core.mod import clamp, countdown

def test_clamp():
    assert [clamp(n) for n in (2, 3, 9)] == [2, 3, 3]

def test_countdown():
    assert [countdown(n, 2) for n in (1, 4)] == [-1, 0]
"""
SURVIVORS = {
    "clamp: if n > LIMIT: -> if n >= LIMIT:",  # makes no difference
    "never_called: return n + 1 -> return n - 1",
    "never_called: return n + 1 -> return n + 2",
    "never_called: return n + 1 -> return n + 0",
}


class Toy:
    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("toy/core", "tests"):
            (root / folder).mkdir(parents=True)
        for package in ("toy", "toy/core"):
            (root / package / "__init__.py").touch()
        self.module = root / "toy/core/mod.py"
        self.module.write_text(TOY)
        self.tests = root / "tests/test_mod.py"
        self.tests.write_text(TOY_TESTS)
        self.record = root / "survivors.json"

    def run(self, *flags: str) -> tuple[int, str]:
        command = [sys.executable, SCRIPTS / "mutation_test.py", "--root", self.root]
        command += ["--source", "toy/core", "--tests", "tests", "--record", "survivors.json"]
        done = subprocess.run(
            [*command, "--grace", "1", "--preload", "pytest", "hypothesis", *flags],
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout

    def survivors(self) -> list[dict[str, Any]]:
        return list(json.loads(self.record.read_text())["survivors"])

    def explain(self) -> None:
        record = json.loads(self.record.read_text())
        for entry in record["survivors"]:
            entry["reason"] = "toy"
        self.record.write_text(json.dumps(record))


def test_toy(tmp_path: Path) -> None:
    toy = Toy(tmp_path)
    status, out = toy.run()
    assert {
        "{function}: {original} -> {mutated}".format(**entry) for entry in toy.survivors()
    } == SURVIVORS
    assert status == 1
    assert out.count("no reason: ") == len(SURVIVORS)
    assert out.count("timeout") == 1  # n = n + step never gets there
    assert toy.module.read_text() == TOY
    counts = json.loads(toy.record.read_text())["files"]["mod.py"]
    assert counts["survivors"] == len(SURVIVORS)
    assert counts["mutants"] > 2 * len(SURVIVORS)

    toy.explain()
    status, out = toy.run()
    assert (status, "0 to run" in out) == (0, True)
    assert toy.run("--check") == (0, "every survivor has its reason\n")

    # A better test and a changed line: what they touch runs again, reasons that are left are kept.
    toy.tests.write_text(TOY_TESTS.replace("clamp, ", "clamp, never_called, ") + MORE_TESTS)
    status, out = toy.run()
    assert (status, "without a mutant" in out) == (0, True)
    assert {entry["function"] for entry in toy.survivors()} == {"clamp", "never_called"}
    status, out = toy.run("--again")
    assert "without a mutant" not in out
    assert [entry["function"] for entry in toy.survivors()] == ["clamp"]
    assert out.count("reason without a survivor: mod.py::never_called") == 3
    assert status == 1
    assert toy.run()[0] == 0
    toy.module.write_text(TOY.replace("if n > LIMIT", "if LIMIT < n"))
    status, out = toy.run("--check")
    assert (status, out.count("no such mutant any more")) == (1, 1)
    assert "not run since a change: mod.py" in out


MORE_TESTS = """
def test_never_called():
    assert never_called(1) == 2
"""
