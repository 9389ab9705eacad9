# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Encoders at published size with random weights: transformers, torch.compile, and ours.

    python benchmarks/encoder.py                                  # everything
    python benchmarks/encoder.py --towers qwen3_vl_8b --time-budget 570
    python benchmarks/encoder.py --towers qwen3_vl_8b --parts sweep,host
    python benchmarks/encoder.py --device cpu --tiny --quick      # does it run?

A time is the wall clock around one call and the wait for the device, inputs on the device. The arms
take turns, call by call. Error is relative L2 of the worst output against transformers in fp32 with
the same weights. Kernels are profiled by a second process, after the first has measured.

Each tower has its result file, which is written after every step: what a time budget cuts short is
there up to that point. Parts of several runs stand together in a file if they are of one commit,
device and set of versions; a case is always of one run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from encoder_bench.arms import ARMS, Subject
from encoder_bench.kernels import profile_cases, profile_in_child
from encoder_bench.layouts import layout_names
from encoder_bench.parts import (
    Bench,
    measure_case,
    measure_host,
    measure_staging,
    measure_sweep,
)
from encoder_bench.results import TITLES, ResultFile, head_of
from encoder_bench.timing import Clock, Deadline, Failures, LaunchClock, Plan
from published_towers import TOWERS

PARTS = ("cases", "host", "staging", "sweep", "kernels")
_RESERVE = 5.0  # seconds to write and leave


