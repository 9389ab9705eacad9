# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Mixed traffic against a real server process: does every answer stay right, and memory flat?

    python benchmarks/soak.py                    # five minutes, four clients
    python benchmarks/soak.py --seconds 30

A tiny Qwen3-Omni thinker with graphs is served. First every kind of request is asked alone, which
gives the answer that it must always have. Then clients ask for them at random, streaming and not,
hang up now and then, and send broken ones. Every answer has to be the right one, or for a broken
request the typed error that it deserves. Memory, file descriptors and threads of the server are
sampled, and those of the last quarter compared with those after the first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
from serving_bench.client import CHAT, Answer, ask, chat_body, error_type, new_client
from serving_bench.media import picture, sound, text, video
from serving_bench.servers import Server, by_label, scrape

MODEL = "soak"
CONFIG: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "max_batch_size": 4,
    "max_seq_len": 1024,
    "encoder_max_num_tokens": 1024,
    "kv_cache_config": {"max_tokens": 8192},
    "multimodal_config": {
        # Small enough that outputs are thrown out all the time.
        "encoder_cache_max_bytes": 64 * 1024,
        "encoder_cuda_graph": {
            "image": {"buckets": [[64, 4], [256, 8]], "search_seconds": 0},
            "audio": {"buckets": [[52, 4]], "search_seconds": 0},
        },
    },
}
RSS_SLACK = 24 * 2**20
FD_SLACK = 4
# Pools fill up when there is most to do, which may be late; a leak is a thread for many requests.
THREAD_SLACK = 8
_HANG_UP, _BROKEN = 0.2, 0.1  # shares of the requests


@dataclass
class Kind:
    """A request that is asked again and again."""

    name: str
    body: bytes
    whole: bytes
    """The same, not streamed."""
    answer: Answer = field(default_factory=Answer)


def kinds() -> list[Kind]:
    """Text, pictures of several sizes, videos and sound, alone and together."""
    what = text("What is this?")
    contents = {
        "text": [text("Tell me about encoders.")],
        "small picture": [picture(1, 64, 64), what],
        "wide picture": [picture(2, 320, 96), what],
        "two pictures": [picture(3, 96, 96), picture(4, 128, 64), what],
        "large picture": [picture(5, 256, 256), what],
        "video": [video(6, 4, 96, 64), what],
        "short sound": [sound(7, 0.7), what],
        "sound": [sound(8, 2.5), what],
        "picture and sound": [picture(9, 64, 96), sound(10, 1.0), what],
        "all": [picture(11, 64, 64), video(12, 2, 64, 64), sound(13, 1.5), what],
    }
    made = []
    for number, (name, content) in enumerate(contents.items()):
        tokens = 4 + 3 * (number % 4)
        whole = chat_body(MODEL, content, tokens, stream=False, stream_options=None)
        made.append(Kind(name, chat_body(MODEL, content, tokens), whole))
    return made


def broken() -> dict[str, bytes]:
    """Requests that must be answered with 400."""

    def url(data: str) -> list[dict[str, Any]]:
        return [{"type": "image_url", "image_url": {"url": data}}]

    return {
        "no picture": chat_body(MODEL, url("data:image/png;base64,AAAA"), 4),
        "remote": chat_body(MODEL, url("https://example.com/a.png"), 4),
        "a file": chat_body(MODEL, url("file:///etc/passwd"), 4),
        "too long": chat_body(MODEL, [text("word " * 2000)], 4),
        "unknown key": chat_body(MODEL, [text("hi")], 4, no_such_key=1),
        "no JSON": b"{",
    }


@dataclass
class Sample:
    """What the server process holds at a moment."""

    rss: int
    fds: int
    threads: int


