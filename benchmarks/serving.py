# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Encoder graphs off against on, through HTTP: real server processes, one after another.

    python benchmarks/serving.py                                   # everything
    python benchmarks/serving.py --cases qwen3_vl_2b --time-budget 150
    python benchmarks/serving.py --device cpu --tiny               # does it run?

Each case has its checkpoint (published dimensions, random weights, made on the device) and its
servers, by default graphs off, on, on, off on the same device, each a fresh `trtllm-ext serve` that
is drained before the next one loads. The client is another process (this one) with a closed loop:
so many requests are in flight at any time. Every server gets the same requests, answers are greedy,
and tokens and texts of all servers are compared. The output cache of the encoders is off.

Where memory is limited to that of a smaller card, this process holds the rest of the device while
the servers run.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from encoder import comma_separated, head_commit, parser_of
from serving_bench import results
from serving_bench.cases import CASES, GIB, Case
from serving_bench.checkpoints import make_checkpoint
from serving_bench.client import Load, chat_body, new_client, run_load
from serving_bench.servers import Series, Server, by_label, difference, scrape

ORDER = ["off", "on", "on", "off"]
MODEL = "bench"
_WARM_UP = 32  # requests, of pictures that are not measured
_LEAST = 4  # requests of a rung, whatever the time
_CAPTURE = 4.0  # seconds that a server may take longer to start than the first, which captures none
_SNAPSHOT = 0.3  # counters that a server gives are at most 0.2 s old
_START = time.perf_counter()


