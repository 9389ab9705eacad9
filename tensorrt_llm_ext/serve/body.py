# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: read and parsed once, in little time, and not kept beside what was parsed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from .errors import bad_request

MAX_SIGNS = 250_000
"""Commas and opening brackets in one body, those in its texts too: there are no more values than
that. A body that is nothing but values would take a parser many seconds, in which nothing else runs
(the rest of a body is strings, which are passed over)."""
_SIGNS = (b",", b"[", b"{")


class BodyRoute(APIRoute):
    """A route whose body is a :class:`BodyRequest`'s."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        answer = super().get_route_handler()

        async def read_and_answer(request: Request) -> Response:
            return await answer(BodyRequest(request.scope, request.receive))

        return read_and_answer


class BodyRequest(Request):
    """A request that does not keep its body: what was parsed of it holds all of it already."""

    async def body(self) -> bytes:
        """Read it, to be had once.

        Raises:
            ApiError: It has too many values.
        """
        whole, signs = bytearray(), 0
        async for piece in self.stream():
            whole += piece  # bit by bit: to join 64 MB at the end would hold up all others
            signs += sum(map(piece.count, _SIGNS))
            if signs > MAX_SIGNS:
                raise bad_request(
                    f"the body has more than {MAX_SIGNS:,} commas and opening brackets; send less "
                    "at a time",
                    code="body_too_complex",
                )
        self._whole = whole
        return whole  # type: ignore[return-value]  # FastAPI asks whether it is empty

    async def json(self) -> Any:
        """Parse what :meth:`body` read.

        Raises:
            ApiError: It is no JSON (UTF-8, no NaN, no lone surrogates, 200 levels at most).
        """
        # Not json.loads, which takes three times as long for a long string.
        try:
            return from_json(self._whole, allow_inf_nan=False)
        except ValueError as error:
            raise bad_request(f"the body is no JSON: {error}", code="invalid_json") from None
        finally:
            del self._whole
