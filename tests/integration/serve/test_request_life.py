# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""How requests end before they are done, and what that frees: client, clock, queue, engine."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from raw_http import answer, post
from running_server import NAME, Gate, Running, chat, idle, image_part, outcomes, serving, until


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("when", ["running", "waiting"])
def test_case_41_client_gone(
    engine: Any, gate: Gate, stream: bool, when: str, picture: Image.Image
) -> None:
    gate.seconds = 0.01
    with serving(engine) as server:
        if when == "waiting":
            gate.open.clear()
        body = chat(parts=[image_part(picture)], max_completion_tokens=400, stream=stream)
        sock = post(server, body)
        if when == "running":
            until(lambda: engine.loop.num_running == 1)
        else:
            until(lambda: server.state.thread.num_unfinished == 1)
        sock.close()
        gone = time.monotonic()
        if when == "waiting":
            until(lambda: server.state.thread.num_unfinished == 0)
            gate.open.set()
        until(lambda: idle(server))
        assert time.monotonic() - gone < 1
        assert outcomes(server) == {"client_gone": 1}


def test_client_gone_while_media_are_decoded(
    engine: Any, picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, opened = threading.Event(), []
    with serving(engine, media_workers=1) as server:
        door = server.state.intake._door
        open_ = door.open

        def slow(part: Any, **options: Any) -> Any:
            opened.append(part)
            go.wait(20)
            return open_(part, **options)

        monkeypatch.setattr(door, "open", slow)
        sock = post(server, chat(parts=[image_part(picture)] * 3))
        until(lambda: opened)
        sock.close()
        until(lambda: not server.state._lives)
        go.set()
        assert server.chat().status_code == 200
        assert len(opened) == 1  # those that had not begun never do
        until(lambda: idle(server))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
def test_client_gone_while_media_are_resized_and_nothing_runs(
    engine: Any, picture: Image.Image, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Neither it nor a request that has no media waits for that."""
    go, began = threading.Event(), threading.Event()
    load = engine.encode_queue._load

    def slow(picked: Any) -> Any:
        began.set()
        go.wait(20)
        return load(picked)

    monkeypatch.setattr(engine.encode_queue, "_load", slow)
    part = image_part(picture)
    body = chat(parts=[part]) if "chat" in path else {"model": NAME, "input": [part]}
    try:
        with serving(engine) as server:
            sock = post(server, body, path=path)
            assert began.wait(20)
            sock.close()
            gone = time.monotonic()
            until(lambda: idle(server))
            assert time.monotonic() - gone < 1
            assert server.chat().status_code == 200
            go.set()
            assert server.chat(parts=[part]).status_code == 200
    finally:
        go.set()


def test_case_42_queue_limit(engine: Any, gate: Gate) -> None:
    gate.open.clear()
    with serving(engine, max_queue_size=2) as server:
        held = [post(server, chat()) for _ in range(2)]
        until(lambda: server.state.thread.num_unfinished == 2)
        began = time.monotonic()
        refused = server.chat()
        assert time.monotonic() - began < 1
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "queue_full"
        # Before the body is read: it is not even sent.
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n"
            sock.sendall(head)
            assert sock.recv(99).startswith(b"HTTP/1.1 429")
        gate.open.set()
        assert [answer(sock)[0] for sock in held] == [200, 200]
        assert server.chat().status_code == 200
        assert outcomes(server) == {"length": 3, "queue_full": 2}


def test_case_42_queue_limit_of_media_alone(
    engine: Any, picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, at_once = engine.encode_queue.step, engine.args.encoder_batch_budget
    monkeypatch.setattr(engine.encode_queue, "step", lambda wait: time.sleep(0.01))
    body = {"model": NAME, "input": [image_part(picture)]}
    with serving(engine, max_queue_size=2) as server:
        held = []
        for count in range(1, at_once + 3):
            held.append(post(server, body, path="/v1/embeddings"))
            until(lambda count=count: server.state.thread.num_unfinished == count)  # type: ignore[misc]
            until(lambda count=count: server.state.thread.num_running == min(count, at_once))  # type: ignore[misc]
        assert answer(post(server, body, path="/v1/embeddings"))[0] == 429
        monkeypatch.setattr(engine.encode_queue, "step", step)
        assert {answer(sock)[0] for sock in held} == {200}
        until(lambda: idle(server))


@pytest.mark.parametrize(
    ("limit", "header", "status", "code"),
    [
        (0.4, "", 504, "server_timeout"),
        (30, "0.4", 408, "client_timeout"),
        (0.4, "30", 504, "server_timeout"),
    ],
)
@pytest.mark.parametrize("when", ["running", "waiting", "streaming"])
def test_case_42_deadlines(
    engine: Any, gate: Gate, limit: float, header: str, status: int, code: str, when: str
) -> None:
    gate.seconds = 0.02
    if when == "waiting":
        gate.open.clear()
    with serving(engine, request_timeout=limit) as server, server.client() as client:
        headers = {"X-Request-Timeout": header} if header else {}
        body = chat(max_completion_tokens=400, stream=when == "streaming")
        began = time.monotonic()
        reply = client.post("/v1/chat/completions", json=body, headers=headers)
        assert time.monotonic() - began < 1.5
        if when == "streaming":
            assert reply.status_code == 200
            *chunks, error, done, empty = reply.text.split("\n\n")
            assert len(chunks) > 2
            assert json.loads(error.removeprefix("data: "))["error"]["code"] == code
            assert (done, empty) == ("data: [DONE]", "")
        else:
            assert reply.status_code == status
            assert reply.json()["error"]["code"] == code
        gate.open.set()
        gate.seconds = 0
        until(lambda: idle(server))
        assert outcomes(server) == {code: 1}


@pytest.mark.parametrize("header", ["0", "-1", "nan", "inf", "soon"])
def test_a_deadline_that_is_none(engine: Any, header: str) -> None:
    with serving(engine) as server, server.client() as client:
        headers = {"X-Request-Timeout": header}
        reply = client.post("/v1/chat/completions", json=chat(), headers=headers)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "X-Request-Timeout"


def test_case_42_hung_step(engine: Any, gate: Gate) -> None:
    with serving(engine, engine_stall_timeout=0.2) as server, server.client() as client:
        gate.open.clear()
        sock = post(server, chat())
        until(lambda: client.get("/health").status_code == 503, 5)
        began = time.monotonic()
        reply = client.get("/health")
        assert time.monotonic() - began < 0.5
        assert "one engine step has been running" in reply.json()["error"]["message"]
        assert client.get("/metrics").status_code == 200
        gate.open.set()
        assert answer(sock)[0] == 200
        assert client.get("/health").status_code == 200


def test_a_failed_engine_ends_the_server(engine: Any, gate: Gate) -> None:
    """Case 30: whoever is in it gets a 500, and the server ends instead of trying again."""
    with serving(engine) as server:
        gate.open.clear()
        whole, stream = post(server, chat()), post(server, chat(stream=True))
        until(lambda: server.state.thread.num_unfinished == 2)
        gate.error = RuntimeError("an illegal memory access was encountered")
        gate.open.set()
        for sock in (whole, stream):
            status, text = answer(sock)
            assert status == 500
            assert "engine_failed" in text
            assert "illegal" not in text
        server.thread.join(20)
        assert not server.thread.is_alive()
        assert server.server.exit_code() == 1
        assert gate.steps == 1
    engine.loop._scheduler.waiting.clear()
    engine.loop._requests.clear()


def test_out_of_memory_ends_those_that_ran(
    engine: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = engine.loop._generator
    decode, broken = generator.decode, threading.Event()

    def maybe(requests: Any) -> Any:
        if broken.is_set():
            broken.clear()
            raise torch.OutOfMemoryError("tried to allocate 2 GiB at 0x7f00")
        return decode(requests)

    monkeypatch.setattr(generator, "decode", maybe)
    gate.seconds = 0.01
    with serving(engine) as server:
        sock = post(server, chat(max_completion_tokens=400))
        until(lambda: engine.loop.num_running == 1)
        broken.set()
        status, text = answer(sock)
        assert status == 500
        assert "request_failed" in text
        assert "GiB" not in text
        assert server.chat().status_code == 200
        until(lambda: idle(server))


def test_what_cannot_be_encoded_is_the_callers_fault(
    engine: Any, picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(engine) as server:
        monkeypatch.setattr(
            server.state.intake._door,
            "open",
            lambda part, **_: np.full((64, 64, 3), np.nan),
        )
        monkeypatch.setattr("tensorrt_llm_ext.serve.intake._num_bytes", lambda content: 1)
        reply = server.chat(parts=[image_part(picture)])
        assert reply.status_code == 400
        assert "NaN" in reply.json()["error"]["message"]
        until(lambda: idle(server))


def test_case_43_health_while_pictures_are_decoded(engine: Any, photo: Image.Image) -> None:
    """Eight pictures of 12 million pixels, decoded and shrunk beside the loop."""
    large = photo.resize((4000, 3000), Image.Resampling.NEAREST)
    body = chat(parts=[image_part(large, "JPEG")], max_completion_tokens=1)
    with serving(engine) as server:
        # A machine that is busy with other things may spoil one try.
        assert any(p99_of_health(server, body) < 0.1 for _ in range(3))


def p99_of_health(server: Running, body: dict[str, Any]) -> float:
    """Seconds, while eight requests are served."""
    times = []
    with server.client() as client:
        socks = [post(server, body) for _ in range(8)]
        until(lambda: server.state._lives)
        while server.state._lives:
            began = time.perf_counter()
            assert client.get("/health").status_code == 200
            times.append(time.perf_counter() - began)
            time.sleep(0.005)
        assert {answer(sock)[0] for sock in socks} == {200}
    assert len(times) > 20
    return sorted(times)[int(len(times) * 0.99)]


def test_requests_of_several_clients_share_a_replay(
    engine: Any, gate: Gate, picture: Image.Image
) -> None:
    body = chat(parts=[image_part(picture)], max_completion_tokens=2)
    with serving(engine) as server:
        alone = server.chat(parts=[image_part(picture)], max_completion_tokens=2).json()["choices"]
        before = engine.encoder_stats()["image"]
        gate.open.clear()
        socks = [post(server, body) for _ in range(5)]
        until(lambda: server.state.thread.num_unfinished == 5)
        gate.open.set()
        for sock in socks:
            assert json.loads(answer(sock)[1])["choices"] == alone
        after = engine.encoder_stats()["image"]
        # The step that was held up had one request or none; the others fill calls of 4 pictures.
        assert after.items - before.items == 5
        assert sum(after.replays.values()) - sum(before.replays.values()) <= 2


def test_features_do_not_stall_a_stream(engine: Any, picture: Image.Image) -> None:
    """Ten pictures to encode, four a step: a token of the stream comes between."""
    order: list[str] = []
    encode = engine.encoders.calls["image"]

    def spy(items: list[Any]) -> Any:
        order.append("encode")
        return encode(items)

    decode = engine.loop._generator.decode

    def spy_decode(requests: Any) -> Any:
        order.append("decode")
        return decode(requests)

    with pytest.MonkeyPatch.context() as patch, serving(engine) as server:
        patch.setitem(engine.encoders.calls, "image", spy)
        patch.setattr(engine.loop._generator, "decode", spy_decode)
        sock = post(server, chat(max_completion_tokens=300, stream=True))
        until(lambda: "decode" in order)
        with server.client() as client:
            body = {"model": "tiny", "input": [image_part(picture)] * 10}
            assert client.post("/v1/embeddings", json=body).status_code == 200
        assert order[-1] == "decode" or order.count("encode") == 3
        sock.close()
        until(lambda: idle(server))
    assert order.count("encode") == 3
    at = [i for i, name in enumerate(order) if name == "encode"]
    assert all(later - sooner > 1 for sooner, later in itertools.pairwise(at))


def test_a_client_that_does_not_read_loses_its_place(engine: Any, gate: Gate) -> None:
    """Its connection is full, so the server cannot send; the clock ends it all the same."""
    with serving(engine, request_timeout=1.0) as server:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        sock.connect(("127.0.0.1", server.port))
        text = json.dumps(chat(max_completion_tokens=450, stream=True)).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
        sock.sendall(f"{head}\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        until(lambda: server.state._lives)
        until(lambda: idle(server), 10)
        sock.close()
        assert server.chat().status_code == 200


def test_decoded_media_are_bounded(engine: Any, gate: Gate, picture: Image.Image) -> None:
    """Who comes when the room is full waits, and is served when there is some again."""
    gate.open.clear()
    body = chat(parts=[image_part(picture)])
    with serving(engine, max_decoded_bytes=160 * 128 * 3 + 1, media_workers=1) as server:
        intake = server.state.intake
        socks = [post(server, body) for _ in range(4)]
        until(lambda: server.state.thread.num_unfinished == 2)
        time.sleep(0.1)
        assert intake._held == 2 * 160 * 128 * 3
        gate.open.set()
        assert [answer(sock)[0] for sock in socks] == [200] * 4
        until(lambda: idle(server))


def test_pixels_are_not_kept_for_a_request_that_generates(
    engine: Any, gate: Gate, picture: Image.Image
) -> None:
    gate.seconds = 0.01
    with serving(engine) as server:
        sock = post(server, chat(parts=[image_part(picture)], max_completion_tokens=300))
        until(lambda: engine.loop._scheduler.running)
        until(lambda: server.state.intake._held == 0, 1)
        assert engine.loop._scheduler.running
        sock.close()
        until(lambda: idle(server))
