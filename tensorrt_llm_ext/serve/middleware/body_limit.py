# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""How large a body may be: checked by its announced length, and again as it arrives.

Starlette has a middleware for this, but it answers with text instead of OpenAI's error body.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ApiError


class BodyLimitMiddleware:
    """Refuses bodies that are too large, before more than the limit is held.

    Args:
        app: The application inside.
        max_bytes: The limit.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # The server has checked that it is a number.
        if int(Headers(scope=scope).get("Content-Length", "0")) > self._max_bytes:
            await self._error().response()(scope, receive, send)
            return
        received = 0

        async def receive_bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise self._error()
            return message

        await self.app(scope, receive_bounded, send)

    def _error(self) -> ApiError:
        return ApiError(
            413,
            f"the body is larger than {self._max_bytes:,} bytes; send fewer or smaller media",
            code="body_too_large",
        )
