# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever is sent, the answer is a success or says what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running_server import Running, chat

from tensorrt_llm_ext.serve.protocol import ChatCompletionRequest, ErrorBody

FEW = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as made:
        yield made


def check(reply: httpx.Response) -> None:
    assert reply.status_code < 500, reply.text
    if reply.status_code >= 400:
        ErrorBody.model_validate(reply.json())


@FEW
@given(key=st.sampled_from(sorted(ChatCompletionRequest.model_fields)), value=JSON)
def test_one_key_of_another_kind(client: httpx.Client, key: str, value: Any) -> None:
    check(client.post("/v1/chat/completions", json={**chat(max_completion_tokens=2), key: value}))


@FEW
@given(body=JSON)
def test_any_json(client: httpx.Client, body: Any) -> None:
    check(client.post("/v1/chat/completions", json=body))


@FEW
@given(content=st.binary(max_size=200))
def test_any_bytes(client: httpx.Client, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    check(client.post("/v1/chat/completions", content=content, headers=headers))


def test_it_still_serves(server: Running) -> None:
    assert server.chat().status_code == 200