def say(text: str) -> None:
    """A line with the seconds since the start."""
    print(f"[{time.perf_counter() - _START:6.1f} s] {text}", flush=True)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__ or "")
    parser.add_argument(
        "--cases",
        type=comma_separated(list(CASES)),
        default=list(CASES),
        metavar="A,B",
        help=f"default: all of {', '.join(CASES)}",
    )
    parser.add_argument(
        "--order",
        type=lambda text: text.split(","),
        default=ORDER,
        metavar="OFF,ON",
        help=f"arms of the servers, in order; default: {','.join(ORDER)}",
    )
    parser.add_argument(
        "--memory",
        type=lambda text: text.split(","),
        metavar="NAME",
        help="memory settings of a case; default: all that it has",
    )
    parser.add_argument("--time-budget", type=float, metavar="SECONDS", help="of each case")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models and loads, to try it")
    parser.add_argument("--commit", help="default: git's HEAD")
    parser.add_argument("--work", type=Path, metavar="DIR", help="for checkpoints and logs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args(argv)
    if unknown := set(args.order) - {"off", "on"}:
        parser.error(f"--order: {sorted(unknown)} is neither off nor on")
    if args.commit is None:
        args.commit = head_commit(parser)
    return args


@contextmanager
def work_folder(given: Path | None) -> Iterator[Path]:
    """Where checkpoints go: what was given, or a folder in memory, or else on disk."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    shm = Path("/dev/shm")
    roomy = shm.is_dir() and shutil.disk_usage(shm).free > 16 * GIB
    with tempfile.TemporaryDirectory(prefix="serving_bench_", dir=shm if roomy else None) as made:
        yield Path(made)


@dataclass
class Plan:
    """How many requests each rung has; the first server finds out what the time allows.

    Attributes:
        case: The case.
        servers: Servers that there will be.
        end: When all is to be over, on the clock of `time.perf_counter`; None: no limit.
    """

    case: Case
    servers: int
    end: float | None

    def __post_init__(self) -> None:
        """Nothing is settled yet."""
        self.settled: dict[int, int] = {}

    def seconds_a_rung(self, start_up: float) -> float:
        """Time of a rung of the first server, if others start and run like it."""
        if self.end is None:
            return float("inf")
        left = self.end - time.perf_counter() - (self.servers - 1) * (start_up + _CAPTURE)
        return left / self.servers / len(self.case.requests)

    def go_on(self, concurrency: int, seconds: float) -> Callable[[int], bool]:
        """Whether a rung of a server that starts now sends another request."""
        if concurrency in self.settled:
            most = self.settled[concurrency]
            return lambda sent: sent < most
        most, end = self.case.requests[concurrency], time.perf_counter() + seconds
        least = min(most, max(concurrency, _LEAST))
        return lambda sent: sent < least or (sent < most and time.perf_counter() < end)


class Run:
    """One case: its checkpoint and its servers, one after another."""

    def __init__(self, name: str, args: argparse.Namespace, work: Path) -> None:
        """Nothing is started yet."""
        self.args = args
        self.work = work
        self.device = torch.device(args.device)
        self.case = CASES[name].small() if args.tiny else CASES[name]
        memory = args.memory or list(self.case.memory)
        self.memory = {m: self.case.memory[m] for m in memory if m in self.case.memory}
        servers = len(args.order) * len(self.memory)
        budget = args.time_budget
        self.plan = Plan(self.case, servers, None if budget is None else _now() + budget)
        self.rungs: list[results.Rung] = []
        self.servers: list[dict[str, Any]] = []

    def measure(self, path: Path) -> dict[str, Any]:
        """Runs everything and returns the result, which is also written after every server."""
        case, args = self.case, self.args
        with ExitStack() as stack:
            order = [(m, limit, arm) for m, limit in self.memory.items() for arm in args.order]
            waiting = [stack.enter_context(self._standby(i)) for i in range(len(order))]
            most = max(case.requests.values())
            bodies = [
                chat_body(MODEL, case.content(number), case.max_tokens)
                for number in range(most + _WARM_UP)
            ]
            folder = self.work / case.name
            make_checkpoint(folder, case.model, self.device, tiny=args.tiny)
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # servers size their KV cache by what the driver has left
            say(f"{case.name}: checkpoint made, {len(waiting)} servers are waiting")
            for server, (memory, limit, arm) in zip(waiting, order, strict=True):
                with self._ballast(limit):
                    self._serve(server, memory, arm, folder, bodies)
                result = self._result()
                results.write(path, result)
            shutil.rmtree(folder)
        return result

    def _standby(self, number: int) -> Server:
        cache = {"TRTLLM_EXT_CACHE_DIR": str(self.work / "cache")}
        return Server(self.work / f"{self.case.name}_{number}.log", cache)

    @contextmanager
    def _ballast(self, limit: int | None) -> Iterator[None]:
        """Holds device memory so that a server finds what a card of that size has."""
        if limit is None or self.device.type != "cuda":
            yield
            return
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self.device)
        size = free - limit
        if size <= 0:
            raise SystemExit(
                f"{free / GIB:.1f} GiB of {total / GIB:.1f} GiB are free, which is less than the "
                f"card to be imitated has ({limit / GIB:.1f}); leave that out: --memory all"
            )
        held = torch.empty(size, dtype=torch.uint8, device=self.device)
        say(f"holding {held.numel() / GIB:.1f} GiB")
        yield
        del held
        torch.cuda.empty_cache()

    def _serve(
        self, server: Server, memory: str, arm: str, folder: Path, bodies: list[bytes]
    ) -> None:
        """One server, from its start to its end."""
        began = _now()
        file = self.work / f"{self.case.name}_{arm}.yaml"
        server.serve_checkpoint(folder, file, self.case.yaml_config(graphs=arm == "on"), MODEL)
        started = scrape(server.url)
        took = _now() - began
        asyncio.run(self._load(server, memory, arm, bodies, took))
        code = server.stop()
        entry = {
            "memory": memory,
            "arm": arm,
            "start_seconds": round(took, 2),
            "exit_code": code,
            "kv_tokens": started[("trtllm_kv_cache_tokens", ())],
            "graph_bytes": by_label(started, "trtllm_encoder_graph_memory_bytes", "modality"),
            "capture_seconds": by_label(started, "trtllm_encoder_capture_seconds", "modality"),
        }
        self.servers.append(entry)
        say(f"{self.case.name}, memory {memory}, graphs {arm}: {entry}")

    async def _load(
        self, server: Server, memory: str, arm: str, bodies: list[bytes], start_up: float
    ) -> None:
        """Warm-up, then a rung for each concurrency."""
        case = self.case
        seconds = self.plan.seconds_a_rung(start_up)
        warm_up = min(_WARM_UP, max(case.requests))
        async with new_client(server.url, max(case.requests)) as client:
            await run_load(client, bodies[-warm_up:], warm_up)
            for concurrency, most in case.requests.items():
                go_on = self.plan.go_on(concurrency, seconds)
                await asyncio.sleep(_SNAPSHOT)
                before = await asyncio.to_thread(scrape, server.url)
                load = await run_load(client, bodies[:most], concurrency, go_on)
                await asyncio.sleep(_SNAPSHOT)
                counted = difference(before, await asyncio.to_thread(scrape, server.url))
                self.plan.settled[concurrency] = len(load.answers)
                self._keep(memory, arm, concurrency, load, counted)

    def _keep(self, memory: str, arm: str, concurrency: int, load: Load, counted: Series) -> None:
        rung = {
            "memory": memory,
            "arm": arm,
            "concurrency": concurrency,
            "answers": load.answers,
            "seconds": load.seconds,
            "replays": by_label(counted, "trtllm_encoder_graph_replays_total", "modality"),
            "replays_by_bucket": by_label(
                counted, "trtllm_encoder_graph_replays_total", "modality", "bucket"
            ),
            "eager": by_label(counted, "trtllm_encoder_eager_total", "modality", "reason"),
            "items": by_label(counted, "trtllm_encoder_items_total", "modality"),
        }
        self.rungs.append(rung)
        first = [a.ttft_s for a in load.answers if a.ttft_s is not None]
        p50 = f"{results.percentile(first, 0.5) * 1e3:.1f} ms" if first else "none"
        say(
            f"  graphs {arm}, {concurrency} at once: {len(load.answers)} requests in "
            f"{load.seconds:.1f} s, TTFT p50 {p50}"
        )

    def _result(self) -> dict[str, Any]:
        args = self.args
        options = {
            "tiny": args.tiny,
            "order": args.order,
            "time_budget": args.time_budget,
            "max_tokens": self.case.max_tokens,
            "memory": self.memory,
            "config": {arm: self.case.yaml_config(graphs=arm == "on") for arm in ("off", "on")},
        }
        rows = results.summary(self.rungs, self.servers, self.case.max_tokens)
        timed = self.case.timed and self.device.type == "cuda"
        return {
            **results.head_of(self.case, self.device, args.commit, options),
            "rows": rows,
            "targets": results.targets(rows, self.servers, timed=timed),
            "servers": self.servers,
            "rungs": [results.as_json(rung) for rung in self.rungs],
        }


def _now() -> float:
    return time.perf_counter()


VERDICTS = {True: "met", False: "MISSED", None: "not measured"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 1 where an answer was wrong."""
    args = parse_arguments(argv)
    wrong = 0
    with work_folder(args.work) as work:
        for name in args.cases:
            path = args.out / f"serving_{name}.json"
            result = Run(name, args, work).measure(path)
            say(f"wrote {path}")
            for target in result["targets"]:
                say(f"{VERDICTS[target['passed']]}: {target['target']}: {target['measured']}")
            wrong += sum(row["wrong token counts"] for row in result["rows"])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
