# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Requests byte by byte, over connections of their own."""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import Any

from running_server import Running


def raw(server: Running, *pieces: bytes, pause: float = 0, wait: float = 10) -> bytes:
    """Send pieces, with pauses between, and read until the connection is closed or answers."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as sock:
        try:
            for i, piece in enumerate(pieces):
                if i:
                    time.sleep(pause)
                sock.sendall(piece)
        except OSError:
            pass  # it was closed before all was sent
        got = b""
        try:
            while chunk := sock.recv(65536):
                got += chunk
                head, _, body = got.partition(b"\r\n\r\n")
                if body and b"transfer-encoding" not in head.lower():
                    break
        except OSError:
            pass
        return got


def head(*lines: str, path: str = "/v1/chat/completions") -> bytes:
    fixed = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json"]
    return "\r\n".join([*fixed, *lines, "", ""]).encode()


def status_and_code(answer: bytes) -> tuple[int, str]:
    """Checks that it is OpenAI's form."""
    assert answer, "closed without an answer"
    first, _, body = answer.partition(b"\r\n\r\n")
    error, _ = json.JSONDecoder().raw_decode(body.decode())
    return int(first.split()[1]), error["error"]["code"]


def post(
    server: Running,
    body: dict[str, Any],
    headers: str = "",
    path: str = "/v1/chat/completions",
) -> socket.socket:
    """Send a request over a connection of its own."""
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    text = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\n{headers}\r\n"
    )
    sock.sendall(head.encode() + text)
    return sock


def answer(sock: socket.socket) -> tuple[int, str]:
    """Status and body of the answer to what was posted; closes the connection."""
    with sock, http.client.HTTPResponse(sock) as response:
        response.begin()
        return response.status, response.read().decode()
