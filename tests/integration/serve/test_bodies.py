# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What bodies may cost together: memory while they are held, and the event loop's time."""

from __future__ import annotations

import base64
import gc
import json
import threading
import tracemalloc
from typing import Any

import pytest
from PIL import Image
from pydantic import ValidationError
from raw_http import answer, head, post, raw, status_and_code
from running_server import (
    Gate,
    Running,
    chat,
    idle,
    image_bytes,
    image_part,
    outcomes,
    serving,
    until,
)

from tensorrt_llm_ext.serve import body as body_module
from tensorrt_llm_ext.serve.connection import Connection
from tensorrt_llm_ext.serve.protocol import ChatCompletionRequest

MB = 2**20
"""Of padding, which JSON does not mind."""


def held(server: Running) -> float:
    return server.metrics()["trtllm_request_body_bytes"]


@pytest.fixture
def shut_door(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the media of a server wait until the event is set."""
    go = threading.Event()

    def shut(server: Running) -> threading.Event:
        door = server.state.intake._door
        open_ = door.open

        def slow(part: Any, **options: Any) -> Any:
            go.wait(20)
            return open_(part, **options)

        monkeypatch.setattr(door, "open", slow)
        return go

    yield shut
    go.set()


def padded(picture: Image.Image, size: int, **more: Any) -> dict[str, Any]:
    """A request with a picture whose body has some more bytes than that."""
    return chat(parts=[image_part(picture)], user="u" * size, **more)


def test_bodies_are_bounded_together(engine: Any, picture: Image.Image, shut_door: Any) -> None:
    body = padded(picture, MB)
    size = len(json.dumps(body).encode())
    limits = {"max_body_bytes": 2 * MB, "max_total_body_bytes": 3 * MB}
    with serving(engine, **limits) as server:
        go = shut_door(server)
        socks = [post(server, body) for _ in range(2)]
        until(lambda: held(server) == 2 * size)
        # By its announced length, before any of it is sent.
        announced = raw(server, head(f"Content-Length: {size}"))
        assert announced.startswith(b"HTTP/1.1 429")
        assert b"retry-after: 1" in announced.lower()
        assert status_and_code(announced) == (429, "bodies_full")
        # As it comes, where nothing is announced.
        chunk = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
        sent = raw(server, head("Transfer-Encoding: chunked"), *[chunk] * 5)
        assert status_and_code(sent) == (429, "bodies_full")
        until(lambda: held(server) == 2 * size)
        assert server.chat().status_code == 200  # a small one fits
        go.set()
        assert [answer(sock)[0] for sock in socks] == [200, 200]
        until(lambda: idle(server))
        assert outcomes(server) == {"length": 3, "bodies_full": 2}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
def test_a_body_is_held_no_longer_than_its_media_are_decoded(
    engine: Any, gate: Gate, picture: Image.Image, path: str
) -> None:
    """Neither is it counted, nor is it there."""
    gate.open.clear()
    # Nobody looks behind a picture's end.
    text = base64.b64encode(image_bytes(picture) + bytes(8 * MB)).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}
    body = chat(parts=[part]) if "chat" in path else {"model": "tiny", "input": [part]}
    with serving(engine) as server:
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            sock = post(server, body, path=path)
            sent = tracemalloc.get_traced_memory()[0]
            until(lambda: server.state.thread.num_unfinished == 1)
            until(lambda: held(server) == 0)
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] - max(before, sent) < MB
        finally:
            tracemalloc.stop()
        gate.open.set()
        assert answer(sock)[0] == 200


def test_a_body_is_given_back_however_its_request_ends(
    engine: Any, picture: Image.Image, shut_door: Any
) -> None:
    body = padded(picture, MB)
    size = len(json.dumps(body).encode())
    with serving(engine, upload_timeout=0.5, max_body_bytes=4 * MB) as server:
        go = shut_door(server)
        post(server, body).close()  # gone while it waits for its media
        until(lambda: idle(server))
        late = post(server, body, "X-Request-Timeout: 0.3\r\n")
        assert answer(late)[0] == 408
        until(lambda: idle(server))
        go.set()
        assert server.chat(user="u" * MB, bogus=1).status_code == 400
        for parts in ([{"type": "x"}], [image_part(picture)] * 33):
            assert answer(post(server, chat(parts=parts, user="u" * MB)))[0] == 400
        too_large = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
        reply = raw(server, head("Transfer-Encoding: chunked"), *[too_large] * 17)
        assert status_and_code(reply) == (413, "body_too_large")
        half = raw(server, head(f"Content-Length: {size}"), b" " * (size // 2))
        assert status_and_code(half) == (408, "upload_timeout")
        raw(server, head(f"Content-Length: {size}"), b" " * (size // 2), wait=0.1)  # hangs up
        raw(server, head(f"Content-Length: {size}", path="/nothing"), b" " * size)
        until(lambda: idle(server))
        assert server.chat().status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/nothing"])
def test_tiny_chunks_leave_the_others_alone(
    engine: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """All that was read is parsed at once: chunks of a byte each would take seconds."""
    longest = 0
    received = Connection.data_received

    def spy(self: Connection, data: bytes) -> None:
        nonlocal longest
        longest = max(longest, data.count(b"\n"))
        received(self, data)

    monkeypatch.setattr(Connection, "data_received", spy)
    with serving(engine) as server:
        pieces = [head("Transfer-Encoding: chunked", path=path), b"1\r\n \r\n" * 20_000]
        raw(server, *pieces, b"0\r\n\r\n")
        assert 0 < longest <= 2 * 700
        body = json.dumps(chat(user="u" * MB)).encode()
        assert raw(server, head(f"Content-Length: {len(body)}"), body).startswith(b"HTTP/1.1 200")


def test_a_body_of_many_values_is_refused_before_it_is_parsed(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty megabytes of them would take the parser many seconds, and memory by the gigabyte."""
    most = body_module.MAX_SIGNS
    parsed = []
    from_json = body_module.from_json

    def spy(text: Any, **options: Any) -> Any:
        parsed.append(len(text))
        return from_json(text, **options)

    monkeypatch.setattr(body_module, "from_json", spy)
    for sign in ("[", "{", ","):
        body = json.dumps(chat()).encode() + sign.encode() * (20 * MB)
        answered = raw(server, head(f"Content-Length: {len(body)}"), body)
        assert status_and_code(answered) == (400, "body_too_complex")
    assert parsed == []
    with_text = json.dumps(chat("," * (most - 20)))
    with server.client() as client:
        headers = {"Content-Type": "application/json"}
        reply = client.post("/v1/chat/completions", content=with_text, headers=headers)
        assert reply.json()["error"]["code"] != "body_too_complex"
    assert parsed == [len(with_text)]


@pytest.mark.parametrize(
    ("change", "param", "text"),
    [
        ({str(i): 0 for i in range(99)}, None, "the body: an object has 104 keys; at most 64"),
        ({"messages": [{}] * 99}, "messages.0.role", "required"),
        ({"messages": [{str(i): 0 for i in range(99)}]}, "messages.0", "99 keys"),
        ({"messages": [{"role": "user", "content": [{}] * 99}]}, "messages.0.content.0", "a part"),
    ],
)
def test_the_first_mistake_of_many_is_enough(
    server: Running, change: dict[str, Any], param: str | None, text: str
) -> None:
    """An error for each of a hundred thousand would take seconds."""
    reply = server.chat(**change)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == param
    assert text in error["message"]
    with pytest.raises(ValidationError) as info:
        ChatCompletionRequest.model_validate({**chat(), **change})
    assert info.value.error_count() <= 2  # of one item
