# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The life of a server process: bind, load, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import uvicorn

from ..llmapi.llm import make_engine
from ..llmapi.llm_args import ServeConfig
from .app import make_app
from .connection import Connection
from .logs import configure_logging
from .options import HttpOptions
from .state import ServerState

logger = logging.getLogger("tensorrt_llm_ext.serve")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LAST_STEP_SECONDS = 5.0
_FORCED_SECONDS = 0.5
_LAST_ANSWERS_SECONDS = 5.0


def run(config: ServeConfig, http: HttpOptions | None = None) -> int:
    """Serve a model until SIGTERM or SIGINT.

    The port is taken before weights are loaded. A first signal lets running requests finish within
    the grace period; a second one ends the process at once. While the model loads, one is enough.
    Call it on the main thread.

    Args:
        config: The model, how it runs, and what media are taken.
        http: Address, limits and logs.

    Returns:
        Exit code: 0 after a drain, 1 after an error (one line of it is on stderr), 128 plus the
        signal's number where there was nothing to drain or no time.
    """
    options = http or HttpOptions()
    configure_logging(options)
    try:
        with bind(options) as listener, _signals_end_it():
            return _serve(config, options, listener)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except _SignalError as error:
        logger.info("%s: stopped before the model was loaded", error.signal.name)
        return 128 + error.signal


def bind(options: HttpOptions) -> socket.socket:
    """Take the address; nobody can connect yet.

    Raises:
        ValueError: It cannot be had.
    """
    host, port = options.host, options.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ValueError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another port, or stop what "
            "uses it"
        ) from error
    return listener


def _serve(config: ServeConfig, options: HttpOptions, listener: socket.socket) -> int:
    engine = make_engine(config.llm_args())
    server = Server(config, options, engine)
    with _handlers(server.handle_exit):
        ended = asyncio.run(server.serve_until_signal(listener))
    if not ended:
        logger.error("the engine is stuck in a step; leaving without it")
        _leave(server.exit_code() or 1)
    engine.shutdown()
    return server.exit_code()


class Server(uvicorn.Server):
    """uvicorn with an engine behind it, and a drain that ends.

    Args:
        config: What the engine was loaded with.
        options: Address, limits and logs.
        engine: The engine, loaded.
    """

    def __init__(self, config: ServeConfig, options: HttpOptions, engine: object) -> None:
        self.state = ServerState(engine, config, options, self._engine_failed)
        self.options = options
        self._signal: int | None = None
        timed = type("TimedConnection", (Connection,), {"head_timeout": options.upload_timeout})
        uvicorn_config = uvicorn.Config(
            make_app(self.state),
            http=timed,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=options.max_header_bytes,
            timeout_graceful_shutdown=int(options.shutdown_grace_period + _LAST_ANSWERS_SECONDS),
        )
        super().__init__(uvicorn_config)

    async def serve_until_signal(self, listener: socket.socket) -> bool:
        """Serve, and return when all is drained.

        Returns:
            Whether the engine's thread has ended; False where it is stuck in a step.
        """
        self.state.thread.start()
        host, port = listener.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        logger.info("serving %s on http://%s", self.state.model_name, address)
        await self._serve([listener])
        return self.state.close(_FORCED_SECONDS if self.force_exit else _LAST_STEP_SECONDS)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: leave."""
        if self._signal is None:
            self._signal = sig
            self.state.draining = True
            self.should_exit = True
        else:
            self.force_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish; end with an error those that do not in time."""
        self.state.draining = True
        grace = 0.0 if self.state.thread.failed else self.options.shutdown_grace_period
        timer = asyncio.get_running_loop().call_later(grace, self.state.end_all)
        await super().shutdown(sockets)
        timer.cancel()
        self.state.end_all()  # those that there was no time to wait for
        await asyncio.sleep(_FORCED_SECONDS if self.server_state.tasks else 0)
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def exit_code(self) -> int:
        """What the process ends with."""
        if self.state.thread.failed:
            return 1
        if self.force_exit and self._signal is not None:
            return 128 + self._signal
        return 0

    def _engine_failed(self) -> None:
        self.should_exit = True


class _SignalError(BaseException):
    """A signal came while the model was being loaded."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signal = signal.Signals(signum)


@contextlib.contextmanager
def _handlers(handler: object) -> Iterator[None]:
    before = {sig: signal.signal(sig, handler) for sig in _SIGNALS}  # type: ignore[arg-type]
    try:
        yield
    finally:
        for sig, old in before.items():
            signal.signal(sig, old)


def _signals_end_it() -> contextlib.AbstractContextManager[None]:
    """While loading, a signal unwinds the stack: what was captured is released on the way."""

    def unwind(signum: int, frame: FrameType | None) -> NoReturn:
        raise _SignalError(signum)

    return _handlers(unwind)


def _leave(code: int) -> NoReturn:
    """End the process though a thread does not."""
    logging.shutdown()
    os._exit(code)
