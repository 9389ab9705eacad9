# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What a client is told when something cannot be done, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(HTTPException):
    """An answer other than success.

    Args:
        status: HTTP status.
        message: What is wrong and what to do; without content of the request beyond the bad value,
            without paths and addresses.
        param: Field of the request that is wrong.
        code: Short name of the case.
        headers: Further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.message = message
        self.param = param
        self.code = code or HTTPStatus(status).phrase.lower().replace(" ", "_")

    @property
    def body(self) -> dict[str, Any]:
        """The answer's body, or an event of a stream."""
        kind = _TYPES.get(self.status_code, "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        """The answer."""
        return JSONResponse(self.body, self.status_code, self.headers)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself is wrong."""
    return ApiError(400, message, param=param, code=code or "invalid_value")


def queue_full(waiting: int) -> ApiError:
    """429: too many requests wait already."""
    return ApiError(
        429,
        f"{waiting} requests are waiting already, which is as many as may; try again later",
        code="queue_full",
        headers={"Retry-After": "1"},
    )


def bodies_full() -> ApiError:
    """429: the bodies of other requests leave no room for this one."""
    return ApiError(
        429,
        "the requests that are waiting have as many bytes as may be held together; try again later",
        code="bodies_full",
        headers={"Retry-After": "1"},
    )


def shutting_down() -> ApiError:
    """503: the server is about to end."""
    return ApiError(
        503,
        "the server is shutting down; try again, elsewhere or later",
        code="shutting_down",
        headers={"Retry-After": "5"},
    )


def engine_failed() -> ApiError:
    """500: the engine is gone, and so is every request in it."""
    return ApiError(500, "the engine failed; the server is ending", code="engine_failed")


def out_of_time(seconds: float, *, asked: bool) -> ApiError:
    """408 where the client asked for the limit, else 504."""
    if asked:
        return ApiError(
            408,
            f"the request was not done within the {seconds:g} seconds that X-Request-Timeout gave "
            "it; give it more, or ask for fewer tokens",
            code="client_timeout",
        )
    return ApiError(
        504,
        f"the request was not done within {seconds:g} seconds, which is this server's limit; ask "
        "for fewer tokens",
        code="server_timeout",
    )


class ClientGoneError(Exception):
    """The client closed the connection: there is nobody to answer."""
