# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""An id for every request: taken from the client or made, returned, and in every log line."""

from __future__ import annotations

import logging
import re
import time
import uuid
from contextvars import ContextVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("tensorrt_llm_ext.serve.requests")

HEADER = "X-Request-Id"
current: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Id of the request that a task works for."""
_NOBODY_THERE = 499
"""Status in the log where the client left before there was an answer."""
_TAKEN = re.compile(r"[A-Za-z0-9._:-]{1,128}")  # nothing that could forge a log line


class RequestIdMiddleware:
    """Gives requests their id and logs one line for each when it is answered.

    The line has method, path without query, status and seconds, and nothing of what was sent.

    Args:
        app: The application inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _TAKEN.fullmatch(given) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"], state["began"] = request_id, time.monotonic()
        status = 500
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal status, started
            if message["type"] == "http.response.start":
                status, started = message["status"], True
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        token = current.set(request_id)
        try:
            await self.app(scope, receive, send_with_id)
            if not started:
                status = _NOBODY_THERE
        finally:
            seconds = time.monotonic() - state["began"]
            fields = {
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "seconds": round(seconds, 4),
            }
            text = "%(method)s %(path)r %(status)s in %(seconds)s s"
            logger.info(text % fields, extra=fields)
            current.reset(token)
