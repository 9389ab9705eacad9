# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Bodies with keys of our own OpenAPI: never a 500. `make fuzz-api` does far more."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running_server import NAME, Running

from tensorrt_llm_ext.serve.app import ENGINE_PATHS

FUZZ = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 5)
    | st.sampled_from([2**31, 2**63, 10**30, -(10**30), 1e300, 0.5, 1.0, "1", "auto", "text"])
    | st.sampled_from(["data:image/png;base64,", "data:,", "file:///etc/passwd", "http://127.1/"])
    | st.text(max_size=4)
)
KEYS = st.sampled_from(["type", "text", "role", "content", "image_url", "url", "data", "format"])
ANY = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": SCALARS})
    | st.fixed_dictionaries(
        {
            "type": st.sampled_from(["image_url", "video_url", "audio_url"]),
            "image_url": st.fixed_dictionaries({"url": SCALARS}),
        }
    )
    | st.fixed_dictionaries(
        {
            "type": st.just("input_audio"),
            "input_audio": st.fixed_dictionaries({"data": SCALARS, "format": st.just("wav")}),
        }
    )
    | ANY,
    max_size=3,
)
GOOD: dict[str, Any] = {
    "/v1/chat/completions": {
        "model": NAME,
        "messages": [{"role": "user", "content": "hi"}],
        "max_completion_tokens": 2,
    },
    "/v1/embeddings": {"model": NAME, "input": []},
}


def properties(server: Running, path: str) -> list[str]:
    """Keys of the body that the route takes, by its OpenAPI."""
    openapi = httpx.get(f"{server.url}/openapi.json", trust_env=False).json()
    body = openapi["paths"][path]["post"]["requestBody"]
    name = body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
    return sorted(openapi["components"]["schemas"][name]["properties"])


@pytest.mark.parametrize("path", ENGINE_PATHS)
def test_no_body_gives_a_500(server: Running, path: str) -> None:
    # The keys that bound the work stay as they are.
    keys = [key for key in properties(server, path) if key not in ("model", "max_tokens")]
    changes = st.dictionaries(st.sampled_from([*keys, "no_such_key"]), ANY, max_size=3)
    media = st.fixed_dictionaries(
        {"messages": PARTS.map(lambda p: [{"role": "user", "content": p}])}
    )
    media |= st.fixed_dictionaries({"input": PARTS})
    seen: set[int] = set()
    client = httpx.Client(base_url=server.url, timeout=60, trust_env=False)

    @FUZZ
    @given(change=changes | media)
    def send(change: dict[str, Any]) -> None:
        body = {**GOOD[path], **change}
        answer = client.post(path, json=body)
        seen.add(answer.status_code)
        assert answer.status_code < 500, answer.text
        if answer.status_code != 200:
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["message"]

    with client:
        send()
    assert 400 in seen
    assert 200 in seen or path == "/v1/embeddings"


def test_neither_does_a_body_of_another_kind(server: Running) -> None:
    for content in (b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"{}" * 1000, b'{"a": NaN}'):
        for path in ENGINE_PATHS:
            answer = httpx.post(f"{server.url}{path}", content=content, trust_env=False)
            assert 400 <= answer.status_code < 500, content
            assert answer.json()["error"]["type"] == "invalid_request_error"
