# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""How long a head may be. The server bounds what it reads of one, but to a whole read only."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import ApiError


class HeadLimitMiddleware:
    """Refuses requests whose target and headers are too long.

    Args:
        app: The application inside.
        max_bytes: The limit.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            size = len(scope["raw_path"]) + len(scope["query_string"])
            size += sum(len(name) + len(value) for name, value in scope["headers"])
            if size > self._max_bytes:
                text = f"target and headers have more than {self._max_bytes:,} bytes"
                await ApiError(431, text, code="head_too_large").response()(scope, receive, send)
                return
        await self.app(scope, receive, send)
