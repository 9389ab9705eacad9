# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the fast tests against every mutant of ``graphs/`` and lists the survivors.

    python scripts/mutation_test.py                     # all of it; an hour
    python scripts/mutation_test.py --only packer.py    # one file
    python scripts/mutation_test.py --check             # runs nothing: is the list up to date?

A survivor is a gap in the tests or a change that makes no difference. It is written to
``tests/mutation/survivors.json``; whoever finds that it makes none writes the reason there. A run
fails while a survivor has no reason, and says which reasons have lost their survivor.

Mutants (``mutants.py``) run in copies of the tree, never in place. Each gets a fork of a process
that has collected the tests (``mutation_warm.py``), or, if it changes what an import does, of one
that has not. There the tests run that call the changed function: those of the file's own, then for
some seconds those of test files that import it, then for as long the others; the fastest of every
test file, then the next ones. Slow tests do not take part (``mutation_run.py``).

Results are kept in ``build/mutation`` and used again for as long as the mutated file and the tests
stay as they are; for a killed mutant only the file with the test that killed it counts, and what
test files share. A survivor with a reason is believed until its file changes; ``--again`` doubts
it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from mutants import Mutant, functions_by_line, mutants_of
from mutation_run import Json, Selection, Workshop

ROOT = Path(__file__).resolve().parent.parent

EXCLUDED = {
    "report_html.py": "text and drawing of a page that people look at",
    "report_style.py": "text and drawing of a page that people look at",
    "report_text.py": "text: how numbers are written",
    "svg_charts.py": "text and drawing of a page that people look at",
    "report_encoder.py::encoder_section": "text and drawing of a page that people look at",
    "report_encoder.py::_time_charts": "text and drawing of a page that people look at",
    "report_encoder.py::_times": "text and drawing of a page that people look at",
    "report_encoder.py::_memory_chart": "text and drawing of a page that people look at",
    "report_encoder.py::_waste_chart": "text and drawing of a page that people look at",
    "report_encoder.py::_sampled": "text and drawing of a page that people look at",
    "report_encoder.py::_dropped": "text and drawing of a page that people look at",
    "report_encoder.py::_extent": "text and drawing of a page that people look at",
    "report_encoder.py::_bucket_table": "text and drawing of a page that people look at",
    "plan.py::EncoderPlan.render": "text for a terminal",
    "plan.py::_render_tower": "text for a terminal",
    "plan.py::_how": "text for a terminal",
    "report.py::_render_tower": "text for a terminal",
    "backends.py::_PooledGraph": "needs a CUDA GPU: tests/gpu",
    "backends.py::CudaGraphBackend": "needs a CUDA GPU: tests/gpu",
    "backends.py::_host_reads_are_errors": "needs a CUDA GPU: tests/gpu",
    "backends.py::_set_sync_debug_mode": "needs a CUDA GPU: tests/gpu",
}
"""Files, or functions of a file, without mutants, and why."""


class History:
    """Outcomes of earlier runs, a line for each; the last one of a mutant counts."""

    def __init__(self, file: Path, args: argparse.Namespace) -> None:
        """Reads the file, and the texts that outcomes depend on."""
        self._file = file
        lines = file.read_text("utf-8").splitlines() if file.exists() else []
        self._entries: Json = {entry["key"]: entry for entry in map(json.loads, lines)}
        self._sources = {p.name: _digest([p]) for p in _sources_of(args)}
        self._again: bool = args.again
        self._tests: dict[str, str] = {}  # by test file: it, and what the folder's tests share
        tests: list[Path] = []
        for folder in args.tests:
            paths = sorted((args.root / folder).rglob("*.py"))
            shared = [path for path in paths if not path.name.startswith("test_")]
            for path in paths:
                self._tests[str(path.relative_to(args.root))] = _digest([path, *shared])
            tests += paths
        self._all_tests = _digest(tests)
        names = [functions_by_line(p.read_text("utf-8")) for p in _sources_of(args)]
        functions = _text_digest(sorted({*chain(*names)}))  # while they last, the same are called
        self.stamps = {  # by test file: what its run without a mutant depends on
            name: _text_digest([text, functions])
            for name, text in self._tests.items()
            if Path(name).name.startswith("test_")
        }

    def __getitem__(self, mutant: Mutant) -> Json:
        return self._entries.get(mutant.key, {"status": "", "by": ""})

    def holds(self, mutant: Mutant, *, explained: bool) -> bool:
        """Whether the outcome would be the same today, as far as one knows.

        Args:
            mutant: The mutant.
            explained: Somebody has said why nothing can notice it.
        """
        entry = self[mutant]
        killer = self._tests.get(_file_of(entry["by"]))
        same_tests = (
            entry.get("tests") == self._all_tests
            or (killer is not None and entry.get("killer") == killer)
            or (entry["status"] == "survived" and explained and not self._again)
        )
        return same_tests and entry.get("source") == self._sources[mutant.file]

    def add(self, mutant: Mutant, outcome: Json) -> None:
        """Writes an outcome down."""
        entry = {
            "key": mutant.key,
            **outcome,
            "source": self._sources[mutant.file],
            "tests": self._all_tests,
            "killer": self._tests.get(_file_of(outcome["by"])),
        }
        self._entries[mutant.key] = entry
        with self._file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(entry) + "\n")


