# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Case 32 of the reference list: bodies and heads that are too large, too slow, or not what they
say; and case 52: the API key."""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from raw_http import head, raw, status_and_code
from running_server import Running, chat, serving

LIMIT = 100_000


@pytest.fixture(scope="module")
def small(engine: Any) -> Iterator[Running]:
    options = {"max_body_bytes": LIMIT, "max_header_bytes": 8192, "upload_timeout": 0.5}
    with serving(engine, **options) as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/nothing"])
def test_announced_body_too_large(small: Running, path: str) -> None:
    """Answered though nothing of it was sent."""
    answer = raw(small, head(f"Content-Length: {LIMIT + 1}", path=path))
    assert status_and_code(answer) == (413, "body_too_large")


def test_body_at_the_limit(small: Running) -> None:
    body = json.dumps(chat()).encode()
    body += b" " * (LIMIT - len(body))
    assert raw(small, head(f"Content-Length: {LIMIT}"), body).startswith(b"HTTP/1.1 200")


def test_chunked_body_too_large(small: Running) -> None:
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    pieces = [head("Transfer-Encoding: chunked"), *[chunk] * (LIMIT // 0x4000 + 1)]
    assert status_and_code(raw(small, *pieces)) == (413, "body_too_large")


def test_chunked_body_is_not_kept(small: Running) -> None:
    """A gigabyte of chunks is not held, whatever becomes of the connection."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    raw(small, head("Transfer-Encoding: chunked"), *[chunk] * 300)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


def test_body_shorter_than_announced(small: Running) -> None:
    began = time.monotonic()
    answer = raw(small, head("Content-Length: 500"), b'{"model": ')
    assert status_and_code(answer) == (408, "upload_timeout")
    assert 0.4 < time.monotonic() - began < 3


def test_body_longer_than_announced(small: Running) -> None:
    """What comes behind is another request, and no good one."""
    body = json.dumps(chat()).encode()
    answer = raw(small, head(f"Content-Length: {len(body)}"), body + b"x" * 50 + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("value", ["-1", "1e3", "abc", "0x10", "5, 6"])
def test_lengths_that_are_none(small: Running, value: str) -> None:
    status, _ = status_and_code(raw(small, head(f"Content-Length: {value}"), b"{}"))
    assert status == 400


def test_body_that_drips(small: Running) -> None:
    """A byte now and then does not keep it alive."""
    began = time.monotonic()
    answer = raw(small, head("Content-Length: 500"), *[b" "] * 60, pause=0.1)
    assert time.monotonic() - began < 4  # all of it would take 6
    assert not answer or status_and_code(answer) == (408, "upload_timeout")


def test_head_that_drips(small: Running) -> None:
    began = time.monotonic()
    line = b"X-A: b\r\n"
    answer = raw(small, b"POST / HTTP/1.1\r\n", *[line] * 30, pause=0.1)
    assert time.monotonic() - began < 4
    assert not answer or status_and_code(answer) == (408, "request_timeout")


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_connection_without_a_request(small: Running, before: bytes) -> None:
    with socket.create_connection(("127.0.0.1", small.port), timeout=8) as sock:
        if before:
            sock.sendall(before)
            assert sock.recv(999).startswith(b"HTTP/1.1 200")
            sock.sendall(b"GET")  # begins another one and stops
        began = time.monotonic()
        while sock.recv(999):
            pass
        assert time.monotonic() - began < 3


def test_head_too_long(small: Running) -> None:
    answer = raw(small, head("X-Long: " + "a" * 10_000))
    assert status_and_code(answer) == (431, "head_too_large")
    answer = raw(small, b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status_and_code(answer)[0] == 431
    # Longer than one read: not even kept.
    answer = raw(small, head()[:-2], *[b"X-Long: " + b"a" * 50_000] * 5, pause=0.02)
    assert not answer or status_and_code(answer) == (400, "bad_request")
    with small.client() as client:
        assert client.get("/health", headers={"X-Long": "a" * 4000}).status_code == 200


@pytest.mark.parametrize(
    "text",
    [b"\x16\x03\x01\x02\x00", b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 9999],
)
def test_no_http(small: Running, text: bytes) -> None:
    answer = raw(small, text, b"\r\n\r\n")
    assert not answer or status_and_code(answer)[0] in (400, 404, 408)
    with small.client() as client:
        assert client.get("/health").status_code == 200


def test_many_slow_clients_leave_the_others_alone(small: Running) -> None:
    socks = [socket.create_connection(("127.0.0.1", small.port)) for _ in range(50)]
    for sock in socks:
        sock.sendall(head("Content-Length: 500"))
    try:
        assert small.chat().status_code == 200
    finally:
        for sock in socks:
            sock.close()


KEY = "sk-gehe1m"


@pytest.fixture(scope="module")
def locked(engine: Any) -> Iterator[Running]:
    with serving(engine, api_key=KEY) as running:
        yield running


def test_case_52_every_route_asks_for_the_key(locked: Running) -> None:
    with locked.client() as client:
        paths = client.get("/openapi.json", headers={"Authorization": f"Bearer {KEY}"}).json()
        routes = [(m, p) for p, item in paths["paths"].items() for m in item]
        assert len(routes) == 7
        for method, path in [*routes, ("get", "/openapi.json"), ("get", "/nothing")]:
            if path == "/health":
                continue
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": f"Basic {KEY}"},
                {"Authorization": KEY},
                {"Authorization": f"Bearer {KEY}x"},
                {"Authorization": "Bearer"},
                {"Authorization": "Bearer \xff"},
            ):
                raw_headers = [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
                reply = client.request(method, path, headers=raw_headers)
                assert reply.status_code == 401, (method, path, headers)
                assert reply.json()["error"]["code"] == "invalid_api_key"
                assert reply.headers["www-authenticate"] == "Bearer"
                assert KEY not in reply.text
        assert client.get("/health").status_code == 200
        right = {"Authorization": f"Bearer {KEY}"}
        reply = client.post("/v1/chat/completions", json=chat(), headers=right)
        assert reply.status_code == 200
        assert client.get("/metrics", headers=right).status_code == 200


def test_case_52_the_key_comes_before_the_body(locked: Running) -> None:
    answer = raw(locked, head("Content-Length: 1000"))
    assert status_and_code(answer) == (401, "invalid_api_key")


def test_case_52_keys_are_compared_in_constant_time(
    locked: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hmac

    seen = []
    compare = hmac.compare_digest

    def spy(a: Any, b: Any) -> bool:
        seen.append(len(a))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    with locked.client() as client:
        assert client.get("/version", headers={"Authorization": "Bearer x"}).status_code == 401
    assert seen == [1]


def test_case_52_metrics_may_be_left_open(engine: Any) -> None:
    options = {"api_key": KEY, "metrics_require_key": False}
    with serving(engine, **options) as server, server.client() as client:
        for path in ("/metrics", "/prometheus/metrics", "/health"):
            assert client.get(path).status_code == 200
        assert client.get("/v1/models").status_code == 401


def test_stalled_uploads_do_not_fill_the_queue_for_ever(engine: Any) -> None:
    with serving(engine, max_queue_size=2, upload_timeout=0.4) as server:
        socks = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
        for sock in socks:
            sock.sendall(head("Content-Length: 500"))
        time.sleep(0.1)
        assert server.chat().status_code == 429
        time.sleep(0.6)
        assert server.chat().status_code == 200
        for sock in socks:
            sock.close()
