# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""How many requests may wait; more are turned away before their bodies are read."""

from __future__ import annotations

from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import queue_full, shutting_down


class AdmissionMiddleware:
    """Counts the requests for the engine that are not answered yet, and bounds those that wait.

    Args:
        app: The application inside.
        paths: Paths of requests for the engine.
        max_waiting: Most that may wait.
        num_running: How many of them the engine works on.
        draining: Whether the server takes no more.
        count: Told the number of unanswered requests whenever it changes.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        paths: Collection[str],
        max_waiting: int,
        num_running: Callable[[], int],
        draining: Callable[[], bool],
        count: Callable[[int], None],
    ) -> None:
        self.app = app
        self._paths = frozenset(paths)
        self._max_waiting = max_waiting
        self._num_running = num_running
        self._draining = draining
        self._count = count
        self._unanswered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self._paths:
            await self.app(scope, receive, send)
            return
        waiting = self._unanswered - self._num_running()
        if self._draining():
            await shutting_down().response()(scope, receive, send)
            return
        if waiting >= self._max_waiting:
            await queue_full(waiting).response()(scope, receive, send)
            return
        self._unanswered += 1
        self._count(self._unanswered)
        try:
            await self.app(scope, receive, send)
        finally:
            self._unanswered -= 1
            self._count(self._unanswered)
