# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A real server on a port of this machine, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import base64
import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from PIL import Image

from tensorrt_llm_ext.llmapi.llm_args import ServeConfig
from tensorrt_llm_ext.serve import HttpOptions
from tensorrt_llm_ext.serve.server import Server, bind

NAME = "tiny"


class Running:
    """A running server.

    Args:
        server: The server.
        port: Its port.
        thread: Where it runs.
    """

    def __init__(self, server: Server, port: int, thread: threading.Thread) -> None:
        self.server = server
        self.state = server.state
        self.engine: Any = server.state.engine
        self.port = port
        self.thread = thread
        self.url = f"http://127.0.0.1:{port}"

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, **options)

    def chat(
        self, text: str = "The sky", parts: list[dict[str, Any]] | None = None, **body: Any
    ) -> httpx.Response:
        with self.client() as client:
            return client.post("/v1/chat/completions", json=chat(text, parts, **body))

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels."""
        with self.client() as client:
            lines = client.get("/metrics").text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()


@contextmanager
def serving(engine: Any, config: ServeConfig | None = None, **options: Any) -> Iterator[Running]:
    """Serve an engine, which stays usable afterwards.

    Args:
        engine: The engine.
        config: What it was loaded with; left out, its own arguments.
        **options: Of `HttpOptions`.
    """
    given = {"shutdown_grace_period": 0.5, "served_model_name": NAME, **options}
    http = HttpOptions(host="127.0.0.1", port=0, **given)
    if config is None:
        values = engine.args.model_dump(exclude_unset=True, by_alias=True)
        config = ServeConfig.model_validate(values)
    listener = bind(http)
    server = Server(config, http, engine)
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve_until_signal(listener)), name="server"
    )
    thread.start()
    running = Running(server, listener.getsockname()[1], thread)
    try:
        until(lambda: server.started)
        yield running
    finally:
        running.stop()


def until(what: Callable[[], Any], seconds: float = 20) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def chat(text: str = "The sky", parts: list[dict[str, Any]] | None = None, **body: Any) -> Any:
    """Body of a chat completion."""
    content: Any = text if parts is None else [*parts, {"type": "text", "text": text}]
    messages = [{"role": "user", "content": content}]
    fixed = {"temperature": 0, "max_completion_tokens": 4, "ignore_eos": True}
    return {"model": NAME, "messages": messages, **fixed, **body}


def image_bytes(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def image_part(image: Image.Image, kind: str = "PNG") -> dict[str, Any]:
    text = base64.b64encode(image_bytes(image, kind)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind.lower()};base64,{text}"}}


class Gate:
    """Lets the steps of an engine pass, or holds them up, or breaks them.

    Args:
        engine: The engine.
        patch: Undoes it.
    """

    def __init__(self, engine: Any, patch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.seconds = 0.0
        self.error: Exception | None = None
        self.steps = 0
        step = engine.step

        def gated() -> Any:
            self.steps += 1
            self.open.wait(30)
            time.sleep(self.seconds)
            if self.error is not None:
                raise self.error
            return step()

        patch.setattr(engine, "step", gated)


def idle(server: Running) -> bool:
    """Nothing is left anywhere."""
    loop = server.engine.loop
    return (
        server.state.thread.num_unfinished == 0
        and server.state.thread.num_running == 0
        and loop.idle
        and loop._requests == {}
        and server.state.intake._held == 0
        and not server.state._lives
        and server.metrics()["trtllm_request_body_bytes"] == 0
    )


def outcomes(server: Running) -> dict[str, float]:
    prefix = 'trtllm_requests_total{outcome="'
    found = {k[len(prefix) : -2]: v for k, v in server.metrics().items() if k.startswith(prefix)}
    return {name: count for name, count in found.items() if count}
