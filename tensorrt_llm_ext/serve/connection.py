# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""One client connection: clients that send slowly, or no HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import ApiError

_READ_BYTES = 4096
_READ_BODY_BYTES = 32_768
"""Where the length of the body was announced: that is one piece to the parser, however large."""


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """uvicorn's connection, closed where no request arrives in time; its errors are OpenAI's.

    It reads little at a time: all of it is parsed at once, and where it is chunks of a byte each,
    what asyncio reads by itself would hold up everything else for seconds.

    ``head_timeout`` is set on a subclass, as uvicorn makes the objects.
    """

    head_timeout: float = 30.0
    _head_timer: asyncio.TimerHandle | None = None

    def get_buffer(self, sizehint: int) -> bytearray:
        """Where the next bytes go."""
        in_body = self.conn.their_state is h11.SEND_BODY
        announced = in_body and all(name != b"transfer-encoding" for name, _ in self.headers)
        self._buffer = bytearray(_READ_BODY_BYTES if announced else _READ_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        self.data_received(bytes(memoryview(self._buffer)[:nbytes]))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected; its request has to arrive in time."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Bytes came; once they make a request, its own times hold."""
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        """An answer is sent; the next request, or the rest of this one, has to arrive in time."""
        super().on_response_complete()
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        super().connection_lost(exc)
        self._stop_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or has too long a head."""
        self._refuse(ApiError(400, "the request is no HTTP, or its head is too long"))

    def _watch_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.head_timeout, self._head_over)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_over(self) -> None:
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(ApiError(408, "no complete request arrived in time"))
        self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        answer = error.response()
        headers: list[tuple[Any, Any]] = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=error.status_code, headers=headers),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()
