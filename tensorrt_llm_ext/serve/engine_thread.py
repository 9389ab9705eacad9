# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The one thread that runs the engine, and how the event loop talks to it.

What goes in are short calls, run between two steps; what comes out are events, handed to the event
loop once a step. So the event loop never waits for a step, and a step never for the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from ..engine.encode_queue import EncodeJob
from ..engine.results import StepEvent
from ..engine.scheduler import FinishReason, Request
from ..graphs.report import EncoderCacheStats, EncoderStats
from .errors import engine_failed

logger = logging.getLogger(__name__)

_SNAPSHOT_SECONDS = 0.2

Work = Request | EncodeJob
"""A request, or media that nobody writes about."""


class Ticket(Protocol):
    """Whoever waits for work to be done; called on the event loop."""

    def push(self, event: StepEvent) -> None:
        """The next event; the one with a finish reason is the last."""

    def fail(self, error: Exception) -> None:
        """Nothing more will come."""


class EngineThread:
    """Runs the steps of an engine as long as there is something to do.

    Args:
        engine: A ``TorchEngine``. Until the end, nobody else calls what waits for a step.
        on_failure: Called on the event loop when a step raised: the engine cannot go on.

    Attributes:
        failed: Whether that happened.
        num_running: Requests in the batch, as of the last step, and as many media that nobody
            writes about as a step encodes: the others wait.
        snapshot: Counters of the encoders and their cache, a fraction of a second old. Whoever
            asked an encoder itself would wait for its call to end.
    """

    def __init__(self, engine: Any, on_failure: Callable[[], None]) -> None:
        self.engine = engine
        self._on_failure = on_failure
        self.failed = False
        self.num_running = 0
        self._tickets: dict[Work, Ticket] = {}  # the event loop's
        self._requests: dict[int, Request] = {}  # the thread's, like all below
        self._jobs: list[EncodeJob] = []
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopping = False
        self._step_began: float | None = None
        self._take_snapshot()

    # ---- on the event loop ----

    def start(self) -> None:
        """Begin; call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1, "engine")
        self._done = executor.submit(self._run)
        self._done.add_done_callback(self._ended)
        executor.shutdown(wait=False)

    def add(self, work: Work, ticket: Ticket) -> None:
        """Queue a prepared request, or planned media.

        Raises:
            ApiError: The engine has failed.
        """
        if self.failed:
            raise engine_failed()
        self._tickets[work] = ticket
        self._calls.put(partial(self._add, work))

    def cancel(self, work: Work) -> None:
        """End work that is not done and free its place; nothing comes of it any more."""
        if self._tickets.pop(work, None) is not None:
            self._calls.put(partial(self._cancel, work))

    def stop(self) -> None:
        """End after the step that runs, and after all that was cancelled is."""
        self._calls.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the end; False where the step that runs does not end in time."""
        return not wait([self._done], seconds).not_done

    @property
    def num_unfinished(self) -> int:
        """Requests and media that are not done."""
        return len(self._tickets)

    def step_seconds(self) -> float:
        """How long the step that runs has taken so far; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def _deliver(self, news: list[tuple[Work, StepEvent]]) -> None:
        for work, event in news:
            # Without a ticket: cancelled while its event was on the way.
            ticket = self._tickets.get(work)
            if event.finish_reason is not None:
                self._tickets.pop(work, None)
            if ticket is not None:
                ticket.push(event)

    def _fail_all(self) -> None:
        tickets = list(self._tickets.values())
        self._tickets.clear()
        for ticket in tickets:
            ticket.fail(engine_failed())
        self._on_failure()

    # ---- on the thread ----

    def _run(self) -> None:
        while not self._stopping:
            self._answer_calls()
            if self._requests or self._jobs:
                self._step()

    def _answer_calls(self) -> None:
        """All calls that wait; with nothing else to do, wait for one."""
        idle = not (self._requests or self._jobs)
        if idle:
            self._take_snapshot()
        try:
            call = self._calls.get(idle)
            while call is not None:
                call()
                call = self._calls.get_nowait()
            self._stopping = True
        except queue.Empty:
            return

    def _step(self) -> None:
        self._step_began = time.monotonic()
        try:
            events = self.engine.step()
        except torch.OutOfMemoryError as error:
            # The engine has ended all that ran, and can go on with what waits.
            logger.error("out of memory in a step: %s", error)
            ended = [r for r in self._requests.values() if r.finish_reason is not None]
            events = [StepEvent(r.id, None, "", "error", r.error) for r in ended]
        self._step_began = None
        news: list[tuple[Work, StepEvent]] = []
        for event in events:
            request = self._requests.get(event.request_id)
            if request is not None:
                news.append((request, event))
                if event.finish_reason is not None:
                    self._forget(request)
        for job in [job for job in self._jobs if job.done]:
            reason: FinishReason = "stop" if job.error is None else "error"
            news.append((job, StepEvent(-1, None, "", reason, job.error)))
            self._jobs.remove(job)
        self._count()
        if self._snapshot_at + _SNAPSHOT_SECONDS < time.monotonic():
            self._take_snapshot()
        if news:
            self._loop.call_soon_threadsafe(self._deliver, news)

    def _add(self, work: Work) -> None:
        if isinstance(work, EncodeJob):
            self._jobs.append(work)
            self.engine.encode_queue.add(work)
        else:
            self._requests[work.id] = work
            self.engine.loop.add(work)

    def _cancel(self, work: Work) -> None:
        if isinstance(work, EncodeJob):
            self.engine.encode_queue.remove(work)
            self._jobs = [job for job in self._jobs if job is not work]
        elif work.id in self._requests:
            self.engine.cancel(work.id)
            self._forget(work)
        self._count()

    def _forget(self, request: Request) -> None:
        del self._requests[request.id]
        self.engine.take(request.id)

    def _count(self) -> None:
        requests = self.engine.loop.num_running if self._requests else 0
        self.num_running = requests + min(len(self._jobs), self.engine.args.encoder_batch_budget)

    def _take_snapshot(self) -> None:
        self._snapshot_at = time.monotonic()
        self.snapshot = Snapshot(self.engine.encoder_stats(), self.engine.encoder_cache_stats())

    def _ended(self, done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            logger.critical("the engine failed", exc_info=error)
            self.failed = True
            self._loop.call_soon_threadsafe(self._fail_all)


@dataclass(frozen=True)
class Snapshot:
    """Counters of the encoders, by modality, and of their cache."""

    encoders: dict[str, EncoderStats]
    cache: EncoderCacheStats
