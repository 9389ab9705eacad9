# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""How large a body may be, and all together: checked by what is announced, and again by what comes.

Starlette has a middleware for the first, but it answers with text instead of OpenAI's error body.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ApiError, bodies_full


class BodyLimitMiddleware:
    """Refuses bodies that are too large, before more than the limit is held.

    Args:
        app: The application inside. It calls :meth:`HeldBody.release` of ``state["held_body"]``
            once it has dropped the body, or leaves that to the end of the request.
        max_bytes: The limit.
        max_total_bytes: The limit of the bodies of all requests that are held at a time.
        count: Told the bytes that are held whenever they change.
    """

    def __init__(
        self, app: ASGIApp, *, max_bytes: int, max_total_bytes: int, count: Callable[[int], None]
    ) -> None:
        self.app = app
        self._max_bytes = max_bytes
        self._max_total_bytes = max_total_bytes
        self._total = 0
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # The server has checked that it is a number.
        announced = int(Headers(scope=scope).get("Content-Length", "0"))
        if announced > self._max_bytes:
            await self._too_large().response()(scope, receive, send)
            return
        if self._total + announced > self._max_total_bytes:
            await self._full(scope).response()(scope, receive, send)
            return
        held = HeldBody(self._add)
        scope["state"]["held_body"] = held

        async def receive_bounded() -> Message:
            message = await receive()
            held.add(len(message.get("body", b"")))
            if held.num_bytes > self._max_bytes:
                raise self._too_large()
            if self._total > self._max_total_bytes:
                raise self._full(scope)
            return message

        try:
            await self.app(scope, receive_bounded, send)
        finally:
            held.release()

    def _add(self, num_bytes: int) -> None:
        self._total += num_bytes
        self._count(self._total)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body is larger than {self._max_bytes:,} bytes; send fewer or smaller media",
            code="body_too_large",
        )

    @staticmethod
    def _full(scope: Scope) -> ApiError:
        scope["state"]["outcome"] = "bodies_full"
        return bodies_full()


class HeldBody:
    """What is held of one body.

    Args:
        add: Told by how much that changes.
    """

    def __init__(self, add: Callable[[int], None]) -> None:
        self._add = add
        self.num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """More of it came."""
        self.num_bytes += num_bytes
        self._add(num_bytes)

    def release(self) -> None:
        """Nothing of it is held any more. May be called twice."""
        self.add(-self.num_bytes)
