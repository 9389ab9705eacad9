# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""How long a body may take to arrive."""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ApiError


class UploadTimeoutMiddleware:
    """Ends requests whose bodies come too slowly, however steadily they drip.

    Args:
        app: The application inside.
        seconds: Time from the end of the head to the end of the body.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self.app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        end, complete = time.monotonic() + self._seconds, False

        async def receive_in_time() -> Message:
            nonlocal complete
            if complete:  # what comes now is that the client leaves, whenever that is
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, end - time.monotonic()))
            except asyncio.TimeoutError:
                raise ApiError(
                    408,
                    f"the body did not arrive within {self._seconds:g} seconds",
                    code="upload_timeout",
                    headers={"Connection": "close"},
                ) from None
            complete = not message.get("more_body", False)
            return message

        await self.app(scope, receive_in_time, send)
