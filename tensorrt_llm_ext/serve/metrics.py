# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Prometheus series. Every label comes from a fixed or configured set, never from a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..graphs.report import StartupReport
from .engine_thread import Snapshot

OUTCOMES = (
    *("stop", "length", "encoded"),
    *("bad_request", "unauthorized", "too_large", "queue_full", "bodies_full"),
    *("client_timeout", "server_timeout", "client_gone", "shut_down", "error"),
)
_OUTCOME_OF = {
    401: "unauthorized",
    408: "client_timeout",
    413: "too_large",
    429: "queue_full",
    503: "shut_down",
    504: "server_timeout",
}
_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 25, 50, 100, 250, 600),
)


class Metrics:
    """All series of one server.

    Args:
        report: What start-up found.
        snapshot: Gives the encoders' counters.
        running: Gives the number of requests in the batch.
    """

    def __init__(
        self,
        report: StartupReport,
        *,
        snapshot: Callable[[], Snapshot],
        running: Callable[[], int],
    ) -> None:
        self._registry = CollectorRegistry()
        self._unanswered = 0

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"trtllm_{name}", text, registry=self._registry, buckets=_SECONDS)

        self._requests = Counter(
            "trtllm_requests",
            "Requests for the engine, by how they ended.",
            ["outcome"],
            registry=self._registry,
        )
        for outcome in OUTCOMES:
            self._requests.labels(outcome)
        self._tokens = Counter(
            "trtllm_tokens",
            "Prompt tokens read, tokens generated.",
            ["kind"],
            registry=self._registry,
        )
        for kind in ("prompt", "generated"):
            self._tokens.labels(kind)
        self.first_token = seconds("time_to_first_token_seconds", "Arrival to first token.")
        self.per_token = seconds(
            "time_per_output_token_seconds", "Between tokens of one request, on average."
        )
        self.whole = seconds("e2e_request_latency_seconds", "Arrival to last token.")
        self.queue = seconds(
            "request_queue_time_seconds",
            "Arrival to admission to the batch: upload, decoding media, tokenizing, waiting.",
        )
        running_gauge = Gauge(
            "trtllm_requests_running", "Requests in the batch.", registry=self._registry
        )
        running_gauge.set_function(running)
        waiting_gauge = Gauge(
            "trtllm_requests_waiting",
            "Requests that arrived and are not in the batch yet.",
            registry=self._registry,
        )
        waiting_gauge.set_function(lambda: max(0, self._unanswered - running()))
        self.body_bytes = Gauge(
            "trtllm_request_body_bytes",
            "Bodies of requests whose media are not decoded yet.",
            registry=self._registry,
        )
        self._registry.register(_EncoderCollector(report, snapshot))

    def set_unanswered(self, count: int) -> None:
        """Requests for the engine that have no complete answer."""
        self._unanswered = count

    def count_request(self, outcome: str) -> None:
        """One request more ended in one of ``OUTCOMES``."""
        if outcome not in OUTCOMES:
            raise ValueError(f"outcome {outcome!r} is unknown; allowed: {', '.join(OUTCOMES)}")
        self._requests.labels(outcome).inc()

    def count_tokens(self, prompt: int, generated: int) -> None:
        """What one request read and generated."""
        self._tokens.labels("prompt").inc(prompt)
        self._tokens.labels("generated").inc(generated)

    def render(self) -> bytes:
        """All series as Prometheus text."""
        return generate_latest(self._registry)


class _EncoderCollector(Collector):
    """What the engine counts itself, read when somebody asks."""

    def __init__(self, report: StartupReport, snapshot: Callable[[], Snapshot]) -> None:
        self._report = report
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        now = self._snapshot()
        yield from self._counts(now)
        yield from self._startup()
        cache = now.cache
        for name, text, value in (
            ("hits", "Items answered without preprocessing and encoder.", cache.hits),
            ("misses", "Items that were encoded.", cache.misses),
            ("evictions", "Outputs that made room for others.", cache.evictions),
        ):
            yield CounterMetricFamily(f"trtllm_encoder_cache_{name}", text, value=value)
        yield GaugeMetricFamily(
            "trtllm_encoder_cache_bytes", "Size of the outputs in the cache.", value=cache.bytes
        )

    @staticmethod
    def _counts(now: Snapshot) -> Iterator[Metric]:
        replays = CounterMetricFamily(
            "trtllm_encoder_graph_replays", "Graph replays.", labels=["modality", "bucket"]
        )
        eager = CounterMetricFamily(
            "trtllm_encoder_eager", "Encoder steps without a graph.", labels=["modality", "reason"]
        )
        items = CounterMetricFamily(
            "trtllm_encoder_items", "Pictures, videos or clips encoded.", labels=["modality"]
        )
        real = CounterMetricFamily(
            "trtllm_encoder_tokens", "Rows of items, before any merger.", labels=["modality"]
        )
        padded = CounterMetricFamily(
            "trtllm_encoder_padding_tokens",
            "Slack rows that replays computed.",
            labels=["modality"],
        )
        for modality, stats in now.encoders.items():
            for bucket, count in sorted(stats.replays.items()):
                replays.add_metric([modality, bucket], count)
            for reason, count in sorted(stats.eager.items()):
                eager.add_metric([modality, reason], count)
            items.add_metric([modality], stats.items)
            real.add_metric([modality], stats.real_tokens)
            padded.add_metric([modality], stats.padded_tokens)
        yield from (replays, eager, items, real, padded)

    def _startup(self) -> Iterator[Metric]:
        memory = GaugeMetricFamily(
            "trtllm_encoder_graph_memory_bytes", "Memory that capture took.", labels=["modality"]
        )
        capture = GaugeMetricFamily(
            "trtllm_encoder_capture_seconds", "Time that capture took.", labels=["modality"]
        )
        for tower in self._report.towers:
            memory.add_metric([tower.modality], tower.graph_memory_bytes)
            capture.add_metric([tower.modality], tower.capture_seconds)
        yield from (memory, capture)
        kv = self._report.kv_cache
        if kv is not None:
            yield GaugeMetricFamily(
                "trtllm_kv_cache_tokens", "Tokens that the KV cache holds.", value=kv.tokens
            )
            yield GaugeMetricFamily(
                "trtllm_kv_cache_tokens_without_graphs",
                "The same with encoder graphs off.",
                value=kv.tokens_without_graphs,
            )


def outcome_of(status: int) -> str:
    """How a request ended that was not served, by its status."""
    return _OUTCOME_OF.get(status, "error" if status >= 500 else "bad_request")
