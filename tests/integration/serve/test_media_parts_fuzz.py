# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of messages, nearly right or not at all: never a 500. `make fuzz-api` does far more."""

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


@pytest.mark.parametrize("path", ENGINE_PATHS)
def test_no_part_gives_a_500(server: Running, path: str) -> None:
    media = st.fixed_dictionaries(
        {"messages": PARTS.map(lambda p: [{"role": "user", "content": p}])}
    )
    changes = media if "chat" in path else st.fixed_dictionaries({"input": PARTS})
    seen: set[int] = set()
    client = httpx.Client(base_url=server.url, timeout=60, trust_env=False)

    @FUZZ
    @given(change=changes)
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
