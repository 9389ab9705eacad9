# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""How requests for the engine end."""

from __future__ import annotations

from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..metrics import outcome_of


class OutcomeMiddleware:
    """Counts each request for the engine once.

    Args:
        app: The application inside. What it writes into ``state["outcome"]`` counts, else what
            the status says.
        paths: Paths of requests for the engine.
        count: Told the outcome.
    """

    def __init__(
        self, app: ASGIApp, *, paths: Collection[str], count: Callable[[str], None]
    ) -> None:
        self.app = app
        self._paths = frozenset(paths)
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] not in self._paths:
            await self.app(scope, receive, send)
            return
        status = 500

        async def send_and_look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_look)
        finally:
            self._count(scope["state"].get("outcome") or outcome_of(status))