def comma_separated(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """A list on the command line, in the order of what is allowed."""

    def parse(text: str) -> list[str]:
        asked = [word for word in text.split(",") if word]
        if unknown := sorted(set(asked) - set(allowed)):
            raise argparse.ArgumentTypeError(f"{unknown} not in {list(allowed)}")
        return [word for word in allowed if word in asked]

    return parse


def parser_of(doc: str) -> argparse.ArgumentParser:
    """A parser whose help is a script's own text."""
    return argparse.ArgumentParser(
        description=doc.splitlines()[0],
        epilog=doc.split("\n", 2)[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__ or "")

    def listed(option: str, allowed: list[str]) -> None:
        parser.add_argument(
            option,
            type=comma_separated(allowed),
            default=allowed,
            metavar="A,B",
            help=f"default: all of {', '.join(allowed)}",
        )

    listed("--towers", list(TITLES))
    listed("--layouts", layout_names())
    listed("--arms", list(ARMS))
    listed("--parts", list(PARTS))
    parser.add_argument("--quick", action="store_true", help="few repeats: noisy")
    parser.add_argument("--time-budget", type=float, metavar="SECONDS", help="of the whole run")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small towers and pictures, to try it")
    parser.add_argument("--commit", help="default: git's HEAD")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--profile", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if "ours" not in args.arms:
        parser.error("--arms has to name ours")
    if args.commit is None and args.profile is None:
        args.commit = head_commit(parser)
    return args


def head_commit(parser: argparse.ArgumentParser) -> str:
    """What git has checked out; ends the program where there is no git to ask."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        parser.error(f"git does not say what this is ({error}): pass --commit")
    return done.stdout.strip()


class Run:
    """One tower, from capture to file."""

    def __init__(self, name: str, args: argparse.Namespace, deadline: Deadline) -> None:
        """Makes the towers of ours; nothing is captured yet."""
        self.name = name
        self.args = args
        self.deadline = deadline
        self.device = torch.device(args.device)
        published = TOWERS[name]
        self.subject = Subject(published, args.arms, self.device, tiny=args.tiny)
        self.cases = [case for case in self.subject.cases() if case.name in args.layouts]
        self.failures = Failures()

    def capture(self) -> dict[str, Any]:
        """Captures what the arms need; a plain tower that cannot be captured is left out."""
        captured: dict[str, Any] = {}
        for arm in ("ours", "plain"):
            if arm in self.subject.arms:
                with self.failures.of(arm):
                    again = arm == "ours" and self.args.profile is None
                    captured[arm] = self.subject.capture(arm, again=again)
                    found = captured[arm]
                    say(
                        f"{arm}: {found['status']}, {found['kept']} of {found['buckets']} "
                        f"buckets, {found['first_seconds']} s, then {found['seconds']} s, "
                        f"{found['driver_mib']} MiB"
                    )
        self.subject.arms = tuple(arm for arm in self.subject.arms if arm not in self.failures)
        return captured

    def measure(self) -> None:
        """Every part that was asked for, as far as the time goes."""
        args = self.args
        options = {"quick": args.quick, "tiny": args.tiny, "time_budget": args.time_budget}
        head = head_of(self.name, self.device, args.commit, options)
        file = ResultFile(args.out / f"encoder_{self.name}.json", head)
        if set(args.parts) - {"kernels"}:
            self.measure_times(file)
        self.subject.release()
        if "kernels" in args.parts:
            file.put("kernels", self.profile_elsewhere())
        for target in file.value["targets"]:
            say(f"{VERDICTS[target['passed']]}: {target['target']}: {target['measured']}")

    def measure_times(self, file: ResultFile) -> None:
        """Capture, and everything that a clock is held to."""
        args, launches = self.args, LaunchClock()
        with launches.installed():
            file.put("capture", self.capture())
            file.put("failed", dict(self.failures))
            if "ours" in self.failures:
                say(f"nothing to measure: {self.failures['ours']}")
                return
            plan = Plan.quick() if args.quick else Plan()
            bench = Bench(self.subject, Clock(self.device, launches), plan, self.deadline)
            if "cases" in args.parts:
                self.measure_cases(bench, file)
            for part, measure in (
                ("host", measure_host),
                ("staging", measure_staging),
                ("sweep", measure_sweep),
            ):
                if part in args.parts and (part != "staging" or self.subject.audio):
                    found = list(measure(bench))
                    file.put(part, found)
                    say(f"{part}: {len(found)} measurements")

    def measure_cases(self, bench: Bench, file: ResultFile) -> None:
        """Cases in the order of the table; those that the time did not reach are named."""
        for index, case in enumerate(self.cases):
            if self.deadline.over():
                left = [case.name for case in self.cases[index:]]
                say(f"time is up before {', '.join(left)}")
                break
            entry = measure_case(bench, case)
            file.put_case(entry)
            shown = {arm: round(t["median_us"]) for arm, t in entry["arms"].items()}
            say(f"{case.name}: {shown} us {entry.get('failed', '')}")

    def profile_elsewhere(self) -> dict[str, Any]:
        """Kernel times by a process of their own."""
        args = self.args
        command = ["--towers", self.name, "--device", args.device]
        command += ["--arms", ",".join(arm for arm in args.arms if arm not in self.failures)]
        command += ["--layouts", ",".join(case.name for case in self.cases)]
        command += ["--tiny"] if args.tiny else []
        return profile_in_child(Path(__file__).resolve(), command, self.deadline)


VERDICTS = {True: "met", False: "MISSED", None: "not measured"}
_START = time.perf_counter()


def say(text: str) -> None:
    """A line with the seconds since the start."""
    print(f"[{time.perf_counter() - _START:6.1f} s] {text}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    args = parse_arguments(argv)
    budget = args.time_budget
    deadline = Deadline(None if budget is None else budget - _RESERVE)
    torch.backends.cudnn.allow_tf32 = False  # fp32 means fp32: a patch embedding is a convolution
    if args.profile is not None:
        (name,) = args.towers
        run = Run(name, args, deadline)
        run.capture()
        found = profile_cases(run.subject, run.cases, deadline)
        args.profile.write_text(json.dumps(found), encoding="utf-8")
        return 0
    for index, name in enumerate(args.towers):
        if deadline.over():
            say(f"time is up before {', '.join(args.towers[index:])}")
            break
        say(name)
        Run(name, args, deadline).measure()
    return 0


if __name__ == "__main__":
    sys.exit(main())