class Soak:
    """The clients, what they saw, and the samples."""

    def __init__(self, server: Server, seconds: float, clients: int, seed: int) -> None:
        """Nothing is sent yet."""
        self.server = server
        self.seconds = seconds
        self.clients = clients
        self.seed = seed
        self.kinds = kinds()
        self.broken = broken()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.samples: list[Sample] = []
        self.sent = 0

    async def run(self) -> None:
        """The whole of it."""
        async with new_client(self.server.url, self.clients + 1, timeout=120) as client:
            for kind in self.kinds:
                kind.answer = await ask(client, kind.body)
                self.sent += 1
                if kind.answer.error is not None or not kind.answer.text:
                    self.problems.append(f"{kind.name}, asked alone: {kind.answer}")
            say("every kind has its answer")
            end = time.monotonic() + self.seconds
            tasks = [
                self._client(client, random.Random(self.seed + i), end) for i in range(self.clients)
            ]
            await asyncio.gather(self._sample(end), *tasks)
            await self._settle(client)

    async def _client(self, client: httpx.AsyncClient, rng: random.Random, end: float) -> None:
        while time.monotonic() < end:
            self.sent += 1
            if rng.random() < _BROKEN:
                await self._ask_broken(client, rng.choice(sorted(self.broken)))
                continue
            kind = rng.choice(self.kinds)
            hang_up = rng.random() < _HANG_UP
            if rng.random() < 0.3:
                await self._ask_whole(client, kind, rng.uniform(0, 0.2) if hang_up else None)
                continue
            answer = await ask(client, kind.body, hang_up_after=1 if hang_up else None)
            if answer.cancelled:
                self.counts["hung up, streaming"] += 1
                if not kind.answer.text.startswith(answer.text):
                    self.problems.append(f"{kind.name}: {answer.text!r} before hanging up")
            else:
                self._check(kind, answer, "streaming")

    async def _ask_whole(
        self, client: httpx.AsyncClient, kind: Kind, patience: float | None
    ) -> None:
        """Not streamed; given up after so many seconds."""
        headers = {"Content-Type": "application/json"}
        try:
            response = await asyncio.wait_for(
                client.post(CHAT, content=kind.whole, headers=headers), patience
            )
        except TimeoutError:
            self.counts["hung up, not streaming"] += 1
            return
        if response.status_code != 200:
            error = error_type(response.content)
            self._check(kind, Answer(status=response.status_code, error=error), "not streaming")
            return
        value = response.json()
        usage, said = value["usage"], value["choices"][0]["message"]["content"]
        answer = Answer(
            said,
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
        )
        self._check(kind, answer, "not streaming")

    def _check(self, kind: Kind, answer: Answer, how: str) -> None:
        right = kind.answer
        got = (answer.text, answer.prompt_tokens, answer.completion_tokens, answer.error)
        if got == (right.text, right.prompt_tokens, right.completion_tokens, None):
            self.counts[f"right, {how}"] += 1
        else:
            self.problems.append(f"{kind.name}, {how}: {answer} instead of {right.text!r}")

    async def _ask_broken(self, client: httpx.AsyncClient, name: str) -> None:
        answer = await ask(client, self.broken[name])
        if (answer.status, answer.error) == (400, "invalid_request_error"):
            self.counts["refused"] += 1
        else:
            self.problems.append(f"{name}: {answer.status} {answer.error} instead of 400")

    async def _sample(self, end: float) -> None:
        process = psutil.Process(self.server.process.pid)
        while time.monotonic() < end:
            held = process.memory_info().rss, process.num_fds(), process.num_threads()
            self.samples.append(Sample(*held))
            await asyncio.sleep(min(1.0, self.seconds / 40))

    async def _settle(self, client: httpx.AsyncClient) -> None:
        """Nothing may be left two seconds after the last client is gone."""
        series: Any = {}
        for _ in range(20):
            await asyncio.sleep(0.1)
            series = await asyncio.to_thread(scrape, self.server.url)
            left = series[("trtllm_requests_running", ())] + series[("trtllm_requests_waiting", ())]
            if not left:
                break
        else:
            self.problems.append(f"{left:g} requests run or wait, but no client is there")
        ended = by_label(series, "trtllm_requests_total", "outcome")
        # Who gives up at once may not have sent anything yet.
        unsure = self.counts["hung up, not streaming"]
        if not self.sent - unsure <= sum(ended.values()) <= self.sent:
            self.problems.append(f"{self.sent} requests were sent, these are counted: {ended}")
        for name in ("trtllm_encoder_graph_replays_total", "trtllm_encoder_items_total"):
            for modality in ("image", "audio"):
                if not by_label(series, name, "modality").get(modality):
                    self.problems.append(f"{name}: none of {modality}")
        self.counts.update({f"outcome {k}": int(v) for k, v in ended.items() if v})

    def growth(self) -> dict[str, float]:
        """Medians of the last quarter less those of the second."""
        quarter = len(self.samples) // 4
        early, late = self.samples[quarter : 2 * quarter], self.samples[-quarter:]
        found: dict[str, float] = {}
        for name, slack in (("rss", RSS_SLACK), ("fds", FD_SLACK), ("threads", THREAD_SLACK)):
            before, after = (median(getattr(s, name) for s in part) for part in (early, late))
            found[name] = after - before
            if after - before > slack:
                self.problems.append(f"{name} grew from {before:,.0f} to {after:,.0f}")
        return found


_START = time.perf_counter()


def say(text: str) -> None:
    """A line with the seconds since the start; the result alone goes to standard output."""
    print(f"[{time.perf_counter() - _START:6.1f} s] {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 1 where anything was not as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="soak_") as made, Server(Path(made) / "log") as server:
        server.serve_tiny(Path(made), "qwen3_omni_thinker", CONFIG, MODEL, "--log_level", "info")
        say("the server is up")
        soak = Soak(server, args.seconds, args.clients, args.seed)
        asyncio.run(soak.run())
        growth = soak.growth()
        say(f"{soak.sent} requests are answered")
        code = server.stop()
        if code != 0:
            soak.problems.append(f"the server ended with {code}")
    print(json.dumps({"requests": soak.sent, "growth": growth, **soak.counts}, indent=1))
    for problem in soak.problems[:20]:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
