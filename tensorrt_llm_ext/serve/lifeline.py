# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What can end a request before its answer is complete: client, clock, server."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from ..engine.encode_queue import EncodeJob
from ..engine.errors import RequestError
from ..engine.results import StepEvent
from .errors import ApiError, ClientGoneError, bad_request, out_of_time

T = TypeVar("T")

logger = logging.getLogger(__name__)

TIMEOUT_HEADER = "X-Request-Timeout"


class Lifeline:
    """Ends a request when its client leaves, its time is over or the server goes down.

    A context; inside, :meth:`race` runs what the request waits for. The request's body has been
    read before.

    Args:
        request: The HTTP request.
        seconds: Time that the server gives it.

    Attributes:
        deadline: When its time is over, by ``time.monotonic()``.
        ended: Why it ended early; pending as long as it has not.

    Raises:
        ApiError: The client asks for a time that is none.
    """

    def __init__(self, request: Request, seconds: float) -> None:
        wanted = _wanted_seconds(request)
        self._asked = wanted is not None and wanted < seconds
        self._seconds = wanted if wanted is not None and self._asked else seconds
        self._receive = request.receive
        self.began: float = request.state.began
        self.deadline = self.began + self._seconds
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Lifeline:
        loop = asyncio.get_running_loop()
        self._watch = loop.create_task(self._watch_client())
        self._timer = loop.call_later(max(0.0, self.deadline - time.monotonic()), self._time_over)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()
        self._timer.cancel()

    def end(self, error: Exception) -> None:
        """End the request; the first reason counts."""
        if not self.ended.done():
            self.ended.set_result(error)

    async def race(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the request's work, and cancel it where the request ends before it is done.

        Raises:
            ApiError: Its time is over, or the server goes down.
            ClientGoneError: The client has left.
        """
        task = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, self.ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})  # what it holds is given back
        if task.cancelled():
            raise self.ended.result()
        return task.result()

    def _time_over(self) -> None:
        self.end(out_of_time(self._seconds, asked=self._asked))

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.end(ClientGoneError())


class Events:
    """What the engine says of one request, in order. A ticket of the engine's thread.

    Args:
        job: The request's media.
    """

    def __init__(self, job: EncodeJob) -> None:
        self._job = job
        self._queue: asyncio.Queue[StepEvent | Exception] = asyncio.Queue()

    def push(self, event: StepEvent) -> None:
        """The next event."""
        self._queue.put_nowait(event)

    def fail(self, error: Exception) -> None:
        """Nothing more will come."""
        self._queue.put_nowait(error)

    async def next(self) -> StepEvent:
        """Wait for the next event.

        Raises:
            RequestError: Something in its media cannot be used.
            ApiError: The request, or the whole engine, failed.
        """
        event = await self._queue.get()
        if isinstance(event, Exception):
            raise event
        if event.finish_reason == "error":
            if self._job.callers_fault:
                raise RequestError(event.error)
            logger.error("a request failed: %s", event.error)
            raise ApiError(
                500, "the request failed in the engine, others go on", code="request_failed"
            )
        return event


def _wanted_seconds(request: Request) -> float | None:
    """Seconds that the client gives the request."""
    text: Any = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise bad_request(
            f"{TIMEOUT_HEADER} is {text!r:.40}; give a positive number of seconds", TIMEOUT_HEADER
        )
    return seconds