def _sources_of(args: argparse.Namespace) -> list[Path]:
    return sorted((args.root / args.source).glob("*.py"))


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _digest(paths: Iterable[Path]) -> str:
    return _text_digest(path.read_text("utf-8") for path in paths)


def _text_digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def enumerate_mutants(args: argparse.Namespace) -> list[Mutant]:
    """Mutants of all source files, or of those of ``--only``."""
    mutants: list[Mutant] = []
    for path in _sources_of(args):
        if path.name in EXCLUDED or (args.only and path.name not in args.only):
            continue
        excluded = {key.partition("::")[2] for key in EXCLUDED if key.startswith(f"{path.name}::")}
        mutants += mutants_of(path.name, path.read_text("utf-8"), excluded.__contains__)
    return mutants


def run(
    mutants: Sequence[Mutant], explained: Callable[[str], bool], args: argparse.Namespace
) -> History:
    """Runs those mutants whose outcome is not known; ``explained`` takes a mutant's key."""
    cache: Path = args.root / args.cache
    cache.mkdir(parents=True, exist_ok=True)
    history = History(cache / "results.jsonl", args)
    todo = [m for m in mutants if not history.holds(m, explained=explained(m.key))]
    print(f"{len(mutants)} mutants, {len(todo)} to run", flush=True)
    if not todo:
        return history
    for name in args.preload:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        workshop = Workshop(args.root, args.source, Path(scratch), args.workers, args.grace)
        known = _without_mutants(workshop, history.stamps, cache / "baseline.json")
        limits = {"slowest": args.slowest, "seconds": args.seconds}
        tests = Selection(args.root, args.tests, known, **limits)
        workshop.warm_up(args.tests)
        outcomes = workshop.run(todo, lambda m: tests.of(m, history[m]["by"]))
        for number, (mutant, outcome) in enumerate(outcomes, start=1):
            history.add(mutant, outcome)
            print(
                f"[{number}/{len(todo)}] {outcome['status']:8} {outcome['seconds']:6.1f} s  "
                f"{mutant.line:4} {mutant.key}",
                flush=True,
            )
        workshop.close()
    return history


def _without_mutants(workshop: Workshop, stamps: Mapping[str, str], file: Path) -> Json:
    """What ``Selection`` needs of every test, with a run of the test files that have changed."""
    known: Json = json.loads(file.read_text("utf-8")) if file.exists() else {}
    known = {name: known[name] for name in stamps if name in known}
    stale = [name for name, stamp in stamps.items() if known.get(name, {}).get("stamp") != stamp]
    if stale:
        print(f"running {len(stale)} test files without a mutant", flush=True)
        known |= {name: {"stamp": stamps[name], "tests": {}} for name in stale}
        for test, entry in workshop.baseline(stale).items():
            known[_file_of(test)]["tests"][test] = entry
        file.write_text(json.dumps(known), "utf-8")
    return {test: entry for of_file in known.values() for test, entry in of_file["tests"].items()}


