# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The API key."""

from __future__ import annotations

import hmac
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import ApiError


class ApiKeyMiddleware:
    """Lets requests pass that bring the key; all routes ask for it but those named.

    Args:
        app: The application inside.
        key: The key.
        open_paths: Paths that ask for none.
    """

    def __init__(self, app: ASGIApp, key: str, open_paths: Collection[str]) -> None:
        self.app = app
        self._key = key.encode()
        self._open = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and scope["path"] not in self._open:
            kind, _, key = Headers(scope=scope).get("Authorization", "").partition(" ")
            # In constant time, or the answer's delay would tell how much of a guess was right.
            right = hmac.compare_digest(key.strip().encode("latin-1"), self._key)
            if kind.lower() != "bearer" or not right:
                error = ApiError(
                    401,
                    "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await error.response()(scope, receive, send)
                return
        await self.app(scope, receive, send)
