# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A small asyncio client of the chat API: one request, or many at a given concurrency."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Answer:
    """What came back for one request.

    Attributes:
        text: The whole text.
        ttft_s: Seconds from sending to the first text; None where none came.
        total_s: Seconds from sending to the end.
        prompt_tokens: As the server counts them.
        completion_tokens: As the server counts them.
        status: HTTP status.
        error: Type of the error (OpenAI's `error.type`), or None.
        cancelled: The client hung up before the end.
    """

    text: str = ""
    ttft_s: float | None = None
    total_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    status: int = 200
    error: str | None = None
    cancelled: bool = False


def chat_body(model: str, content: Sequence[dict[str, Any]], max_tokens: int, **more: Any) -> bytes:
    """A greedy streaming request of exactly so many tokens, as bytes.

    Args:
        model: Name of the model.
        content: Parts of the one message.
        max_tokens: Tokens to generate.
        **more: Further keys of the request.
    """
    request = {
        "model": model,
        "messages": [{"role": "user", "content": list(content)}],
        "max_completion_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    return json.dumps(request).encode()


def new_client(url: str, connections: int, timeout: float = 300.0) -> httpx.AsyncClient:
    """A client with a pool of so many connections; proxies of the environment are left alone.

    Args:
        url: Where the server is.
        connections: Most connections.
        timeout: Seconds without a byte.
    """
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx.AsyncClient(base_url=url, limits=limits, timeout=timeout, trust_env=False)


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events, up to `[DONE]`."""
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[len("data:") :].strip()
        if data == "[DONE]":
            return
        yield json.loads(data)


async def ask(
    client: httpx.AsyncClient, body: bytes, *, hang_up_after: int | None = None
) -> Answer:
    """Send a streaming request and read its answer.

    Args:
        client: See `new_client`.
        body: See `chat_body`.
        hang_up_after: Close the connection after so many pieces of text.

    Returns:
        The answer, or what error came.
    """
    text: list[str] = []
    first: float | None = None
    usage: dict[str, int] = {}
    error: str | None = None
    headers = {"Content-Type": "application/json"}
    start = time.perf_counter()
    async with client.stream("POST", CHAT, content=body, headers=headers) as response:
        if response.status_code != 200:
            error = error_type(await response.aread())
            total = time.perf_counter() - start
            return Answer(status=response.status_code, total_s=total, error=error)
        async for event in events(response):
            if "error" in event:
                error = str(event["error"].get("type"))
            for choice in event.get("choices", ()):
                piece = (choice.get("delta") or {}).get("content")
                if piece:
                    first = first or time.perf_counter()
                    text.append(piece)
            usage = event.get("usage") or usage
            if hang_up_after is not None and len(text) >= hang_up_after:
                return Answer("".join(text), cancelled=True)
    return Answer(
        "".join(text),
        None if first is None else first - start,
        time.perf_counter() - start,
        usage.get("prompt_tokens", 0),
        usage.get("completion_tokens", 0),
        error=error,
    )


def error_type(body: bytes) -> str:
    """`error.type` of an error in OpenAI's form; "untyped" of any other body."""
    try:
        found = json.loads(body)["error"]["type"]
    except (ValueError, KeyError, TypeError):
        return "untyped"
    return str(found)


@dataclass(frozen=True)
class Load:
    """Answers to a number of requests, in the order of the requests.

    Attributes:
        answers: One a request that was sent.
        seconds: From the first request to the end of the last answer.
    """

    answers: list[Answer]
    seconds: float


async def run_load(
    client: httpx.AsyncClient,
    bodies: Iterable[bytes],
    concurrency: int,
    go_on: Callable[[int], bool] = lambda sent: True,
) -> Load:
    """Keep a number of requests in flight until all are answered.

    Args:
        client: See `new_client`.
        bodies: The requests.
        concurrency: How many are in flight.
        go_on: Whether to send another, asked with the number already sent.
    """
    answers: list[Answer | None] = []
    waiting = iter(bodies)

    async def worker() -> None:
        while go_on(len(answers)):
            body = next(waiting, None)
            if body is None:
                return
            place = len(answers)
            answers.append(None)
            answers[place] = await ask(client, body)

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    seconds = time.perf_counter() - start
    return Load([answer for answer in answers if answer is not None], seconds)