def update_record(
    file: Path, mutants: Sequence[Mutant], history: History, only: Sequence[str]
) -> list[str]:
    """Writes down what was run, and the survivors, each with the reason it has already.

    Args:
        file: The record.
        mutants: What was run.
        history: With what outcome.
        only: Files that were looked at; empty for all. The others' survivors stay as they are.

    Returns:
        What is wrong: survivors without a reason, reasons without a survivor.
    """
    record = read_record(file)
    reasons = reasons_of(record)
    survivors = [e for e in record["survivors"] if only and e["file"] not in only]
    files = {name: counts for name, counts in record["files"].items() if only and name not in only}
    keys = digests(mutants)
    for mutant in mutants:
        counts = files.setdefault(
            mutant.file, {"mutants": 0, "survivors": 0, "digest": keys[mutant.file]}
        )
        counts["mutants"] += 1
        if history[mutant]["status"] == "survived":
            counts["survivors"] += 1
            names = ("file", "line", "function", "original", "mutated")
            entry = {name: getattr(mutant, name) for name in names}
            survivors.append({**entry, "reason": reasons.get(mutant.key, "")})
    survivors.sort(key=lambda entry: (entry["file"], entry["line"], entry["mutated"]))
    text = json.dumps(
        {"excluded": EXCLUDED, "files": dict(sorted(files.items())), "survivors": survivors},
        indent=2,
        ensure_ascii=False,
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n", "utf-8")
    there = {_key(entry) for entry in survivors}
    lost = [f"{key} ({reasons[key]})" for key in reasons if reasons[key] and key not in there]
    return [*missing_reasons(survivors), *(f"reason without a survivor: {key}" for key in lost)]


def read_record(file: Path) -> Json:
    """The record, empty where there is none."""
    if not file.exists():
        return {"survivors": [], "files": {}}
    record: Json = json.loads(file.read_text("utf-8"))
    return record


def reasons_of(record: Json) -> dict[str, str]:
    """Reasons by ``Mutant.key``; empty where there is none yet."""
    return {_key(entry): entry["reason"] for entry in record["survivors"]}


def digests(mutants: Iterable[Mutant]) -> dict[str, str]:
    """By file, what stands for its mutants, so that one sees later whether they are the same."""
    keys: dict[str, list[str]] = {}
    for mutant in mutants:
        keys.setdefault(mutant.file, []).append(mutant.key)
    return {name: _text_digest(of_file) for name, of_file in keys.items()}


def check_record(file: Path, mutants: Sequence[Mutant], only: Sequence[str]) -> list[str]:
    """What can be wrong with the record without a run: no reason, or no such mutant any more.

    Files whose mutants are others than those that were run are printed: that is no fault, their
    survivors are as they were.
    """
    record = read_record(file)
    survivors = [e for e in record["survivors"] if not only or e["file"] in only]
    there = {mutant.key for mutant in mutants}
    for name, digest in digests(mutants).items():
        if digest != record["files"].get(name, {}).get("digest"):
            print(f"not run since a change: {name}")
    gone = [_key(entry) for entry in survivors if _key(entry) not in there]
    return [*missing_reasons(survivors), *(f"no such mutant any more: {key}" for key in gone)]


def missing_reasons(survivors: Sequence[Json]) -> list[str]:
    """Survivors that nobody has explained."""
    return [f"no reason: line {e['line']}, {_key(e)}" for e in survivors if not e["reason"].strip()]


def _key(entry: Json) -> str:
    """``Mutant.key`` of an entry of the record."""
    return "{file}::{function}: {original} -> {mutated}".format(**entry)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs or checks.

    Returns:
        0, or 1 when a survivor has no reason or a reason no survivor.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="FILE", help="these files only")
    parser.add_argument("--check", action="store_true", help="look at the record, run nothing")
    parser.add_argument(
        "--again", action="store_true", help="run survivors that have a reason, too"
    )
    parser.add_argument("--workers", type=int, default=1, help="mutants that run at a time")
    parser.add_argument("--grace", type=float, default=4, help="seconds before a test hangs")
    parser.add_argument(
        "--preload",
        nargs="*",
        default=["torch", "transformers", "pytest", "hypothesis", "pydantic"],
        help="what takes long to import and is not mutated",
    )
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--source", default="tensorrt_llm_ext/graphs", help="from the root")
    parser.add_argument(
        "--tests",
        nargs="+",
        default=["tests/unittest/graphs"],
        help="folders from the root; those of the first come first",
    )
    parser.add_argument("--slowest", type=float, default=4, help="seconds a test may take")
    parser.add_argument(
        "--seconds", type=float, default=5, help="for tests of files that import it; others"
    )
    parser.add_argument("--cache", default="build/mutation", help="from the root")
    parser.add_argument("--record", default="tests/mutation/survivors.json", help="from the root")
    args = parser.parse_args(argv)
    args.root = args.root.resolve()
    record = args.root / args.record
    mutants = enumerate_mutants(args)
    if args.check:
        complaints = check_record(record, mutants, args.only)
    else:
        reasons = reasons_of(read_record(record))
        history = run(mutants, lambda key: bool(reasons.get(key, "").strip()), args)
        complaints = update_record(record, mutants, history, args.only)
    print("\n".join(complaints) or "every survivor has its reason")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
