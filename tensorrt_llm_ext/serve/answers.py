# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Answers that take time: made while the client is still there and the clock allows it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError, ClientGoneError
from .lifeline import Lifeline
from .metrics import outcome_of
from .state import ServerState

_LAST_WORDS_SECONDS = 1.0


class EngineAnswer(Response):
    """An answer that the engine works for.

    Args:
        server: The server.
        request: The HTTP request, its body read.
    """

    def __init__(self, server: ServerState, request: Request) -> None:
        self.server = server
        self.request = request
        self.background = None
        self.started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or raise what stands in the way; with nobody there, do neither."""
        async with Lifeline(self.request, self.server.options.request_timeout) as life:
            with self.server.listed(life):
                try:
                    await life.race(self.answer(life, scope, receive, send))
                except ClientGoneError:
                    self.request.state.outcome = "client_gone"
                except ApiError as error:
                    if not self.started:
                        raise
                    self.request.state.outcome = outcome_of(error.status_code)
                    await self._last_words(error, send)

    async def answer(self, life: Lifeline, scope: Scope, receive: Receive, send: Send) -> None:
        """Do the work and send the answer; cancelled where nobody wants it any more.

        Raises:
            ApiError: It cannot be done.
        """
        raise NotImplementedError

    def drop_body(self, content: list[Any]) -> None:
        """Forget what was sent: media are decoded, the prompt is made.

        Args:
            content: Messages or parts of the body; emptied, as the body itself is still needed.
        """
        content.clear()
        self.request.state.held_body.release()

    async def _last_words(self, error: ApiError, send: Send) -> None:
        """End a stream that has begun with an error."""
        body = sse(error.body) + DONE
        message: dict[str, Any] = {"type": "http.response.body", "body": body, "more_body": False}
        try:
            await asyncio.wait_for(send(message), _LAST_WORDS_SECONDS)
        except asyncio.TimeoutError:
            raise error from None  # a client that does not read: the connection is closed


def sse(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
